"""The way in: our key beside the others, the workers' host keys, who is asked for which worker."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from local_cloud import PROJECT, ZONE, Cloud, FakeClock, json_reply, scripted

from tpukit import access
from tpukit.clock import Deadline, SystemClock
from tpukit.cloud.tpu import CloudTpu
from tpukit.errors import (
    AuthenticationFailed,
    BadInput,
    DeadlinePassed,
    NotAllowed,
    SecurityRefusal,
    SliceLost,
    TpukitError,
    TransportFailed,
)
from tpukit.models import Slice, Worker
from tpukit.remote.keys import KeyPair, ensure_key_pair
from tpukit.remote.ssh import Connector


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return ensure_key_pair(tmp_path_factory.mktemp("keys") / "private", "tester")


def ready(cloud: Cloud, metadata: Mapping[str, str] | None = None, kind: str = "v3-8") -> Slice:
    cloud.tpu.create(cloud.request(metadata=metadata or {}, accelerator_type=kind))
    if isinstance(cloud.clock, FakeClock):
        cloud.clock.sleep(31.0)
    return cloud.tpu.get(ZONE, "demo")


def keys_of(cloud: Cloud) -> list[str]:
    return cloud.tpu.get(ZONE, "demo").metadata.get("ssh-keys", "").splitlines()


# Keys in the metadata


def test_a_key_joins_those_that_are_there_and_other_metadata_stays(
    cloud: Cloud, key: KeyPair
) -> None:
    found = ready(cloud, {"ssh-keys": "bob:ssh-ed25519 AAAA bob", "startup-script": "true"})
    assert access.install_key(cloud.tpu, found, "ada", key, cloud.deadline())
    after = cloud.tpu.get(ZONE, "demo").metadata
    assert after["startup-script"] == "true"
    assert keys_of(cloud) == ["bob:ssh-ed25519 AAAA bob", access.key_line("ada", key)]


def test_a_key_that_is_there_is_not_written_again(cloud: Cloud, key: KeyPair) -> None:
    found = ready(cloud, {"ssh-keys": access.key_line("ada", key)})
    assert not access.install_key(cloud.tpu, found, "ada", key, cloud.deadline())
    assert cloud.calls("nodes.patch") == []


@pytest.mark.parametrize("there", [False, True])
def test_no_key_is_written_where_os_login_is_on(cloud: Cloud, key: KeyPair, there: bool) -> None:
    own = {"ssh-keys": access.key_line("ada", key)} if there else {}
    found = ready(cloud, {"enable-oslogin": "TRUE", **own})
    with pytest.raises(AuthenticationFailed, match="OS Login"):
        access.install_key(cloud.tpu, found, "ada", key, cloud.deadline())
    assert cloud.calls("nodes.patch") == []


def test_the_same_key_for_another_user_is_another_entry(cloud: Cloud, key: KeyPair) -> None:
    found = ready(cloud, {"ssh-keys": access.key_line("ada", key)})
    assert access.install_key(cloud.tpu, found, "bob", key, cloud.deadline())
    assert len(keys_of(cloud)) == 2


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("kind", ["status", "reset"])
def test_a_lost_answer_loses_no_key(cloud: Cloud, key: KeyPair, phase: str, kind: str) -> None:
    found = ready(cloud, {"ssh-keys": "bob:ssh-ed25519 AAAA bob"})
    cloud.fault(method="nodes.patch", kind=kind, phase=phase)
    assert access.install_key(cloud.tpu, found, "ada", key, cloud.deadline())
    assert len(keys_of(cloud)) == 2
    assert cloud.served() == 1


def test_a_key_written_by_another_meanwhile_is_kept(
    cloud: Cloud, clock: FakeClock, key: KeyPair
) -> None:
    """The API is busy with the other's write when we ask; ours is made anew from what it left."""
    found = ready(cloud)
    cloud.tpu.replace_metadata(ZONE, "demo", {"ssh-keys": "bob:ssh-ed25519 AAAA bob"})
    access.install_key(cloud.tpu, found, "ada", key, cloud.deadline())
    assert keys_of(cloud) == ["bob:ssh-ed25519 AAAA bob", access.key_line("ada", key)]


