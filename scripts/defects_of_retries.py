"""Where gcloud tries ten times, five seconds apart.

These run at the same time: each leaves the others' worker, key and fault alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from comparison import NAME, Comparison, Did, Finished


def repeated_command(comparison: Comparison) -> None:
    """A command that exits 255, which is also ssh's own status for a lost connection."""

    def judge(run: Callable[[str], Finished]) -> Did:
        count = comparison.scratch("count")
        count.touch()
        done = run(f"echo x >>{count}; exit 255")
        runs = len(count.read_text().splitlines())
        times = "once" if runs == 1 else f"{runs} times"
        return Did(f"exit {done.returncode}, ran {times}", (runs, done.returncode) == (1, 255))

    comparison.both(
        "a command that exits 255",
        lambda: judge(lambda line: comparison.gcloud("--worker=0", f"--command={line}")),
        lambda: judge(lambda line: comparison.tpukit("run", NAME, "--worker", "0", "--", line)),
    )


def dead_worker(comparison: Comparison) -> None:
    """One of four workers refuses connections: is it named, and in what words?"""
    gcloud, ours = comparison.scratch("gcloud"), comparison.scratch("ours")
    comparison.fault(2, "refusing")
    theirs = _timed(lambda: comparison.gcloud("--worker=all", f"--command={_mark(gcloud)}"))
    own = _timed(lambda: comparison.tpukit("run", NAME, "--timeout", "20s", "--", _mark(ours)))
    comparison.heal()

    def named(done: Finished, seconds: float, mark: Path) -> Did:
        failures = [line for line in done.stderr.splitlines() if "Attempting" not in line]
        names = any("worker 2" in line for line in failures)
        note = f"{'names' if names else 'does not name'} it"
        ran = len(list(mark.parent.iterdir()))
        text = f"exit {done.returncode} after {seconds:.0f} s, {note}, ran on {ran} of 4"
        return Did(text, names and (done.returncode, ran) == (255, 3))

    def worded(done: Finished) -> Did:
        spilt = "Traceback" in done.stderr
        warnings = sum(line.startswith("warning:") for line in done.stderr.splitlines())
        words = "a Python traceback" if spilt else f"{warnings} warning"
        return Did(words, warnings == 1 and not spilt)

    comparison.both(
        "one worker refuses connections",
        lambda: named(*theirs, gcloud),
        lambda: named(*own, ours),
    )
    comparison.both(
        "what is printed about it",
        lambda: worded(theirs[0]),
        lambda: worded(own[0]),
    )


def missing_file(comparison: Comparison) -> None:
    """A file that is not there is not there the tenth time either."""
    missing = comparison.scratch("missing")

    def judge(run: Callable[[], Finished]) -> Did:
        done, seconds = _timed(run)
        tries = sum(str(missing) in line for line in done.stderr.splitlines())
        times = "once" if tries == 1 else f"{tries} times"
        return Did(
            f"exit {done.returncode} after {seconds:.0f} s, looked for it {times}",
            bool(done.returncode) and tries == 1,
        )

    comparison.both(
        "copy a file that is missing",
        lambda: judge(lambda: comparison.any_gcloud("scp", str(missing), f"{NAME}:")),
        lambda: judge(lambda: comparison.tpukit("cp", str(missing), f"{NAME}:")),
    )


def two_at_once(comparison: Comparison) -> None:
    """A new key, while another user's is being written: the API answers 409 ABORTED."""
    rule = ("--method", "nodes.patch", "--status", "ABORTED", "--times", "1")

    def judge(run: Callable[[], Finished]) -> Did:
        comparison.arrange("emulator", "fault", "add", *rule)
        done, seconds = _timed(run)
        # Not cleared: that would take the dead worker's fault away too.
        met = json.loads(comparison.arrange("emulator", "fault", "list", "--json"))["faults"][-1][
            "served"
        ]
        note = "" if met else ", met no other user"
        text = f"exit {done.returncode} after {seconds:.0f} s{note}"
        return Did(text, met == 1 and done.returncode == 0)

    key = f"--ssh-key-file={comparison.scratch('key')}"
    home = str(comparison.scratch("home"))
    comparison.both(
        "a first ssh while another user's key is written",
        lambda: judge(lambda: comparison.gcloud(key, "--worker=0", "--command=true")),
        lambda: judge(lambda: comparison.tpukit("ssh", NAME, "--", "true", home=home)),
    )


CASES = (repeated_command, dead_worker, missing_file, two_at_once)


def _timed(run: Callable[[], Finished]) -> tuple[Finished, float]:
    started = time.monotonic()
    return run(), time.monotonic() - started


def _mark(path: Path) -> str:
    """Return a command that leaves a file of its worker's."""
    return f"touch {path}-$(hostname)"
