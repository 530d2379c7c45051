"""What gcloud does wrong when it runs commands on workers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from defect_world import NAME, Did, Finished, World


def subset_status(world: World) -> None:
    """--worker=2,3 --command='exit 5' ends with 0."""

    def judge(done: Finished) -> Did:
        return Did(f"exit {done.returncode}", done.returncode == 5)

    world.both(
        "workers 2,3 exit 5: the status",
        lambda: judge(world.gcloud("--worker=2,3", "--command=exit 5")),
        lambda: judge(world.tpukit("run", NAME, "--worker", "2,3", "--", "exit 5")),
    )


def output_directory(world: World) -> None:
    def judge(done: Finished, folder: Path) -> Did:
        files = [file for file in folder.glob("*") if "hello" in file.read_text()]
        return Did(f"exit {done.returncode}, {len(files)} of 4 outputs in files", len(files) == 4)

    def with_gcloud() -> Did:
        folder = world.scratch("output")
        folder.mkdir()
        option = f"--output-directory={folder}"
        return judge(world.gcloud("--worker=all", option, "--command=echo hello"), folder)

    def with_tpukit() -> Did:
        folder = world.scratch("output")
        words = ("run", NAME, "--output-directory", str(folder), "--", "echo hello")
        return judge(world.tpukit(*words), folder)

    world.both("--output-directory", with_gcloud, with_tpukit)


def impostor(world: World) -> None:
    """Another machine answers: its host key is not the one in the guest attributes."""

    def judge(done: Finished, ran: Path) -> Did:
        told = "ran the command" if ran.exists() else "did not run it"
        return Did(f"exit {done.returncode}, {told}", done.returncode == 9 and not ran.exists())

    def with_gcloud() -> Did:
        ran = world.scratch("ran")
        return judge(world.gcloud("--worker=0", f"--command=touch {ran}"), ran)

    def with_tpukit() -> Did:
        ran = world.scratch("ran")
        return judge(world.tpukit("run", NAME, "--worker", "0", "--", f"touch {ran}"), ran)

    world.fault(0, "swapped-host-key")
    world.both("an impostor with another host key", with_gcloud, with_tpukit)
    world.heal()


def repeated_command(world: World) -> None:
    """A command that exits 255, which is also ssh's own status for a lost connection."""

    def judge(done: Finished, count: Path) -> Did:
        runs = len(count.read_text().splitlines())
        return Did(f"exit {done.returncode}, ran {runs} times", runs == 1)

    def with_gcloud() -> Did:
        count = world.scratch("count")
        return judge(world.gcloud("--worker=0", f"--command=echo x >>{count}; exit 255"), count)

    def with_tpukit() -> Did:
        count = world.scratch("count")
        words = ("run", NAME, "--worker", "0", "--", f"echo x >>{count}; exit 255")
        return judge(world.tpukit(*words), count)

    world.both("a command that exits 255", with_gcloud, with_tpukit)


def dead_worker(world: World) -> None:
    """One of four workers refuses connections."""

    def judge(words: Callable[[], Finished]) -> Did:
        started = time.monotonic()
        done = words()
        told = "traceback" if "Traceback" in done.stderr else "no traceback"
        named = "worker 2" in done.stderr
        naming = "names it" if named else "does not name it"
        text = f"exit {done.returncode} after {time.monotonic() - started:.0f} s, {naming}, {told}"
        return Did(text, done.returncode == 255 and named and told == "no traceback")

    world.fault(2, "refusing")
    world.both(
        "one worker refuses connections",
        lambda: judge(lambda: world.gcloud("--worker=all", "--command=true")),
        lambda: judge(lambda: world.tpukit("run", NAME, "--timeout", "15s", "--", "true")),
    )
    world.heal()


def interrupt(world: World) -> None:
    """Ctrl-C while every worker runs a long command."""

    def judge(start: Callable[[str], Sequence[str]]) -> Did:
        mark = world.scratch("mark")
        command = f"touch {mark}-$TPU_WORKER_ID; exec -a {mark} sleep 1000"
        process = subprocess.Popen(
            start(command),
            env=world.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        limit = time.monotonic() + 120
        while len(list(mark.parent.glob("mark-*"))) < 4:
            if time.monotonic() > limit or process.poll() is not None:
                raise SystemExit("the command did not start on every worker")
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        process.wait()
        left = [each for each in psutil.process_iter() if _named(each, str(mark))]
        for each in left:
            each.kill()
        return Did(f"exit {process.returncode}, {len(left)} of 4 still run", not left)

    world.both(
        "Ctrl-C",
        lambda: judge(lambda command: world.gcloud_words("--worker=all", f"--command={command}")),
        lambda: judge(lambda command: world.tpukit_words("run", NAME, "--", command)),
    )


def standard_input(world: World) -> None:
    def judge(done: Finished) -> Did:
        got = [line for line in done.stdout.splitlines() if line.endswith("5")]
        return Did(f"{len(got)} of 4 workers got it", len(got) == 4)

    given = {"stdin": None, "input": "12345"}
    world.both(
        "standard input for all workers",
        lambda: judge(world.gcloud("--worker=all", "--command=wc -c", **given)),
        lambda: judge(world.tpukit("run", NAME, "--stdin", "--", "wc -c", **given)),
    )


def whose_output(world: World) -> None:
    def judge(done: Finished) -> Did:
        lines = [line for line in done.stdout.splitlines() if line.endswith("same")]
        told = len(set(lines)) == 4
        return Did("told apart by a prefix" if told else "the same line four times", told)

    world.both(
        "whose output it is",
        lambda: judge(world.gcloud("--worker=all", "--command=echo same")),
        lambda: judge(world.tpukit("run", NAME, "--", "echo same")),
    )


CASES = (
    subset_status,
    output_directory,
    impostor,
    repeated_command,
    dead_worker,
    interrupt,
    standard_input,
    whose_output,
)


def _named(process: psutil.Process, word: str) -> bool:
    try:
        return process.cmdline()[:1] == [word] and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
