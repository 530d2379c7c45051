"""The processes that watch: one starts in the background, any can be ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import BinaryIO

from tpukit.clock import Clock, Deadline, polls
from tpukit.errors import BadInput, Fix, TpukitError, interruption
from tpukit.models import DEAD_STATES, LOST_STATES
from tpukit.slices.survey import QUEUED, SLICE, Survey
from tpukit.text import shown_path
from tpukit.watch.saved_watches import Record, Watch, WatchFile, WatchFiles

#: Seconds for a watching process to end after a signal.
_LEAVE_SECONDS = 20.0
#: The most lines to show of a process that ended too early.
_SHOWN_LINES = 12


def start(
    file: WatchFile, watch: Watch, words: Sequence[str], clock: Clock, say: Callable[[str], object]
) -> int:
    """Start a background process that resumes a watch; return its id when the command runs.

    `words` are the process's command, and `say` gets a line for each event. If the process ends
    before that, raise `TpukitError` with its error and its exit code.
    """
    name, known = watch.name, len(watch.history)
    with _opened(file) as log:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        for _ in polls(Deadline.never(clock), first=0.1, most=0.5):
            ended, now = process.poll() is not None, file.load() or watch
            for event in now.history[known:]:
                say(f"{name}: {event.event}")
                if event.event in watch.spec.begun:
                    return process.pid
            known = len(now.history)
            if ended:
                break
    except KeyboardInterrupt as caught:
        error = interruption(caught)
        error.exists = (f"the watch of slice {name} goes on, as process {process.pid}",)
        error.fix = Fix.command("tpukit", "watch", name, "--stop", note="ends it")
        raise error from None
    said = file.log.read_text(encoding="utf-8", errors="replace").rpartition("\nerror: ")[2]
    error = TpukitError(
        f"the watch of slice {name} ended before its command began",
        why="\n".join(said.splitlines()[-_SHOWN_LINES:]),
        fix=Fix.command("tpukit", "watch", name, note="resumes it in the foreground"),
    )
    error.exit_code = max(1, process.returncode)
    raise error


def stop(file: WatchFile, clock: Clock) -> bool:
    """End a watch on this machine; return True if it had not ended yet.

    The slice and its run stay. Raises `TpukitError` if the watching process does not end.
    """
    watch = file.load()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if pid := file.process():
            with suppress(ProcessLookupError):  # it may just have ended by itself
                os.kill(pid, number)
        for _ in polls(Deadline.after(clock, _LEAVE_SECONDS), first=0.05, most=0.5):
            if file.process() is None:
                break
        else:
            continue
        break
    with file.held():
        left = file.load()
        if left and left.open:
            Record(file, left, clock.time).note("stopped", stopped=True)
    return bool(watch and watch.open)


def spare_watched(files: WatchFiles, seen: Survey) -> Survey:
    """Return the survey, sparing the dead things that a running watch makes again."""
    running = [watch for file, watch in files.all() if file.process() is not None]
    watched = {(SLICE, watch.zone, watch.name) for watch in running}
    watched |= {(QUEUED, watch.zone, watch.spec.queued_resource) for watch in running}
    dead = [
        leftover
        for leftover in seen.due
        if (leftover.kind, leftover.zone, leftover.name) in watched
        and leftover.state in LOST_STATES | DEAD_STATES
    ]
    spared = [replace(leftover, spared="its watch makes it again") for leftover in dead]
    left = tuple(leftover for leftover in seen.due if leftover not in dead)
    return replace(seen, due=left, spared=(*seen.spared, *spared))


@contextmanager
def _opened(file: WatchFile) -> Iterator[BinaryIO]:
    """Yield the log of a detached watch for appending."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(file.log, flags, 0o600), "ab") as log:
            yield log
    except OSError as error:
        raise BadInput(
            f"cannot write {shown_path(file.log)}", reason=error.strerror or ""
        ) from error
