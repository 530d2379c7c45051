"""Queued resources: create them once, wait for them, and extend them.

The end of a wait never deletes a request. `data/queue_states.toml` explains each state of the API.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files

from tpukit.clock import Deadline, polls
from tpukit.errors import (
    DeadlinePassed,
    Fix,
    NameTaken,
    NotFound,
    SliceLost,
    TpukitError,
    interruption,
)
from tpukit.google.failures import from_operation, to_error
from tpukit.google.provider import Doubtful, SliceProvider
from tpukit.models import QueuedResource, QueueRequest, SliceRequest
from tpukit.slices import lifetime
from tpukit.slices.ensure import APPEAR_SECONDS, unlike
from tpukit.slices.find import in_one_zone
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import OnState, Refusals, last_seen, passing, unless_gone
from tpukit.slices.losses import DEFAULT_ACCOUNT, remaking_flags
from tpukit.slices.naming import NONCE, OWNER, SEARCH, is_owner
from tpukit.slices.queued import delete_queued, name_left, slices_of

#: How long a request may be PROVISIONING; 45 minutes without a slice are on record in public logs.
PROVISIONING_SECONDS = 3600.0
#: The first and longest pause between two reads; a request waits for minutes to days.
_PAUSE = (2.0, 15.0)
#: States of an accepted request that has no slices yet.
WAITING = frozenset({"ACCEPTED", "WAITING_FOR_RESOURCES"})
_STANDING = WAITING | {"PROVISIONING", "ACTIVE"}


# Package data never changes while a process runs.
@cache
def states() -> Mapping[str, Mapping[str, str]]:
    """Return the meaning of each state, and the advice for it."""
    text = files("tpukit").joinpath("data", "queue_states.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def meaning(queued: QueuedResource) -> str:
    """Return the meaning of a request's state in words."""
    means = states().get(queued.state, {}).get("means", "a state that tpukit does not know")
    if queued.state in ("SUSPENDING", "SUSPENDED"):
        who = {"USER": "; somebody deleted a slice", "SERVICE": "; Google took them"}
        means += who.get(queued.initiator, "")
    return means


def find_queued(provider: SliceProvider, name: str, zone: str = "") -> QueuedResource:
    """Return the request of that name, from any zone or the given one.

    Raises `NotFound` and the other errors of `in_one_zone`.
    """
    if zone:
        read = partial(provider.get_queued, zone, name)
        request = unless_gone(read, read)
        if request is None:
            fix = Fix.command("tpukit", "queue", "list", "--zone", "-", note="shows all zones")
            raise NotFound(f"no queued resource {name} in {zone}", fix=fix)
        return request
    with suppress(NotFound):  # one list may be stale
        return _listed(provider, name)
    return _listed(provider, name)


def _listed(provider: SliceProvider, name: str) -> QueuedResource:
    listed = provider.list_queued("-")
    matches = [request for request in listed.requests if request.name == name]
    shows = Fix.command("tpukit", "queue", "list", note="shows the queued resources")
    return in_one_zone(f"queued resource {name}", matches, listed.unreachable, shows)[0]


