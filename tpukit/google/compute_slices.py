"""The provider for all slices of Compute Engine: of one machine, or of several in a group.

A create makes a template, a workload policy and a group, in this order; `start` makes those that
are missing. A delete goes back the same way, one part for each call. So each part that a killed
command leaves is in the list, with its template, as a STOPPED slice. If the group is gone and has
left machines, they are the slice, in state REPAIRING, and a delete ends them before the template.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

from tpukit.accelerators import region_of
from tpukit.clock import Deadline, polls
from tpukit.errors import (
    BadInput,
    DeadlinePassed,
    Fix,
    NameTaken,
    NoCapacity,
    NotFound,
    TpukitError,
)
from tpukit.google import group_json, instance_json
from tpukit.google.compute_instances import (
    ComputeInstances,
    errors_of,
    instance_path,
    taken_by_others,
)
from tpukit.google.compute_machines import shape_of
from tpukit.google.failures import reading
from tpukit.google.group_json import SliceParts
from tpukit.google.node_json import field
from tpukit.google.provider import Doubtful
from tpukit.google.roads import machine_and_group
from tpukit.models import Slice, SliceChange, SliceList, SliceRequest, WorkerIdentity

#: Seconds to wait for the operation of a template or a policy, which are documents alone.
_PART_SECONDS = 60.0


class ComputeSlices(ComputeInstances):
    """The instances with TPUs, and the groups of instances, of one project."""

    def get(self, zone: str, name: str) -> Slice:
        """Return a slice; raise `NotFound` if no machine and no group with TPUs has the name."""
        try:
            return super().get(zone, name)
        except NotFound:
            return self._whole(self._several(zone, name))

    def list(self, zone: str) -> SliceList:
        """List the slices of a zone or of all; a group is one slice, and so is a part of one."""
        doing = "list slices"
        instances, silent = self._items(doing, "instances", zone)
        groups, mute = self._parts(doing, zone, instances)
        joined = {(parts.zone, parts.name) for parts in groups if parts.group is not None}
        left = {id(member) for parts in groups if parts.group is None for member in parts.members}
        silent = tuple(dict.fromkeys((*silent, *mute)))
        with reading(doing):
            singles = [
                one
                for one in instances
                if id(one) not in left and not _belongs(one, joined, silent)
            ]
            several = [
                self._whole(parts)
                for parts in groups
                if parts.group is not None or parts.zone not in silent
            ]
        return SliceList((*self._singles(singles), *several), silent)

    def create(self, request: SliceRequest) -> str:
        """Request a slice once; of several workers, remove what a refused request has made.

        Raises `Doubtful` if the answer to a call was lost; `start` completes what exists.
        """
        if shape_of(request.accelerator_type).hosts == 1:
            return super().create(request)
        instance_json.check_capacity(request.provisioning, request.reservation)
        doing, template = f"create slice {request.name}", group_json.template_fields(request)
        place = f"regions/{region_of(request.zone)}/instanceTemplates"
        parts = SliceParts(request.zone, request.name, template)
        try:
            operation = self._write(doing, "POST", place, template, creates=True)
        except NameTaken as taken:
            own = f"{place}/{template['name']}"
            there = replace(parts, template=self._template(doing, own))
            if there.template and not there.ours:
                raise taken_by_others(doing, f"instance template {template['name']}") from taken
            raise
        try:
            self._wait(doing, operation)
            return self._completed(doing, parts)
        except Doubtful:
            raise
        except TpukitError as error:
            if error.retry == "same-zone" or isinstance(error, DeadlinePassed):
                raise Doubtful(error.what, reason=error.reason) from error
            self._undo(parts, error)
            raise

    def delete(self, zone: str, name: str) -> str:
        """Delete a machine, or the next part of a slice of several.

        Returns "" for a part, so that the caller asks again until nothing is left.

        Raises `BadInput` for one machine of a group, which would make it again, and for a machine
        and a group of one name.
        """
        doing = f"delete slice {name}"
        if machine := self._machine(zone, name):
            self._check_alone(doing, machine)
            with suppress(NotFound):
                if self._several(zone, name).group is not None:
                    raise machine_and_group(name, zone, self._project)
            return super().delete(zone, name)
        parts = self._several(zone, name)
        if parts.group is not None:
            self._write(doing, "DELETE", group_json.group_path(zone, name))
        left = parts.members if parts.group is None else ()
        for member in left:
            if member.get("status") != "STOPPING":
                with suppress(NotFound):
                    super().delete(zone, str(member["name"]))
        if parts.ours and (self._note or not (parts.group or left)):
            self._remove_parts(doing, parts)
        return ""

    def start(self, zone: str, name: str) -> str:
        """Start a machine, or make the missing parts of a slice of several."""
        if self._is_machine(zone, name):
            return super().start(zone, name)
        parts = self._several(zone, name)
        if parts.group is not None or parts.members:
            _refuse("started", parts)
        return self._completed(f"start slice {name}", parts)

    def stop(self, zone: str, name: str) -> str:
        """Request that a machine stops; raise `BadInput` for a slice of several."""
        if not self._is_machine(zone, name):
            _refuse("stopped", self._several(zone, name))
        return super().stop(zone, name)

    def update(self, zone: str, name: str, change: SliceChange) -> str:
        """Change a machine, or each machine of a slice: worker 0 last, which `get` shows.

        Raises `BadInput` if not all of them exist.
        """
        if self._is_machine(zone, name):
            return super().update(zone, name, change)
        parts, operation = self._several(zone, name), ""
        if len(parts.members) != parts.hosts:
            raise BadInput(
                f"slice {name} cannot be changed: not all of its workers exist",
                fix=Fix.command("tpukit", "describe", name, "--zone", zone),
            )
        for member in reversed(parts.members):
            operation = super().update(zone, str(member["name"]), change)
        return operation

    def failure(self, operation: str, doing: str) -> TpukitError | None:
        """Return why an operation failed. A group is one: it fails if it cannot make its machines.

        The group goes on trying then.
        """
        if "/instanceGroupManagers/" not in operation:
            return super().failure(operation, doing)
        try:
            return self._refusal(f"{self._url}/zones/{operation.partition('/zones/')[2]}", doing)
        except NotFound:
            return None

    def identities(self, zone: str, name: str) -> tuple[WorkerIdentity, ...]:
        """Return the identities that the machines of a slice have published so far."""
        if self._is_machine(zone, name):
            return super().identities(zone, name)
        found = builtins.list[WorkerIdentity]()
        for index, member in enumerate(self._several(zone, name).members):
            own = super().identities(zone, str(member["name"]))
            found += [replace(identity, index=index) for identity in own]
        return tuple(found)

    # Parts

    def _whole(self, parts: SliceParts) -> Slice:
        with reading(f"read slice {parts.name}"):
            slice_ = group_json.read_slice(parts, self._project)
        ended = [one for one in parts.members if one.get("status") in group_json.ENDED]
        return self._with_cause(slice_, {str(member.get("id")) for member in ended})

    def _several(self, zone: str, name: str) -> SliceParts:
        """Return the parts of a slice of several workers; raise `NotFound` if it has none."""
        doing, group = f"read slice {name}", None
        missing = NotFound(f"cannot {doing}: Compute Engine has no machine or group of this name")
        with suppress(NotFound):
            path = group_json.group_path(zone, name)
            group = self._resource(doing, path)
        own = f"regions/{region_of(zone)}/instanceTemplates/{group_json.part_name(zone, name)}"
        with reading(doing):
            path = group_json.template_of(group) if group else own
            parts = SliceParts(zone, name, self._template(doing, path), group)
            if not group_json.is_slice(parts.template) or (group is None and not parts.ours):
                raise missing
            base = field(group or {}, "baseInstanceName", str, f"{name}-w-").partition("#")[0]
        # https://cloud.google.com/compute/docs/reference/rest/v1/instances/list, on `filter`
        instances, _ = self._items(doing, "instances", zone, matching=f'name eq "{base}.*"')
        with reading(doing):
            members = [one for one in instances if _is_of(one, parts)]
            return replace(parts, members=group_json.in_order(members))

    def _parts(
        self, doing: str, zone: str, instances: Sequence[Any]
    ) -> tuple[Sequence[SliceParts], tuple[str, ...]]:
        """Return the slices of several workers in a zone or in all, and the silent zones."""
        groups, silent = self._items(doing, "instanceGroupManagers", zone)
        templates, _ = self._items(
            *(doing, "instanceTemplates", zone), place=f"regions/{region_of(zone)}"
        )
        with reading(doing):
            # Without a zone, the group is of a region: each of its machines is listed alone.
            groups = [group for group in groups if field(group, "zone", str, "")]
            known = {group_json.template_path(field(t, "selfLink", str, "")): t for t in templates}
            members: dict[group_json.Place, builtins.list[Any]] = {}
            for instance in filter(instance_json.is_slice, instances):
                if place := group_json.group_of(instance):
                    members.setdefault(place, []).append(instance)
            found = dict[group_json.Place, SliceParts]()
            for group in groups:
                place, path = group_json.place_of_group(group), group_json.template_of(group)
                template = known[path] if path in known else self._template(doing, path)
                own = group_json.in_order(members.get(place, ()))
                found[place] = SliceParts(*place, template, group, own)
            for template in known.values():
                place = group_json.place_of_template(template)
                parts = SliceParts(*place, template)
                if place not in found and zone in ("-", place[0]) and parts.ours:
                    left = [one for one in instances if _is_of(one, parts)]
                    found[place] = replace(parts, members=group_json.in_order(left))
            return [one for one in found.values() if group_json.is_slice(one.template)], silent

    def _template(self, doing: str, path: str) -> Any:
        """Return the template with a path; an empty one if it does not exist."""
        with suppress(NotFound):
            return self._resource(doing, path) if path else {}
        return {}

    def _completed(self, doing: str, parts: SliceParts) -> str:
        """Make the policy, if it does not exist, and the group; return the group as operation."""
        self._make_policy(doing, parts)
        body = group_json.group_fields(parts, self._project)
        group = group_json.group_path(parts.zone, parts.name)
        # If a call with a lost answer made it, or if it is slow, the next read shows it.
        with suppress(DeadlinePassed):
            collection = group.rpartition("/")[0]
            try:
                self._wait(doing, self._write(doing, "POST", collection, body, creates=True))
            except NameTaken as taken:
                self._check_group(doing, group, body, taken)
        return f"projects/{self._project}/{group}"

    def _check_group(self, doing: str, path: str, body: group_json.Json, taken: NameTaken) -> None:
        """Raise `NameTaken` if the group of that name was made from another template than ours."""
        with suppress(NotFound):
            has = self._resource(doing, path)
            if group_json.template_of(has) != group_json.template_of(body):
                raise taken_by_others(doing, f"instance group {body['name']}") from taken

    def _make_policy(self, doing: str, parts: SliceParts) -> None:
        """Make the policy and wait for it, unless it exists; raise `NameTaken` if not as ours."""
        path = f"regions/{region_of(parts.zone)}/resourcePolicies"
        body = group_json.policy_fields(parts)
        try:
            has = self._resource(doing, f"{path}/{body['name']}")
        except NotFound:
            self._wait(doing, self._write(doing, "POST", path, body, creates=True))
            return
        if not group_json.is_same_policy(has, body):
            raise taken_by_others(doing, f"resource policy {body['name']}")

    def _undo(self, parts: SliceParts, error: TpukitError) -> None:
        """Remove what a refused create has made; if that fails too, say it in the error."""
        try:
            self._remove_parts(f"delete slice {parts.name}", parts)
        except TpukitError:
            error.exists = (f"slice {parts.name} in {parts.zone}, STOPPED; it bills nothing",)
            again = Fix.command("tpukit", "delete", parts.name, "--zone", parts.zone)
            error.otherwise = again if error.fix else None
            error.fix = error.fix or again

    def _remove_parts(self, doing: str, parts: SliceParts) -> None:
        """Delete the policy, and then the template without which nobody would find it."""
        region = f"regions/{region_of(parts.zone)}"
        own = group_json.part_name(parts.zone, parts.name)
        policy = f"{region}/resourcePolicies/{own}"
        with suppress(NotFound):
            has = self._resource(doing, policy)
            if group_json.is_of_same_slice(has, parts.template):
                self._wait(doing, self._write(doing, "DELETE", policy))
        with suppress(NotFound):
            self._wait(doing, self._write(doing, "DELETE", f"{region}/instanceTemplates/{own}"))

    def _wait(self, doing: str, operation: str) -> None:
        """Return when an operation has succeeded; raise its error if it failed."""
        if not operation:
            return
        for _ in polls(Deadline.after(self._session.clock, _PART_SECONDS), 0.2, 2.0):
            try:
                answer = self._operation(operation)
            except NotFound:  # the API forgets operations that have ended
                return
            if failure := self._failure_of(answer, doing):
                raise failure
            if answer.get("status") == "DONE":
                return
        raise DeadlinePassed(f"cannot {doing}: a part of it was not made in {_PART_SECONDS:g} s")

    def _refusal(self, group: str, doing: str) -> TpukitError | None:
        """Return why a group cannot make its machines, or None.

        Flex-start waits for capacity, so its lack is no refusal there.
        """
        answer = self._session.rest(doing, "GET", group)
        with reading(doing):
            status = field(answer, "status", dict, {})
            bulk = field(status, "bulkInstanceOperation", dict, {})
            check = field(bulk, "lastProgressCheck", dict, {})
            error = field(check, "error", dict, {})
            if error:
                failure = errors_of(error, doing)
                return None if isinstance(failure, NoCapacity) else failure
        rows = self._session.rest(doing, "POST", f"{group}/listManagedInstances", body={})
        with reading(doing):
            for row in field(rows, "managedInstances", list, []):
                attempt = field(field(row, "lastAttempt", dict, {}), "errors", dict, {})
                if attempt and field(row, "currentAction", str, "") != "NONE":
                    return errors_of(attempt, doing)
        return None

    def _is_machine(self, zone: str, name: str) -> bool:
        return self._machine(zone, name) is not None

    def _machine(self, zone: str, name: str) -> Any:
        """Return the instance of that name, or None if it does not exist or has no TPUs."""
        with suppress(NotFound):
            instance = self._resource(f"read slice {name}", instance_path(zone, name))
            return instance if instance_json.is_slice(instance) else None
        return None

    def _check_alone(self, doing: str, instance: Any) -> None:
        """Raise `BadInput` if the group exists that made an instance, and would make another."""
        with reading(doing):
            path = group_json.made_by(instance)
        if not path:
            return
        with suppress(NotFound):
            self._resource(doing, path)
            kind, place, _, group = path.split("/")
            delete: tuple[str, ...] = ("tpukit", "delete", group, "--zone", place)
            if kind == "regions":
                gcloud = ("gcloud", "compute", "instance-groups", "managed", "delete", group)
                delete = (*gcloud, "--region", place, "--project", self._project)
            raise BadInput(
                f"cannot {doing}: it is a machine of the managed instance group {group}",
                why="the group would make another, which bills",
                fix=Fix.command(*delete),
            )


def _belongs(instance: Any, joined: set[group_json.Place], silent: Sequence[str]) -> bool:
    """Return True if an instance is a worker of a group, as far as the groups' zone answered."""
    place = group_json.group_of(instance) if instance_json.is_slice(instance) else None
    return place is not None and (place in joined or place[0] in silent)


def _is_of(instance: Any, parts: SliceParts) -> bool:
    """Return True if an instance is of a slice's group, or was if that is gone."""
    if parts.group is None:
        return group_json.is_left_by_group(instance, parts.zone, parts.name, parts.template)
    return group_json.group_of(instance) == (parts.zone, parts.name)


def _refuse(done: str, parts: SliceParts) -> NoReturn:
    raise BadInput(
        f"slice {parts.name} cannot be {done}",
        why="on Compute Engine, a slice of several workers only runs until it is deleted",
        fix=Fix.command("tpukit", "delete", parts.name, "--zone", parts.zone),
    )
