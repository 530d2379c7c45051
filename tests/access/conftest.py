"""A context on the prompt cloud."""

from __future__ import annotations

import pytest
from support.local_cloud import Cloud

from tpukit.access.context import Context
from tpukit.access.own_addresses import OwnAddresses
from tpukit.remote.connection.client import Connector
from tpukit.remote.connection.keys import KeyPair


@pytest.fixture
def context(prompt_cloud: Cloud, key: KeyPair) -> Context:
    return Context(
        provider=prompt_cloud.tpu,
        firewall=prompt_cloud.firewall,
        connector=Connector(key, prompt_cloud.clock),
        key=key,
        user="ada",
        source_ranges=("192.0.2.7/32",),
        source_address=lambda address: "198.51.100.9",
        clock=prompt_cloud.clock,
        journal=prompt_cloud.journal,
        own_addresses=OwnAddresses(prompt_cloud.directory / "own_addresses.json"),
    )
