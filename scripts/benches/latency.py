"""Wall time of first and second commands where every answer of the API takes 150 ms longer."""

from __future__ import annotations

import argparse
import queue
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from statistics import median
from urllib.parse import urlsplit

from measure import TPUKIT, Cost, cost, emulator, show, tpukit

TYPE, NAME = "v4-32", "bench"  #: four workers
COLUMNS = ("COMMAND", "FIRST s", "AGAIN s", "GCLOUD s", "AGAIN, CPU ms", "CPU BEFORE", "RATIO")
#: tpukit's words, and those of gcloud that do the same.
COMMANDS = {
    "list": (("list",), ("list",)),
    "run -- true": (("run", NAME, "--", "true"), ("ssh", NAME, "--worker=all", "--command=true")),
    "ssh -- true": (("ssh", NAME, "--", "true"), ("ssh", NAME, "--command=true")),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=3, help="runs of each, of which the median")
    parser.add_argument("--delay", type=float, default=0.15, metavar="SECONDS")
    parser.add_argument("--alone", action="store_true", help="without gcloud")
    parser.add_argument("--before", metavar="CHECKOUT", help="another version, to compare CPU with")


def run(options: argparse.Namespace) -> int:
    gcloud = None if options.alone else shutil.which("gcloud")
    with emulator() as near:
        tpukit(near, "create", TYPE, NAME)
        tpukit(near, "firewall", "apply", NAME)
        with delayed(near["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"], options.delay) as (there, here):
            far = {name: value.replace(there, here) for name, value in near.items()}
            far["HOME"] = near["TPUKIT_HOME"]  # of gcloud's keys and known hosts
            rows = [_row(name, options, near, far, gcloud) for name in COMMANDS]
    show(COLUMNS, [[str(cell) for cell in row] for row in rows])
    return int(any(float(row[2]) > float(row[1]) for row in rows if row[0] != "list"))


def _row(
    name: str,
    options: argparse.Namespace,
    near: Mapping[str, str],
    far: Mapping[str, str],
    gcloud: str | None,
) -> Sequence[str]:
    ours, theirs = COMMANDS[name]
    words = [*TPUKIT, *ours]
    rival = [str(gcloud), "--quiet", "compute", "tpus", "tpu-vm", *theirs]
    before = {**near, "PYTHONPATH": options.before or ""}
    first, again, other, now, then = [], [], [], [], []
    for _ in range(options.runs + 1):  # the first of each warms caches and is thrown away
        shutil.rmtree(f"{near['TPUKIT_HOME']}/state/hints", ignore_errors=True)
        first.append(cost(words, far).wall)
        again.append(cost(words, far).wall)
        now.append(cost(words, near))
        other.append(cost(rival, far).wall if gcloud else 0.0)
        then.append(cost(words, before) if options.before else Cost(0.0, 0.0, 0.0))
    pairs = [(each.cpu, old.cpu) for each, old in zip(now[1:], then[1:], strict=True)]
    return [
        name,
        *(f"{median(each[1:]):.2f}" for each in (first, again)),
        f"{median(other[1:]):.2f}" if gcloud else "-",
        f"{1000 * median(cpu for cpu, _ in pairs):.0f}",
        *(
            (f"{1000 * median(old for _, old in pairs):.0f}",
             f"{median(cpu / old for cpu, old in pairs):.2f}")
            if options.before else ("-", "-")
        ),
    ]  # fmt: skip


@contextmanager
def delayed(url: str, seconds: float) -> Iterator[tuple[str, str]]:
    """Serve an API's address on another port, later; yield both hosts with their ports.

    A connection takes `seconds` to be made, and so does each answer, as by a far network.
    """
    parts = urlsplit(url)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        port = listener.getsockname()[1]

        def accept() -> None:
            with suppress(OSError):  # it was closed
                while True:
                    near, _ = listener.accept()
                    threading.Thread(target=serve, args=(near,), daemon=True).start()

        def serve(near: socket.socket) -> None:
            time.sleep(seconds)
            far = socket.create_connection((str(parts.hostname), int(parts.port or 80)))
            answers = queue.SimpleQueue[tuple[float, bytes]]()
            for work in ((_read, far, answers), (_hand_on, near, answers, seconds)):
                threading.Thread(target=work[0], args=work[1:], daemon=True).start()
            with suppress(OSError):
                while data := near.recv(1 << 16):
                    far.sendall(data)
            with suppress(OSError):
                far.shutdown(socket.SHUT_WR)

        threading.Thread(target=accept, daemon=True).start()
        yield parts.netloc, f"127.0.0.1:{port}"


def _read(far: socket.socket, answers: queue.SimpleQueue[tuple[float, bytes]]) -> None:
    data = b"-"
    while data:
        try:
            data = far.recv(1 << 16)
        except OSError:
            data = b""
        answers.put((time.monotonic(), data))


def _hand_on(
    near: socket.socket, answers: queue.SimpleQueue[tuple[float, bytes]], seconds: float
) -> None:
    with near, suppress(OSError):
        while True:
            came, data = answers.get()
            time.sleep(max(0.0, came + seconds - time.monotonic()))
            if not data:
                return
            near.sendall(data)
