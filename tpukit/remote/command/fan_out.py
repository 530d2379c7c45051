"""The same work on many items at once, each with an outcome of its own."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from tpukit.errors import TpukitError, decisive

#: What an interrupt leaves cancelled work to end in, over all of it.
_GRACE_SECONDS = 0.1

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Outcome(Generic[Item, Value]):
    """What became of one item: a value, or the error that it ended with."""

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

    A `TpukitError` is that item's outcome, and raised where every item has ended with one that is
    common to all. Any other exception is a defect and is raised once every item has ended. An
    interrupt calls `cancel`, which is to end what still runs, and leaves a tenth of a second later.
    """
    pending = deque(enumerate(items))
    finished = queue.SimpleQueue[tuple[int, Outcome[Item, Value] | Exception]]()

    def serve() -> None:
        with suppress(IndexError):
            while True:
                index, item = pending.popleft()
                finished.put((index, _outcome(item, work)))

    # Daemons: work that hangs in somebody else's code must not keep an interrupted command.
    threads = [
        threading.Thread(target=serve, name="tpukit-fan-out", daemon=True)
        for _ in range(min(window, len(items)))
    ]
    try:
        for thread in threads:
            thread.start()
        found = dict(finished.get() for _ in items)
    except BaseException:
        pending.clear()
        if cancel is not None:
            cancel()
        # Python aborts when it ends in the middle of a daemon's print.
        for thread in filter(threading.Thread.is_alive, threads):
            thread.join(_GRACE_SECONDS / len(threads))
        raise
    outcomes = []
    for _, outcome in sorted(found.items()):
        if isinstance(outcome, Exception):
            raise outcome
        outcomes.append(outcome)
    if all(each.error and each.error.common for each in outcomes):
        values(outcomes)
    return outcomes


def values(outcomes: Sequence[Outcome[Item, Value]]) -> list[Value]:
    """Return the values of all outcomes; raise the decisive error, else the first."""
    errors = [each.error for each in outcomes if each.error]
    if errors:
        raise decisive(errors) or errors[0]
    return [each.value for each in outcomes]  # type: ignore[misc]


def _outcome(item: Item, work: Callable[[Item], Value]) -> Outcome[Item, Value] | Exception:
    try:
        return Outcome(item, work(item))
    except TpukitError as error:
        return Outcome(item, error=error)
    except Exception as defect:  # noqa: BLE001 - handed to the caller's thread, which raises it
        return defect
