"""The quotas that a request needs, by the names that refusals use."""

from __future__ import annotations

from dataclasses import replace

from support.local_cloud import Cloud

from tpukit.accelerators import AcceleratorType, all_types
from tpukit.slices import quota_names as quotas


def test_a_type_counts_on_the_quotas_that_its_refusals_name() -> None:
    seen = {
        ("v6e-8", "preemptible"): ["TPUV6EPreemptiblePerProjectPerZoneForTPUAPI"],
        ("v2-32", "spot"): ["TPUV2sPreemptiblePodPerProjectPerZoneForTPUAPI"],
        ("v5litepod-8", "on-demand"): ["TPUV5sLitepodServingPerProjectPerZoneForTPUAPI"],
        ("v5litepod-16", "on-demand"): ["TPUV5sLitepodPerProjectPerZoneForTPUAPI"],
        ("v2-8", "spot"): [],  # its quota is no pod's, and its name was never seen
        ("v3-8", "on-demand"): [],
    }
    for (name, bought), first in seen.items():
        assert list(quotas.quotas(AcceleratorType.parse(name), bought))[:1] == first, name
    assert all(quotas.quotas(type_, "reserved") == () for type_ in all_types())


def test_what_a_request_counts_on_is_said(cloud: Cloud) -> None:
    wanted = cloud.request(zone="us-east5-a", accelerator_type="v6e-16", provisioning="spot")
    line = quotas.needs(wanted)
    assert line.startswith("v6e-16 in us-east5-a needs 16 chips of TPUV6EPreemptiblePerProject")
    assert line.endswith("4 of the region's IN_USE_ADDRESSES")
    assert "ADDRESSES" not in quotas.needs(replace(wanted, external_addresses=False))
