"""Where an upload goes: staged on its target's disk, through links, beside other copies of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.agent_program import agent_words
from support.processes import eventually
from support.transfer_workers import NEVER, SIZE, ByteCounter, CuttingGauge, Fleet, fleet, verbs

from files.test_upload import file_to, leftovers, send, staged
from tpukit.errors import TpukitError
from tpukit.files.copies import Copy, upload
from tpukit.files.payload import file_payload, tree_members, tree_payload
from tpukit.files.upload import Placement, TransferContext
from tpukit.ssh.keys import KeyPair

pytestmark = pytest.mark.slow

Disk = Callable[[str, str], Path]


@pytest.fixture
def disk(one: Fleet) -> Iterator[Disk]:
    """Mount a disk of a size at a path of the worker's home folder."""
    if os.geteuid():
        pytest.skip("a disk of its own is a mount that only root can make: it is NOT checked")
    mounted = []

    def mount(name: str, size: str) -> Path:
        place = one.home(0) / name
        place.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        subprocess.run(words, check=True)
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def tree_to(target: str, name: str = "tree", *, into: bool = False) -> Placement:
    return Placement(target, name, into, kind="tree")


def fill(folder: Path) -> None:
    size = shutil.disk_usage(folder).free
    with (folder / "filler").open("wb", 0) as file, suppress(OSError):
        for _ in range(0, size, 4096):
            file.write(bytes(4096))
    assert not shutil.disk_usage(folder).free


def test_an_upload_needs_no_room_in_the_home_folder(one: Fleet, noise: Path, disk: Disk) -> None:
    """Jobs write their logs there: a copy that filled it would hold them up."""
    disk(".tpukit", "256k")
    target = disk("disk", "8m")
    placement = file_to("./disk/deep/copy")
    part = staged(one, file_payload(noise), placement).name
    counter = CuttingGauge(act=lambda: eventually((target / part).exists))
    assert send(one, file_payload(noise), placement, counter) == ["sent"]
    assert (target / "deep/copy").read_bytes() == noise.read_bytes()
    assert not leftovers(one.home(0))


def test_what_a_worker_has_no_room_for_is_not_sent(one: Fleet, noise: Path, disk: Disk) -> None:
    place = disk("disk", "1m")
    (error,) = send(one, file_payload(noise), file_to("./disk/"), counter := ByteCounter())
    assert isinstance(error, TpukitError)
    assert error.what == "there is no room for noise on worker 0"
    assert error.reason == f"it needs 3.1 MB, and 1.0 MB are free in {place}"
    assert (counter.moved, one.taken(0)) == (0, 0)
    assert not list(place.iterdir())


def test_a_folder_needs_room_for_the_archive_and_what_is_in_it(
    one: Fleet, noise: Path, disk: Disk
) -> None:
    place = disk("disk", "5m")
    (noise.parent / "tree").mkdir()
    noise.rename(noise.parent / "tree/noise")
    payload = tree_payload(tree_members(noise.parent / "tree", "tree"))
    (found,) = send(one, payload, tree_to("./disk/"), ByteCounter())
    assert isinstance(found, TpukitError)
    assert found.why == "a folder needs twice its size: as an archive first"
    assert one.taken(0) == 0
    assert not list(place.iterdir())


