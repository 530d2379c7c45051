"""The workers of slices, with connections that find a worker again if it has moved.

Only `Connector.connect` retries. After each failed attempt, `_Search` decides if it reads the slice
and the firewall rules again, and which messages to show.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, repeat
from math import inf

from tpukit.access.context import Context
from tpukit.access.hints import Hint
from tpukit.access.host_keys import IDENTITY_SECONDS, published, targets
from tpukit.access.os_login import WorkerLogin
from tpukit.access.selection import parse_workers
from tpukit.access.suspicion import Suspicion, Suspicions, may_be_filtered
from tpukit.clock import Deadline
from tpukit.errors import (
    AuthenticationFailed,
    Fix,
    HostKeyMismatch,
    SecurityRefusal,
    TpukitError,
    TransportFailed,
    Unanswered,
    decisive,
)
from tpukit.models import Slice
from tpukit.slices.claim import claim
from tpukit.slices.find import find, look
from tpukit.slices.losses import check_still_there, gone
from tpukit.ssh.client import Connection
from tpukit.ssh.fan_out import fan_out
from tpukit.ssh.handshake import fingerprint
from tpukit.ssh.target import Target
from tpukit.ssh.worker import RemoteWorker

#: Seconds between two reads of the slice and its firewall rules while a worker does not answer.
#: After a lost connection the slice is read at once.
_LOOK_SECONDS = 10.0
#: Seconds for a worker to answer at a hint's address: external, or internal, which may need a proxy
#: program to start.
_HINT_SECONDS = {False: 4.0, True: 10.0}
#: Seconds for which one read of the slice serves all of its workers.
_FRESH_SECONDS = 5.0

OnWait = Callable[[str], None]
OnFailure = Callable[[str, TpukitError], None]


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
    claims: bool = False,
    until: Deadline | None = None,
    on_failure: OnFailure | None = None,
) -> list[RemoteWorker]:
    """Return the selected workers of each slice, with their pinned host keys.

    Other workers are not contacted. With a hint, the API is called only if a worker does not answer
    as the hint says. `deadline` limits the API calls and each worker's first connection, which has
    at most `patience` seconds; each later connection has `patience` seconds. None outlasts `until`,
    the end of a longer job. `on_wait` gets a line for each worker that does not answer.
    `everywhere` is True if the slices were searched in every zone, `for_others` if the targets are
    for another program, which cannot find out more later, `claims` if somebody uses the slices now,
    which claims those that wait for it.
    With `on_failure`, slices that fail are left out; it gets their names and errors. If all fail,
    their error is raised.

    Raises:
        BadInput: the selection names no worker, or one that a slice lacks; or the workers have no
            external addresses, which this route needs.
        SliceLost: a slice was preempted or terminated.
        SecurityRefusal: a selected worker has not published its host keys.
        NotAllowed: a slice uses OS Login, which does not know our key.
        TpukitError: a slice has no workers yet, or the API failed.
    """
    chosen = []
    for slice_ in slices:
        known = slice_ if isinstance(slice_, Hint) else Hint(slice_, {}, everywhere)
        unproved = {worker.index for worker in known.slice.workers if known is slice_}
        access = _SliceAccess(context, known, unproved, selection, on_wait, for_others, claims)
        chosen.append(access)
    end = until or Deadline.never(context.clock)
    outcomes = fan_out(chosen, lambda access: access.open(deadline, patience, end))
    failed = {outcome.item.slice.name: outcome.error for outcome in outcomes if outcome.error}
    chosen = [outcome.item for outcome in outcomes if not outcome.error]
    if on_failure and chosen:
        for name, error in failed.items():
            on_failure(name, error)
    elif failed:
        raise _failure(failed.values(), [access.slice.name for access in chosen])
    opened = [outcome.value for outcome in outcomes if outcome.value is not None]
    first = chosen[0].slice.workers[0].internal_address if chosen else ""
    origins = {(access.slice.zone, access.slice.queued_resource) for access in chosen}
    multislice = len(opened) > 1 and len(origins) == 1 and all(name for _, name in origins)
    return [
        replace(
            worker,
            coordinator=first,
            slice_index=place,
            slices=len(opened),
            multislice=multislice,
        )
        for place, own in enumerate(opened)
        for worker in own
    ]


def _failure(errors: Iterable[TpukitError], others: Sequence[str]) -> TpukitError:
    """Return the decisive error, with those of the further slices if there are others to name."""
    every = list(errors)
    error = decisive(every) or every[0]
    if others:
        error.also += tuple(further for further in every if further is not error)
        error.otherwise = Fix(note=f"to leave it out, name the others: {','.join(others)}")
    return error


@dataclass(eq=False)
class _SliceAccess:
    """The chosen workers of one slice, and their last known targets."""

    context: Context
    known: Hint
    unproved: set[int]  #: workers of a hint that have not answered yet
    selection: str
    on_wait: OnWait
    for_others: bool
    claims: bool
    failure: TpukitError | None = field(default=None, init=False)  #: of the last read

    def __post_init__(self) -> None:
        self.suspicions = Suspicions(self.context)
        self._targets: dict[int, Target] = {}
        self._doubted: TpukitError | None = None  #: the API's error after a hint failed
        self._looked_at = self._fresh_until = 0.0
        self._lock = threading.Lock()

    @property
    def slice(self) -> Slice:
        return self.known.slice

    def open(self, deadline: Deadline, patience: float, until: Deadline) -> list[RemoteWorker]:
        """Return the chosen workers when our key is installed and their host keys are known."""
        if not (self.unproved and self._recall()):
            self._find_out(deadline)
        # The API calls and the first connection share one `--timeout`. Later connections replace a
        # lost one, so they read the slice at once.
        first = min(patience, deadline.remaining()), _LOOK_SECONDS
        return [
            RemoteWorker(
                index,
                partial(self._connect, index, until, chain([first], repeat((patience, 0.0)))),
                self.slice.name,
                self._targets[index],
                self._check,
                len(self.slice.workers),
                self.slice.accelerator_type,
                runtime_version=self.slice.runtime_version,
            )
            for index in self._chosen
        ]

    def _check(self) -> None:
        """Raise `SliceLost` if the slice is lost; one read serves all of its workers."""
        with self._lock:
            if not self._just_looked():
                with self._looking():
                    check_still_there(self.context.provider, self.slice)

    def _just_looked(self) -> bool:
        """Return True if the last read is recent; raise its error if it had one."""
        fresh = self.context.clock.monotonic() < self._fresh_until
        if fresh and self.failure:
            raise self.failure
        return fresh

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Store the error of a read for the other workers, which need not read again."""
        self.failure, self._looked_at = None, self.context.clock.monotonic()
        try:
            yield
        except TpukitError as error:
            self.failure = error
            raise
        finally:
            self._fresh_until = self.context.clock.monotonic() + _FRESH_SECONDS

    def _choose(self) -> None:
        self.context.check_reachable(self.slice)
        present = [worker.index for worker in self.slice.workers]
        self._chosen = parse_workers(self.selection, present)

    def _recall(self) -> bool:
        """Return True if the hint has a target for every chosen worker."""
        with suppress(TpukitError):
            self._choose()
            self._aim()
            return set(self._chosen) <= set(self._targets)
        return False

    def _find_out(self, deadline: Deadline) -> None:
        """Read the slice, unless it was just read; claim it, install our key, read host keys."""
        context, provider = self.context, self.context.provider.within(deadline)
        if self.unproved:
            slice_ = find(provider, self.slice.name, self.known.zone)
            self.known = replace(self.known, slice=slice_)
        self._choose()
        if self.claims:
            slice_ = claim(provider, self.slice, deadline=deadline, on_state=self.on_wait)
            self.known = replace(self.known, slice=slice_)
        login = self._os_login(project=self.for_others)
        self.known = replace(self.known, login=login)
        if not login:
            from tpukit.access.key import install_key

            install_key(provider, self.slice, context.user, context.key, deadline)
        self._read(deadline.within(IDENTITY_SECONDS))
        self.unproved = set()

    def _read(self, deadline: Deadline) -> None:
        """Read the host keys of the chosen workers."""
        identities = published(
            self.context.provider.within(deadline),
            self.slice,
            deadline,
            self._chosen,
            pinned=self.context.pinned.of(self.slice),
            accept_new=self.context.accept_new,
        )
        self.known = replace(self.known, identities=identities)
        self._aim()
        self._remember()

    def _remember(self) -> None:
        if all(identity.host_keys for identity in self.known.identities.values()):
            self.context.hints.keep(self.known)

    def _aim(self) -> None:
        login = self.known.login or WorkerLogin(self.context.user, "")
        identities, internal = self.known.identities, self.context.internal
        self._targets = targets(self.slice, login, identities, internal=internal)

    def _os_login(self, *, project: bool) -> WorkerLogin | None:
        logins, slice_ = self.context.os_logins, self.slice
        what = f"slice {slice_.name}"
        return logins.of(what, slice_.metadata, project=project) if logins else None

    @cached_property
    def _project_login(self) -> WorkerLogin | None:
        return self._os_login(project=True)

    def refused(self, target: Target) -> Target:
        """Return the target to try after a refused key; it has our login if OS Login is used.

        Raises `NotAllowed` if OS Login does not know our key.
        """
        with self._lock:
            if not self.known.login and self._project_login:
                self.known = replace(self.known, login=self._project_login)
                self._aim()
                self._remember()
            return self._targets.get(target.worker, target)

    def _connect(
        self, index: int, until: Deadline, limits: Iterator[tuple[float, float]]
    ) -> Connection:
        connector, (patience, pause) = self.context.connector, next(limits)
        deadline = until.within(patience)
        if index in self.unproved:
            try:
                attempt = deadline.within(_HINT_SECONDS[self.context.internal])
                connection = connector.connect_once(self._targets[index], attempt)
                self.unproved.discard(index)
                return connection
            except (TransportFailed, HostKeyMismatch):
                self._doubt(index, deadline)
        search = _Search(self, deadline, pause)
        try:
            connection = connector.connect(self._target(index), deadline, search.next)
            return self._pinned(index, connection)
        except HostKeyMismatch as error:
            self._say_how_to_forget(error)
            raise
        except TransportFailed as error:
            search.explain(self._target(index), error)
            raise

    def _target(self, index: int) -> Target:
        if index not in self._targets:
            raise TransportFailed(f"slice {self.slice.name} has no worker {index} now")
        return self._targets[index]

    def _pinned(self, index: int, connection: Connection) -> Connection:
        """Pin the host key of a worker that has none yet; return the connection."""
        pinned, (key, *_) = self.context.pinned, connection.target.host_keys
        if self._targets[index].accept_new:
            pinned.pin(self.slice, index, key)
            self._targets = {**self._targets, index: connection.target}
            self.on_wait(f"{connection.label}: {fingerprint(key)} is now its trusted host key")
        return connection

    def _say_how_to_forget(self, error: HostKeyMismatch) -> None:
        pinned = self.context.pinned
        if pinned.of(self.slice):
            note = "only if you know why the worker has a new host key"
            error.fix = Fix.command("rm", str(pinned.path(self.slice)), note=note)

    def _doubt(self, index: int, deadline: Deadline) -> None:
        """Continue without the hint; the result for one worker holds for all."""
        with self._lock:
            if self._doubted:
                raise self._doubted
            try:
                if index in self.unproved:
                    self._find_out(deadline)
            except TpukitError as error:
                error.common, self._doubted = True, error
                self.context.hints.forget(self.slice.name)
                raise

    def look_again(self, before: Target, deadline: Deadline, since: float = -inf) -> Target:
        """Return the worker's current target, which changes if the slice's addresses or keys do.

        A recent read is enough if it began after `since`, a time of the monotonic clock.

        Raises:
            SliceLost: the slice was preempted or terminated, or is gone.
            TpukitError: its workers cannot answer.
            TransportFailed: it no longer has such a worker.
        """
        with self._lock:
            current = self._targets.get(before.worker) is before
            if self._looked_at <= since or (current and not self._just_looked()):
                with self._looking():
                    self._find_again(deadline)
            return self._target(before.worker)

    def _find_again(self, deadline: Deadline) -> None:
        """Read the slice and its host keys again; keep the old ones if the API fails."""
        try:
            now = look(self.context.provider.within(deadline).once(), self.slice)
        except TpukitError:
            return
        if now is None:
            raise gone(self.slice)
        self.known = replace(self.known, slice=now)
        self.context.check_reachable(now)
        try:
            self._read(deadline)
        except SecurityRefusal:
            raise
        except TpukitError:
            return


