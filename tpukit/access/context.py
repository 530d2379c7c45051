"""What the way in, and the main job, work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tpukit.clock import Clock
from tpukit.cloud.provider import FirewallProvider, SliceProvider
from tpukit.remote.connection.client import Connector
from tpukit.remote.connection.keys import KeyPair
from tpukit.slices.journal import Journal


@dataclass(frozen=True)
class Context:
    """The clouds, the SSH client, and who we are."""

    provider: SliceProvider
    firewall: FirewallProvider
    connector: Connector
    key: KeyPair
    user: str
    source_ranges: tuple[str, ...]  #: as given, else the caller's own address is found out
    source_address: Callable[[str], str]
    clock: Clock
    journal: Journal
    internal: bool = False  #: whether workers are reached at their internal addresses
