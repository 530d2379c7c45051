"""The progress of a long command: one line for each stage, with details below it.

On a terminal, lines of running stages are repainted, and a finished stage leaves one line.
Elsewhere every new line is printed, and a heartbeat after 30 s of silence. Programs' output goes
to a log file, and with `--verbose` also to the screen.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpukit.clock import Clock
from tpukit.console import Console, PaintedLine
from tpukit.errors import TpukitError
from tpukit.paths import private_directory
from tpukit.text import one_line, sanitize, shown_path

if TYPE_CHECKING:
    from tpukit.models import Slice
    from tpukit.provision.worker_jobs import ProvisionEvent
    from tpukit.ssh.worker import RemoteWorker
    from tpukit.up import Progress

#: Seconds of silence before a heartbeat, if the output is no terminal.
HEARTBEAT_SECONDS = 30.0
#: The least usual seconds of a stage that are worth showing.
_LONG = 5.0
#: Seconds between repaints on a terminal, and between checks for silence elsewhere.
_PICTURE, _LOOK = 0.125, 1.0
#: The most bytes of a log file, and the number of log files to keep.
_LOG_BYTES, _LOGS = 4 << 20, 20
#: Columns of a stage's name, and of a whole line with its time at the end.
_NAME_COLUMNS, _COLUMNS = 11, 79
#: The most workers to show that are behind the others.
_SHOWN_WORKERS = 4
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def timed(seconds: float, stage: str, line: str) -> str:
    """Return a line of the main job for output that is no terminal."""
    return f"{seconds:7.1f} s  {stage:<10} {line}"


def named(seconds: float, stage: str, line: str) -> str:
    """Return a line on one slice for output that is no terminal."""
    return f"{stage}: {line}"


@dataclass
class _Stage:
    started: float
    line: str
    details: Sequence[str] = ()


class Stages:
    """The stages of one command; several can run at once. Leaving the context folds them all.

    `expected` has the usual seconds of stages, which running stages show if they are long.

    Any thread may call any method.
    """

    def __init__(
        self,
        console: Console,
        clock: Clock,
        form: Callable[[float, str, str], str] = named,
        log: Path | None = None,
        hint: str = "",
        expected: Mapping[str, float] | None = None,
    ) -> None:
        self._console = console
        self._clock = clock
        self._form = form
        self._log = LogFile(log) if log else None
        self._hint = hint
        self._expected = expected or {}
        #: Returns the cost of the slice so far in words, or "" if it is unknown.
        self.cost: Callable[[], str] = lambda: ""
        self._running: dict[str, _Stage] = {}
        self._began = self._spoke = clock.monotonic()
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._watched = False
        #: The stages that have ended: name, start and end, in seconds since the command began.
        self.ended: list[tuple[str, float, float]] = []

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self._over.set()
        for stage in list(self._running):
            self._fold(stage, "✓" if kind is None else "✗")
        self._console.end_progress()
        if self._log and self._log.written and (kind is not None or self._console.repaints):
            self._console.say(f"log: {shown_path(self._log.path)}")

    def say(self, stage: str, line: str) -> None:
        """Show a line that is important enough to print if the output is no terminal."""
        with self._lock:
            now = self._put(stage, line)
            if self._console.repaints:
                self.note(f"{stage}: {line}")
            else:
                self._print(now, stage, line)

    def progress(self, stage: str, line: str, details: Sequence[str] = ()) -> None:
        """Replace a stage's line; `details` are the lines below it."""
        with self._lock:
            self._put(stage, line, details)

    def done(self, stage: str, line: str) -> None:
        """End a stage with one line."""
        with self._lock:
            now = self._put(stage, line)
            if self._console.repaints:
                self._fold(stage, "✓")
            else:
                self._print(now, stage, line)
                self._end(stage)

    def note(self, line: str) -> None:
        """Write a program's line to the log; show it with `--verbose`."""
        with self._lock:
            if self._log:
                self._log.write(f"{self._clock.monotonic() - self._began:8.1f} s  {line}")
            self._console.detail(f"{'':12}{line}")

    def beat(self) -> None:
        """Print the running stages if nothing was printed for `HEARTBEAT_SECONDS`."""
        with self._lock:
            now = self._clock.monotonic()
            if now - self._spoke < HEARTBEAT_SECONDS:
                return
            cost = self.cost()
            for name, stage in self._running.items():
                line = f"{stage.line}, for {_minutes(now - stage.started)} so far"
                self._print(now, name, ", ".join(filter(None, (line, self._usual(name), cost))))

    def _usual(self, stage: str) -> str:
        """Return the usual time of a stage in words, or "" if it is short or unknown."""
        seconds = self._expected.get(stage, 0.0)
        return f"usually {_minutes(seconds)}" if seconds >= _LONG else ""

    def _put(self, stage: str, line: str, details: Sequence[str] = ()) -> float:
        now = self._clock.monotonic()
        running = self._running.setdefault(stage, _Stage(now, line))
        running.line, running.details = one_line(line), details
        if not self._watched and not self._console.quiet:
            self._watched = True
            shown, seconds = self.beat, _LOOK
            if self._console.repaints:
                self._console.paint(self._painted)
                shown, seconds = self._console.repaint, _PICTURE
            threading.Thread(
                target=self._watch, args=(shown, seconds), name="tpukit-heartbeat", daemon=True
            ).start()
        return now

    def _watch(self, shown: Callable[[], None], seconds: float) -> None:
        while not self._over.wait(seconds):
            shown()

    def _print(self, now: float, stage: str, line: str) -> None:
        self._spoke = now
        text = self._form(now - self._began, stage, line)
        if self._log:
            self._log.write(text)
        self._console.say(text)

    def _fold(self, stage: str, mark: str) -> None:
        with self._lock:
            stage_ = self._end(stage)
            if self._console.repaints:
                now = self._clock.monotonic()
                if self._log:
                    self._log.write(f"{now - self._began:8.1f} s  {mark} {stage}: {stage_.line}")
                style = "green" if mark == "✓" else "red"
                line = self._row(mark, stage, stage_, now, self._console.columns)
                self._console.say(line, style=style)

    def _end(self, stage: str) -> _Stage:
        ended = self._running.pop(stage)
        now = self._clock.monotonic()
        self.ended.append((stage, ended.started - self._began, now - self._began))
        return ended

    def _painted(self, columns: int) -> list[PaintedLine]:
        # Without our lock: rich calls this with its own lock, and a thread with our lock may be
        # waiting for that one.
        now = self._clock.monotonic()
        mark = _SPINNER[int(now * 8) % len(_SPINNER)]
        lines: list[PaintedLine] = []
        for name, stage in list(self._running.items()):
            usual = self._usual(name)
            lines.append((self._row(mark, name, stage, now, columns, usual), "bold"))
            lines += [(f"  {'':{_NAME_COLUMNS}} {detail}", "dim") for detail in stage.details]
        log = f"log {shown_path(self._log.path)}" if self._log else ""
        below = filter(None, (self.cost(), log, self._hint))
        return [*lines, *((line, "dim") for line in below)]

    def _row(
        self, mark: str, name: str, stage: _Stage, now: float, columns: int, usual: str = ""
    ) -> str:
        time = ", ".join(filter(None, (_minutes(now - stage.started), usual)))
        room = min(columns, _COLUMNS) - len(time) - 1
        text = f"{mark} {name:<{_NAME_COLUMNS}} {stage.line}"
        return f"{text if len(text) <= room else text[: room - 1] + '…':<{room}} {time}"


