"""A cloud as the use-cases know it: three small protocols, without Google's clients.

Another API may stand beside the Cloud TPU API and have slices of the same names; `Slice.api` tells
them apart. Rules for each provider:

- Only the provider that returned an operation's name can read it.
- `Doubtful` means that the answer to a write was lost. If an API has request ids, its provider may
  repeat a create under the same id first.
- States are the API's words. READY, STOPPED, DELETING and the lost ones must mean the same as in
  the Cloud TPU API.
- An update replaces metadata as a whole, except entries that the API itself writes.
- Every method raises the errors of `tpukit.errors`. `NotFound` means that the cloud said so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Self

from tpukit.clock import Deadline
from tpukit.errors import TpukitError
from tpukit.models import (
    ApiCall,
    FirewallRule,
    QueuedResource,
    QueuedResourceList,
    QueueRequest,
    Slice,
    SliceChange,
    SliceList,
    SliceRequest,
    WorkerIdentity,
)

#: Gets each write of a dry run, in place of the API.
Note = Callable[[ApiCall], None]
Wait = Callable[[], None]  #: returns when the operation has succeeded; raises if it fails


class Doubtful(TpukitError):
    """The request may or may not have been carried out: read back before repeating it."""


class SliceProvider(Protocol):
    """The slices and queued resources of one project."""

    bills: bool  #: False for the emulator, where slices cost nothing
    apis: tuple[str, ...]  #: the APIs that it asks, as in `Slice.api`

    def now(self) -> float:
        """Return the time by the cloud's clock in seconds since the epoch.

        Compare ages and ends of slices with it. Before the first answer it is this machine's time.
        """

    def once(self) -> Self:
        """Return the same provider without repeats, for callers that repeat calls themselves."""

    def within(self, deadline: Deadline, *, patient: bool = False) -> Self:
        """Return the same provider with calls that end at most a second after the deadline.

        If `patient`, it repeats calls during an outage until then.
        """

    def only(self, api: str) -> SliceProvider:
        """Return the provider of one of its APIs, which sees no slice of another."""

    def planning(self, note: Note) -> Self:
        """Return the same provider with real reads, and with writes that only go to `note`."""

    def get(self, zone: str, name: str) -> Slice:
        """Return a slice; raise `NotFound` if it does not exist."""

    def list(self, zone: str) -> SliceList:
        """List the slices of a zone, or of all zones if `zone` is `-`."""

    def zones(self) -> Sequence[str]:
        """Return the zones that the project sees, sorted; Google hides zones from some projects."""

    def list_queued(self, zone: str) -> QueuedResourceList:
        """List the queued resources of a zone, or of all zones if `zone` is `-`."""

    def get_queued(self, zone: str, name: str) -> QueuedResource:
        """Return a queued resource; raise `NotFound` if it does not exist."""

    def create_queued(self, request: QueueRequest) -> str:
        """Request once and return the operation's name; raise `Doubtful` if the answer was lost."""

    def delete_queued(self, zone: str, name: str, *, force: bool) -> str:
        """Request once to delete a queued resource, with its slices if `force`; see `delete`."""

    def accelerator_types(self, zone: str) -> frozenset[str]:
        """Return the names of the accelerator types that a zone offers to the project."""

    def runtime_versions(self, zone: str) -> frozenset[str]:
        """Return the names of the runtime versions of a zone."""

    def worker_address(self, external: bool) -> str:
        """Return an address like the workers', for testing the route to them before they exist."""

    def create(self, request: SliceRequest) -> str:
        """Request once and return the operation's name; raise `Doubtful` if the answer was lost."""

    def delete(self, zone: str, name: str) -> str:
        """Request once, because the API refuses a repeated delete, and return the operation.

        Returns "" if this deletes only a part, so that the caller looks and asks again.
        """

    def start(self, zone: str, name: str) -> str:
        """Request once that a stopped slice starts, and return the operation's name."""

    def stop(self, zone: str, name: str) -> str:
        """Request once that a slice stops, and return the operation's name."""

    def update(self, zone: str, name: str, change: SliceChange) -> str:
        """Request once to replace the parts in the change; `Doubtful` if the answer was lost."""

    def operations(self, zone: str, name: str, verb: str, since: str = "") -> frozenset[str]:
        """Return the names of a slice's operations of one verb, `update` or `delete`.

        Older ones than `since` (RFC 3339) are left out.
        """

    def failure(self, operation: str, doing: str) -> TpukitError | None:
        """Return why an operation failed, or None if it runs, succeeded or is forgotten.

        The error's text starts with `cannot DOING`: `create slice demo`.
        """

    def identities(self, zone: str, name: str) -> Sequence[WorkerIdentity]:
        """Return the identities that workers have published so far, in any order."""


class FirewallProvider(Protocol):
    """The firewall rules of a project, global to all its networks."""

    def within(self, deadline: Deadline, *, patient: bool = False) -> Self:
        """Return the same provider with a deadline for its calls, as `SliceProvider.within`."""

    def once(self) -> Self:
        """Return the same provider without repeats, for callers that repeat calls themselves."""

    def planning(self, note: Note) -> Self:
        """Return the same provider with real reads, and with writes that only go to `note`."""

    def of(self, project: str) -> Self:
        """Return the rules of a shared network's project; for "", those of the own project."""

    def has_network(self, name: str) -> bool:
        """Return True if the project has a network of this name."""

    def free_addresses(self, region: str) -> int | None:
        """Return how many more external addresses the project may use there, None if unknown."""

    def host_project(self) -> str:
        """Return the project of the shared networks (Shared VPC), or "" if there is none."""

    def list(self) -> Sequence[FirewallRule]:
        """Return all ingress rules, allow and deny."""

    def get(self, name: str) -> FirewallRule | None:
        """Return an ingress rule, or None if there is none of this name."""

    def has_policies(self, network: str) -> bool:
        """Return True if firewall policies, which `list` does not show, decide for a network."""

    def insert(self, rule: FirewallRule) -> Wait:
        """Request a rule, and return the wait for it; raise if the request is refused."""

    def replace_source_ranges(self, name: str, source_ranges: Sequence[str]) -> Wait:
        """Request other sources for a rule, and return the wait; raise if it is refused."""

    def delete(self, name: str) -> None:
        """Delete a rule and return when it is gone."""


class DiskProvider(Protocol):
    """The disks of any project; slices attach them as data disks."""

    def within(self, deadline: Deadline) -> Self:
        """Return the same provider with calls that end at most a second after the deadline."""

    def unused(self, source: str) -> int | None:
        """Return the size of a disk (`projects/…/disks/…`) in GB if no machine has attached it.

        Returns None if one has, or if the disk does not exist.
        """
