"""The emulator's own process: the APIs, the workers, and an orderly end."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import select
import signal
import threading
import time
from collections.abc import Sequence
from typing import TextIO

from tpukit import __version__
from tpukit.emulator.api.http_server import ApiServer, build_server
from tpukit.emulator.core.operation_metadata import DEFAULT, OperationMetadata
from tpukit.emulator.process.guardian import reap_orphans
from tpukit.emulator.process.home import LARGEST_LOG, READY, EmulatorHome, RunningEmulator
from tpukit.emulator.process.worker_engine import WorkerEngine, worker_engine
from tpukit.emulator.workers import processes

#: The signals that end an emulator.
_ENDING_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def emulate(
    home: EmulatorHome,
    create_seconds: float,
    port: int,
    engine: str = "auto",
    operation_metadata: OperationMetadata = DEFAULT,
    ends: Sequence[int] = (),
    ready: int | None = None,
    keep: bool = True,
) -> int:
    """Serve until TERM, INT or the end of a descriptor in `ends`; then end every worker.

    Write `READY` to the `ready` descriptor when the server answers. Without `keep`, store no
    resources in a file.
    """
    keep_log(home)
    ending = _ending(ends)
    _allow_many_descriptors()
    # Processes of an earlier emulator that was killed together with its guardian.
    processes.end(lambda: processes.marked(f"{home.identity()}/"), grace=0)
    workers, token = worker_engine(engine, home), home.new_token()
    try:
        server = build_server(
            home.path,
            token,
            workers.make_host,
            create_seconds,
            port=port,
            operation_metadata=operation_metadata,
            keep=keep,
        )
        _serve(server, home, token, workers, ready, ending)
    finally:
        workers.close()
        # Also processes without the marker, because a program cleared their environment.
        processes.end(lambda: processes.descendants(os.getpid()))
    return 0


def keep_log(home: EmulatorHome) -> None:
    """Log warnings on standard error; if that is the home's log, limit its size."""
    logging.basicConfig(
        format="%(asctime)s %(name)s: %(message)s",
        level=logging.WARNING,
        handlers=[_BoundedLog(home)],
    )


class _BoundedLog(logging.StreamHandler[TextIO]):
    """Standard error; if it is the home's log and too large, continue in a new log."""

    def __init__(self, home: EmulatorHome) -> None:
        super().__init__()
        self._home = home

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            now = os.fstat(2)
            if now.st_size > LARGEST_LOG and os.path.samestat(now, self._home.log.stat()):
                log = self._home.open_log()
                for number in (1, 2):
                    os.dup2(log, number)
                os.close(log)
        super().emit(record)


def _serve(
    server: ApiServer,
    home: EmulatorHome,
    token: str,
    workers: WorkerEngine,
    ready: int | None,
    ending: threading.Event,
) -> None:
    threading.Thread(target=reap_orphans, args=(ending,), daemon=True).start()
    serving = threading.Thread(target=server.serve_forever, name="api", daemon=True)
    serving.start()
    home.publish(
        RunningEmulator(
            pid=os.getpid(),
            guardian=os.getppid(),
            url=server.url,
            token=token,
            version=__version__,
            engine=workers.name,
            started=time.time(),
            reason=workers.reason,
            limits=workers.limits,
            foreign_ssh=workers.foreign_ssh,
        )
    )
    if ready is not None:
        os.write(ready, READY)
    ending.wait()
    home.document.unlink(missing_ok=True)
    server.shutdown()
    serving.join()


def _allow_many_descriptors() -> None:
    """Raise the limit of open files: a v3-2048 alone listens on 512 sockets and reserves 256."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS reports a limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _ending(ends: Sequence[int]) -> threading.Event:
    """Return an event that is set by TERM, by INT and by the end of one of the descriptors."""
    event = threading.Event()
    asked, told = os.pipe()
    os.set_blocking(told, False)
    # The signal itself writes to this pipe. Python runs its own handlers only when the main thread
    # runs, and a signal that arrives just before a wait does not wake that thread.
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    # Background shells and nohup start programs with some signals ignored, and workers' commands
    # would inherit that. A signal with a handler has its default action in them.
    for number in (*_ENDING_SIGNALS, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_watch, args=(asked, ends, event), daemon=True).start()
    return event


def _watch(asked: int, ends: Sequence[int], event: threading.Event) -> None:
    while select.select([asked, *ends], [], [])[0] == [asked]:
        if _ENDING_SIGNALS & set(os.read(asked, 64)):
            break
    event.set()
