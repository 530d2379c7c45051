"""Two emulators that are killed at random moments: scripts/crashes [ROUNDS] [SEED].

Every round both begin, take writes, and are killed with KILL, alone or with their guardian, or end
in order. The machine's clock is set forward and back while they run and between, the emulator's own
goes forward, and the disk of one is full for a while, where root can mount it. After each start all
that was acknowledged has to be there; at the end nothing may be left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import psutil

from tpukit.emulator.process import daemon
from tpukit.emulator.process.home import RunningEmulator
from tpukit.emulator.workers import processes

PLACE = "/v2/projects/p/locations/us-central1-a"
RULES = "/compute/v1/projects/p/global/firewalls"
BODY = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-vm-base"}
_DISK = 4 << 20  #: bytes of the small disk
_HOUR, _MONTH = 3600.0, 86400.0 * 30
#: Loaded by every Python that finds it: the machine's clock, as far from the real one as is asked.
_CLOCK_PROGRAM = """
import time
def shifted(real=time.time):
    try:
        with open({path!r}) as file:
            return real() + float(file.read())
    except (OSError, ValueError):
        return real()
time.time = shifted
"""


@dataclass
class Ledger:
    """What an emulator has acknowledged: the paths that have to be there, or must not be."""

    there: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    acknowledged: int = 0
    refused: int = 0


class MachineClock:
    """The clock of the emulators' machine, which is this one's but for a file's seconds."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._file = folder / "seconds"
        self._chance = chance
        self.jumps = 0
        (folder / "sitecustomize.py").write_text(_CLOCK_PROGRAM.format(path=str(self._file)))
        found = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{found}"

    def may_jump(self) -> None:
        """Set the clock forward or back, one time in four."""
        if self._chance.random() < 0.25:
            self.jumps += 1
            part = self._file.with_suffix(".part")
            part.write_text(str(self._chance.choice([-_MONTH, -_HOUR, 0.0, _HOUR, _MONTH])))
            part.replace(self._file)