def ensure_queued(
    provider: SliceProvider,
    request: QueueRequest,
    *,
    deadline: Deadline,
    journal: Journal,
    on_state: OnState,
) -> tuple[QueuedResource, bool]:
    """Return the accepted request, and True if this call made it.

    If an equal request of the same owner exists, it is used; if that has failed, it is deleted and
    made again. Its slices bill when it is filled, so every error that leaves it names it.

    Raises:
        NameTaken: a request of that name has another spec or owner.
        NoCapacity, QuotaExceeded, NotAllowed, BadInput: it was refused, or has failed.
        DeadlinePassed: it is not accepted yet, but may still be.
        TpukitError: nothing was requested, because the API never told whether the request exists.
    """
    asked, name = request.slice, request.slice.name
    provider = provider.within(deadline)
    once, doing = provider.once(), f"create queued resource {name}"
    operation, tried, unconfirmed = "", False, False
    queued: QueuedResource | None = None
    taken: NameTaken | None = None
    silence: TpukitError | None = None
    refusals = Refusals(deadline)

    def name_it(error: TpukitError) -> None:
        name_left(error, name, asked.zone, doubt=not (operation or queued))

    with _naming(name, asked.zone, name_it, lambda: tried or queued is not None):
        for _ in polls(deadline):
            try:
                queued = _look(once if tried else provider, asked.zone, name)
                refusals.end()
                if queued and not tried and _is_over(queued, request):
                    _check_same(queued, request)
                    why = queued.error or meaning(queued)
                    on_state(f"it was {queued.state} ({why}); making it again")
                    given = {"deadline": deadline, "journal": journal, "on_state": on_state}
                    delete_queued(provider, queued, force=False, **given)  # type: ignore[arg-type]
                    request = _anew(request, queued)
                    asked = request.slice
                    continue
                if queued and queued.state != "DELETING":
                    _check_same(queued, request)
                    _check_alive(queued)
                    if queued.state in _STANDING:
                        return queued, tried and not taken
                elif queued is None and taken:
                    raise taken  # one of its slices' names is taken
                elif queued is None and not operation:
                    for slice_name in request.names:
                        journal.record(
                            "create", asked.project, asked.zone, slice_name, asked.data_disks
                        )
                    if not tried:  # a repeated create must be unchanged, under its request id
                        labels = lifetime.renewed(asked.labels, provider.now())
                        request = replace(request, slice=replace(asked, labels=labels))
                    tried = True
                    try:
                        operation = provider.create_queued(request)
                    except NameTaken as error:  # the next read shows if a request has the name
                        taken = error
                elif queued is None and (failure := once.failure(operation, doing)):
                    operation = ""
                    raise failure
            except TpukitError as error:
                left = operation or unconfirmed
                if queued:
                    left = not isinstance(error, NameTaken)
                refused = (operation or queued) and not error.exists and refusals.may_pass(error)
                if not (passing(error) or refused):
                    if left and not error.exists:
                        name_it(error)
                    raise
                unconfirmed = unconfirmed or isinstance(error, Doubtful)
                if deadline.passed() and not tried:
                    unknown = f"cannot tell whether queued resource {name} exists"
                    raise TpukitError(unknown, why=error.summary()) from error
                if silence is None or error.what != silence.what:
                    on_state(f"{error.what}; reading back")
                silence = error
        why = silence.summary() if silence else ""
        raise DeadlinePassed(f"queued resource {name} is not accepted yet", why=why)


def extend_queued(
    provider: SliceProvider,
    queued: QueuedResource,
    end: str,
    *,
    deadline: Deadline,
    journal: Journal,
    on_state: OnState,
    on_fix: Callable[[Fix], None],
) -> QueuedResource:
    """Replace a waiting request by one with another end (a label's value, or "" for none).

    The API cannot change a request, so it is deleted and made again, and loses its place. `on_fix`
    gets the command that makes it again, before it is deleted.

    Raises:
        TpukitError: it was not deleted, for example because it has slices; or not made again.
    """

    def check_waits(state: str) -> None:
        on_state(state)
        if state in _STANDING - WAITING:
            wait = Fix.command("tpukit", "queue", "wait", queued.name, "--zone", queued.zone)
            what = f"queued resource {queued.name} is {state}: its slices come"
            raise TpukitError(what, why="the same command reaches them then", fix=wait)

    if queued.node is None:
        raise TpukitError(f"queued resource {queued.name} could not be read")
    now = lifetime.moment(provider.now())
    labels = {**queued.labels, lifetime.CREATED: now, lifetime.EXPIRES: end}
    asked = replace(queued.node.request, labels={key: text for key, text in labels.items() if text})
    request = _anew(QueueRequest(asked, len(queued.slices), queued.valid_seconds), queued)
    fix = _remake(queued, asked)
    on_fix(fix)
    delete_queued(
        provider, queued, force=False, deadline=deadline, journal=journal, on_state=check_waits
    )
    try:
        return ensure_queued(
            provider, request, deadline=deadline, journal=journal, on_state=on_state
        )[0]
    except TpukitError as error:
        error.otherwise = replace(fix, note="the request was deleted but not made again")
        raise


