"""The one way in: the selected workers of slices, each with a connection that finds it again.

`Connector.connect` is the only loop that tries for a connection. What is decided here after each
failed attempt: whether the slice is looked at again, whether a firewall rule is missing, and
whether the user is told that somebody lets us wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, repeat

from tpukit.access.context import Context
from tpukit.access.hints import Hint
from tpukit.access.host_keys import IDENTITY_SECONDS, published, targets
from tpukit.access.key import install_key
from tpukit.access.os_login import WorkerLogin
from tpukit.access.selection import parse_workers
from tpukit.access.suspicion import (
    Suspicion,
    Suspicions,
    combined,
    may_be_filtered,
    of_health,
)
from tpukit.clock import Deadline
from tpukit.errors import (
    AuthenticationFailed,
    Fix,
    HostKeyMismatch,
    SecurityRefusal,
    SliceLost,
    TpukitError,
    TransportFailed,
    Unanswered,
)
from tpukit.models import Slice, WorkerIdentity
from tpukit.remote.command.fan_out import fan_out, values
from tpukit.remote.connection.client import Connection
from tpukit.remote.connection.handshake import fingerprint
from tpukit.remote.connection.target import Target
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.slices.find import check_still_there, find, gone, look

#: Seconds of trying after which the firewall rules are looked at.
_RULE_SECONDS = 8.0
#: Seconds between two looks at the slice while a worker does not answer. A lost connection is
#: followed by one at once.
_LOOK_SECONDS = 10.0
#: Seconds in which a worker has to answer where a hint says that it is: directly, or by a proxy,
#: which may be a program that has to start.
_HINT_SECONDS = {False: 4.0, True: 10.0}
#: Seconds for which one look at the slice serves all of its workers.
_FRESH_SECONDS = 5.0

OnWait = Callable[[str], None]


def workers(
    context: Context,
    slices: Sequence[Slice | Hint],
    selection: str,
    deadline: Deadline,
    patience: float,
    on_wait: OnWait = lambda line: None,
    *,
    everywhere: bool = False,
    for_others: bool = False,
) -> list[RemoteWorker]:
    """Return the selected workers of each slice, with their pinned host keys.

    Only the workers that are selected are asked for anything; of a hint the API is asked nothing
    unless a worker does not answer as it says. `deadline` is for the API and for each worker's
    first connection, which has `patience` seconds at most; later ones have all of them. `on_wait`
    gets a line for each worker that does not answer. `everywhere` tells that each slice was looked
    for in every zone, `for_others` that the targets are for another program, which cannot find out
    more while it connects.

    Raises:
        BadInput: the selection names no worker, or one that a slice lacks; or the workers have no
            external addresses, and no other route was asked for.
        SliceLost: a slice was preempted or terminated.
        SecurityRefusal: a selected worker has not published its host keys.
        NotAllowed: a slice lets people in by OS Login, which does not know us.
        TpukitError: a slice has no workers yet, or the API failed.
    """
    chosen = [
        _SliceAccess(context, each, selection, on_wait, everywhere, for_others) for each in slices
    ]
    opened = values(fan_out(chosen, lambda each: each.open(deadline, patience)))
    coordinator = chosen[0].coordinator if chosen else ""
    requests = {each.request for each in chosen}
    multislice = len(opened) > 1 and len(requests) == 1 and "" not in requests
    return [
        replace(
            worker,
            coordinator=coordinator,
            slice_index=place,
            slices=len(opened),
            multislice=multislice,
        )
        for place, found in enumerate(opened)
        for worker in found
    ]


class _SliceAccess:
    """The chosen workers of one slice, and where they were when they were last looked for."""

    def __init__(
        self,
        context: Context,
        found: Slice | Hint,
        selection: str,
        on_wait: OnWait,
        everywhere: bool,
        for_others: bool,
    ) -> None:
        self._context = context
        self._hint = found if isinstance(found, Hint) else None  #: until it is in doubt
        self._slice = found.slice if isinstance(found, Hint) else found
        self._selection = selection
        self._on_wait = on_wait
        self._everywhere = everywhere
        self._for_others = for_others
        self._identities: Mapping[int, WorkerIdentity] = {}
        self._login: WorkerLogin | None = None
        self._project_asked = False  #: whether it lets people in by OS Login
        self._proved: set[int] = set()  #: workers that answered as the hint says
        self._doubted: TpukitError | None = None
        self._chosen: list[int] = []
        self._targets: dict[int, Target] = {}
        self._fresh_until = 0.0
        self.lost: SliceLost | None = None  #: as the last look at the slice found it
        self._lock = threading.Lock()
        self._suspicions = Suspicions(context)

    @property
    def proxied(self) -> bool:
        return self._context.proxied

    @property
    def request(self) -> str:
        """The queued resource that the slice came from, with its place, or ""."""
        found = self._slice
        return found.queued_resource and f"{found.zone}/{found.queued_resource}"

    def open(self, deadline: Deadline, patience: float) -> list[RemoteWorker]:
        """Return the chosen workers, once our key and their host keys are known to be there."""
        if not (self._hint and self._taken(self._hint)):
            self._find_out(deadline)

        clock, left = self._context.clock, min(patience, deadline.remaining())

        def connector(index: int) -> Callable[[], Connection]:
            # The API and the first connection share one `--timeout`.
            limits = chain([(left, False)], repeat((patience, True)))

            def connect() -> Connection:
                seconds, again = next(limits)
                return self._connect(index, Deadline.after(clock, seconds), again)

            return connect

        return [
            RemoteWorker(
                index,
                connector(index),
                self._slice.name,
                self._targets[index],
                self._check,
                len(self._slice.workers),
            )
            for index in self._chosen
        ]

    @property
    def coordinator(self) -> str:
        """The internal address of worker 0."""
        return next((each.internal_address for each in self._slice.workers), "")

    def _check(self) -> None:
        """Raise `SliceLost` if the slice is lost; one look serves all of its workers."""
        with self._lock:
            if not self._is_fresh():
                with self._looking():
                    check_still_there(self._context.provider, self._slice)

    def _is_fresh(self) -> bool:
        """Return True if the last look still counts; raise `SliceLost` if it found a loss."""
        fresh = self._context.clock.monotonic() < self._fresh_until
        if fresh and self.lost:
            raise self.lost
        return fresh

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Keep what a look finds for the other workers: they must not wait for what is lost."""
        self._fresh_until = self._context.clock.monotonic() + _FRESH_SECONDS
        self.lost = None
        try:
            yield
        except SliceLost as error:
            self.lost = error
            raise

    def _choose(self) -> None:
        self._context.check_reachable(self._slice)
        self._chosen = parse_workers(self._selection, [w.index for w in self._slice.workers])

    def _taken(self, hint: Hint) -> bool:
        """Take what a hint says of the chosen workers; tell whether it says enough."""
        with suppress(TpukitError):
            self._choose()
            self._login, self._identities = hint.login, hint.identities
            self._targets = self._aimed()
            return set(self._chosen) <= set(self._targets)
        return False

    def _find_out(self, deadline: Deadline) -> None:
        """Ask the API for the slice, unless it was just asked, for our key and the host keys."""
        context, provider = self._context, self._context.provider.within(deadline)
        if self._hint:
            self._slice = find(provider, self._slice.name, self._hint.zone)
            self._hint = None
        self._choose()
        self._login = self._os_login(project=self._for_others)
        if not self._login:
            install_key(provider, self._slice, context.user, context.key, deadline)
        self._targets = self._read(deadline.within(IDENTITY_SECONDS))

    def _read(self, deadline: Deadline) -> dict[int, Target]:
        context = self._context
        self._identities = published(
            context.provider.within(deadline),
            self._slice,
            deadline,
            self._chosen,
            pinned=context.pinned.of(self._slice),
            accept_new=context.accept_new,
        )
        self._remember()
        return self._aimed()

    def _remember(self) -> None:
        if all(each.host_keys for each in self._identities.values()):
            hint = Hint(self._slice, self._identities, self._everywhere, self._login)
            self._context.hints.keep(hint)

    def _aimed(self) -> dict[int, Target]:
        context, login = self._context, self._login
        found = targets(self._slice, context.user, self._identities, internal=context.internal)
        if not login:
            return found
        return {
            index: replace(each, user=login.user, identity_file=login.identity_file)
            for index, each in found.items()
        }

    def _os_login(self, *, project: bool) -> WorkerLogin | None:
        logins, found = self._context.os_logins, self._slice
        return logins.of(f"slice {found.name}", found.metadata, project=project) if logins else None

    def refused(self, target: Target) -> Target:
        """Return the target for who we are where a project's OS Login is why a key is refused.

        It is asked once. Raises `NotAllowed` where OS Login does not know us.
        """
        with self._lock:
            if not self._project_asked:
                self._project_asked = True
                self._login = self._login or self._os_login(project=True)
                if self._login:
                    self._targets = self._aimed()
                    self._remember()
            return self._targets.get(target.worker, target)

    def _connect(self, index: int, deadline: Deadline, again: bool) -> Connection:
        if self._hint and index not in self._proved:
            try:
                attempt = deadline.within(_HINT_SECONDS[self._context.internal])
                connection = self._context.connector.connect_once(self._targets[index], attempt)
                self._proved.add(index)
                return connection
            except (TransportFailed, HostKeyMismatch):
                self._doubt(index, deadline)
        search = _Search(self, deadline, again)
        try:
            connection = self._context.connector.connect(
                self._targets[index], deadline, search.next
            )
            return self._pinned(index, connection)
        except HostKeyMismatch as error:
            self._say_how_to_forget(error)
            raise
        except TransportFailed as error:
            search.explain(self._targets[index], error)
            raise

    def _pinned(self, index: int, connection: Connection) -> Connection:
        """Hold a worker whose host key was not known to the one that it has shown."""
        pinned, (key, *_) = self._context.pinned, connection.target.host_keys
        if self._targets[index].accept_new:
            pinned.pin(self._slice, index, key)
            self._targets = {**self._targets, index: connection.target}
            self._on_wait(f"{connection.label}: {fingerprint(key)} is its host key from now on")
        return connection

    def _say_how_to_forget(self, error: HostKeyMismatch) -> None:
        pinned = self._context.pinned
        if pinned.of(self._slice):
            note = "only where the worker has got a new host key for a reason that you know"
            error.fix = Fix.command("rm", str(pinned.path(self._slice)), note=note)

    def _doubt(self, index: int, deadline: Deadline) -> None:
        """Go on as if there had been no hint; what one worker finds out holds for all."""
        with self._lock:
            if self._doubted:
                raise self._doubted
            if self._hint:
                try:
                    self._find_out(deadline)
                except TpukitError as error:
                    error.common, self._doubted = True, error
                    self._context.hints.forget(self._slice.name)
                    raise
            if index not in self._targets:
                raise TransportFailed(f"slice {self._slice.name} has no worker {index} now")

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
            if self._is_fresh():
                return before
            with self._looking():
                found = self._found_again(deadline) or self._targets
            if before.worker not in found:
                raise TransportFailed(f"slice {self._slice.name} has no worker {before.worker} now")
            self._targets = {**self._targets, **found}
            return found[before.worker]

    def _found_again(self, deadline: Deadline) -> dict[int, Target] | None:
        """Read the slice and its host keys; None where the API cannot be asked either."""
        context = self._context
        try:
            provider = context.provider.within(deadline).once()
            now = look(provider, self._slice.target)
        except TpukitError:
            return None
        if now is None:
            raise gone(self._slice)
        self._slice = now
        context.check_reachable(self._slice)
        try:
            return self._read(deadline)
        except SecurityRefusal:
            raise
        except TpukitError:
            return None

    @property
    def health(self) -> Suspicion | None:
        """The slice's health at the last look, if it may be why a worker is silent."""
        return of_health(self._slice)

    def missing_rule(self, target: Target, deadline: Deadline) -> Suspicion | None:
        """Return the firewall rule whose absence may be why nobody answers, if it can be told."""
        return self._suspicions.of(self._slice, target.address, deadline)

    def wait(self, error: TpukitError, deadline: Deadline, why: str = "") -> None:
        left = f"trying for {deadline.remaining():.0f} s more"
        self._on_wait(f"{error.what} ({why or error.reason or error.why}); {left}")