class Subject:
    """One emulator, its directory and its ledger."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.directory = directory
        self.ledger = Ledger()
        self._chance = chance
        self._number = 0
        self._running: RunningEmulator | None = None

    def begin(self) -> None:
        self._running = daemon.start(self.directory, create_seconds=0.1)
        self._check()

    def write_until(self, stopping: threading.Event) -> None:
        """Write what chance says, one request after the other, and note what was acknowledged."""
        while not stopping.is_set():
            with contextlib.suppress(OSError, HTTPException, ValueError):
                self._write()

    def jump(self) -> None:
        """Let the emulator's own clock go forward, which is all that it does."""
        step = self._chance.choice([_HOUR, _MONTH])
        with contextlib.suppress(OSError, HTTPException, ValueError):
            self._ask("POST", "/_emulator/v1/clock", {"advance": step})

    def kill(self) -> str:
        """End it one of three ways; return which."""
        assert self._running
        how = self._chance.choice(["emulator", "emulator and guardian", "in order"])
        if how == "in order":
            daemon.stop(self.directory)
            return how
        for pid in (self._running.guardian, self._running.pid)[how == "emulator" :]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        give_up_at = time.monotonic() + 30
        while psutil.pid_exists(self._running.pid) and time.monotonic() < give_up_at:
            with contextlib.suppress(psutil.NoSuchProcess):
                if psutil.Process(self._running.pid).status() == psutil.STATUS_ZOMBIE:
                    break
            time.sleep(0.01)
        return how

    def end(self) -> None:
        """Delete everything, stop, and raise `AssertionError` for what is left."""
        for rule in self._ask("GET", RULES)[1].get("items", ()):
            self._ask("DELETE", f"{RULES}/{rule['name']}")
        # Not those of the ledger alone: of some creates the answer was lost.
        give_up_at = time.monotonic() + 180
        while nodes := self._ask("GET", f"{PLACE}/nodes?pageSize=1000")[1].get("nodes"):
            for node in nodes:
                self._ask("DELETE", f"/v2/{node['name']}")
            left = Counter(node["state"] for node in nodes)
            assert time.monotonic() < give_up_at, f"nodes are not deleted: {left}"
            time.sleep(0.05)
        daemon.stop(self.directory)
        identity = (self.directory / "identity").read_text().strip()
        assert not processes.marked(f"{identity}/"), "processes of workers are left"
        assert not list(self.directory.glob("workers/*")), "folders of workers are left"
        strange = [path.name for path in self.directory.iterdir() if path.name.startswith(".")]
        assert not strange, f"temporary files are left: {strange}"
        assert self._running
        assert not psutil.pid_exists(self._running.pid), "the emulator is left"

    def _write(self) -> None:
        self._number += 1
        deletable = sorted(path for path in self.ledger.there if "/nodes/" in path)
        if len(deletable) > 8 or (deletable and self._chance.random() < 0.3):
            path = self._chance.choice(deletable)
            # From now on nobody knows, until it is acknowledged or refused.
            self.ledger.there.discard(path)
            answer = self._ask("DELETE", path)
            if self._noted(answer):
                self.ledger.deleted.add(path)
            elif answer[0] == 409:  # it is being made
                self.ledger.there.add(path)
        elif self._chance.random() < 0.3:
            name = f"r{self._number}"
            rule = {"name": name, "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}
            if self._noted(self._ask("POST", RULES, rule)):
                self.ledger.there.add(f"{RULES}/{name}")
        else:
            name = f"n{self._number}"
            if self._noted(self._ask("POST", f"{PLACE}/nodes?nodeId={name}", BODY)):
                self.ledger.there.add(f"{PLACE}/nodes/{name}")

    def _noted(self, answer: tuple[int, Any]) -> bool:
        good = answer[0] == 200
        self.ledger.acknowledged += good
        self.ledger.refused += not good
        return good

    def _check(self) -> None:
        for path in sorted(self.ledger.there):
            status, document = self._ask("GET", path)
            assert status == 200, f"{path} was acknowledged and is lost: {status} {document}"
        for path in sorted(self.ledger.deleted):
            status, document = self._ask("GET", path)
            gone = status == 404 or document.get("state") == "DELETING"
            assert gone, f"{path} was deleted and is there: {document}"
        self.ledger.deleted.clear()

    def _ask(self, verb: str, path: str, body: Any = None) -> tuple[int, Any]:
        assert self._running
        connection = HTTPConnection(self._running.url.removeprefix("http://"), timeout=30)
        try:
            headers = {"Authorization": f"Bearer {self._running.token}"}
            connection.request(verb, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


@contextlib.contextmanager
def small_disk(folder: Path) -> Any:
    """Make a folder a disk of its own that can be full; do nothing where it cannot be mounted."""
    words = ["mount", "-t", "tmpfs", "-o", f"size={_DISK},mode=700", "none", str(folder)]
    mounted = not os.geteuid() and subprocess.run(words, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def full(folder: Path) -> Any:
    """Leave no byte on a disk for a while."""
    path = folder / "filler"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    try:
        yield
    finally:
        path.unlink()


def crash(rounds: int, seed: int, folder: Path) -> str:
    """Go through the rounds and return what happened; raise `AssertionError` for a loss."""
    chance = random.Random(seed)
    disk = folder / "disk"
    disk.mkdir()
    clock = MachineClock(folder, chance)
    with small_disk(disk) as mounted:
        places = (folder / "one", disk / "two")
        subjects = [Subject(place, random.Random(chance.random())) for place in places]
        ends: list[str] = []
        try:
            for number in range(rounds):
                print(f"round {number + 1}", file=sys.stderr)
                ends += one_round(
                    subjects, chance, clock, disk if mounted and number % 5 == 4 else None
                )
            for subject in subjects:
                subject.begin()
                subject.end()
        finally:
            for subject in subjects:
                daemon.stop(subject.directory)
    written = sum(subject.ledger.acknowledged for subject in subjects)
    refused = sum(subject.ledger.refused for subject in subjects)
    kills = len(ends) - ends.count("in order")
    said = f"{rounds} rounds, {kills} kills, {clock.jumps} times another clock"
    said += f", {written} writes acknowledged, {refused} refused"
    return f"{said}; nothing lost, nothing left{'' if mounted else '; no disk was full: not root'}"


def one_round(
    subjects: list[Subject], chance: random.Random, clock: MachineClock, disk: Path | None
) -> list[str]:
    clock.may_jump()
    for subject in subjects:
        subject.begin()
    stopping = threading.Event()
    writers = [
        threading.Thread(target=subject.write_until, args=(stopping,)) for subject in subjects
    ]
    for writer in writers:
        writer.start()
    with full(disk) if disk else contextlib.nullcontext():
        time.sleep(chance.uniform(0.0, 0.4))
        clock.may_jump()
        if chance.random() < 0.2:
            subjects[0].jump()
        found = [subject.kill() for subject in subjects]
        stopping.set()
        for writer in writers:
            writer.join()
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="scripts/crashes")
    parser.add_argument("rounds", type=int, nargs="?", default=200)
    parser.add_argument("seed", type=int, nargs="?", default=7)
    count, seed = vars(parser.parse_args()).values()
    print(f"{count} rounds, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tpukit-crashes-") as name:
        print(crash(count, seed, Path(name)))
