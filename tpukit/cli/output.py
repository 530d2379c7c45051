"""The output of many workers, as prefixed lines, JSON lines, or one file per stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpukit.console import Console
from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.text import one_line, sanitize

if TYPE_CHECKING:
    from tpukit.ssh.worker import RemoteWorker

#: The longest line in bytes; a longer one is written in parts.
_LONGEST_LINE = 64 << 10


class Output:
    """Discards workers' output. Subclasses write it; each worker calls from its own thread."""

    def write(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        """Take a piece of a stream."""

    def log(self, worker: RemoteWorker, data: bytes) -> None:
        """Take a piece of a job's log."""
        self.write(worker, "stdout", data)

    def finish(self) -> None:
        """Write incomplete last lines, after all workers have ended."""


class Raw(Output):
    """Writes one worker's output unchanged."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        self._console.write_remote(stream, chunk)


class Lines(Output):
    """Writes whole lines, as text or as JSON documents, with one write for all lines of a chunk.

    A line of text begins with its worker: `[2] `, or with several slices `[demo:2] `.
    """

    def __init__(self, console: Console, workers: Sequence[RemoteWorker], as_json: bool) -> None:
        self._console = console
        self._as_json = as_json
        self._one_slice = len({worker.slice for worker in workers}) == 1
        self._rest: dict[tuple[RemoteWorker, str], bytes] = {}
        self._lock = threading.Lock()

    def write(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        lines, end, rest = (self._rest.get((worker, stream), b"") + chunk).rpartition(b"\n")
        lines += end
        if len(rest) > _LONGEST_LINE:
            lines += rest + b"\n"
            rest = b""
        self._rest[worker, stream] = rest
        if lines:
            self._print(worker, stream, lines)

    def finish(self) -> None:
        for (worker, stream), rest in sorted(self._rest.items(), key=lambda item: item[0][0].label):
            if rest:
                self._print(worker, stream, rest + b"\n")
        self._rest.clear()

    def _print(self, worker: RemoteWorker, stream: str, lines: bytes) -> None:
        with self._lock:
            if self._as_json:
                self._console.write_json_lines(self._documents(worker, stream, lines))
                return
            mark = str(worker.index) if self._one_slice else f"{worker.slice}:{worker.index}"
            self._console.write_prefixed(stream, f"[{mark}] ", lines)

    def _documents(
        self, worker: RemoteWorker, stream: str, lines: bytes
    ) -> Iterator[dict[str, Any]]:
        known: dict[str, Any] = {**place(worker), "stream": stream}
        for line in lines.removesuffix(b"\n").split(b"\n"):
            yield {**known, "line": sanitize(line)}


class Folder(Output):
    """Writes each complete stream to its own new file, SLICE-WORKER.stdout or SLICE-WORKER.stderr.

    Raises `BadInput`, and makes nothing, if one of the files exists.
    """

    def __init__(self, path: Path, workers: Sequence[RemoteWorker]) -> None:
        self._path = path
        made: list[Path] = []
        try:
            missing = [folder for folder in (path, *path.parents) if not folder.exists()]
            for folder in reversed(missing):
                folder.mkdir(exist_ok=True)
                made.append(folder)
            for worker in workers:
                for stream in ("stdout", "stderr"):
                    self._file(worker, stream).open("xb").close()
                    made.append(self._file(worker, stream))
        except OSError as error:
            for new in reversed(made):
                remove = new.rmdir if new.is_dir() else new.unlink
                with suppress(OSError):
                    remove()
            raise BadInput(
                f"cannot make {one_line(str(error.filename))}",
                reason=error.strerror or "",
                fix=Fix(note="choose a new folder; files of an earlier run stay as they are"),
            ) from error

    def write(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        # Opened for each chunk: hundreds of workers have more streams than we may open files.
        path = self._file(worker, stream)
        try:
            with path.open("ab") as file:
                file.write(chunk)
        except OSError as error:
            raise TpukitError(
                f"cannot write {one_line(str(path))}", reason=error.strerror or str(error)
            ) from error

    def _file(self, worker: RemoteWorker, stream: str) -> Path:
        return self._path / f"{worker.slice}-{worker.index}.{stream}"


class MarkedLines:
    """Picks the lines of logs that begin with a mark, such as `[chip 2] `, and removes the mark."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._rest: dict[RemoteWorker, bytes] = {}

    def of(self, worker: RemoteWorker, data: bytes) -> bytes:
        """Return the marked lines of a log that end in this piece of it."""
        *lines, self._rest[worker] = (self._rest.get(worker, b"") + data).split(b"\n")
        marked = [line for line in lines if line.startswith(self._mark)]
        return b"".join(line[len(self._mark) :] + b"\n" for line in marked)


def chosen_output(
    console: Console, workers: Sequence[RemoteWorker], directory: str, as_json_lines: bool
) -> Output:
    """Return the output that a verb's flags select; one worker's output is passed on unchanged."""
    if directory:
        return Folder(Path(directory), workers)
    if console.as_json:
        return Output()
    if len(workers) == 1 and not as_json_lines:
        return Raw(console)
    return Lines(console, workers, as_json_lines)


def place(worker: RemoteWorker) -> dict[str, Any]:
    """Return the keys that identify a worker in a JSON document."""
    return {"slice": worker.slice, "worker": worker.index}
