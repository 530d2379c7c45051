"""What the stages of the main job work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tpukit.clock import Clock
from tpukit.journal import Journal
from tpukit.provider import FirewallProvider, SliceProvider
from tpukit.remote.keys import KeyPair
from tpukit.remote.ssh import Connector


@dataclass(frozen=True)
class Means:
    """The clouds, the way in, and who we are."""

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
