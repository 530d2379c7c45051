"""The output of many workers, as prefixed lines, JSON lines, or one file per stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpukit.console import Console
from tpukit.errors import BadInput, TpukitError
from tpukit.text import one_line, sanitize

if TYPE_CHECKING:
    from tpukit.remote.connection.worker import RemoteWorker

#: The longest line in bytes; a longer one is written in parts.
_LONGEST_LINE = 64 << 10


class Output:
    """Discards workers' output. Subclasses write it; each worker calls from its own thread."""

    def write(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        """Take a piece of a stream."""

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

    def __init__(
        self,
        console: Console,
        workers: Sequence[RemoteWorker],
        as_json: bool,
        stamped: bool = False,
    ) -> None:
        self._console = console
        self._stamped = stamped
        self._as_json = as_json
        self._one_slice = len({worker.slice for worker in workers}) == 1
        self._rest: dict[tuple[RemoteWorker, str], bytes] = {}
        self._lock = threading.Lock()

    def write(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        lines, end, rest = (self._rest.get((worker, stream), b"") + chunk).rpartition(b"\n")
        lines += end
        if len(rest) > _LONGEST_LINE:
            lines += rest + b"\n"
            rest = rest[: rest.find(b" ") + 1] if self._stamped else b""
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
            stamp, _, text = line.partition(b" ") if self._stamped else (b"", b"", line)
            if self._stamped:
                known["time"] = stamp.decode()
            yield {**known, "line": sanitize(text)}


class Stamped:
    """Passes workers' output on; if `asked`, it begins each line with the time of writing."""

    def __init__(self, output: Output, asked: bool) -> None:
        self._output = output
        self._asked = asked
        self._in_line: set[RemoteWorker] = set()

    def write(self, worker: RemoteWorker, data: bytes, epoch: int) -> None:
        """Take bytes that a worker wrote at `epoch`, in seconds since the epoch; 0 if unknown."""
        if self._asked:
            form = "%Y-%m-%dT%H:%M:%SZ " if epoch else "- "
            stamp = time.strftime(form, time.gmtime(epoch)).encode()
            begin = b"" if worker in self._in_line else stamp
            (self._in_line.discard if data.endswith(b"\n") else self._in_line.add)(worker)
            data = begin + data[:-1].replace(b"\n", b"\n" + stamp) + data[-1:]
        self._output.write(worker, "stdout", data)


class Folder(Output):
    """Writes each complete stream to its own file, SLICE-WORKER.stdout or SLICE-WORKER.stderr."""

    def __init__(self, path: Path, workers: Sequence[RemoteWorker]) -> None:
        self._path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            shown = one_line(str(path))
            raise BadInput(f"cannot make the folder {shown}", why=error.strerror or "") from error
        for worker in workers:  # empty the files of an earlier run
            for stream in ("stdout", "stderr"):
                self._file(worker, stream).write_bytes(b"")

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


def chosen_output(
    console: Console,
    workers: Sequence[RemoteWorker],
    directory: str,
    as_json_lines: bool,
    stamped: bool = False,
) -> Output:
    """Return the output that a verb's flags select; one worker's output is passed on unchanged.

    `stamped` is True if lines begin with a time and a blank.
    """
    if directory:
        return Folder(Path(directory), workers)
    if console.as_json:
        return Output()
    if len(workers) == 1 and not as_json_lines:
        return Raw(console)
    return Lines(console, workers, as_json_lines, stamped)


def place(worker: RemoteWorker) -> dict[str, Any]:
    """Return the keys that identify a worker in a JSON document."""
    return {"slice": worker.slice, "worker": worker.index}
