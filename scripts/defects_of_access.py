"""What gcloud does wrong with files, keys, flags and batches."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable

from defect_world import NAME, Did, Finished, World
from measure import tpukit


def missing_file(world: World) -> None:
    """A file that is not there is not there the tenth time either."""

    def judge(run: Callable[[], Finished]) -> Did:
        started = time.monotonic()
        done = run()
        seconds = time.monotonic() - started
        return Did(
            f"exit {done.returncode} after {seconds:.0f} s", bool(done.returncode) and seconds < 10
        )

    missing = str(world.scratch("missing"))
    world.both(
        "copy a file that is missing",
        lambda: judge(lambda: world.any_gcloud("scp", missing, f"{NAME}:")),
        lambda: judge(lambda: world.tpukit("cp", missing, f"{NAME}:")),
    )


def key_expiry(world: World) -> None:
    """A flag that limits a key's life: kept, or refused, but never dropped without a word."""

    def with_gcloud() -> Did:
        key = f"--ssh-key-file={world.scratch('key')}"
        done = world.gcloud("--ssh-key-expire-after=2m", key, "--worker=0", "--command=true")
        kept = world.any_gcloud("describe", NAME, "--format=value(metadata)").stdout
        told = "kept" if "expireOn" in kept else "dropped without a word"
        return Did(f"exit {done.returncode}, {told}", "expireOn" in kept)

    def with_tpukit() -> Did:
        done = world.tpukit("ssh", NAME, "--ssh-key-expire-after", "2m", "--", "true")
        refused = done.returncode == 2 and "--ssh-key-expire-after" in done.stderr
        told = "says that there is no such flag" if refused else "taken"
        return Did(f"exit {done.returncode}, {told}", refused)

    world.both("--ssh-key-expire-after", with_gcloud, with_tpukit)


def tunnel(world: World) -> None:
    """gcloud's help promises that %TPU% becomes the worker's address; tpukit needs no address."""

    def with_gcloud() -> Did:
        done = world.gcloud("--dry-run", "--ssh-flag=-L 8080:%TPU%:80")
        left = "%TPU%" in done.stdout
        return Did("%TPU% is left as it is" if left else "an address is put in", not left)

    def with_tpukit() -> Did:
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=_greet, args=(server,), daemon=True).start()
            answer = _through_a_tunnel(world, server.getsockname()[1])
        return Did("led there" if answer == b"hello" else "led nowhere", answer == b"hello")

    world.both("a tunnel to a port of a worker", with_gcloud, with_tpukit)


def batches(world: World) -> None:
    """A command that fails on every worker, on two of them at a time."""

    def judge(run: Callable[[str], Finished]) -> Did:
        mark = world.scratch("ran")
        done = run(f"touch {mark}-$TPU_WORKER_ID; exit 3")
        ran = len(list(mark.parent.glob("ran-*")))
        return Did(f"exit {done.returncode}, ran on {ran} of 4", (ran, done.returncode) == (4, 3))

    def with_gcloud(command: str) -> Finished:
        words = ("ssh", NAME, "--worker=all", "--batch-size=2", f"--command={command}")
        return world.any_gcloud(*words, track=("alpha",))

    world.both(
        "two workers at a time, and a command that fails",
        lambda: judge(with_gcloud),
        lambda: judge(lambda line: world.tpukit("run", NAME, "--at-once", "2", "--", line)),
    )


def two_at_once(world: World) -> None:
    """A new key, while another user's is being written: the API answers 409 ABORTED."""

    def judge(run: Callable[[], Finished]) -> Did:
        fault = ("--method", "nodes.patch", "--status", "ABORTED", "--times", "1")
        tpukit(world.environment, "emulator", "fault", "add", *fault)
        started = time.monotonic()
        done = run()
        told = f"exit {done.returncode} after {time.monotonic() - started:.0f} s"
        tpukit(world.environment, "emulator", "fault", "clear")
        return Did(told, done.returncode == 0)

    key = f"--ssh-key-file={world.scratch('key')}"
    home = str(world.scratch("home"))
    world.both(
        "a first ssh while another user's key is written",
        lambda: judge(lambda: world.gcloud(key, "--worker=0", "--command=true")),
        lambda: judge(lambda: world.tpukit("ssh", NAME, "--", "true", home=home)),
    )


def newer_generation(world: World) -> None:
    """A slice by generation and topology."""

    def judge(done: Finished) -> Did:
        return Did(f"exit {done.returncode}", done.returncode == 0)

    asked = ("--type=v6e", "--topology=2x2", "--version=v2-alpha-tpuv6e")
    world.both(
        "create a v6e slice of 2x2 chips by its generation",
        lambda: judge(world.any_gcloud("create", "newer-gcloud", *asked)),
        lambda: judge(world.tpukit("create", "v6e-4", "newer-tpukit")),
    )


CASES = (
    missing_file,
    key_expiry,
    tunnel,
    batches,
    two_at_once,
    newer_generation,
)


def _greet(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"hello")


def _through_a_tunnel(world: World, port: int) -> bytes:
    """Return what a port of worker 0 says; portable workers have this machine's ports."""
    with subprocess.Popen(
        world.tpukit_words("forward", NAME, f"0:{port}"),
        env=world.environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr
            here = int(process.stderr.readline().split()[0].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", here), 60) as connection:
                return connection.recv(100)
        finally:
            process.terminate()
