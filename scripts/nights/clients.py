"""What people type during the night: who follows the job, who pushes, copies and runs commands."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from job import sealed
from support.openssh_server import eventually
from world import NAME, World

RUN = "night"
PARTS = 20


@dataclass
class Typed:
    """A command that was typed: from when to when, and what came of it."""

    words: Sequence[str]
    place: Path  #: a folder of its own
    began: float
    mark: str = ""  #: what it leaves on the workers
    ended: float = 0.0
    status: int = -1  #: until it has one

    @property
    def out(self) -> str:
        return (self.place / "stdout").read_text(errors="replace")

    @property
    def told(self) -> str:
        return (self.place / "stderr").read_text(errors="replace")

    def __str__(self) -> str:
        return f"{' '.join(self.words)[:70]} ({self.place})"


@dataclass
class Client:
    """Types commands, each a process whose output goes to files."""

    world: World
    place: Path
    begun: float = field(default_factory=time.monotonic)
    typed: list[Typed] = field(default_factory=list)
    followers: dict[str, tuple[Typed, subprocess.Popen[bytes]]] = field(default_factory=dict)
    #: Followers that were killed.
    killed: list[Typed] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _pushing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def now(self) -> float:
        return time.monotonic() - self.begun

    def command(self, kind: str) -> None:
        """Type a command in a thread of its own."""
        thread = threading.Thread(target=getattr(self, f"_{kind}"), daemon=True)
        thread.start()
        self._threads.append(thread)

    def follow(self, verb: str) -> None:
        flags = ("-f",) if verb == "logs" else ()
        typed = self._new(verb, NAME, RUN, *flags)
        self.followers[verb] = typed, self._started(typed)

    def kill_follower(self, number: int) -> None:
        """Kill one of those who follow, and let it start anew."""
        verb = sorted(self.followers)[number % len(self.followers)]
        typed, process = self.followers.pop(verb)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.killed.append(typed)
        self.follow(verb)

    def finish(self, seconds: float) -> None:
        """Wait for all that was typed."""
        give_up = time.monotonic() + seconds
        for typed, process in self.followers.values():
            self._wait(typed, process, give_up - time.monotonic())
        for thread in self._threads:
            thread.join(max(0.0, give_up - time.monotonic()))

    def type(self, *words: str, mark: str = "", stop: signal.Signals | None = None) -> Typed:
        """Type a command and wait for its end; `stop` is sent when its mark is on all workers."""
        typed = self._new(*words, mark=mark)
        self.typed.append(typed)
        process = self._started(typed)
        if stop:
            eventually(lambda: process.poll() is not None or self.world.everywhere(mark))
            process.send_signal(stop)
        self._wait(typed, process, 300.0)
        return typed

    def change_project(self) -> None:
        """Write what is pushed: the job, and files that say whether they are whole."""
        project = self.place / "project"
        project.mkdir(exist_ok=True)
        (project / "job.py").write_bytes(Path(__file__).with_name("job.py").read_bytes())
        for number in range(PARTS):
            if not (project / f"part-{number:02d}").exists() or number % 2:
                text = f"{secrets.token_hex(32)}\n" * 1000
                (project / f"part-{number:02d}").write_text(sealed(text))

    def push(self) -> Typed:
        return self.type("push", NAME, str(self.place / "project"))

    def _push(self) -> None:
        with self._pushing:
            self.change_project()
            self.push()

    def _cp(self) -> None:
        folder = self.place / f"copy-{secrets.token_hex(4)}"
        folder.mkdir()
        self.type("cp", f"{NAME}:out", str(folder), "--worker", "all", mark=folder.name)

    def _run(self) -> None:
        mark = secrets.token_hex(8)
        line = f"echo {mark} >>marks; sleep 2; echo told {mark}; exit 3"
        self.type("run", NAME, "--", line, mark=mark)

    def _new(self, *words: str, mark: str = "") -> Typed:
        place = self.place / f"typed-{len(self.typed)}-{words[0]}-{secrets.token_hex(3)}"
        place.mkdir()
        return Typed(words, place, self.now, mark)

    def _started(self, typed: Typed) -> subprocess.Popen[bytes]:
        tpukit = self.world.tpukit
        with self._file(typed, "stdout") as out, self._file(typed, "stderr") as told:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "tpukit", *typed.words],
                env=tpukit.environment,
                cwd=tpukit.home,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=told,
            )

    def _file(self, typed: Typed, name: str) -> IO[bytes]:
        return (typed.place / name).open("wb")

    def _wait(self, typed: Typed, process: subprocess.Popen[bytes], seconds: float) -> None:
        try:
            typed.status = process.wait(max(0.1, seconds))
        except subprocess.TimeoutExpired:
            process.kill()  # it has no status: a check says so
            process.wait()
        typed.ended = self.now