def test_a_key_that_a_stale_writer_replaced_is_written_again(
    cloud: Cloud, clock: FakeClock, key: KeyPair
) -> None:
    found = ready(cloud)
    stale = []

    def overwrite() -> None:
        if not stale and access.key_line("ada", key) in keys_of(cloud):
            stale.append(True)
            cloud.change("demo", metadata={"ssh-keys": "bob:ssh-ed25519 AAAA bob"})

    clock.on_sleep = overwrite
    access.install_key(cloud.tpu, found, "ada", key, cloud.deadline())
    assert stale
    assert access.key_line("ada", key) in keys_of(cloud)
    assert "bob:ssh-ed25519 AAAA bob" in keys_of(cloud)


def test_a_refused_key_is_an_error_that_is_not_repeated(cloud: Cloud, key: KeyPair) -> None:
    found = ready(cloud)
    cloud.fault(preset="permission-denied", method="nodes.patch", probability=1.0)
    with pytest.raises(NotAllowed):
        access.install_key(cloud.tpu, found, "ada", key, cloud.deadline())
    assert len(cloud.calls("nodes.patch")) == 1


def test_a_key_that_never_appears_ends_at_the_deadline(cloud: Cloud, key: KeyPair) -> None:
    found = ready(cloud)
    cloud.fault(method="nodes.patch", status="ABORTED", message="busy", probability=1.0)
    with pytest.raises(DeadlinePassed, match="SSH key"):
        access.install_key(cloud.tpu, found, "ada", key, cloud.deadline(60.0))


def test_twenty_keys_added_at_once_are_all_there(prompt_cloud: Cloud, tmp_path: Path) -> None:
    """The emulator's update has no etag: the last write wins, as with the real API."""
    found = ready(prompt_cloud)
    users = [f"user{number}" for number in range(20)]
    key = ensure_key_pair(tmp_path / "private", "tester")
    failed: list[BaseException] = []

    def add(user: str) -> None:
        try:
            tpu = CloudTpu(prompt_cloud.session, PROJECT, prompt_cloud.url)
            deadline = Deadline.after(SystemClock(), 60.0)
            access.install_key(tpu, found, user, key, deadline)
        except TpukitError as error:
            failed.append(error)

    threads = [threading.Thread(target=add, args=(user,)) for user in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(70)
    assert not failed
    assert sorted(line.partition(":")[0] for line in keys_of(prompt_cloud)) == sorted(users)


# Host keys


def test_each_worker_s_target_pins_its_own_host_keys(cloud: Cloud) -> None:
    found = ready(cloud, kind="v3-32")
    targets = access.targets(cloud.tpu, found, "ada", cloud.deadline())
    assert [each.worker for each in targets] == [0, 1, 2, 3]
    assert len({each.host_keys for each in targets}) == 4
    assert {each.user for each in targets} == {"ada"}


def test_host_keys_that_come_late_are_waited_for(cloud: Cloud, clock: FakeClock) -> None:
    ready(cloud)
    found = cloud.tpu.get(ZONE, "demo")
    cloud.change("demo", state="RESTARTING")
    clock.on_sleep = lambda: cloud.change("demo", state="READY")
    assert access.targets(cloud.tpu, found, "ada", cloud.deadline())[0].host_keys


def test_workers_without_host_keys_are_refused_and_named(cloud: Cloud) -> None:
    found = ready(cloud)
    attributes = {"guestAttributes": [{"queryValue": {"items": []}}]}
    with scripted(json_reply(200, attributes)) as server:
        tpu = CloudTpu(cloud.session, PROJECT, server.url)
        with pytest.raises(SecurityRefusal) as caught:
            access.targets(tpu, found, "ada", cloud.deadline(30.0))
    assert caught.value.exit_code == 9
    assert caught.value.what == "no host keys from worker 0 of slice demo"
    assert "disableGuestAttributesAccess" in caught.value.why
    assert caught.value.fix


def test_a_slice_without_workers_has_no_targets(cloud: Cloud) -> None:
    cloud.tpu.create(cloud.request())
    found = cloud.tpu.get(ZONE, "demo")
    with pytest.raises(SecurityRefusal, match="from worker all"):
        access.targets(cloud.tpu, found, "ada", cloud.deadline(5.0))


# Which state lets workers answer


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED"])
def test_a_lost_slice_cannot_be_reached(state: str) -> None:
    with pytest.raises(SliceLost) as caught:
        access.check_reachable(Slice("demo", "p", "z", "v3-8", "i", state))
    assert caught.value.fix == "tpukit delete demo --zone z"


@pytest.mark.parametrize(
    ("state", "fix"),
    [("STOPPED", "tpukit start demo --zone z"), ("STOPPING", ""), ("DELETING", "")],
)
def test_a_slice_at_rest_cannot_be_reached(state: str, fix: str) -> None:
    with pytest.raises(TpukitError, match=f"is {state}") as caught:
        access.check_reachable(Slice("demo", "p", "z", "v3-8", "i", state))
    assert caught.value.fix == fix


@pytest.mark.parametrize("state", ["READY", "REPAIRING", "CREATING", "99"])
def test_any_other_state_may_answer(state: str) -> None:
    workers = (Worker(0, "10.0.0.2"),)
    access.check_reachable(Slice("demo", "p", "z", "v3-8", "i", state, workers=workers))


# Workers by number


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ("all", [0, 1, 2, 3]),
        ("0", [0]),
        ("3", [3]),
        ("0,2", [0, 2]),
        ("2,0", [0, 2]),
        ("1-3", [1, 2, 3]),
        ("0,2-3", [0, 2, 3]),
        ("0-0", [0]),
        ("1,1,1", [1]),
        (" 0 , 1 ", [0, 1]),
        ("0-3,1", [0, 1, 2, 3]),
    ],
)
def test_workers_are_chosen_by_number_and_range(words: str, chosen: list[int]) -> None:
    assert access.parse_workers(words, range(4)) == chosen


