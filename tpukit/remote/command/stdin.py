"""One input for many readers, each at its own pace, none of it kept in memory."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable, Iterator

from tpukit.errors import TpukitError

_CHUNK = 64 << 10


class Broadcast:
    """Copies a source into an unnamed file; every reader gets all of it, from the first byte.

    Raises `TpukitError`, and so do its readers, where there is no room for it here.
    """

    def __init__(self, source: Iterable[bytes]) -> None:
        self._source = source
        try:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed with the last reader
        except OSError as error:
            raise _cut_short(error) from error
        self._size = 0
        self._ended = False
        self._more = threading.Condition()
        self._failure: TpukitError | None = None
        # A daemon: a source that never ends must not keep a command that has.
        self._copier = threading.Thread(target=self._copy, name="tpukit-broadcast", daemon=True)

    def reader(self) -> Iterator[bytes]:
        """Yield the source's bytes; wait for those that have not come yet."""
        with self._more:
            if not self._copier.ident:
                self._copier.start()
        offset = 0
        while True:
            with self._more:
                while offset >= self._size and not self._ended:
                    self._more.wait()
            chunk = os.pread(self._file.fileno(), _CHUNK, offset)
            if not chunk and self._failure:
                raise self._failure
            if not chunk:
                return
            offset += len(chunk)
            yield chunk

    def _copy(self) -> None:
        try:
            for chunk in self._source:
                self._file.write(chunk)
                self._file.flush()
                with self._more:
                    self._size += len(chunk)
                    self._more.notify_all()
        except OSError as error:
            self._failure = _cut_short(error)
        finally:
            with self._more:
                self._ended = True
                self._more.notify_all()


def _cut_short(error: OSError) -> TpukitError:
    return TpukitError("standard input was cut short", reason=error.strerror or str(error))
