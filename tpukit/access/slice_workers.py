"""The one way in: the selected workers of slices, each with a connection that finds it again.

`Connector.connect` is the only loop that tries for a connection. What is decided here after each
failed attempt: whether the slice is looked at again, whether a firewall rule is missing, and
whether the user is told that somebody lets us wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tpukit.access import ssh_rule
from tpukit.access.context import Context
from tpukit.access.host_keys import IDENTITY_SECONDS, targets
from tpukit.access.key import install_key
from tpukit.access.selection import parse_workers
from tpukit.clock import Deadline
from tpukit.errors import (
    AuthenticationFailed,
    HostKeyMismatch,
    NotFound,
    SecurityRefusal,
    SliceLost,
    TpukitError,
    TransportFailed,
)
from tpukit.models import Slice
from tpukit.remote.command.fan_out import fan_out, values
from tpukit.remote.connection.client import Connection
from tpukit.remote.connection.target import Target
from tpukit.remote.connection.worker import RemoteWorker

#: Seconds of trying after which the firewall rules are read, once for each connection.
_RULE_SECONDS = 8.0
#: Seconds of trying after which the slice is looked at again, first and at the latest.
_FIRST_LOOK_SECONDS, _LONGEST_PAUSE_SECONDS = 10.0, 40.0
#: Seconds for which one look at the slice serves all of its workers.
_FRESH_SECONDS = 5.0

OnWait = Callable[[str], None]


def workers(
    context: Context,
    slices: Sequence[Slice],
    selection: str,
    deadline: Deadline,
    patience: float,
    on_wait: OnWait = lambda line: None,
) -> list[RemoteWorker]:
    """Return the selected workers of each slice, with their pinned host keys.

    Only the workers that are selected are asked for anything. `deadline` is for the API;
    `patience`, in seconds, for each connection that is made later. `on_wait` gets a line for each
    worker that does not answer.

    Raises:
        BadInput: the selection names no worker, or one that a slice lacks; or the workers have no
            external addresses, and no other route was asked for.
        SliceLost: a slice was preempted or terminated.
        SecurityRefusal: a selected worker has not published its host keys.
        AuthenticationFailed: a slice lets people in by OS Login.
        TpukitError: a slice has no workers yet, or the API failed.
    """
    for each in slices:
        context.check_reachable(each)
    chosen = [
        _SliceAccess(
            context, each, parse_workers(selection, [w.index for w in each.workers]), on_wait
        )
        for each in slices
    ]
    opened = values(fan_out(chosen, lambda each: each.open(deadline, patience)))
    return [worker for found in opened for worker in found]


class _SliceAccess:
    """The chosen workers of one slice, and where they were when they were last looked for."""

    def __init__(
        self, context: Context, found: Slice, chosen: Sequence[int], on_wait: OnWait
    ) -> None:
        self._context = context
        self._slice = found
        self._chosen = chosen
        self._on_wait = on_wait
        self._targets: dict[int, Target] = {}
        self._fresh_until = 0.0
        self._lock = threading.Lock()

    def open(self, deadline: Deadline, patience: float) -> list[RemoteWorker]:
        """Make sure of our key and read the workers' host keys."""
        context = self._context
        install_key(context.provider, self._slice, context.user, context.key, deadline)
        self._targets = self._read(deadline.within(IDENTITY_SECONDS))

        def connector(index: int) -> Callable[[], Connection]:
            return lambda: self._connect(index, Deadline.after(context.clock, patience))

        return [
            RemoteWorker(index, connector(index), self._slice.name, target)
            for index, target in self._targets.items()
        ]

    def _read(self, deadline: Deadline) -> dict[int, Target]:
        context = self._context
        found = targets(
            context.provider,
            self._slice,
            context.user,
            deadline,
            internal=context.internal,
            chosen=self._chosen,
        )
        return {target.worker: target for target in found}

    def _connect(self, index: int, deadline: Deadline) -> Connection:
        search = _Search(self, deadline)
        try:
            return self._context.connector.connect(self._targets[index], deadline, search.next)
        except TransportFailed as error:
            search.explain(self._targets[index], error)
            raise

    def look_again(self, before: Target, deadline: Deadline) -> Target:
        """Return where the worker is now: a slice that was made anew has other addresses, keys.

        Raises:
            SliceLost: the slice was preempted or terminated, or is gone.
            TpukitError: its workers cannot answer.
            TransportFailed: it has no such worker now.
        """
        with self._lock:
            if self._targets[before.worker] is not before:
                return self._targets[before.worker]
            if self._context.clock.monotonic() < self._fresh_until:
                return before
            found = self._found_again(deadline) or self._targets
            if before.worker not in found:
                raise TransportFailed(f"slice {self._slice.name} has no worker {before.worker} now")
            self._targets = {**self._targets, **found}
            return found[before.worker]

    def _found_again(self, deadline: Deadline) -> dict[int, Target] | None:
        """Read the slice and its host keys; None where the API cannot be asked either."""
        context = self._context
        self._fresh_until = context.clock.monotonic() + _FRESH_SECONDS
        try:
            self._slice = context.provider.get(self._slice.zone, self._slice.name)
        except NotFound as error:
            name = self._slice.name
            raise SliceLost(f"slice {name} is gone", why="it was there a moment ago") from error
        except TpukitError:
            return None
        context.check_reachable(self._slice)
        try:
            return self._read(deadline)
        except SecurityRefusal:
            raise
        except TpukitError:
            return None

    def missing_rule(self, target: Target, error: TransportFailed) -> TransportFailed | None:
        """Return the error that names the firewall rule that is missing, None where none is."""
        context = self._context
        try:
            missing = ssh_rule.missing(
                context.firewall, self._slice, context.source_address(target.address)
            )
        except TpukitError:  # not allowed to read the rules, or our address is unknown
            return None
        fix = ssh_rule.apply_command(self._slice)
        return TransportFailed(error.what, why=missing, fix=fix) if missing else None

    def wait(self, error: TpukitError, deadline: Deadline) -> None:
        left = f"trying for {deadline.remaining():.0f} s more"
        self._on_wait(f"{error.what} ({error.reason or error.why}); {left}")