@pytest.mark.parametrize(
    "words",
    ["", ",", "0,", "-1", "1-", "3-1", "a", "ALL", "0;1", "0 1", "1.5", "²", "4", "0-4", "99999"],
)
def test_words_that_choose_no_worker_are_bad_input(words: str) -> None:
    with pytest.raises(BadInput):
        access.parse_workers(words, range(4))


def test_a_slice_without_workers_has_none_to_choose() -> None:
    with pytest.raises(BadInput, match="no worker 0"):
        access.parse_workers("0", [])


def test_the_alias_of_a_worker_is_its_own() -> None:
    found = Slice("demo", "Example.com:p", "z", "v3-8", "i", "READY")
    assert access.alias(found, 2) == "tpukit.example.com:p.z.demo.2"


# Connecting


def test_nothing_that_answers_and_no_rule_names_the_rule(prompt_cloud: Cloud, key: KeyPair) -> None:
    """Nobody listens at a loopback address of the target: refused at once, so nothing is waited."""
    found = ready(prompt_cloud)
    clock = SystemClock()
    entry = access.Access(
        found, Connector(key, clock), prompt_cloud.firewall, lambda address: "127.0.0.1"
    )
    target = access.targets(prompt_cloud.tpu, found, "ada", prompt_cloud.deadline())[0]
    with pytest.raises(TransportFailed) as caught:
        entry.connect(
            type(target)(target.label, 0, "127.0.0.1", 1, "ada", target.host_keys),
            Deadline.after(clock, 1.0),
        )
    assert "no firewall rule of network default admits tcp:22 from 127.0.0.1" in caught.value.why
    assert caught.value.fix == f"tpukit firewall apply demo --zone {ZONE}"


def test_who_may_not_read_the_rules_still_learns_that_nothing_answered(
    prompt_cloud: Cloud, key: KeyPair
) -> None:
    found = ready(prompt_cloud)
    prompt_cloud.fault(method="firewalls.list", status="PERMISSION_DENIED", message="no", times=9)
    clock = SystemClock()
    entry = access.Access(
        found, Connector(key, clock), prompt_cloud.firewall, lambda address: "127.0.0.1"
    )
    target = access.targets(prompt_cloud.tpu, found, "ada", prompt_cloud.deadline())[0]
    with pytest.raises(TransportFailed) as caught:
        entry.connect(
            type(target)(target.label, 0, "127.0.0.1", 1, "ada", target.host_keys),
            Deadline.after(clock, 1.0),
        )
    assert "firewall" not in caught.value.why
