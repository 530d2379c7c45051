"""One input for many readers, each at its own pace, none of it kept in memory."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable, Iterator

_CHUNK = 64 << 10


class Broadcast:
    """Copies a source into an unnamed file; every reader gets all of it, from the first byte."""

    def __init__(self, source: Iterable[bytes]) -> None:
        self._source = source
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed with the last reader
        self._size = 0
        self._ended = False
        self._more = threading.Condition()
        self._started = False
        self._failure: OSError | None = None

    def reader(self) -> Iterator[bytes]:
        """Yield the source's bytes; wait for those that have not come yet.

        Raises `OSError` where there is no room for them here, or the source cannot be read.
        """
        self._start()
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

    def _start(self) -> None:
        with self._more:
            if self._started:
                return
            self._started = True
        # A daemon: a source that never ends must not keep a command that has.
        threading.Thread(target=self._copy, name="tpukit-broadcast", daemon=True).start()

    def _copy(self) -> None:
        try:
            for chunk in self._source:
                self._file.write(chunk)
                self._file.flush()
                with self._more:
                    self._size += len(chunk)
                    self._more.notify_all()
        except OSError as error:
            reason = error.strerror or str(error)
            self._failure = OSError(error.errno, f"standard input was cut short: {reason}")
        finally:
            with self._more:
                self._ended = True
                self._more.notify_all()
