"""The emulated service: every resource, and the clock that lets their changes happen.

It knows no protocol and starts no thread. One caller at a time may change it; the two questions of
the workers (`authorized_keys`, `admits`) may be asked from any thread, because the documents they
read are replaced and never changed in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tpukit.emulator.catalogue import Catalogue
from tpukit.emulator.clock import EmulatorClock
from tpukit.emulator.compute import ComputeOperations, Networks, Projects
from tpukit.emulator.context import Context, Timing
from tpukit.emulator.errors import Json
from tpukit.emulator.firewall import Firewalls
from tpukit.emulator.nodes import Nodes
from tpukit.emulator.operations import Operations
from tpukit.emulator.state import State
from tpukit.emulator.workers import WorkerHostFactory


class Service:
    """The Cloud TPU API and the firewall API over one state."""

    def __init__(
        self,
        state: State,
        clock: EmulatorClock,
        random: Random,
        host: WorkerHostFactory,
        timing: Timing | None = None,
        catalogue: Catalogue | None = None,
        compute_base: str = "",
    ) -> None:
        timing = timing or Timing()
        self.context = Context(state, clock, random, timing, compute_base=compute_base)
        self.catalogue = catalogue or Catalogue()
        self.operations = Operations(self.context)
        self.compute_operations = ComputeOperations(self.context)
        self.projects = Projects(self.context, self.compute_operations)
        self.networks = Networks(self.context)
        self.firewalls = Firewalls(self.context, self.compute_operations)
        self.nodes = Nodes(self.context, self.catalogue, self.operations, host(self))

    def resume(self) -> None:
        """Pick up where the saved state ends: boot the workers of what is READY."""
        self.nodes.boot_ready()
        self.advance()

    def advance(self) -> None:
        """Let everything happen that has fallen due."""
        for name, record in self.operations.due():
            self.nodes.complete(name, record)

    def advance_clock(self, seconds: float) -> None:
        self.context.clock.advance(seconds)
        self.context.state.clock_offset = self.context.clock.offset
        self.context.changed = True
        self.advance()

    def authorized_keys(self, node: str) -> Sequence[tuple[str, str]]:
        """Return (user, public key line) pairs; node metadata comes before the project's."""
        document = self._node(node)
        if document is None:
            return []
        project = node.split("/")[1]
        items = self.projects.metadata_items(project)
        common = next((item.get("value", "") for item in items if item["key"] == "ssh-keys"), "")
        blocked = document.get("metadata", {}).get("block-project-ssh-keys", "").upper() == "TRUE"
        own = document.get("metadata", {}).get("ssh-keys", "")
        return [*_keys(own), *([] if blocked else _keys(common))]

    def admits(self, node: str, source_ip: str, port: int) -> bool:
        """Return whether the firewall rules let `source_ip` reach this TCP port of the workers."""
        document = self._node(node)
        if document is None:
            return False
        network = document["networkConfig"]["network"]
        return self.firewalls.admits(network, document.get("tags", ()), source_ip, port)

    def _node(self, name: str) -> Json | None:
        record = self.context.state.nodes.get(name)
        return record["node"] if record else None


def _keys(text: str) -> list[tuple[str, str]]:
    """Return the pairs of a metadata value `ssh-keys`, one `user:key` a line.

    Compute Engine documentation, "Add SSH keys to VMs": lines without a user are not used.
    """
    pairs = (line.strip().partition(":") for line in text.splitlines())
    return [(user, key.strip()) for user, _, key in pairs if user and key.strip()]