class _Search:
    """What is decided about one worker after each attempt to connect that failed."""

    def __init__(self, access: _SliceAccess, deadline: Deadline) -> None:
        self._access = access
        self._deadline = deadline
        self._started = self._now()
        self._pause = _FIRST_LOOK_SECONDS
        self._next_look = self._started + self._pause
        self._rule_checked = False
        self._waited = False

    def next(self, target: Target, error: TransportFailed | HostKeyMismatch) -> Target:
        """Return the target of the next attempt; raise where another one is in vain."""
        if isinstance(error, HostKeyMismatch):
            now = self._access.look_again(target, self._deadline)
            if now == target:
                raise error
            return now
        if self._now() - self._started >= _RULE_SECONDS:
            self._check_rule(target, error)
        if self._now() < self._next_look:
            return target
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        self._next_look = self._now() + self._pause
        now = self._access.look_again(target, self._deadline)
        if now == target and not self._waited:
            self._waited = True
            self._access.wait(error, self._deadline)
        return now

    def explain(self, target: Target, error: TransportFailed) -> None:
        """Raise a better error than the last attempt's, where there is one: the slice is lost, or
        no firewall rule admits us.
        """
        self._access.look_again(target, self._deadline)
        self._check_rule(target, error)

    def _check_rule(self, target: Target, error: TransportFailed) -> None:
        # A refused key is an answer: packets arrive, and the error keeps its own class.
        if self._rule_checked or isinstance(error, AuthenticationFailed):
            return
        self._rule_checked = True
        missing = self._access.missing_rule(target, error)
        if missing:
            raise missing from error

    def _now(self) -> float:
        return self._deadline.clock.monotonic()
