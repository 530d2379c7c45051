"""Both of Google's APIs for slices as one provider.

Two slices may have the same zone and name, one in each API. Then every call for that name is
refused, except those of `only`; the setting `apis` chooses one API for a command.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Self

from tpukit.clock import Deadline
from tpukit.errors import BadInput, Fix, NotAllowed, NotEnabled, NotFound, TpukitError
from tpukit.google.provider import Note, SliceProvider
from tpukit.models import (
    QueuedResource,
    QueuedResourceList,
    QueueRequest,
    Slice,
    SliceChange,
    SliceList,
    SliceRequest,
    WorkerIdentity,
)


def delete_in(api: str, name: str, zone: str, *flags: str, note: str = "") -> Fix:
    """Return the command that deletes the slice of that name in one API, and in no other."""
    words = ("tpukit", "delete", name, *flags, "--zone", zone)
    return Fix.command("env", f"TPUKIT_APIS={api}", *words, note=note)


def in_both_apis(name: str, zone: str) -> BadInput:
    """Return the error for a name that each API has in a zone."""
    note = "deletes the one of the Cloud TPU API; the variable chooses it in every command"
    return BadInput(
        f"slice {name} exists in {zone} in both APIs",
        why="each of the two is a slice of its own",
        fix=delete_in("tpu", name, zone, note=note),
        otherwise=delete_in("compute", name, zone, note="deletes the one of Compute Engine"),
    )


def machine_and_group(name: str, zone: str, project: str) -> BadInput:
    """Return the error for a machine and a group of one name, which only other tools make."""
    place = (name, "--zone", zone, "--project", project)
    group = ("gcloud", "compute", "instance-groups", "managed", "delete", *place)
    return BadInput(
        f"slice {name} exists in {zone} as a machine and as a managed instance group",
        why="each of the two is a slice of its own, and bills",
        fix=Fix.command("gcloud", "compute", "instances", "delete", *place),
        otherwise=Fix.command(*group, note="deletes the group with its machines"),
    )


def in_several_places(slices: Sequence[Slice]) -> BadInput:
    """Return the error for slices of one name, with commands that delete the first two."""
    first, second, *_ = slices
    if (first.zone, first.api) == (second.zone, second.api):
        return machine_and_group(first.name, first.zone, first.project)
    if first.zone == second.zone:
        return in_both_apis(first.name, first.zone)
    zones = [slice_.zone for slice_ in slices]
    deletes = [
        Fix.command("tpukit", "delete", one.name, "--zone", one.zone)
        if zones.count(one.zone) == 1
        else delete_in(one.api, one.name, one.zone)
        for one in (first, second)
    ]
    return BadInput(
        f"slice {first.name} exists in several zones: {', '.join(dict.fromkeys(zones))}",
        why="each of them may be in use, so tpukit deletes none; keep one, or choose another name",
        fix=deletes[0],
        otherwise=deletes[1],
    )


class Roads(SliceProvider):
    """The slices of the Cloud TPU API and of Compute Engine."""

    def __init__(self, tpu: SliceProvider, compute: SliceProvider) -> None:
        self.bills = tpu.bills or compute.bills
        self.apis = (*tpu.apis, *compute.apis)
        self._tpu, self._compute = tpu, compute

    def now(self) -> float:
        return self._tpu.now()

    def once(self) -> Self:
        return type(self)(self._tpu.once(), self._compute.once())

    def within(self, deadline: Deadline, *, patient: bool = False) -> Self:
        both = (one.within(deadline, patient=patient) for one in (self._tpu, self._compute))
        return type(self)(*both)

    def only(self, api: str) -> SliceProvider:
        return self._compute if api == "compute" else self._tpu

    def planning(self, note: Note) -> Self:
        return type(self)(self._tpu.planning(note), self._compute.planning(note))

    def get(self, zone: str, name: str) -> Slice:
        """Return a slice; raise `NotFound` if no API has it, and `BadInput` if both have it."""
        slices = builtins.list[Slice]()
        missing: TpukitError = NotFound(f"there is no slice {name} in {zone}")
        for provider in (self._compute, self._tpu):
            try:
                slices.append(provider.get(zone, name))
            except NotFound as error:
                missing = missing if isinstance(missing, NotAllowed) else error
            except NotAllowed as error:  # an API without permission hides no slice of the other
                missing = error
        if len(slices) > 1:
            raise in_both_apis(name, zone)
        if not slices:
            raise missing
        return slices[0]

    def list(self, zone: str) -> SliceList:
        """List the slices of both; if Compute Engine cannot be read, it counts as a silent zone."""
        first = self._tpu.list(zone)
        try:
            second = self._compute.list(zone)
        except (NotAllowed, NotEnabled):
            second = SliceList((), ("Compute Engine",))
        silent = dict.fromkeys((*first.unreachable, *second.unreachable))
        return SliceList((*first.slices, *second.slices), tuple(silent))

    def zones(self) -> Sequence[str]:
        return self._tpu.zones()

    def accelerator_types(self, zone: str) -> frozenset[str]:
        return self._tpu.accelerator_types(zone) | self._compute.accelerator_types(zone)

    def runtime_versions(self, zone: str) -> frozenset[str]:
        """Return no names, because each API has its own."""
        return frozenset()

    def worker_address(self, external: bool) -> str:
        return self._tpu.worker_address(external)

    def list_queued(self, zone: str) -> QueuedResourceList:
        return self._tpu.list_queued(zone)

    def get_queued(self, zone: str, name: str) -> QueuedResource:
        return self._tpu.get_queued(zone, name)

    def create_queued(self, request: QueueRequest) -> str:
        return self._tpu.create_queued(request)

    def delete_queued(self, zone: str, name: str, *, force: bool) -> str:
        return self._tpu.delete_queued(zone, name, force=force)

    def create(self, request: SliceRequest) -> str:
        return self.only(request.api).create(request)

    def delete(self, zone: str, name: str) -> str:
        return self._of(zone, name).delete(zone, name)

    def start(self, zone: str, name: str) -> str:
        return self._of(zone, name).start(zone, name)

    def stop(self, zone: str, name: str) -> str:
        return self._of(zone, name).stop(zone, name)

    def update(self, zone: str, name: str, change: SliceChange) -> str:
        return self._of(zone, name).update(zone, name, change)

    def operations(self, zone: str, name: str, verb: str, since: str = "") -> frozenset[str]:
        tpu = self._tpu.operations(zone, name, verb, since)
        return tpu | self._compute.operations(zone, name, verb, since)

    def failure(self, operation: str, doing: str) -> TpukitError | None:
        # projects/P/zones/Z/operations/N, or projects/P/locations/Z/operations/N
        api = "compute" if "/zones/" in operation else "tpu"
        return self.only(api).failure(operation, doing)

    def identities(self, zone: str, name: str) -> Sequence[WorkerIdentity]:
        return self._of(zone, name).identities(zone, name)

    def _of(self, zone: str, name: str) -> SliceProvider:
        """Return the API that has the slice; raise the errors of `get`."""
        return self.only(self.get(zone, name).api)
