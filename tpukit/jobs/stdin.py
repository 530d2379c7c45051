"""One input for many readers, each at its own pace, without keeping it in memory."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from tpukit.errors import TpukitError

_CHUNK = 64 << 10


def readers(source: Iterable[bytes], number: int) -> Callable[[], Iterator[bytes]]:
    """Return a function that makes a reader of a source, for `number` readers.

    Several readers share a temporary file. They raise `TpukitError` if the source fails, or if this
    machine's disk is full.
    """
    return partial(_stream, source) if number == 1 else Broadcast(source).reader


def _stream(source: Iterable[bytes]) -> Iterator[bytes]:
    try:
        yield from source
    except OSError as error:
        raise _cut_short(error) from error


class Broadcast:
    """Copies a source into an unnamed file; every reader gets all of it, from the first byte.

    It and its readers raise `TpukitError` if the file cannot be written.
    """

    def __init__(self, source: Iterable[bytes]) -> None:
        self._source = iter(source)
        try:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed with the last reader
        except OSError as error:
            raise _cut_short(error) from error
        self._lock = threading.Lock()
        self._failure: TpukitError | None = None

    def reader(self) -> Iterator[bytes]:
        """Yield the source's bytes, and wait for more until its end."""
        offset = 0
        while chunk := self._read(offset) or self._copy(offset):
            offset += len(chunk)
            yield chunk

    def _read(self, offset: int) -> bytes:
        return os.pread(self._file.fileno(), _CHUNK, offset)

    def _copy(self, offset: int) -> bytes:
        """Copy the next bytes of the source to the file, unless they are there; return them."""
        with self._lock:
            if self._failure:
                raise self._failure
            if chunk := self._read(offset):  # another reader has copied it meanwhile
                return chunk
            try:
                chunk = next(self._source, b"")
                self._file.write(chunk)
                self._file.flush()
            except OSError as error:
                self._failure = _cut_short(error)
                raise self._failure from error
            return chunk


def _cut_short(error: OSError) -> TpukitError:
    return TpukitError("standard input was cut short", reason=error.strerror or str(error))
