from __future__ import annotations

import json
import resource
import shutil
import sqlite3
import stat
from contextlib import closing

import pytest

from tpukit.emulator.core.state import EmulatorState, StateFile
from tpukit.errors import BadInput


@pytest.fixture
def saved(cloud, tmp_path):
    """The open file of a cloud with a node, an operation, a rule and project metadata."""
    file = StateFile(tmp_path / "state.db")
    assert file.load() == EmulatorState()
    cloud.ready("n1")
    rule = {"name": "r1", "allowed": [{"IPProtocol": "all"}]}
    cloud.service.firewalls.insert(cloud.call(body=rule))
    cloud.state.projects["p"] = {"items": []}
    file.save(cloud.state)
    yield file
    file.close()


def loaded(file: StateFile) -> EmulatorState:
    """Return what the next emulator loads."""
    file.close()
    return file.load()


def test_what_was_saved_is_what_is_loaded(cloud, saved):
    state = loaded(saved)
    assert state == cloud.state
    assert not state.has_changed()


def test_every_later_change_is_saved_too(cloud, saved):
    cloud.ready("n2")
    cloud.service.nodes.delete(cloud.call(path_node="n1"))
    saved.save(cloud.state)
    assert loaded(saved) == cloud.state
    cloud.pass_time(1)
    saved.save(cloud.state)
    assert loaded(saved) == cloud.state
    assert list(loaded(saved).nodes) == ["projects/p/locations/us-central1-a/nodes/n2"]


def test_all_that_is_done_to_records_is_saved(saved):
    state = EmulatorState()
    for name in ("set", "deleted", "popped", "kept"):
        state.disks[name] = {"id": name}
    state.quotas["cleared"] = {}
    saved.save(state)
    state.disks["set"] = {"id": "again"}
    del state.disks["deleted"]
    assert state.disks.pop("popped") == {"id": "popped"}
    assert state.disks.pop("never", None) is None
    assert state.disks.setdefault("kept", {}) == {"id": "kept"}
    assert state.disks.setdefault("new", {"id": "new"}) == {"id": "new"}
    state.quotas.clear()
    assert state.has_changed()
    saved.save(state)
    assert not state.has_changed()
    after = loaded(saved)
    assert after.disks == {"set": {"id": "again"}, "kept": {"id": "kept"}, "new": {"id": "new"}}
    assert after.quotas == {}


def test_records_keep_their_order(saved):
    state = EmulatorState()
    for name in ("b", "a", "c"):
        state.disks[name] = {"id": name}
    saved.save(state)
    state.disks["b"] = {"id": "again"}
    saved.save(state)
    assert list(loaded(saved).disks) == ["b", "a", "c"]


def test_a_save_writes_what_has_changed_and_nothing_else(saved):
    """A create costs the same beside 10,000 nodes as beside 100."""
    state = EmulatorState()
    for number in range(1000):
        state.nodes[f"n{number}"] = {"node": {}, "workers": []}
    saved.save(state)
    before = saved._database.total_changes
    state.nodes["n7"] = {"node": {}, "workers": ["w"]}
    saved.save(state)
    assert saved._database.total_changes - before == 1


def test_the_files_are_readable_by_their_owner_alone_whatever_was_there(saved):
    def modes() -> set[int]:
        files = saved.path.parent.glob("state.db*")
        return {stat.S_IMODE(file.stat().st_mode) for file in files}

    assert modes() == {0o600}
    saved.close()
    saved.path.chmod(0o666)
    state = saved.load()
    state.disks["d"] = {}
    saved.save(state)
    assert modes() == {0o600}


def test_a_power_cut_damages_nothing_and_no_memory_is_shared_with_other_processes(saved):
    """Source: sqlite.org/pragma.html#pragma_synchronous, sqlite.org/wal.html#noshm."""
    assert saved._database.execute("PRAGMA synchronous").fetchone() == (1,)
    assert {path.name for path in saved.path.parent.iterdir()} == {"state.db", "state.db-wal"}


def test_a_file_that_was_half_made_is_made_anew(tmp_path):
    (tmp_path / ".state.db.new").write_bytes(b"half")
    with closing(StateFile(tmp_path / "state.db")) as file:
        assert file.load() == EmulatorState()
    assert [path.name for path in tmp_path.iterdir()] == ["state.db"]


@pytest.fixture
def killed(saved, tmp_path):
    """The file of an emulator that was killed: its last changes are in a file beside it."""
    for path in tmp_path.iterdir():
        shutil.copy(path, tmp_path / path.name.replace("state", "killed"))
    assert (tmp_path / "killed.db-wal").stat().st_size
    return StateFile(tmp_path / "killed.db")