class _Search:
    """Decides about one worker after each failed attempt to connect."""

    def __init__(self, access: _SliceAccess, deadline: Deadline, pause: float) -> None:
        self._access = access
        self._deadline = deadline
        self._began = deadline.clock.monotonic()
        self._next_look = self._began + pause
        self._told = False

    def next(self, target: Target, error: TransportFailed | HostKeyMismatch) -> Target:
        """Return the target of the next attempt; raise if another attempt is useless."""
        if isinstance(error, AuthenticationFailed):
            target = self._access.refused(target)
        stranger, moment = isinstance(error, HostKeyMismatch), self._deadline.clock.monotonic()
        if moment < self._next_look and not (stranger or self._access.failure):
            return target
        self._next_look = moment + _LOOK_SECONDS
        # A stranger may have got the address after a look for another worker.
        now = self._access.look_again(target, self._deadline, moment if stranger else -inf)
        if now == target and stranger:
            raise error
        if now == target:
            self._suspect(target, error)
        return now

    def _suspect(self, target: Target, error: TpukitError) -> None:
        """Raise the cause of the silence if it is certain, else show it once."""
        cause = self._cause(target, filtered=isinstance(error, Unanswered))
        if cause and cause.certain:
            raise Unanswered(error.what, reason=error.reason, why=cause.why, fix=cause.fix)
        if not self._told:
            self._told = True
            why = f"{cause.why}; fix: {cause.fix}" if cause else error.reason or error.why
            left = f"trying for another {self._deadline.remaining():.0f} s"
            self._access.on_wait(f"{error.what} ({why}); {left}")

    def explain(self, target: Target, error: TransportFailed) -> None:
        """Add bad health or a missing firewall rule to the last attempt's error, as a likely cause.

        Raises `SliceLost` if the slice is lost.
        """
        self._access.look_again(target, self._deadline)
        if error.fix or isinstance(error, AuthenticationFailed):  # the worker has answered
            return
        filtered = may_be_filtered(error, self._access.context.proxied)
        if cause := self._cause(target, filtered=filtered):
            error.why = "; ".join(filter(None, (error.why, cause.why)))
            error.fix = cause.fix

    def _cause(self, target: Target, *, filtered: bool) -> Suspicion | None:
        address = target.address if filtered else ""
        slice_, suspicions = self._access.slice, self._access.suspicions
        return suspicions.of(slice_, address, self._deadline, self._began)
