"""A request that got no complete answer, and why, in a few words.

Most commands on a slice's workers send no request, so this module does not load `http.client`.
"""

from __future__ import annotations

import socket

from tpukit.text import one_line

#: The causes by the name of an exception or of its base: the nearest one decides.
_CAUSES = {
    "gaierror": "the name of the server cannot be resolved: is there a network?",
    "ConnectionRefusedError": "nothing listens there",
    "TimeoutError": "no complete answer in time",
    "RemoteDisconnected": "the connection was closed without an answer",
    "ConnectionResetError": "the connection was reset",
    "IncompleteRead": "the answer was cut short",
    "HTTPException": "the answer is not HTTP",
}


class NoAnswer(Exception):
    """No complete answer came. `sent` is whether the server may have received the request."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


def cause(error: BaseException) -> str:
    """Return in a few words why no answer came, from the innermost error."""
    error = _innermost(error)
    words = next(
        (_CAUSES[kind.__name__] for kind in type(error).mro() if kind.__name__ in _CAUSES), ""
    )
    return words or one_line(str(error)[:200]) or type(error).__name__


def arrived(error: BaseException) -> bool:
    """Return True if a request that ended with this error may have reached the server."""
    return not isinstance(_innermost(error), (socket.gaierror, ConnectionRefusedError))


def _innermost(error: BaseException) -> BaseException:
    within = error.__cause__ or error.__context__
    return _innermost(within) if within else error
