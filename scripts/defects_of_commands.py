"""What gcloud does wrong when it runs commands on workers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence

import psutil
from comparison import NAME, Comparison, Did, Finished, until

#: Seconds that a client's remote commands have to end in after it has been interrupted.
_GRACE = 10.0


def subset_status(comparison: Comparison) -> None:
    """--worker=2,3 --command='exit 5' ends with 0."""

    def judge(done: Finished) -> Did:
        return Did(f"exit {done.returncode}", done.returncode == 5)

    comparison.both(
        "exit 5 on workers 2 and 3",
        lambda: judge(comparison.gcloud("--worker=2,3", "--command=exit 5")),
        lambda: judge(comparison.tpukit("run", NAME, "--worker", "2,3", "--", "exit 5")),
    )


def output_directory(comparison: Comparison) -> None:
    def judge(run: Callable[[str], Finished]) -> Did:
        folder = comparison.scratch("output")
        folder.mkdir()
        done = run(str(folder))
        files = [file for file in folder.glob("*") if file.read_text() == "hello\n"]
        text = f"exit {done.returncode}, {len(files)} of 4 outputs in files"
        return Did(text, (done.returncode, len(files)) == (0, 4))

    def with_gcloud(folder: str) -> Finished:
        return comparison.gcloud(
            "--worker=all", f"--output-directory={folder}", "--command=echo hello"
        )

    def with_tpukit(folder: str) -> Finished:
        return comparison.tpukit("run", NAME, "--output-directory", folder, "--", "echo hello")

    comparison.both("--output-directory", lambda: judge(with_gcloud), lambda: judge(with_tpukit))


def impostor(comparison: Comparison) -> None:
    """Another machine answers the first ssh: its host key is not that of the guest attributes.

    On later connections gcloud refuses some 4 % of impostors: where the last six characters of the
    host key have no capital letter. It looks for them, as they are, in a file that OpenSSH writes
    in small letters (googlecloudsdk/command_lib/util/ssh/ssh.py, ContainsAlias).
    """

    def judge(run: Callable[[str], Finished]) -> Did:
        ran = comparison.scratch("ran")
        done = run(f"touch {ran}")
        note = "ran the command" if ran.exists() else "did not run it"
        refused = bool(done.returncode) and "host key" in done.stderr.lower()
        return Did(f"exit {done.returncode}, {note}", refused and not ran.exists())

    comparison.forget_hosts()
    comparison.fault(0, "swapped-host-key")
    comparison.both(
        "an impostor with another host key",
        lambda: judge(lambda line: comparison.gcloud("--worker=0", f"--command={line}")),
        lambda: judge(lambda line: comparison.tpukit("run", NAME, "--worker", "0", "--", line)),
    )
    comparison.heal()
    comparison.forget_hosts()


def interrupt(comparison: Comparison) -> None:
    """Ctrl-C while every worker runs a long command."""

    def judge(start: Callable[[str], Sequence[str]]) -> Did:
        mark = str(comparison.scratch("mark"))
        process = subprocess.Popen(
            start(f"exec -a {mark} sleep 1000"),
            env=comparison.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            until(lambda: len(_running(mark)) == 4 or process.poll() is not None)
            if (started := len(_running(mark))) < 4:
                return Did(f"started {started} of 4", False)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all that it runs
            if not until(lambda: process.poll() is not None):
                return Did("does not end", False)
            until(lambda: not _running(mark), _GRACE)
            left = len(_running(mark))
        finally:
            process.kill()
            for program in _running(mark):
                program.kill()
        return Did(f"{left} of 4 still run", process.returncode != 0 and not left)

    comparison.both(
        "Ctrl-C",
        lambda: judge(
            lambda command: comparison.gcloud_words("--worker=all", f"--command={command}")
        ),
        lambda: judge(lambda command: comparison.tpukit_words("run", NAME, "--", command)),
    )


def standard_input(comparison: Comparison) -> None:
    def judge(done: Finished) -> Did:
        got = [line for line in done.stdout.splitlines() if line.split()[-1:] == ["5"]]
        return Did(f"{len(got)} of 4 workers got it", len(got) == 4)

    given = {"stdin": None, "input": "12345"}
    comparison.both(
        "standard input for all workers",
        lambda: judge(comparison.gcloud("--worker=all", "--command=wc -c", **given)),
        lambda: judge(comparison.tpukit("run", NAME, "--stdin", "--", "wc -c", **given)),
    )


def whose_output(comparison: Comparison) -> None:
    def judge(done: Finished) -> Did:
        lines = [line for line in done.stdout.splitlines() if line.endswith("same")]
        return Did(", ".join(sorted(lines)), len(set(lines)) == len(lines) == 4)

    comparison.both(
        "echo same on every worker",
        lambda: judge(comparison.gcloud("--worker=all", "--command=echo same")),
        lambda: judge(comparison.tpukit("run", NAME, "--", "echo same")),
    )


def batches(comparison: Comparison) -> None:
    """A command that fails on every worker, on two of them at a time."""

    def judge(run: Callable[[str], Finished]) -> Did:
        mark = comparison.scratch("ran")
        done = run(f"touch {mark}-$(hostname); exit 3")
        ran = len(list(mark.parent.glob("ran-*")))
        return Did(f"exit {done.returncode}, ran on {ran} of 4", (ran, done.returncode) == (4, 3))

    def with_gcloud(command: str) -> Finished:
        words = ("ssh", NAME, "--worker=all", "--batch-size=2", f"--command={command}")
        return comparison.any_gcloud(*words, track=("alpha",))

    comparison.both(
        "exit 3 on all, two workers at a time",
        lambda: judge(with_gcloud),
        lambda: judge(lambda line: comparison.tpukit("run", NAME, "--at-once", "2", "--", line)),
    )


CASES = (
    subset_status,
    output_directory,
    impostor,
    interrupt,
    standard_input,
    whose_output,
    batches,
)


def _running(name: str) -> Sequence[psutil.Process]:
    """Return the processes that call themselves so; portable workers run them on this machine."""
    return [process for process in psutil.process_iter() if _is(process, name)]


def _is(process: psutil.Process, name: str) -> bool:
    try:
        return process.cmdline()[:1] == [name] and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