def test_a_disk_that_becomes_full_is_one_error_and_keeps_nothing(
    one: Fleet, noise: Path, disk: Disk
) -> None:
    place = disk("disk", "4m")
    counter = CuttingGauge(act=lambda: fill(place), at=SIZE // 4)
    (found,) = send(one, file_payload(noise), file_to("./disk/copy"), counter)
    assert isinstance(found, TpukitError)
    assert "No space left on device" in found.reason
    assert "shows what fills it" in str(found.fix and found.fix.note)
    assert one.taken(0) == 1
    assert [path.name for path in place.iterdir()] == ["filler"]


def test_a_disk_that_is_read_only_is_an_error_with_a_command_that_shows_why(
    one: Fleet, noise: Path, disk: Disk
) -> None:
    disk("disk", "8m,ro")
    (found,) = send(one, file_payload(noise), file_to("./disk/copy"), ByteCounter())
    assert isinstance(found, TpukitError)
    assert "Read-only file system" in found.reason
    assert str(found.fix).endswith("--worker 0 -- 'sudo dmesg | tail -20'")


def test_a_file_goes_through_a_link_to_wherever_that_leads(
    one: Fleet, noise: Path, disk: Disk
) -> None:
    home, place = one.home(0), disk("disk", "8m")
    (place / "model").write_text("old")
    (home / "link").symlink_to("disk/model")
    (home / "new").symlink_to("disk/made")
    with (place / "model").open() as reader:
        for name, target in (("link", "model"), ("new", "made")):
            placement = file_to(f"./{name}")
            part = place / staged(one, file_payload(noise), placement).name
            counter = CuttingGauge(act=lambda part=part: eventually(part.exists))
            assert send(one, file_payload(noise), placement, counter) == ["sent"]
            assert os.readlink(home / name) == f"disk/{target}"
            assert (place / target).read_bytes() == noise.read_bytes()
        assert reader.read() == "old"
    assert send(one, file_payload(noise), file_to("./link"), ByteCounter()) == ["unchanged"]


def test_a_folder_arrives_across_a_disk_that_is_mounted_in_it(
    one: Fleet, tmp_path: Path, disk: Disk
) -> None:
    (one.home(0) / "tree").mkdir()
    place = disk("tree/data", "1m")
    (place / "file").write_text("old")
    (tmp_path / "tree/data/new").mkdir(parents=True)
    for name in ("file", "new/file"):
        (tmp_path / "tree/data" / name).write_text("new")
    payload = tree_payload(tree_members(tmp_path / "tree", "tree"))
    assert send(one, payload, tree_to("./", into=True), ByteCounter()) == ["sent"]
    assert (place / "file").read_text() == (place / "new/file").read_text() == "new"
    assert sorted(path.name for path in place.iterdir()) == ["file", "new"]


def at_once(work: Callable[[int], object], number: int) -> list[object]:
    """Do something so many times at the same time."""
    results: list[object] = [None] * number
    barrier = threading.Barrier(number)

    def do(index: int) -> None:
        barrier.wait(60)
        results[index] = work(index)

    threads = [threading.Thread(target=do, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return results


@pytest.mark.parametrize("same", [False, True], ids=["six names", "one name"])
@pytest.mark.parametrize("kind", ["file", "tree"])
def test_six_copies_of_the_same_at_once_all_arrive(
    one: Fleet, noise: Path, tmp_path: Path, same: bool, kind: str
) -> None:
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/sub/noise").write_bytes(noise.read_bytes())
    source = noise if kind == "file" else tmp_path / "tree"

    def copy(index: int) -> list[object]:
        words = Copy("demo", "up", (str(source),), f"./y{0 if same else index}", into=False)
        context = TransferContext(NEVER, ByteCounter())
        return [done.error or done.value for done in upload(words, one.workers, context)]

    for done in at_once(copy, 6):
        assert done in (["sent"], ["unchanged"])
    assert same or one.taken(0) == 6, "none disturbs another one"
    names = [f"y{index}" for index in range(1 if same else 6)]
    # A folder that is there already takes the next one by its name.
    found = [path for name in names for path in one.home(0).glob(f"{name}/**/noise")]
    found += [one.home(0) / name for name in names if (one.home(0) / name).is_file()]
    assert len(found) >= len(names)
    assert {path.read_bytes() for path in found} == {noise.read_bytes()}
    assert not leftovers(one.home(0))


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", ["file", "tree"])
def test_workers_that_share_a_home_folder_all_get_it(
    key: KeyPair, noise: Path, tmp_path: Path, count: int, kind: str
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/noise").write_bytes(noise.read_bytes())
    with fleet(tmp_path, key, count) as workers:
        for server in workers.servers:
            server.home = workers.home(0)
        for number in range(2):
            payload = file_payload(noise)
            placement = file_to(f"./copy{number}")
            if kind == "tree":
                payload = tree_payload(tree_members(tmp_path / "tree", "tree"))
                placement = tree_to("./", into=True)
            parts = {staged(workers, payload, placement, index) for index in range(count)}
            assert len(parts) == count, "two machines write to no file at once"
            done = send(workers, payload, placement, ByteCounter())
            assert set(done) <= {"sent", "unchanged"}, done
        assert not leftovers(workers.home(0))


def test_what_another_one_has_taken_meanwhile_is_sent_again(
    one: Fleet, noise: Path, tmp_path: Path
) -> None:
    """As if another copy of the same had put it in place, and somebody had removed it there."""
    placement = file_to("./copy")
    part = staged(one, file_payload(noise), placement)
    counter = CuttingGauge(act=lambda: (eventually(part.exists), part.unlink()))
    assert send(one, file_payload(noise), placement, counter) == ["sent"]
    assert verbs(one.servers[0]).count("receive_upload") == 2
    assert (one.home(0) / "copy").read_bytes() == noise.read_bytes()


def test_what_could_not_be_put_in_place_is_not_sent_again(one: Fleet, noise: Path) -> None:
    (noise.parent / "tree").mkdir()
    noise.rename(noise.parent / "tree/noise")
    payload = tree_payload(tree_members(noise.parent / "tree", "tree"))
    (one.home(0) / "tree").write_text("in the way")
    (failed,) = send(one, payload, tree_to("./", into=True), ByteCounter())
    assert isinstance(failed, TpukitError)
    (one.home(0) / "tree").unlink()
    assert send(one, payload, tree_to("./", into=True), counter := ByteCounter()) == ["sent"]
    assert counter.moved == 0
    assert (one.home(0) / "tree/noise").stat().st_size == SIZE


def test_who_is_late_with_the_same_does_not_write_to_what_is_in_place(tmp_path: Path) -> None:
    """What it sends may no longer be the same: its file may have changed."""
    content = bytes(2 << 20)
    request = request_for(tmp_path, content) | {"offset": 0, "gzip": False}
    part = Path(str(request["path"]))
    words = agent_words(tmp_path, "receive_upload")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as late:
        assert late.stdin
        assert late.stdout
        late.stdin.write(json.dumps(request).encode() + b"\n" + content[:1000])
        late.stdin.flush()
        eventually(lambda: part.exists() and part.stat().st_size == 1000)
        part.write_bytes(content)
        part.rename(tmp_path / "copy")
        late.stdin.write(b"x" * 1000)
        late.stdin.close()
        assert b'"state": "partial", "size": 0' in late.stdout.read()
    assert (tmp_path / "copy").read_bytes() == content


def request_for(home: Path, content: bytes) -> dict[str, object]:
    return {
        "target": "./copy",
        "name": "copy",
        "into": False,
        "kind": "file",
        "mode": 0o644,
        "path": str(home / f".tpukit-upload-{0:032}.part"),
        "size": len(content),
        "digest": hashlib.sha256(content).hexdigest(),
        "sparse": False,
    }
