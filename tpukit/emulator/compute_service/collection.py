"""The methods that all collections of Compute Engine's resources have in common."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from tpukit.emulator.compute_service.compute_operations import (
    ComputeOperations,
    aggregated_page,
    already_exists,
    check_name,
    found_page,
    not_found,
    scope_link,
    scope_of,
)
from tpukit.emulator.core.api_errors import ApiError, Json
from tpukit.emulator.core.service_context import Call, ServiceContext, Views
from tpukit.emulator.core.state import Records
from tpukit.emulator.tpu_service.catalogue import Catalogue


@dataclass(frozen=True)
class Collection(ABC):
    """The resources of one kind by their full names: of zones, of regions, or global ones."""

    kind: ClassVar[str]  #: of one resource: "firewall"
    collection: ClassVar[str]  #: in paths: "firewalls"

    _context: ServiceContext
    _operations: ComputeOperations
    _catalogue: Catalogue
    records: Records

    def get(self, call: Call) -> Json:
        return self.view(self._find(call))

    def list(self, call: Call) -> Json:
        page = found_page(call, Views(self._names(self._place(call)), self.view))
        return {"kind": f"compute#{self.kind}List", **page}

    def aggregated(self, call: Call) -> Json:
        """Return the resources of all zones and regions, and the global ones."""
        names = self._names(f"projects/{call.project}/")
        page = aggregated_page(call, Views(names, self.view), self.collection)
        return {"kind": f"compute#{self.kind}AggregatedList", **page}

    @abstractmethod
    def insert(self, call: Call) -> Json:
        """Begin to create a resource, and return the operation."""

    @abstractmethod
    def delete(self, call: Call) -> Json:
        """Begin to delete a resource, and return the operation."""

    @abstractmethod
    def view(self, full: str) -> Json:
        """Return a resource in the API's form."""

    def _names(self, place: str) -> Iterable[str]:
        """Return the full names that begin with a place."""
        return (name for name in self.records if name.startswith(place))

    def _exists(self, full: str) -> bool:
        return full in self.records

    def _place(self, call: Call) -> str:
        """Return the start of the full names in a call's zone or region, or of the global ones.

        Raises `ApiError` for an unknown zone or region.
        """
        zone, region = call.path.get("zone"), call.path.get("region")
        known = not zone or zone in self._catalogue.zones
        if not known or (region and region not in self._catalogue.regions):
            raise not_found(scope_of(call))
        return f"{scope_of(call)}/{self.collection}/"

    def _full_name(self, call: Call) -> str:
        return f"{self._place(call)}{call.path['name']}"

    def _find(self, call: Call) -> str:
        full = self._full_name(call)
        if not self._exists(full):
            raise not_found(full)
        return full


class DocumentCollection(Collection):
    """Resources that are documents alone: an insert and a delete take effect at once."""

    inserted: ClassVar[str] = "insert"  #: the type of the operation of an insert

    def insert(self, call: Call) -> Json:
        name = call.body.get("name", "")
        check_name(name)
        full, fields = f"{self._place(call)}{name}", self._fields(call)
        if begun := self._operations.repeated(call, self.inserted, full):
            return begun
        if self._exists(full):
            raise already_exists(full)
        self._put(full, fields)
        return self._operations.begin(call, self.inserted, full)

    def delete(self, call: Call) -> Json:
        if begun := self._operations.repeated(call, "delete", self._full_name(call)):
            return begun
        full = self._find(call)
        for user in self._users(full):
            kind = re.sub("([A-Z])", lambda match: f"_{match[1].lower()}", self.kind)
            raise ApiError(
                "INVALID_ARGUMENT",
                f"The {kind} resource '{full}' is already being used by '{user}'",
                reason="resourceInUseByAnotherResource",
            )
        begun = self._operations.begin(call, "delete", full)
        self._remove(full)
        return begun

    def view(self, full: str) -> Json:
        base = self._context.compute_base
        own = {"kind": f"compute#{self.kind}", "selfLink": base + full}
        return {**self.records[full], **own, **scope_link(base, full)}

    @abstractmethod
    def _fields(self, call: Call) -> Json:
        """Return the fields that an insert records; raise `ApiError` for one that is refused."""

    def _put(self, full: str, fields: Json) -> None:
        """Record a new resource."""
        own = {"id": self._context.number(), "creationTimestamp": self._context.stamp()}
        self.records[full] = {**fields, "name": full.rpartition("/")[2], **own}

    def _remove(self, full: str) -> None:
        del self.records[full]

    def _users(self, full: str) -> Iterable[str]:
        """Return the full names of the resources that keep this one from being deleted."""
        return ()
