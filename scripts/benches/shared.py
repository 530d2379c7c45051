"""OpenSSH's own way to share connections: a process a worker stays, and later commands ask it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
from measure import Cost, cost
from sshd import SshdWorkers


def shared(workers: SshdWorkers, count: int) -> Cost:
    """Measure `true` on workers to which OpenSSH has connections already."""
    places = workers.addresses[:count]
    with shared_connections(workers, places) as sockets:
        masters = _masters(sockets)
        before = sum(map(_cpu, masters))
        loop = _loop(sockets, places, "ssh -F none", "true")
        client = cost(["sh", "-c", loop], workers.environment)
        spent = sum(map(_cpu, masters)) - before
        memory = sum(master.memory_full_info().pss for master in masters) / 2**20
        return replace(client, cpu=client.cpu + spent, memory=memory)


@contextmanager
def shared_connections(workers: SshdWorkers, places: Sequence[str]) -> Iterator[Path]:
    """Let OpenSSH connect to workers; yield the folder of its sockets, named by address."""
    sockets = workers.known_hosts.parent / "shared"
    sockets.mkdir(exist_ok=True)
    master = f"-M -N -f -o ControlPersist=600 -o KexAlgorithms=curve25519-sha256 {workers.options}"
    _each(sockets, places, f"ssh {master}")
    try:
        yield sockets
    finally:
        _each(sockets, places, "ssh -F none -O exit")


def _loop(sockets: Path, places: Sequence[str], command: str, words: str) -> str:
    return all_at_once(" ".join(places), f'{command} -S {sockets}/$place "$place" {words}')


def all_at_once(places: str, command: str) -> str:
    """Return the shell line that runs a command for each `$place`, and fails where one does."""
    started = f'for place in {places}; do {command} & all="$all $!"; done'
    return f"{started}; for each in $all; do wait $each || exit 1; done"


def _each(sockets: Path, places: Sequence[str], command: str) -> None:
    quiet = subprocess.DEVNULL
    line = _loop(sockets, places, command, "")
    subprocess.run(["sh", "-c", line], stdin=quiet, stdout=quiet, stderr=quiet, check=True)


def _masters(sockets: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "ssh"
        and any(str(sockets) in word for word in process.info["cmdline"] or ())
    ]


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
