"""Every call that tpukit can make is one that its emulator serves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.local_cloud import PROJECT, ZONE, Cloud

from tpukit.errors import TpukitError
from tpukit.google.compute_disks import ComputeDisks
from tpukit.google.login_profiles import OsLogin
from tpukit.google.project import GoogleProject
from tpukit.google.provider import DiskProvider, FirewallProvider, SliceProvider
from tpukit.models import FirewallRule, QueueRequest, SliceChange, SliceRequest

RULE = FirewallRule("r", "default", ("203.0.113.7/32",), ("t",))
REQUEST = SliceRequest("demo", PROJECT, ZONE, "v3-8", "tpu-vm-base")
#: A value for each parameter that a method of a provider has, by the parameter's name.
SAMPLES: dict[str, Any] = {
    "account": "ada@example.com",
    "change": SliceChange(labels={"a": "b"}),
    "doing": "look",
    "external": True,
    "force": True,
    "metadata": {"a": "b"},
    "name": "demo",
    "network": "default",
    "permissions": ["tpu.nodes.get"],
    "operation": f"projects/{PROJECT}/locations/{ZONE}/operations/o",
    "project": PROJECT,
    "region": ZONE.rpartition("-")[0],
    "request": REQUEST,
    "rule": RULE,
    "services": ["storage.googleapis.com"],
    "source": f"projects/{PROJECT}/zones/{ZONE}/disks/d",
    "source_ranges": ["203.0.113.8/32"],
    "tags": ["t"],
    "verb": "create",
    "zone": ZONE,
    "zones": [ZONE],
}
#: Requests of the queue, which take roads of their own.
QUEUED = (
    QueueRequest(REQUEST),
    QueueRequest(replace(REQUEST, provisioning="best-effort"), count=2),
)
#: What returns another provider, and calls nothing.
_MAKERS = ("once", "within", "planning", "only")


KINDS = (SliceProvider, FirewallProvider, DiskProvider, OsLogin, GoogleProject)


def providers(cloud: Cloud) -> dict[type, Any]:
    """Return our client of each kind, on one emulated cloud."""
    compute = f"{cloud.url}/compute/v1/"
    disks = ComputeDisks(cloud.session, compute)
    login = OsLogin(cloud.session, PROJECT, compute, cloud.url)
    clients = (cloud.tpu, cloud.firewall, disks, login, cloud.project)
    return dict(zip(KINDS, clients, strict=True))


def methods() -> Iterator[tuple[type, str]]:
    """Yield each method of each provider that tpukit has."""
    for kind in KINDS:
        for name, _ in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and name not in _MAKERS:
                yield kind, name


@pytest.mark.parametrize(("kind", "name"), list(methods()))
def test_what_a_provider_calls_has_a_route_of_the_emulator(
    prompt_cloud: Cloud, kind: type, name: str
) -> None:
    method = getattr(providers(prompt_cloud)[kind], name)
    wanted = {
        parameter.name: SAMPLES[parameter.name]
        for parameter in inspect.signature(method).parameters.values()
        if parameter.default is parameter.empty
    }
    choices = [{**wanted, "request": each} for each in QUEUED] if "queued" in name else [wanted]
    for given in choices if "request" in wanted else [wanted]:
        try:
            wait = method(**given)
            if name in ("insert", "replace_source_ranges"):
                wait()
        except TpukitError:
            pass  # a refusal is an answer too
    log = prompt_cloud.control("GET", "log")["requests"]
    assert [call["path"] for call in log if not call["method"]] == []
    assert log or name in ("now", "of", "worker_address")


def test_the_address_check_reads_what_a_region_has_left(cloud: Cloud) -> None:
    region = ZONE.rpartition("-")[0]
    assert cloud.firewall.free_addresses(region) == 100_000
    quota = {"name": "IN_USE_ADDRESSES", "zone": ZONE, "limit": 10}
    cloud.control("POST", "catalogue/quotas", quota)
    cloud.tpu.create(cloud.request("pod", accelerator_type="v2-32"))
    cloud.tpu.create(cloud.request("inside", external_addresses=False))
    assert cloud.firewall.free_addresses(region) == 6
    cloud.control("DELETE", f"catalogue/quotas?name=IN_USE_ADDRESSES&zone={ZONE}")
    assert cloud.firewall.free_addresses(region) == 99_996
