"""The reports of Ctrl-C by commands that start a run or follow one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tpukit.errors import Fix, Interrupted, Terminated, TpukitError, interruption


@contextmanager
def nothing_started() -> Iterator[None]:
    """Let an interrupt of the block say that no run was started; no other command is needed."""
    try:
        yield
    except (KeyboardInterrupt, Interrupted, Terminated) as caught:
        error = interruption(caught) if isinstance(caught, KeyboardInterrupt) else caught
        error.why, error.fix, error.otherwise = "nothing was started", None, None
        raise error from None


def left_alone(signal: KeyboardInterrupt, names: str, run: str, state: str) -> TpukitError:
    """Return the error for an interrupt that leaves a run of these slices in a state."""
    error = interruption(signal)
    error.exists = (f"run {run} {state}",)
    error.fix = Fix.command("tpukit", "attach", names, run, note="follows it again")
    error.otherwise = Fix.command("tpukit", "kill", names, run, note="ends it")
    return error
