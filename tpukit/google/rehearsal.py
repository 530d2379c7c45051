"""A dry run: reads ask the cloud, writes are only noted, and later reads show their effect.

The use-cases run unchanged against it, so a dry run shows exactly the calls that a real run would
send. A change in progress in the cloud shows as finished, because a dry run must not wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

from tpukit.clock import Clock, Deadline
from tpukit.errors import NoCapacity, NotFound, TpukitError
from tpukit.google.provider import FirewallProvider, Note, SliceProvider, Wait
from tpukit.models import (
    FirewallRule,
    QueuedResource,
    QueuedResourceList,
    QueueRequest,
    Slice,
    SliceChange,
    SliceList,
    SliceRequest,
    Worker,
)

#: The name of every noted operation.
_OPERATION = "rehearsed"
_SETTLES = {"STOPPING": "STOPPED", "STOPPED": "STOPPED", "DELETING": "", "HIDING": "HIDDEN"}
_SETTLES |= dict.fromkeys(("CREATING", "STARTING", "RESTARTING", "REIMAGING"), "READY")
_QUEUE_SETTLES = {"SUSPENDING": "SUSPENDED", "DELETING": ""}

Key = tuple[str, str]


@dataclass
class _Stage:
    """The effect of the noted writes, by zone (or project) and name; None means deleted."""

    slices: dict[Key, Slice | None] = field(default_factory=dict)
    queued: dict[Key, QueuedResource | None] = field(default_factory=dict)
    rules: dict[Key, FirewallRule | None] = field(default_factory=dict)
    full: int = 0  #: the number of creates to refuse as a stockout


class RehearsedClock(Clock):
    """A clock that a sleep moves forward without waiting, so that a wait reaches its deadline."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slept = 0.0

    def time(self) -> float:
        return self._clock.time() + self._slept

    def monotonic(self) -> float:
        return self._clock.monotonic() + self._slept

    def sleep(self, seconds: float) -> None:
        self._slept += seconds


def rehearsed(
    provider: SliceProvider, firewall: FirewallProvider, project: str, note: Note, full: int = 0
) -> tuple[SliceProvider, FirewallProvider]:
    """Return dry runs of both providers, which note each write and show its effect from then on.

    `project` is the project of `firewall`. The first `full` creates are noted, but refused as a
    stockout.
    """
    stage = _Stage(full=full)
    slices = _RehearsedSlices(provider, provider.planning(note), stage)
    rules = _RehearsedFirewall(firewall, firewall.planning(note), stage, project, project)
    return cast("SliceProvider", slices), cast("FirewallProvider", rules)


