"""What the tests of the way in stand on."""

from __future__ import annotations

from collections.abc import Mapping

from support.local_cloud import ZONE, Cloud, FakeClock
from tpukit.models import Slice


def ready(cloud: Cloud, metadata: Mapping[str, str] | None = None, kind: str = "v3-8") -> Slice:
    cloud.tpu.create(cloud.request(metadata=metadata or {}, accelerator_type=kind))
    if isinstance(cloud.clock, FakeClock):
        cloud.clock.sleep(31.0)
    return cloud.tpu.get(ZONE, "demo")


def keys_of(cloud: Cloud) -> list[str]:
    return cloud.tpu.get(ZONE, "demo").metadata.get("ssh-keys", "").splitlines()
