"""The host keys of workers, and whose are waited for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.access import ready
from support.local_cloud import PROJECT, ZONE, Cloud, FakeClock, json_reply, scripted

from tpukit.access import host_keys
from tpukit.access.os_login import WorkerLogin
from tpukit.access.pinned_keys import PinnedKeys
from tpukit.errors import BadInput, NotAllowed, SecurityRefusal, TpukitError
from tpukit.google.tpu import CloudTpu
from tpukit.models import Slice, WorkerIdentity


@dataclass
class Silent:
    """A provider of one slice, whose workers publish no host keys."""

    slice: Slice

    def once(self) -> Silent:
        return self

    def only(self, api: str) -> Silent:
        return self

    def get(self, zone: str, name: str) -> Slice:
        return self.slice

    def identities(self, zone: str, name: str) -> list[WorkerIdentity]:
        return [WorkerIdentity(0, (), "host-0")]


def test_each_worker_s_target_pins_its_own_host_keys(cloud: Cloud) -> None:
    found = ready(cloud, kind="v3-32")
    identities = host_keys.published(cloud.tpu, found, cloud.deadline())
    targets = host_keys.targets(found, WorkerLogin("ada", ""), identities)
    assert {index: each.worker for index, each in targets.items()} == {0: 0, 1: 1, 2: 2, 3: 3}
    assert len({target.host_keys for target in targets.values()}) == 4
    assert {target.user for target in targets.values()} == {"ada"}


def test_host_keys_that_come_late_are_waited_for(cloud: Cloud, clock: FakeClock) -> None:
    ready(cloud)
    found = cloud.tpu.get(ZONE, "demo")
    cloud.change("demo", state="RESTARTING")
    clock.on_sleep = lambda: cloud.change("demo", state="READY")
    assert host_keys.published(cloud.tpu, found, cloud.deadline())[0].host_keys


@pytest.mark.parametrize("status", ["NOT_FOUND", "PERMISSION_DENIED"])
def test_one_refusal_of_a_ready_slice_s_host_keys_is_outlasted(cloud: Cloud, status: str) -> None:
    found = ready(cloud)
    refused = {"method": "nodes.getGuestAttributes", "status": status, "message": "no"}
    cloud.fault(**refused, times=1)
    assert host_keys.published(cloud.tpu, found, cloud.deadline())[0].host_keys
    cloud.fault(**refused, probability=1.0)
    with pytest.raises((NotAllowed, SecurityRefusal)):
        host_keys.published(cloud.tpu, found, cloud.deadline())


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
    silent = [
        replace(target, host_keys=() if target.index == 3 else target.host_keys)
        for target in answer
    ]

    class Provider(Silent):
        def identities(self, zone: str, name: str) -> list[WorkerIdentity]:
            return list(silent)

    chosen = host_keys.published(Provider(found), found, cloud.deadline(5.0), chosen=[0, 2])
    assert {0, 2} <= set(chosen)
    with pytest.raises(SecurityRefusal, match="from worker 3"):
        host_keys.published(Provider(found), found, cloud.deadline(5.0))


def test_the_alias_of_a_worker_is_its_own() -> None:
    found = Slice("demo", "Example.com:p", "z", "v3-8", "i", "READY")
    assert host_keys.alias(found, 2) == "tpukit.example.com:p.z.demo.2"


def test_the_host_key_that_was_seen_before_stands_in_for_a_silent_worker(cloud: Cloud) -> None:
    found = ready(cloud)

    def published(**how: object) -> WorkerIdentity:
        return host_keys.published(Silent(found), found, cloud.deadline(5.0), **how)[0]

    assert published(pinned={0: "ssh-ed25519 AAAA"}).host_keys == ("ssh-ed25519 AAAA",)
    assert published(accept_new=True) == WorkerIdentity(0, (), "host-0")
    assert host_keys.targets(found, WorkerLogin("ada", ""), {0: published(accept_new=True)})[
        0
    ].accept_new
    known = host_keys.targets(
        found, WorkerLogin("ada", ""), {0: published(pinned={0: "ssh-ed25519 AAAA"})}
    )
    assert not known[0].accept_new


def test_what_a_worker_publishes_counts_more_than_what_it_once_showed(cloud: Cloud) -> None:
    found = ready(cloud)
    published = host_keys.published(
        cloud.tpu, found, cloud.deadline(), pinned={0: "ssh-ed25519 AAAA"}, accept_new=True
    )
    assert published[0].host_keys == cloud.tpu.identities(ZONE, "demo")[0].host_keys


def test_an_api_that_does_not_answer_lets_nobody_be_believed_unseen(cloud: Cloud) -> None:
    class Down:
        def identities(self, zone: str, name: str) -> list[WorkerIdentity]:
            raise TpukitError("no answer", reason="UNAVAILABLE")

    with pytest.raises(TpukitError, match="no answer"):
        host_keys.published(Down(), ready(cloud), cloud.deadline(5.0), accept_new=True)


def test_a_second_host_key_of_one_worker_is_refused(tmp_path: Path) -> None:
    found = Slice("demo", "p", "z", "v3-8", "r", "READY", created="2026-11-22T00:00:00Z")
    keys = PinnedKeys(tmp_path / "pinned")
    keys.pin(found, 0, "ssh-ed25519 AAAA")
    keys.pin(found, 1, "ssh-ed25519 BBBB")
    keys.pin(found, 0, "ssh-ed25519 AAAA")
    with pytest.raises(SecurityRefusal):
        keys.pin(found, 0, "ssh-ed25519 BBBB")
    assert keys.of(found) == {0: "ssh-ed25519 AAAA", 1: "ssh-ed25519 BBBB"}
    assert keys.of(replace(found, created="2026-11-23T00:00:00Z")) == {}
    assert keys.of(replace(found, zone="another")) == {}
    assert keys.of(replace(found, project="another")) == {}
    keys.path(found).write_text("[]")
    with pytest.raises(BadInput):
        keys.of(found)
    keys.path(found).chmod(0o666)
    with pytest.raises(SecurityRefusal):  # somebody else may have put a key of theirs in
        keys.of(found)
