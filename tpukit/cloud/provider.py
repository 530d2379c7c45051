"""A cloud as the use-cases know it: three small protocols, none of Google's names.

Another API may stand beside the Cloud TPU API, and hold slices of the same names: each `Slice` says
in which it lives. What differs between them stays behind the protocol: names of operations are for
who gave them alone; a create that an API takes twice under one request id may be repeated there
until it is answered, and is `Doubtful` only after that; states are the API's words, but those that
the use-cases act on (READY, STOPPED, DELETING, the lost ones) mean here what they mean there;
metadata is replaced as a whole, but for what an API writes into it itself.

Every method raises the errors of `tpukit.errors`; `NotFound` means that the cloud answered so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self

from tpukit.clock import Deadline
from tpukit.errors import TpukitError
from tpukit.models import (
    ApiCall,
    FirewallRule,
    LoginProfile,
    QueuedResource,
    QueuedResourceList,
    QueueRequest,
    Slice,
    SliceChange,
    SliceList,
    SliceRequest,
    WorkerIdentity,
)

#: Takes a call that would be made.
Note = Callable[[ApiCall], None]
Wait = Callable[[], None]  #: returns once what was asked for is done; raises where it failed


class Doubtful(TpukitError):
    """The request may or may not have been carried out: read back before repeating it."""


class SliceProvider(Protocol):
    """A place where slices live."""

    bills: bool  #: whether its slices cost money: those of the emulator do not

    def now(self) -> float:
        """Return the seconds since the epoch by the place's own clock, as of its last answer.

        It is the one to judge ages and ends by; before any answer it is this machine's.
        """

    def once(self) -> Self:
        """Return the same place, which asks everything once: for whoever asks again by himself."""

    def within(self, deadline: Deadline, *, patient: bool = False) -> Self:
        """Return the same place, whose calls are over by a deadline, or a second later.

        A `patient` one repeats what fails in an outage until then.
        """

    def planning(self, note: Note) -> Self:
        """Return the same place, whose writes are passed to `note` and not made; reads are."""

    def get(self, zone: str, name: str) -> Slice:
        """Return a slice; raise `NotFound` where there is none."""

    def list(self, zone: str) -> SliceList:
        """List the slices of a zone, or of all zones where `zone` is `-`."""

    def zones(self) -> Sequence[str]:
        """Return the zones that the project sees, in order: a hidden one is not among them."""

    def list_queued(self, zone: str) -> QueuedResourceList:
        """List the queued resources of a zone, or of all zones where `zone` is `-`."""

    def get_queued(self, zone: str, name: str) -> QueuedResource:
        """Return a queued resource; raise `NotFound` where there is none."""

    def create_queued(self, request: QueueRequest) -> str:
        """Ask once and return the operation's name; `Doubtful` where the answer was lost."""

    def delete_queued(self, zone: str, name: str, *, force: bool) -> str:
        """Ask once, as `delete` does, that a queued resource goes; by `force` with its slices."""

    def accelerator_types(self, zone: str) -> frozenset[str]:
        """Return the names of the accelerator types that a zone offers to the project."""

    def runtime_versions(self, zone: str) -> frozenset[str]:
        """Return the names of the runtime versions that a zone has."""

    def worker_address(self, external: bool) -> str:
        """Return an address such as workers will have, to learn by which way they are reached."""

    def create(self, request: SliceRequest) -> str:
        """Ask once and return the operation's name; `Doubtful` where the answer was lost."""

    def delete(self, zone: str, name: str) -> str:
        """Ask once, as `start` and `stop` do: repeated blindly they are refused."""

    def start(self, zone: str, name: str) -> str:
        """Ask once that a stopped slice starts and return the operation's name."""

    def stop(self, zone: str, name: str) -> str:
        """Ask once that a slice stops and return the operation's name."""

    def update(self, zone: str, name: str, change: SliceChange) -> str:
        """Replace each part that the change has, once; `Doubtful` where the answer was lost."""

    def operations(self, zone: str, name: str, verb: str, since: str = "") -> frozenset[str]:
        """Return the names of the operations on a slice, of a verb, that the API knows of.

        Verbs are the API's: `update`, `delete`. `since` is when the first began (RFC 3339).
        """

    def failure(self, operation: str, doing: str) -> TpukitError | None:
        """Return why an operation failed, or None while it runs and after it succeeded.

        `doing` names in the error what it was for: `create slice demo`.
        """

    def identities(self, zone: str, name: str) -> Sequence[WorkerIdentity]:
        """Return the identities that workers have published so far, in any order."""


class FirewallProvider(Protocol):
    """The firewall rules of a project, global to all its networks."""

    def within(self, deadline: Deadline, *, patient: bool = False) -> Self:
        """Return the same rules, whose calls are over by a deadline, as `SliceProvider.within`."""

    def once(self) -> Self:
        """Return the same rules, which asks everything once."""

    def planning(self, note: Note) -> Self:
        """Return the same rules, whose writes are passed to `note` and not made; reads are."""

    def of(self, project: str) -> Self:
        """Return the rules of another project, that of a shared network; of the same for ""."""

    def has_network(self, name: str) -> bool:
        """Return whether the project has a network of that name."""

    def free_addresses(self, region: str) -> int | None:
        """Return how many external addresses the project may still take there, None for unknown."""

    def host_project(self) -> str:
        """Return the project whose networks this one shares, "" where it shares none."""

    def list(self) -> Sequence[FirewallRule]:
        """Return every rule for ingress, those that deny too."""

    def has_policies(self, network: str) -> bool:
        """Return whether firewall policies, which `list` does not show, decide for a network."""

    def insert(self, rule: FirewallRule) -> Wait:
        """Ask for a rule; a refusal is raised here."""

    def replace_source_ranges(self, name: str, source_ranges: Sequence[str]) -> Wait:
        """Ask for other sources that a rule admits; a refusal is raised here."""

    def delete(self, name: str) -> None:
        """Remove a rule and return once it is gone."""


class DiskProvider(Protocol):
    """The disks of projects, of which slices have some as data disks."""

    def within(self, deadline: Deadline) -> Self:
        """Return the same disks, whose calls are over by a deadline, or a second later."""

    def unused(self, source: str) -> int | None:
        """Return the size in GB of a disk, `projects/…/disks/…`, that no machine has attached.

        None for one that is attached, or that there is not.
        """


class LoginProvider(Protocol):
    """Who may log in on the machines of a project, where their metadata does not decide."""

    def within(self, deadline: Deadline) -> Self:
        """Return the same, whose calls are over by a deadline, or a second later."""

    def project_metadata(self) -> Mapping[str, str]:
        """Return the metadata that all machines of the project share."""

    def profile(self, account: str) -> LoginProfile:
        """Return what is known of an account; raise `NotFound` for one that there is not."""