class _RehearsedSlices:
    """The slices of a dry run. Methods that are missing here read from the cloud."""

    def __init__(self, reads: SliceProvider, writes: SliceProvider, stage: _Stage) -> None:
        self._reads, self._writes, self._stage = reads, writes, stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reads, name)

    def once(self) -> Self:
        return self._with(self._reads.once())

    def within(self, deadline: Deadline, *, patient: bool = False) -> Self:
        return self._with(self._reads.within(deadline, patient=patient))

    def only(self, api: str) -> Self:
        return type(self)(self._reads.only(api), self._writes.only(api), self._stage)

    def get(self, zone: str, name: str) -> Slice:
        staged = self._stage.slices
        slice_ = staged[zone, name] if (zone, name) in staged else self._read(zone, name)
        if slice_ is None:
            raise NotFound(f"there is no slice {name} in {zone}")
        return slice_

    def list(self, zone: str) -> SliceList:
        listed = self._reads.list(zone)
        staged = self._stage.slices
        unchanged = [slice_ for slice_ in listed.slices if (slice_.zone, slice_.name) not in staged]
        slices = [
            *map(self._settled, unchanged),
            *(slice_ for (place, _), slice_ in staged.items() if zone in ("-", place)),
        ]
        return listed._replace(slices=tuple(filter(None, slices)))

    def create(self, request: SliceRequest) -> str:
        self._writes.create(request)
        if self._stage.full:
            self._stage.full -= 1
            raise NoCapacity(f"{request.zone} has no capacity in this dry run")
        self._make(request)
        return _OPERATION

    def delete(self, zone: str, name: str) -> str:
        self._writes.delete(zone, name)
        self._stage.slices[zone, name] = None
        return _OPERATION

    def start(self, zone: str, name: str) -> str:
        self._writes.start(zone, name)
        self._change(zone, name, state="READY")
        return _OPERATION

    def stop(self, zone: str, name: str) -> str:
        self._writes.stop(zone, name)
        self._change(zone, name, state="STOPPED")
        return _OPERATION

    def update(self, zone: str, name: str, change: SliceChange) -> str:
        self._writes.update(zone, name, change)
        self._change(zone, name, **change.parts)
        return _OPERATION

    def get_queued(self, zone: str, name: str) -> QueuedResource:
        staged = self._stage.queued
        staged_here = (zone, name) in staged
        queued = staged[zone, name] if staged_here else self._reads.get_queued(zone, name)
        queued = queued and _settled_request(queued)
        if queued is None:
            raise NotFound(f"there is no queued resource {name} in {zone}")
        return queued

    def list_queued(self, zone: str) -> QueuedResourceList:
        listed = self._reads.list_queued(zone)
        staged = self._stage.queued
        unchanged = [
            queued for queued in listed.requests if (queued.zone, queued.name) not in staged
        ]
        planned = [queued for (place, _), queued in staged.items() if zone in ("-", place)]
        requests = map(_settled_request, filter(None, [*unchanged, *planned]))
        return listed._replace(requests=tuple(filter(None, requests)))

    def create_queued(self, request: QueueRequest) -> str:
        self._writes.create_queued(request)
        wanted = request.slice
        self._stage.queued[wanted.zone, wanted.name] = QueuedResource(
            name=wanted.name,
            project=wanted.project,
            zone=wanted.zone,
            state="ACTIVE",
            slices=request.names,
            accelerator_type=wanted.accelerator_type,
            provisioning=request.slice.provisioning,
            labels=wanted.labels,
            node=replace(wanted.expected, provisioning=request.slice.provisioning),
            valid_seconds=request.valid_seconds,
        )
        for name in request.names:
            self._make(replace(wanted, name=name), queued_resource=wanted.name)
        return _OPERATION

    def delete_queued(self, zone: str, name: str, *, force: bool) -> str:
        self._writes.delete_queued(zone, name, force=force)
        for slice_ in self.get_queued(zone, name).slices if force else ():
            with suppress(NotFound):
                if self.get(zone, slice_).queued_resource == name:
                    self._stage.slices[zone, slice_] = None
        self._stage.queued[zone, name] = None
        return _OPERATION

    def failure(self, operation: str, doing: str) -> TpukitError | None:
        return None if operation == _OPERATION else self._reads.failure(operation, doing)

    def _with(self, reads: SliceProvider) -> Self:
        return type(self)(reads, self._writes, self._stage)

    def _read(self, zone: str, name: str) -> Slice | None:
        return self._settled(self._reads.get(zone, name))

    def _settled(self, slice_: Slice) -> Slice | None:
        state = _SETTLES.get(slice_.state, slice_.state)
        if not state or slice_.state == state != "READY":
            return slice_ if state else None
        return replace(slice_, state=state, workers=slice_.workers and self._reached(slice_))

    def _reached(self, slice_: Slice) -> tuple[Worker, ...]:
        """Return the workers, with addresses in place of those that they do not have yet."""
        address = self._reads.worker_address
        external = address(True) if slice_.external_addresses else ""
        return tuple(
            replace(
                worker,
                internal_address=worker.internal_address or address(False),
                external_address=worker.external_address or external,
            )
            for worker in slice_.workers or (Worker(0, ""),)
        )

    def _change(self, zone: str, name: str, **fields: Any) -> None:
        self._stage.slices[zone, name] = replace(self.get(zone, name), **fields)

    def _make(self, request: SliceRequest, **fields: Any) -> None:
        made = replace(request.expected, state="READY", id=_OPERATION, **fields)
        self._stage.slices[request.zone, request.name] = replace(made, workers=self._reached(made))


class _RehearsedFirewall:
    """The firewall rules of one project in a dry run."""

    def __init__(
        self,
        reads: FirewallProvider,
        writes: FirewallProvider,
        stage: _Stage,
        own: str,
        project: str,
    ) -> None:
        self._reads, self._writes, self._stage = reads, writes, stage
        self._own, self._project = own, project

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reads, name)

    def once(self) -> Self:
        return self._with(self._reads.once())

    def within(self, deadline: Deadline, *, patient: bool = False) -> Self:
        return self._with(self._reads.within(deadline, patient=patient))

    def of(self, project: str) -> Self:
        reads, writes = self._reads.of(project), self._writes.of(project)
        return type(self)(reads, writes, self._stage, self._own, project or self._own)

    def list(self) -> Sequence[FirewallRule]:
        staged = self._staged()
        unchanged = [rule for rule in self._reads.list() if rule.name not in staged]
        return (*unchanged, *(rule for rule in staged.values() if rule))

    def insert(self, rule: FirewallRule) -> Wait:
        self._writes.insert(rule)
        self._stage.rules[self._project, rule.name] = rule
        return lambda: None

    def replace_source_ranges(self, name: str, source_ranges: Sequence[str]) -> Wait:
        rules = {rule.name: rule for rule in self.list()}
        self._writes.replace_source_ranges(name, source_ranges)
        now = replace(rules[name], source_ranges=tuple(source_ranges))
        self._stage.rules[self._project, name] = now
        return lambda: None

    def delete(self, name: str) -> None:
        self._writes.delete(name)
        self._stage.rules[self._project, name] = None

    def _staged(self) -> Mapping[str, FirewallRule | None]:
        rules = self._stage.rules.items()
        return {name: rule for (project, name), rule in rules if project == self._project}

    def _with(self, reads: FirewallProvider) -> Self:
        return type(self)(reads, self._writes, self._stage, self._own, self._project)


def _settled_request(queued: QueuedResource) -> QueuedResource | None:
    state = _QUEUE_SETTLES.get(queued.state, queued.state)
    return replace(queued, state=state) if state else None
