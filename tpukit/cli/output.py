"""What becomes of many workers' output: prefixed lines, JSON lines, or a file a stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tpukit.console import Console
from tpukit.errors import BadInput
from tpukit.text import one_line, sanitize

if TYPE_CHECKING:
    from tpukit.remote.worker import RemoteWorker

#: A line is handed on when it is so long, in bytes, whether it has an end or not.
_LONGEST_LINE = 64 << 10


class Output(Protocol):
    """Hears what workers write, each from a thread of its own."""

    def hear(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None: ...

    def finish(self) -> None:
        """Hand on what is left, when all have ended."""
        ...


class Raw:
    """Passes one worker's output on as it is."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def hear(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        self._console.write_remote(stream, chunk)

    def finish(self) -> None:
        return


class Nowhere:
    """For a JSON document, which carries the ends of the streams itself."""

    def hear(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        return

    def finish(self) -> None:
        return


class Lines:
    """Hands on whole lines, one at a time, whatever the pieces they came in."""

    def __init__(self, emit: Callable[[RemoteWorker, str, bytes], None]) -> None:
        self._emit = emit
        self._rest: dict[tuple[RemoteWorker, str], bytes] = {}
        self._lock = threading.Lock()

    def hear(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        *lines, rest = (self._rest.get((worker, stream), b"") + chunk).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        self._rest[worker, stream] = rest
        if lines:
            with self._lock:
                for line in lines:
                    self._emit(worker, stream, line)

    def finish(self) -> None:
        for (worker, stream), rest in sorted(self._rest.items(), key=lambda item: item[0][0].label):
            if rest:
                self._emit(worker, stream, rest)
        self._rest.clear()


class Folder:
    """Collects every stream, complete, in a file SLICE-WORKER.stdout or .stderr of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            shown = one_line(str(path))
            raise BadInput(f"cannot make the folder {shown}", why=error.strerror or "") from error

    def prepare(self, workers: Iterable[RemoteWorker]) -> None:
        """Make every file, empty: no earlier run's output may be taken for this one's."""
        for worker in workers:
            for stream in ("stdout", "stderr"):
                self._file(worker, stream).write_bytes(b"")

    def hear(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        # Opened for each piece: hundreds of workers have more streams than this process may open.
        with self._file(worker, stream).open("ab") as file:
            file.write(chunk)

    def finish(self) -> None:
        return

    def _file(self, worker: RemoteWorker, stream: str) -> Path:
        return self._path / f"{worker.slice}-{worker.index}.{stream}"


def prefixed(console: Console, several_slices: bool) -> Callable[[RemoteWorker, str, bytes], None]:
    """Return who prints a line with where it came from: `[2] `, or `[demo:2] `."""

    def emit(worker: RemoteWorker, stream: str, line: bytes) -> None:
        place = f"{worker.slice}:{worker.index}" if several_slices else str(worker.index)
        console.write_prefixed(stream, f"[{place}] ", line)

    return emit


def as_json_lines(console: Console) -> Callable[[RemoteWorker, str, bytes], None]:
    """Return who prints a line of output as a JSON document on a line of its own."""

    def emit(worker: RemoteWorker, stream: str, line: bytes) -> None:
        console.write_json_line({**place(worker), "stream": stream, "line": sanitize(line)})

    return emit


def place(worker: RemoteWorker) -> dict[str, Any]:
    """Return the keys of a JSON document that say whose it is."""
    return {"slice": worker.slice, "worker": worker.index}
