"""A context on the prompt cloud."""

from __future__ import annotations

import pytest
from support.contexts import context_on
from support.local_cloud import Cloud

from tpukit.access.context import Context
from tpukit.ssh.keys import KeyPair


@pytest.fixture
def context(prompt_cloud: Cloud, key: KeyPair) -> Context:
    cloud, ranges = prompt_cloud, ("192.0.2.7/32",)
    return context_on(cloud, key, cloud.clock, source_ranges=ranges)
