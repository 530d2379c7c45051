"""The watches of `watch` and `up --keep`: run one here or in the background, or stop it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

from tpukit.cli.cp import metered
from tpukit.cli.output import Stamped, chosen_output
from tpukit.cli.requirement_flags import RequirementFlags, on_top
from tpukit.cli.stages import Stages, job_progress, timed
from tpukit.cli.toolkit import Toolkit
from tpukit.clock import Deadline, polls
from tpukit.errors import BadInput, Fix, TpukitError, interruption
from tpukit.recovery.watch_file import Record, Watch, WatchFile, WatchFiles
from tpukit.text import shown_path

if TYPE_CHECKING:
    from tpukit.provision.recipes import Recipe
    from tpukit.provision.requirements import Requirements
    from tpukit.remote.connection.worker import RemoteWorker
    from tpukit.up import Progress
    from tpukit.work.runs import OnLog

#: Seconds for a watching process to end after a signal.
_LEAVE_SECONDS = 20.0


def files(toolkit: Toolkit) -> WatchFiles:
    """Return the files of this machine's watches in the project."""
    endpoint, project = toolkit.settings.get("tpu_endpoint"), toolkit.settings.require("project")
    return WatchFiles(toolkit.paths.watches, endpoint, project)


def attend(toolkit: Toolkit, file: WatchFile, watch: Watch) -> tuple[int, Watch]:
    """Run a watch until it ends; this process must hold its file.

    Returns the status of its command and the final watch. Raises the errors of `Watcher.watch`.
    """
    from tpukit.recovery.watcher import Watcher
    from tpukit.recovery.workload import Workload

    spec, name = watch.spec, watch.name

    def say(line: str) -> None:
        at = time.strftime("%H:%M:%SZ", time.gmtime(toolkit.clock.time()))
        toolkit.console.say(f"{at} {name}: {line}")

    @contextmanager
    def progress() -> Iterator[Progress]:
        with Stages(toolkit.console, toolkit.clock, timed) as stages:
            yield job_progress(stages, toolkit.keep_smoke)

    def setup() -> tuple[Recipe | None, Requirements | None]:
        from tpukit.provision.recipes import Recipe

        if not spec.recipe:
            return None, None
        recipe = Recipe.named(spec.recipe, toolkit.own_recipes)
        flags = RequirementFlags(spec.requirements, [*spec.indexes], spec.editable)
        return recipe, on_top(flags, [recipe], toolkit.environ)

    toolkit.unlock_key()
    record = Record(file, watch, toolkit.clock.time)
    work = Workload(
        toolkit.context(spec.source_ranges),
        toolkit.settings.get("tpu_endpoint"),
        spec,
        environment=lambda: _environment(toolkit, watch),
        setup=setup,
        progress=progress,
        transfer=lambda: metered(toolkit, "sent", relay=True),
        output=lambda workers: _output(toolkit, workers),
        say=say,
    )
    cleanup = replace(toolkit.cleanup, on_state=lambda name: say, on_warning=say)
    watcher = Watcher(cleanup, record, work, toolkit.clock, toolkit.owner, say)
    return watcher.watch(), record.watch


def spawn(toolkit: Toolkit, file: WatchFile, watch: Watch, flags: Sequence[str]) -> int:
    """Start a background process that resumes a watch; return its id when the command runs.

    If the process ends before that, raise `TpukitError` with its last lines.
    """
    name, known = watch.name, len(watch.history)
    words = ["--project", toolkit.settings.require("project"), "--zone", watch.zone]
    words += ["--local"] if toolkit.flags.local else []
    command = [sys.executable, "-P", "-m", "tpukit", *words, "watch", name, *flags]
    with _opened(file) as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        for _ in polls(Deadline.never(toolkit.clock), first=0.1, most=0.5):
            ended, now = process.poll() is not None, file.load() or watch
            for event in now.history[known:]:
                toolkit.console.say(f"{name}: {event.event}")
                if event.event in watch.spec.begun:
                    return process.pid
            known = len(now.history)
            if ended:
                break
    except KeyboardInterrupt as signal:
        error = interruption(signal)
        error.exists = (f"the watch of slice {name} goes on, as process {process.pid}",)
        error.fix = Fix.command("tpukit", "watch", name, "--stop", note="ends it")
        raise error from None
    said = file.log.read_text(encoding="utf-8", errors="replace").splitlines()
    raise TpukitError(
        f"the watch of slice {name} ended before its command began",
        why="\n".join(said[-5:]),
        fix=Fix.command("tpukit", "watch", name, note="resumes it in the foreground"),
    )


def stop(toolkit: Toolkit, file: WatchFile) -> bool:
    """End a watch on this machine; return True if it had not ended yet.

    The slice and its run stay. Raises `TpukitError` if the watching process does not end.
    """
    watch = file.load()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if pid := file.process():
            with suppress(ProcessLookupError):  # it may just have ended by itself
                os.kill(pid, number)
        for _ in polls(Deadline.after(toolkit.clock, _LEAVE_SECONDS), first=0.05, most=0.5):
            if file.process() is None:
                break
        else:
            continue
        break
    with file.held():
        left = file.load()
        if left and left.open:
            Record(file, left, toolkit.clock.time).note("stopped", stopped=True)
    return bool(watch and watch.open)


def _environment(toolkit: Toolkit, watch: Watch) -> str:
    from tpukit.cli.run import VariableFlags, shell_lines

    spec = watch.spec
    given = (spec.variable_file, spec.activate, spec.workdir or spec.push_to)
    return shell_lines(VariableFlags([*spec.variables], *given), toolkit)


def _output(toolkit: Toolkit, workers: Sequence[RemoteWorker]) -> OnLog:
    return Stamped(chosen_output(toolkit.console, workers, "", as_json_lines=False), False).write


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