class _Search:
    """What is decided about one worker after each attempt to connect that failed."""

    def __init__(self, access: _SliceAccess, deadline: Deadline, again: bool) -> None:
        self._access = access
        self._deadline = deadline
        self._started = self._now()
        self._next_look = self._started + (0.0 if again else _LOOK_SECONDS)
        self._rules_read = False
        self._missing_rule: Suspicion | None = None
        self._waited = False

    def next(self, target: Target, error: TransportFailed | HostKeyMismatch) -> Target:
        """Return the target of the next attempt; raise where another one is in vain."""
        if isinstance(error, HostKeyMismatch):
            now = self._access.look_again(target, self._deadline)
            if now == target:
                raise error
            return now
        if isinstance(error, AuthenticationFailed):
            target = self._access.refused(target)
        if isinstance(error, Unanswered) and self._now() - self._started >= _RULE_SECONDS:
            self._suspect(target, error)
        if self._now() < self._next_look and not self._access.lost:
            return target
        self._next_look = self._now() + _LOOK_SECONDS
        now = self._access.look_again(target, self._deadline)
        if now == target and not self._waited:
            self._waited = True
            health = self._access.health
            self._access.wait(error, self._deadline, health.why if health else "")
        return now

    def explain(self, target: Target, error: TransportFailed) -> None:
        """Complete the last attempt's error with a hint if health or a firewall may be the cause.

        Raises `SliceLost` if the slice is lost.
        """
        self._access.look_again(target, self._deadline)
        if error.fix or isinstance(error, AuthenticationFailed):  # such a worker does answer
            return
        if may_be_filtered(error, self._access.proxied):
            self._read_rules(target)
        if found := combined(self._access.health, self._missing_rule):
            error.why = "; ".join(filter(None, (error.why, found.why)))
            error.fix = found.fix

    def _suspect(self, target: Target, error: Unanswered) -> None:
        if self._rules_read:
            return
        self._read_rules(target)
        found = combined(self._access.health, self._missing_rule)
        if found and found.certain:
            raise Unanswered(error.what, reason=error.reason, why=found.why, fix=found.fix)
        if found and self._missing_rule:
            self._access.wait(error, self._deadline, f"{found.why}; fix: {found.fix}")

    def _read_rules(self, target: Target) -> None:
        if not self._rules_read:
            self._rules_read = True
            self._missing_rule = self._access.missing_rule(target, self._deadline)

    def _now(self) -> float:
        return self._deadline.clock.monotonic()
