"""The same work on many items at once, with one outcome for each."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from tpukit.errors import TpukitError, decisive

#: Seconds that all cancelled work together gets to end after an interrupt.
_GRACE_SECONDS = 0.1

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Outcome(Generic[Item, Value]):
    """The outcome for one item: a value or an error."""

    item: Item
    value: Value | None = None
    error: TpukitError | None = None


def fan_out(
    items: Sequence[Item],
    work: Callable[[Item], Value],
    *,
    window: int = 32,
    cancel: Callable[[], None] | None = None,
) -> list[Outcome[Item, Value]]:
    """Return the outcome of `work` on every item, in order; at most `window` run at once.

    A `TpukitError` is that item's outcome; if every item fails with an error that is common to all,
    one of them is raised. Any other exception is a defect, and is raised after every item has
    ended. An interrupt calls `cancel`, which should end the running work, and is raised again after
    a tenth of a second.
    """
    pending = deque(enumerate(items))
    finished = queue.SimpleQueue[tuple[int, Outcome[Item, Value] | Exception]]()

    def serve() -> None:
        with suppress(IndexError):
            while True:
                index, item = pending.popleft()
                try:
                    finished.put((index, Outcome(item, work(item))))
                except TpukitError as error:
                    finished.put((index, Outcome(item, error=error)))
                except Exception as defect:  # noqa: BLE001 - raised in the caller's thread
                    finished.put((index, defect))

    # Daemon threads: work that hangs in foreign code must not delay an interrupted command.
    threads = [
        threading.Thread(target=serve, name="tpukit-fan-out", daemon=True)
        for _ in range(min(window, len(items)))
    ]
    try:
        for thread in threads:
            thread.start()
        by_index = dict(finished.get() for _ in items)
    except BaseException:
        pending.clear()
        if cancel is not None:
            cancel()
        # Python aborts if it exits while a daemon thread prints.
        for thread in filter(threading.Thread.is_alive, threads):
            thread.join(_GRACE_SECONDS / len(threads))
        raise
    outcomes = []
    for _, outcome in sorted(by_index.items()):
        if isinstance(outcome, Exception):
            raise outcome
        outcomes.append(outcome)
    if all(outcome.error and outcome.error.common for outcome in outcomes):
        values(outcomes)
    return outcomes


def values(outcomes: Sequence[Outcome[Item, Value]]) -> list[Value]:
    """Return the values of all outcomes; raise the decisive error, else the first."""
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if errors:
        raise decisive(errors) or errors[0]
    return [outcome.value for outcome in outcomes]  # type: ignore[misc]
