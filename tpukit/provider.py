"""What the use-cases know of a cloud: two small protocols, none of Google's names.

Every method raises the errors of `tpukit.errors`; `NotFound` means that the cloud said so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tpukit.errors import TpukitError
from tpukit.models import FirewallRule, Slice, SliceList, SliceRequest, WorkerIdentity


class Doubtful(TpukitError):
    """The request may or may not have been carried out: read back before repeating it."""


class SliceProvider(Protocol):
    """A place where slices live."""

    @property
    def bills(self) -> bool:
        """Whether its slices cost money: those of the emulator do not."""
        ...

    def get(self, zone: str, name: str) -> Slice: ...

    def list(self, zone: str) -> SliceList:
        """List the slices of a zone, or of all zones where `zone` is `-`."""
        ...

    def create(self, request: SliceRequest) -> str:
        """Ask once and return the operation's name; `Doubtful` where the answer was lost."""
        ...

    def delete(self, zone: str, name: str) -> str:
        """Ask once, as `start` and `stop` do: repeated blindly they are refused."""
        ...

    def start(self, zone: str, name: str) -> str: ...

    def stop(self, zone: str, name: str) -> str: ...

    def replace_metadata(self, zone: str, name: str, metadata: Mapping[str, str]) -> str: ...

    def replace_tags(self, zone: str, name: str, tags: Sequence[str]) -> str: ...

    def failure(self, operation: str, doing: str) -> TpukitError | None:
        """Return why an operation failed, or None while it runs and after it succeeded.

        `doing` says in the error what it was for: `create slice demo`.
        """
        ...

    def identities(self, zone: str, name: str) -> Sequence[WorkerIdentity]:
        """Return what each worker has published of itself so far, in any order."""
        ...


class FirewallProvider(Protocol):
    """The firewall rules of a project, global to all its networks."""

    def list(self) -> Sequence[FirewallRule]: ...

    def insert(self, rule: FirewallRule) -> None: ...

    def replace_source_ranges(self, name: str, source_ranges: Sequence[str]) -> None: ...

    def delete(self, name: str) -> None: ...
