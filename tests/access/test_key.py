"""Our key in the metadata of a slice, beside those of others."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support.access import keys_of, ready
from support.local_cloud import PROJECT, ZONE, Cloud, FakeClock

from tpukit.access import ssh_rule
from tpukit.access.context import Context
from tpukit.access.key import install_key, key_line, with_access
from tpukit.clock import Deadline, SystemClock
from tpukit.errors import (
    DeadlinePassed,
    NotAllowed,
    TpukitError,
)
from tpukit.google.tpu import CloudTpu
from tpukit.models import SliceChange
from tpukit.ssh.keys import KeyPair, ensure_key_pair


def test_a_key_joins_those_that_are_there_and_other_metadata_stays(
    cloud: Cloud, key: KeyPair
) -> None:
    found = ready(cloud, {"ssh-keys": "bob:ssh-ed25519 AAAA bob", "startup-script": "true"})
    assert install_key(cloud.tpu, found, "ada", key, cloud.deadline())
    after = cloud.tpu.get(ZONE, "demo").metadata
    assert after["startup-script"] == "true"
    assert keys_of(cloud) == ["bob:ssh-ed25519 AAAA bob", key_line("ada", key)]


def test_a_key_that_is_there_is_not_written_again(cloud: Cloud, key: KeyPair) -> None:
    found = ready(cloud, {"ssh-keys": key_line("ada", key)})
    assert not install_key(cloud.tpu, found, "ada", key, cloud.deadline())
    assert cloud.calls("nodes.patch") == []


def test_the_same_key_for_another_user_is_another_entry(cloud: Cloud, key: KeyPair) -> None:
    found = ready(cloud, {"ssh-keys": key_line("ada", key)})
    assert install_key(cloud.tpu, found, "bob", key, cloud.deadline())
    assert len(keys_of(cloud)) == 2


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("kind", ["status", "reset"])
def test_a_lost_answer_loses_no_key(cloud: Cloud, key: KeyPair, phase: str, kind: str) -> None:
    found = ready(cloud, {"ssh-keys": "bob:ssh-ed25519 AAAA bob"})
    cloud.fault(method="nodes.patch", kind=kind, phase=phase)
    assert install_key(cloud.tpu, found, "ada", key, cloud.deadline())
    assert len(keys_of(cloud)) == 2
    assert cloud.served() == 1


def test_a_key_written_by_another_meanwhile_is_kept(
    cloud: Cloud, clock: FakeClock, key: KeyPair
) -> None:
    """The API is busy with the other's write when we ask; ours is made anew from what it left."""
    found = ready(cloud)
    theirs = SliceChange(metadata={"ssh-keys": "bob:ssh-ed25519 AAAA bob"})
    cloud.tpu.update(ZONE, "demo", theirs)
    install_key(cloud.tpu, found, "ada", key, cloud.deadline())
    assert keys_of(cloud) == ["bob:ssh-ed25519 AAAA bob", key_line("ada", key)]


def test_a_key_that_a_stale_writer_replaced_is_written_again(
    cloud: Cloud, clock: FakeClock, key: KeyPair
) -> None:
    found = ready(cloud)
    stale = []

    def overwrite() -> None:
        if not stale and key_line("ada", key) in keys_of(cloud):
            stale.append(True)
            cloud.change("demo", metadata={"ssh-keys": "bob:ssh-ed25519 AAAA bob"})

    clock.on_sleep = overwrite
    install_key(cloud.tpu, found, "ada", key, cloud.deadline())
    assert stale
    assert key_line("ada", key) in keys_of(cloud)
    assert "bob:ssh-ed25519 AAAA bob" in keys_of(cloud)


def test_a_refused_key_is_an_error_that_is_not_repeated(cloud: Cloud, key: KeyPair) -> None:
    found = ready(cloud)
    cloud.fault(preset="permission-denied", method="nodes.patch", probability=1.0)
    with pytest.raises(NotAllowed):
        install_key(cloud.tpu, found, "ada", key, cloud.deadline())
    assert len(cloud.calls("nodes.patch")) == 1


def test_a_key_that_never_appears_ends_at_the_deadline(cloud: Cloud, key: KeyPair) -> None:
    found = ready(cloud)
    cloud.fault(method="nodes.patch", status="ABORTED", message="busy", probability=1.0)
    with pytest.raises(DeadlinePassed, match="SSH keys"):
        install_key(cloud.tpu, found, "ada", key, cloud.deadline(60.0))


@pytest.mark.process
@pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.long)])
def test_keys_added_at_once_are_all_there(prompt_cloud: Cloud, tmp_path: Path, count: int) -> None:
    """The emulator's update has no etag: the last write wins, as with the real API."""
    found = ready(prompt_cloud)
    users = [f"user{number}" for number in range(count)]
    key = ensure_key_pair(tmp_path / "private")
    failed: list[BaseException] = []

    def add(user: str) -> None:
        try:
            tpu = CloudTpu(prompt_cloud.session, PROJECT, prompt_cloud.url)
            deadline = Deadline.after(SystemClock(), 60.0)
            install_key(tpu, found, user, key, deadline)
        except TpukitError as error:
            failed.append(error)

    threads = [threading.Thread(target=add, args=(user,)) for user in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(70)
    assert not failed
    assert sorted(line.partition(":")[0] for line in keys_of(prompt_cloud)) == sorted(users)


def test_our_key_and_tag_are_in_the_slice_from_the_start(
    prompt_cloud: Cloud, context: Context
) -> None:
    given = prompt_cloud.request(metadata={"ssh-keys": "bob:key", "a": "1"}, tags=("mine",))
    wanted = with_access(given, context)
    assert wanted.metadata["a"] == "1"
    assert wanted.metadata["ssh-keys"].splitlines()[0] == "bob:key"
    assert wanted.metadata["ssh-keys"].splitlines()[1].startswith("ada:ssh-ed25519 ")
    assert wanted.tags == ("mine", ssh_rule.tag(given.project, given.zone, given.name))
