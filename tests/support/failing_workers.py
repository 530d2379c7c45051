"""Workers whose connections end with an error of the test's choice."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NoReturn

import pytest

from tpukit.errors import (
    AuthenticationFailed,
    DeadlinePassed,
    HostKeyMismatch,
    SliceLost,
    TpukitError,
    TransportFailed,
)
from tpukit.ssh.worker import RemoteWorker

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


def check_decisive_class(ensure: Callable[..., object], what: str) -> None:
    """Hold `ensure` to this: each class wins over every lighter one, whichever comes first."""
    for kind, lighter in itertools.combinations((*DECISIVE, TpukitError), 2):
        workers = [failing_with(0, lighter), failing_with(1, kind)]
        for order in (workers, workers[::-1]):
            with pytest.raises(TpukitError) as caught:
                ensure(*order)
            numbers = ", ".join(str(worker.index) for worker in order)
            error = caught.value
            assert type(error) is kind
            assert error.what == f"{what} on workers {numbers}"
            assert error.why == f"{kind.__name__} here (a reason)"
            assert (error.exists, error.fix) == (("demo",), "type this")
            assert len(error.details["workers"]) == 2
