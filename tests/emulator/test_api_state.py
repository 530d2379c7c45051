from __future__ import annotations

import json
import os
import re
import stat

import pytest

from tpukit.emulator.core.state import EmulatorState, StateFile, replace_file
from tpukit.errors import BadInput


@pytest.fixture
def saved(cloud, tmp_path):
    """The file of a cloud with a node, an operation, a rule and project metadata."""
    cloud.ready("n1")
    rule = {"name": "r1", "allowed": [{"IPProtocol": "all"}]}
    cloud.service.firewalls.insert(cloud.call(body=rule))
    cloud.state.projects["p"] = {"items": []}
    file = StateFile(tmp_path / "state.json")
    file.save(cloud.state)
    return file


def test_no_file_is_an_empty_state(tmp_path):
    assert StateFile(tmp_path / "state.json").load() == EmulatorState()


def test_what_was_saved_is_what_is_loaded(cloud, saved):
    assert saved.load() == cloud.state


def test_every_later_change_is_saved_too(cloud, saved):
    cloud.ready("n2")
    cloud.service.nodes.delete(cloud.call(path_node="n1"))
    saved.save(cloud.state)
    assert saved.load() == cloud.state
    cloud.pass_time(1)
    saved.save(cloud.state)
    assert saved.load() == cloud.state
    assert list(saved.load().nodes) == ["projects/p/locations/us-central1-a/nodes/n2"]


def test_the_file_is_readable_by_its_owner_alone_whatever_was_there(saved):
    assert stat.S_IMODE(saved.path.stat().st_mode) == 0o600
    saved.path.chmod(0o666)
    saved.save(EmulatorState())
    assert stat.S_IMODE(saved.path.stat().st_mode) == 0o600


def test_a_file_that_was_cut_is_refused_with_what_to_do(saved):
    """Where something ended, a file that lacks the rest looks most like a whole one."""
    whole = saved.path.read_bytes().rstrip()
    ends = [found.end() for found in re.finditer(rb"[\]}]|:\{", whole)]
    assert len(ends) > 20
    for length in (0, 1, *ends[:-1], len(whole) - 1):
        saved.path.write_bytes(whole[:length])
        with pytest.raises(BadInput) as caught:
            saved.load()
    assert str(saved.path) in caught.value.what
    assert str(caught.value.fix).startswith("mv ")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.update(version=2),
        lambda d: d.pop("version"),
        lambda d: d.pop("nodes"),
        lambda d: d.update(operations=[]),
        lambda d: d.update(clock_offset="1"),
        lambda d: d.update(clock_offset=True),
        lambda d: d.update(clock_time="1"),
        lambda d: next(iter(d["nodes"].values())).pop("node"),
        lambda d: next(iter(d["nodes"].values()))["workers"][0].pop("address"),
        lambda d: next(iter(d["operations"].values())).update(due="soon"),
        lambda d: d["firewalls"].update(x=1),
        lambda d: d.update(later={}),  # a newer emulator's: saved again, they would be lost
    ],
)
def test_a_file_that_is_json_but_no_state_is_refused(saved, spoil):
    document = json.loads(saved.path.read_text())
    spoil(document)
    saved.path.write_text(json.dumps(document))
    with pytest.raises(BadInput):
        saved.load()


def test_a_file_of_another_version_is_refused_by_both_numbers(saved):
    document = json.loads(saved.path.read_text())
    newer = "the version of tpukit that wrote it can read it"
    for changed, reason, why in (
        ({"later": {}}, "later: a newer version of tpukit wrote it", newer),
        ({"version": 7}, "version 7, where this emulator reads version 1", newer),
        ({"version": None}, "it has no version", "it was cut or damaged"),
    ):
        saved.path.write_text(json.dumps({**document, **changed}))
        with pytest.raises(BadInput) as caught:
            saved.load()
        assert caught.value.reason == reason
        assert caught.value.why.startswith(why)


@pytest.mark.parametrize("content", [b"[]", b"\xff\xfe", b"null", b"[" * 100_000])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "state.json").write_bytes(content)
    with pytest.raises(BadInput):
        StateFile(tmp_path / "state.json").load()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    def refuse(descriptor):
        raise OSError(28, "No space left on device")

    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new", sync=refuse)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_is_on_disk_under_its_name_before_it_returns(tmp_path):
    """A crash after the rename loses it, unless the directory was synced after the file."""
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    synced: list[tuple[int, bytes]] = []
    replace_file(
        path,
        b"new",
        sync=lambda number: synced.append((os.fstat(number).st_ino, path.read_bytes())),
    )
    assert synced == [(path.stat().st_ino, b"old"), (tmp_path.stat().st_ino, b"new")]


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / f".state.json.{os.getpid()}").symlink_to(victim)
    with pytest.raises(OSError):  # noqa: PT011
        replace_file(tmp_path / "state.json", b"new")
    assert victim.read_bytes() == b"precious"