def _remake(queued: QueuedResource, asked: SliceRequest) -> Fix:
    """Return the command that makes a request again if this command dies; without its metadata."""
    words = ["tpukit", "queue", "create", queued.accelerator_type, queued.name]
    words += ["--zone", queued.zone]
    words += ["--count", str(len(queued.slices))] if len(queued.slices) > 1 else []
    if queued.valid_seconds:
        words += ["--valid-until", f"{queued.valid_seconds:.0f}s"]
    labels = {key: text for key, text in asked.labels.items() if key != lifetime.IDLE}
    node = replace(queued.node, labels=labels) if queued.node else None
    note = "makes the request again, without its metadata, if this command is killed"
    return Fix.command(*words, *(remaking_flags(node) if node else ()), note=note)


def _anew(request: QueueRequest, failed: QueuedResource) -> QueueRequest:
    """Return the request with a new nonce, so that the API does not take it for the old one."""
    slice_ = request.slice
    text = f"{slice_.labels.get(NONCE, '')} {failed.created}"
    labels = {**slice_.labels, NONCE: hashlib.sha256(text.encode()).hexdigest()[:12]}
    return replace(request, slice=replace(slice_, labels=labels))


def wait_queued(
    provider: SliceProvider, queued: QueuedResource, *, deadline: Deadline, on_state: OnState
) -> QueuedResource:
    """Return a request when it is ACTIVE. If the wait ends early, it stays in the queue.

    Raises:
        NoCapacity, QuotaExceeded, NotAllowed: it has failed.
        SliceLost: it is suspended or gone.
        DeadlinePassed: it is not filled yet, and still in the queue.
    """
    provider = provider.within(deadline)
    once, told, silent, limit = provider.once(), "", False, deadline
    refusals = Refusals(deadline)
    hidden: Deadline | None = None
    name_it = partial(name_left, name=queued.name, zone=queued.zone)
    with _naming(queued.name, queued.zone, name_it):
        for _ in polls(deadline, *_PAUSE):
            try:
                now = _look(once, queued.zone, queued.name)
            except TpukitError as error:
                if not (passing(error) or (told and refusals.may_pass(error))):
                    name_it(error)
                    raise
                if not silent:
                    on_state(f"{error.what}; still waiting")
                silent = True
                continue
            silent = False
            refusals.end()
            if now is None:  # the API may not show a new request at once
                hidden = hidden or deadline.within(APPEAR_SECONDS)
                if not hidden.passed():
                    continue
            if now is None or now.created != queued.created:
                raise _gone(once, queued)
            queued, hidden = now, None
            if queued.state != told:
                told = queued.state
                on_state(f"{told}: {meaning(queued)}")
                limit = deadline.within(PROVISIONING_SECONDS)
            if queued.state == "ACTIVE":
                return queued
            _check_alive(queued)
            if queued.state == "PROVISIONING" and limit.passed():
                what = f"queued resource {queued.name} is PROVISIONING"
                raise DeadlinePassed(
                    f"{what} for {PROVISIONING_SECONDS:.0f} s",
                    why="Google has chosen capacity, but no slice came: delete it and ask again",
                )
        raise DeadlinePassed(
            f"queued resource {queued.name} is not ACTIVE yet",
            why=f"{queued.state}: {meaning(queued)}",
            fix=Fix.command("tpukit", "queue", "wait", queued.name, "--zone", queued.zone),
        )


def _gone(provider: SliceProvider, queued: QueuedResource) -> SliceLost:
    """Return the error for a request that no longer exists, with those of its slices that do."""
    name, zone = queued.name, queued.zone
    fix = Fix.command("tpukit", "queue", "list", "--zone", zone)
    error = SliceLost(f"queued resource {name} is gone", why="it existed before", fix=fix)
    try:
        left = [last_seen(provider, slice_) for slice_ in slices_of(provider, queued)]
    except TpukitError:
        name_left(error, name, zone)
    else:
        error.exists = tuple(line for slice_ in left for line in slice_.exists())
    return error


