"""What the way in works with, on a cloud of the tests."""

from __future__ import annotations

from typing import Any

from support.local_cloud import Cloud
from tpukit.access.context import Context
from tpukit.access.hints import Hints
from tpukit.access.pinned_keys import PinnedKeys
from tpukit.clock import Clock
from tpukit.slices.capacity_memory import CapacityMemory
from tpukit.ssh.client import Connector
from tpukit.ssh.keys import KeyPair


def context_on(cloud: Cloud, key: KeyPair, clock: Clock, **other: Any) -> Context:
    """Return a context, whose files are in the cloud's directory."""
    given = {
        "provider": cloud.tpu,
        "firewall": cloud.firewall,
        "connector": Connector(key, clock),
        "key": key,
        "user": "ada",
        "source_ranges": (),
        "source_address": lambda address: "198.51.100.9",
        "clock": clock,
        "journal": cloud.journal,
        "capacity": CapacityMemory(cloud.directory / "capacity", "a place", clock),
        "own_addresses": cloud.directory / "own_addresses.json",
        "hints": Hints(cloud.directory / "hints", "a place", clock),
        "pinned": PinnedKeys(cloud.directory / "pinned_keys"),
    }
    return Context(**{**given, **other})