def test_what_a_killed_emulator_saved_is_there(cloud, killed):
    with closing(killed):
        assert killed.load() == cloud.state


def test_nothing_of_a_database_that_was_put_aside_comes_back(killed):
    killed.path.unlink()
    with closing(killed):
        assert killed.load() == EmulatorState()


def test_a_file_that_was_emptied_is_refused_and_what_is_beside_it_stays(killed):
    beside = killed.path.with_name("killed.db-wal")
    before = beside.read_bytes()
    killed.path.write_bytes(b"")
    with pytest.raises(BadInput) as caught:
        killed.load()
    assert caught.value.reason == "it is empty"
    assert (killed.path.read_bytes(), beside.read_bytes()) == (b"", before)


def test_a_closed_file_stands_alone(saved):
    saved.close()
    assert [file.name for file in saved.path.parent.iterdir()] == ["state.db"]


def test_a_file_that_was_cut_is_refused_with_what_to_do_and_stays_as_it_is(cloud, saved):
    for number in range(20):
        cloud.create(f"more{number}")
    saved.save(cloud.state)
    saved.close()
    whole = saved.path.read_bytes()
    assert len(whole) > 20_000
    for length in (0, 2, 99, 100, *range(511, len(whole), 1024), len(whole) - 1):
        saved.path.write_bytes(whole[:length])
        with pytest.raises(BadInput) as caught:
            saved.load()
        assert saved.path.read_bytes() == whole[:length]
    assert str(saved.path) in caught.value.what
    assert str(caught.value.fix).startswith("mv ")
    assert caught.value.why == "it is cut off or damaged, and no part of it is used"
    saved.path.write_bytes(whole)
    assert saved.load() == cloud.state


def test_a_file_that_was_damaged_inside_is_refused(cloud, saved):
    for number in range(20):
        cloud.create(f"more{number}")
    saved.save(cloud.state)
    saved.close()
    pages = bytearray(saved.path.read_bytes())
    index_leaf = b"\x0a"  # the type of a page: sqlite.org/fileformat.html#b_tree_pages
    first = next(at for at in range(0, len(pages), 4096) if pages[at : at + 1] == index_leaf)
    pages[first + 4000 : first + 4096] = bytes(96)
    saved.path.write_bytes(pages)
    with pytest.raises(BadInput):
        saved.load()


def test_a_file_of_another_version_is_refused_and_stays_as_it_is(saved):
    saved.close()
    kind = "INSERT INTO record VALUES ('later', 'x', '{}')"
    for change, reason in (
        (kind, "later: a newer version of tpukit wrote it"),
        ("PRAGMA user_version = 7", "version 7, and this emulator reads version 1"),
    ):
        with closing(sqlite3.connect(saved.path)) as database, database:
            database.execute(change)
        before = saved.path.read_bytes()
        with pytest.raises(BadInput) as caught:
            saved.load()
        assert caught.value.what == f"the emulator's state file {saved.path} cannot be used"
        assert caught.value.reason == reason
        assert caught.value.why.startswith("the version of tpukit that wrote it can read it")
        assert str(caught.value.fix).startswith(f"mv {saved.path} {saved.path}.old")
        assert saved.path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"null" * 1000])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "state.db").write_bytes(content)
    with pytest.raises(BadInput):
        StateFile(tmp_path / "state.db").load()
    assert (tmp_path / "state.db").read_bytes() == content


@pytest.mark.parametrize("document", ["{", "7", json.dumps({"n": 1})[:-1]])
def test_a_record_that_is_no_json_object_is_refused(saved, document):
    saved.close()
    with closing(sqlite3.connect(saved.path)) as database, database:
        database.execute("UPDATE record SET document = ? WHERE kind = 'nodes'", [document])
    with pytest.raises(BadInput):
        saved.load()


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path):
    with closing(StateFile(tmp_path / "victim")) as victim:
        victim.load()
    (tmp_path / "state.db").symlink_to(tmp_path / "victim")
    with pytest.raises(BadInput):
        StateFile(tmp_path / "state.db").load()


def test_a_save_that_fails_is_an_error_and_made_up_for_by_the_next(saved):
    state = EmulatorState()
    state.disks["d"] = {"id": "x" * 100_000}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(OSError, match="cannot be written"):
            saved.save(state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert state.has_changed()
    saved.save(state)
    assert loaded(saved).disks == state.disks