def _is_over(queued: QueuedResource, request: QueueRequest) -> bool:
    """Return True if a request has failed, or if a search asks again for its lost slice."""
    suspended = queued.state == "SUSPENDED" and SEARCH in request.slice.labels
    return queued.state == "FAILED" or suspended


def _look(provider: SliceProvider, zone: str, name: str) -> QueuedResource | None:
    """Return the request, or None if it does not exist."""
    with suppress(NotFound):
        return provider.get_queued(zone, name)
    return None


@contextmanager
def _naming(
    name: str,
    zone: str,
    name_it: Callable[[TpukitError], None],
    is_known: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """Let `name_it` add a request to an error that leaves it in the queue.

    Before `is_known` returns True, only an earlier command can have made the request.
    """
    try:
        yield
    except (KeyboardInterrupt, DeadlinePassed) as ended:
        error = interruption(ended) if isinstance(ended, KeyboardInterrupt) else ended
        if is_known():
            name_it(error)
        else:
            error.why = f"nothing was requested; an earlier queued resource {name} would stay"
            error.fix = Fix.command("tpukit", "queue", "describe", name, "--zone", zone)
        raise error from None


@contextmanager
def naming_given(request: SliceRequest) -> Iterator[None]:
    """Add to an error that names nothing the queued resource that has given us a slice, if any."""
    try:
        yield
    except TpukitError as error:
        if request.queue_only and not error.exists:
            name_left(error, request.name, request.zone)
        raise


def _check_alive(queued: QueuedResource) -> None:
    """Raise if a request is dead; Google's error decides the class."""
    if not queued.dead:
        return
    delete = Fix.command("tpukit", "queue", "delete", queued.name, "--zone", queued.zone)
    exists = (
        f"queued resource {queued.name} in {queued.zone}, {queued.state}; it keeps its quota",
    )
    if queued.state == "SUSPENDED":
        what = f"queued resource {queued.name} is SUSPENDED"
        error: TpukitError = SliceLost(what, why=meaning(queued))
    else:
        said = {"code": queued.error_code or None, "message": queued.error}
        doing = f"fill queued resource {queued.name}"
        error = to_error(from_operation(said, capacity=True), doing)
    error.exists, error.fix = exists, delete
    raise error


def _check_same(queued: QueuedResource, request: QueueRequest) -> None:
    """Raise `NameTaken` unless the existing request is ours and equal."""
    owner, asked = queued.labels.get(OWNER), request.slice
    if not is_owner(asked.labels.get(OWNER, ""), queued.labels):
        whose = f"belongs to {owner}" if owner else "was not made by tpukit"
        raise NameTaken(
            f"queued resource {queued.name} exists and {whose}",
            fix=Fix(note="choose another name"),
            retry="other-zone",
        )
    if queued.node is None:
        raise TpukitError(f"queued resource {queued.name} exists and could not be read")
    account = queued.node.service_account
    life, wanted = lifetime.asked(queued.labels), lifetime.asked(asked.labels)
    pairs = {
        # Without an account, the API may answer with the project's default account.
        "service account": (
            "" if account.endswith(DEFAULT_ACCOUNT) else account,
            asked.service_account,
        ),
        "slices": (len(queued.slices), request.count),
        "valid until": (queued.valid_seconds, request.valid_seconds),
        **{key: (life[key], wanted[key]) for key in life},
    }
    differences = [
        f"{what} is {has or 'not set'}, not {want or 'unset'}"
        for what, (has, want) in pairs.items()
        if has != want
    ]
    differences += unlike(queued.node, asked)
    if differences:
        raise NameTaken(
            f"queued resource {queued.name} exists with another spec",
            why="; ".join(dict.fromkeys(differences)),
            fix=Fix(note="choose another name"),
            otherwise=Fix.command("tpukit", "queue", "delete", queued.name, "--zone", queued.zone),
        )