class LogFile:
    """A private log file, limited in size; it replaces an older one and ignores a full disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self._file: int | None = None

    def write(self, line: str) -> None:
        """Add a line."""
        data = (sanitize(line) + "\n").encode("utf-8", "replace")
        if self.written + len(data) > _LOG_BYTES:
            return
        try:
            if self._file is None:
                self._file = self._opened()
            self.written += os.write(self._file, data)
        except (OSError, TpukitError):
            return

    def _opened(self) -> int:
        folder = private_directory(self.path.parent)
        logs = sorted(folder.glob("*.log"), key=lambda log: log.stat().st_mtime)
        for old in logs[:-_LOGS]:
            old.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW
        return os.open(self.path, flags, 0o600)


def job_progress(stages: Stages, cost_of: Callable[[Slice], Callable[[], str]]) -> Progress:
    """Return the callbacks that show the main job.

    `cost_of` returns a function that returns the slice's cost so far in words.
    """
    from tpukit.up import Progress

    def show_cost(slice_: Slice) -> None:
        stages.cost = cost_of(slice_)

    shown = ProvisionProgress(stages)
    return Progress(stages.say, stages.progress, stages.done, shown, show_cost)


class ProvisionProgress:
    """Shows provisioning: the step of the slowest worker, and how many workers have passed it."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._passed: dict[RemoteWorker, list[str]] = {}
        self._now: dict[RemoteWorker, tuple[str, str]] = {}

    def __call__(self, event: ProvisionEvent) -> None:
        passed = self._passed.setdefault(event.worker, [])
        line = f"{event.worker.name}: {event.step}: {event.text}"
        told = event.kind == "finished" and not event.text.startswith("unchanged")
        if told or (event.kind == "started" and _place(event.worker) == (0, 0)):
            self._stages.say("provision", line)
        else:
            self._stages.note(line)
        if event.kind == "finished" and not event.text.startswith("failed"):
            passed.append(event.step)
        self._now[event.worker] = event.step, event.text
        self._show()

    def _show(self) -> None:
        least = min(self._passed, key=lambda worker: len(self._passed[worker]))
        step = self._now[least][0]
        past = sum(step in passed for passed in self._passed.values())
        ordered = sorted(self._passed, key=_place)
        behind = [worker for worker in ordered if step not in self._passed[worker]]
        shown = behind[:_SHOWN_WORKERS]
        details = [f"{worker.name} {': '.join(self._now[worker])}" for worker in shown]
        count = f"{past}/{len(self._passed)} workers"
        self._stages.progress("provision", f"{step} {count}", details)


def _place(worker: RemoteWorker) -> tuple[int, int]:
    return worker.slice_index, worker.index


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"
