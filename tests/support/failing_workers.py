"""Workers whose connections end with an error of the test's choice."""

from __future__ import annotations

from typing import NoReturn

from tpukit.errors import (
    AuthenticationFailed,
    DeadlinePassed,
    HostKeyMismatch,
    SliceLost,
    TpukitError,
    TransportFailed,
)
from tpukit.remote.connection.worker import RemoteWorker

#: What is not about the work that was asked for, the most telling first.
DECISIVE = (SliceLost, HostKeyMismatch, DeadlinePassed, AuthenticationFailed, TransportFailed)


def failing(index: int, error: TpukitError) -> RemoteWorker:
    """Return a worker to which no connection can be made."""

    def refuse() -> NoReturn:
        raise error

    return RemoteWorker(index, refuse)


def failing_with(index: int, kind: type[TpukitError]) -> RemoteWorker:
    """Return a worker that fails with an error of this class, named by it."""
    return failing(
        index, kind(f"{kind.__name__} here", reason="a reason", exists=["demo"], fix="type this")
    )
