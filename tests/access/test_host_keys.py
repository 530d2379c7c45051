"""The host keys of workers, and whose are waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.access import ready
from support.local_cloud import PROJECT, ZONE, Cloud, FakeClock, json_reply, scripted

from tpukit.access import host_keys
from tpukit.cloud.tpu import CloudTpu
from tpukit.errors import (
    SecurityRefusal,
)
from tpukit.models import Slice


def test_each_worker_s_target_pins_its_own_host_keys(cloud: Cloud) -> None:
    found = ready(cloud, kind="v3-32")
    identities = host_keys.published(cloud.tpu, found, cloud.deadline())
    targets = host_keys.targets(found, "ada", identities)
    assert {index: each.worker for index, each in targets.items()} == {0: 0, 1: 1, 2: 2, 3: 3}
    assert len({each.host_keys for each in targets.values()}) == 4
    assert {each.user for each in targets.values()} == {"ada"}


def test_host_keys_that_come_late_are_waited_for(cloud: Cloud, clock: FakeClock) -> None:
    ready(cloud)
    found = cloud.tpu.get(ZONE, "demo")
    cloud.change("demo", state="RESTARTING")
    clock.on_sleep = lambda: cloud.change("demo", state="READY")
    assert host_keys.published(cloud.tpu, found, cloud.deadline())[0].host_keys


def test_workers_without_host_keys_are_refused_and_named(cloud: Cloud) -> None:
    found = ready(cloud)
    attributes = {"guestAttributes": [{"queryValue": {"items": []}}]}
    with scripted(json_reply(200, attributes)) as server:
        tpu = CloudTpu(cloud.session, PROJECT, server.url)
        with pytest.raises(SecurityRefusal) as caught:
            host_keys.published(tpu, found, cloud.deadline(30.0))
    assert caught.value.exit_code == 9
    assert caught.value.what == "no host keys from worker 0 of slice demo"
    assert "disableGuestAttributesAccess" in caught.value.why
    assert caught.value.fix


def test_a_slice_without_workers_has_no_targets(cloud: Cloud) -> None:
    cloud.tpu.create(cloud.request())
    found = cloud.tpu.get(ZONE, "demo")
    with pytest.raises(SecurityRefusal, match="from worker all"):
        host_keys.published(cloud.tpu, found, cloud.deadline(5.0))


def test_the_host_keys_of_workers_that_are_not_chosen_are_not_waited_for(cloud: Cloud) -> None:
    found = ready(cloud, kind="v3-32")
    answer = cloud.tpu.identities(ZONE, "demo")
    silent = [replace(each, host_keys=() if each.index == 3 else each.host_keys) for each in answer]

    class Provider:
        def identities(self, zone: str, name: str) -> list[object]:
            return list(silent)

    chosen = host_keys.published(Provider(), found, cloud.deadline(5.0), chosen=[0, 2])
    assert {0, 2} <= set(chosen)
    with pytest.raises(SecurityRefusal, match="from worker 3"):
        host_keys.published(Provider(), found, cloud.deadline(5.0))


def test_the_alias_of_a_worker_is_its_own() -> None:
    found = Slice("demo", "Example.com:p", "z", "v3-8", "i", "READY")
    assert host_keys.alias(found, 2) == "tpukit.example.com:p.z.demo.2"
