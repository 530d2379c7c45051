"""Hard links and holes survive a copy, both ways; what cannot come along is named."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.transfer_workers import NEVER, ByteCounter, CuttingGauge, Fleet

from files.test_upload import leftovers
from tpukit.files.copies import Copy, upload
from tpukit.files.download import Source, download
from tpukit.files.payload import tree_members, tree_payload
from tpukit.files.upload import Delivery, Placement, TransferContext

pytestmark = pytest.mark.process

#: Bytes of a file with data at its beginning and its end, which need a hundredth of that.
SIZE = 40 << 20


def make_tree(root: Path) -> Path:
    """Make a folder with a file that has holes, and one that has three names."""
    (root / "sub").mkdir(parents=True)
    sparse(root / "a-sparse")
    (root / "names").write_text("one")
    (root / "sub" / "names").hardlink_to(root / "names")
    (root / "z-names").hardlink_to(root / "names")
    return root


def sparse(file: Path) -> None:
    with file.open("wb") as opened:
        opened.write(os.urandom(100_000))
        opened.seek(SIZE // 2 + 17)
        opened.write(b"in the middle")
        opened.truncate(SIZE)


def stored(file: Path) -> int:
    return file.stat().st_blocks * 512


def check_tree(root: Path, like: Path) -> None:
    assert (root / "a-sparse").read_bytes() == (like / "a-sparse").read_bytes()
    assert stored(root / "a-sparse") <= stored(like / "a-sparse") < SIZE // 100
    for name in ("sub/names", "z-names"):
        assert (root / name).samefile(root / "names")
    assert (root / "names").read_text() == "one"


def send(one: Fleet, source: Path, counter: ByteCounter) -> list[str]:
    notices: list[str] = []
    context = TransferContext(NEVER, counter, on_notice=notices.append)
    copy = Copy("demo", "up", (str(source),), "./copy", into=False)
    assert [done.error or done.value for done in upload(copy, one.workers, context)] == ["sent"]
    return notices


def take(one: Fleet, path: str, target: Path, counter: ByteCounter) -> list[str]:
    notices: list[str] = []
    context = TransferContext(NEVER, counter, on_notice=notices.append)
    with context.connection(one.workers[0]) as connection:
        download(connection, Source(path), target, context, into=False)
    return notices


@pytest.mark.parametrize("cut", [False, True])
def test_a_folder_goes_up_with_its_hard_links_and_holes(
    one: Fleet, tmp_path: Path, cut: bool
) -> None:
    tree = make_tree(tmp_path / "tree")
    before = one.servers[0].received
    counter = CuttingGauge(act=one.servers[0].cut if cut else lambda: None, at=SIZE // 2)
    assert send(one, tree, counter) == []
    check_tree(one.home(0) / "copy", tree)
    assert one.servers[0].received - before < 2 << 20, "holes are next to nothing on their way"
    assert not leftovers(one.home(0))


@pytest.mark.parametrize("cut", [False, True])
def test_a_folder_comes_down_with_its_hard_links_and_holes(
    one: Fleet, tmp_path: Path, cut: bool
) -> None:
    tree = make_tree(one.home(0) / "tree")
    counter = CuttingGauge(act=one.servers[0].cut if cut else lambda: None, at=SIZE // 2)
    assert take(one, "./tree", tmp_path / "copy", counter) == []
    check_tree(tmp_path / "copy", tree)
    assert counter.moved == counter.expected


def test_a_file_with_holes_has_them_at_either_end(one: Fleet, tmp_path: Path) -> None:
    sparse(tmp_path / "sparse")
    send(one, tmp_path / "sparse", ByteCounter())
    take(one, "./copy", tmp_path / "back", ByteCounter())
    for copy in (one.home(0) / "copy", tmp_path / "back"):
        assert copy.read_bytes() == (tmp_path / "sparse").read_bytes()
        assert stored(copy) <= stored(tmp_path / "sparse") + 4096, "the hole at its end has an end"


def test_a_file_of_zeros_without_holes_stays_one(one: Fleet, tmp_path: Path) -> None:
    (tmp_path / "zeros").write_bytes(bytes(1 << 20))
    send(one, tmp_path / "zeros", ByteCounter())
    take(one, "./copy", tmp_path / "back", ByteCounter())
    for copy in (one.home(0) / "copy", tmp_path / "back"):
        assert stored(copy) >= 1 << 20


def test_room_is_needed_for_what_is_no_hole(one: Fleet, tmp_path: Path) -> None:
    """The file has more zeros than the disk has room for."""
    size = shutil.disk_usage(tmp_path).free + (1 << 30)
    tree = tmp_path / "tree"
    tree.mkdir()
    with (tree / "sparse").open("wb") as file:
        file.truncate(size)
    payload = tree_payload(tree_members(tree, "tree"))
    payload.__dict__["digest"] = "0" * 64  # it takes minutes to compute
    context = TransferContext(NEVER, ByteCounter())
    delivery = Delivery(payload, one.workers[0], context, Placement("./", "tree", kind="tree"))
    with delivery.connection:
        delivery.look()
    assert delivery.state == "partial"


#: Runs the agent on a file system that has no hard links.
WITHOUT_LINKS = """
import errno, runpy, sys
def refuse(event, words):
    if event == "os.link":
        raise PermissionError(errno.EPERM, "Operation not permitted")
sys.addaudithook(refuse)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_notice_says_how_many_hard_links_became_files(one: Fleet, tmp_path: Path) -> None:
    """The agent says it on a disk without them, for which a program stands in."""
    real = shutil.which("python3", path=one.servers[0].path)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "hook").write_text(WITHOUT_LINKS)
    line = f'[ "$3" = -c ] || set -- -I -S {tools}/hook "${{@:3}}"'
    (tools / "python3").write_text(f'#!/bin/bash\n{line}\nexec {real} "$@"\n')
    (tools / "python3").chmod(0o755)
    one.servers[0].path = f"{tools}:{one.servers[0].path}"
    tree = make_tree(tmp_path / "tree")
    assert send(one, tree, ByteCounter()) == ["worker 0: 2 hard links became files of their own"]
    copy = one.home(0) / "copy"
    assert {path.read_text() for path in copy.rglob("*names")} == {"one"}
    assert (copy / "names").stat().st_nlink == 1


#: Unpacks here as on a file system that has no hard links.
UNPACK = """
import sys
from pathlib import Path
from tpukit.files.unpack import unpack
exec(sys.argv[1].partition("sys.argv = ")[0])
print(unpack(Path(sys.argv[2]), Path(sys.argv[3])).copied_links)
"""


def test_hard_links_become_files_if_the_disk_here_has_none(tmp_path: Path) -> None:
    payload = tree_payload(tree_members(make_tree(tmp_path / "tree"), "."))
    (tmp_path / "archive").write_bytes(b"".join(payload.chunks()))
    words = [sys.executable, "-c", UNPACK, WITHOUT_LINKS]
    words += [str(tmp_path / "archive"), str(tmp_path / "copy")]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.check_output(words, env=environment, text=True) == "2\n"
    assert {path.read_text() for path in (tmp_path / "copy").rglob("*names")} == {"one"}


def test_pipes_and_sockets_that_a_download_leaves_out_are_named(one: Fleet, tmp_path: Path) -> None:
    root = one.home(0) / "tree"
    (root / "sub").mkdir(parents=True)
    (root / "file").write_text("text")
    for name in ("pipe", "sub/a pipe"):
        os.mkfifo(root / name)
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(root)  # a socket's path must not be long
        listener.bind("socket")
        os.chdir(here)
    copy = tmp_path / "copy"
    notices = take(one, "./tree", copy, ByteCounter())
    shown = "pipe, socket, sub/a pipe"
    assert notices == [f"left out of {copy}, as neither file, folder nor link: {shown}"]
    assert sorted(path.name for path in copy.rglob("*")) == ["file", "sub"]
    for number in range(30):
        os.mkfifo(root / f"sub/{number}")
    notices = take(one, "./tree/sub/*", tmp_path / "other", ByteCounter())
    assert notices[0].endswith(" and 28 more")


def test_links_that_a_download_leaves_out_are_named(one: Fleet, tmp_path: Path) -> None:
    root = one.home(0) / "tree"
    (root / "sub").mkdir(parents=True)
    (root / "sub/f").write_text("text")
    (root / "out").symlink_to("../../..")
    (root / "inside").symlink_to("sub/../sub/f")
    copy = tmp_path / "copy"
    notices = take(one, "./tree", copy, ByteCounter())
    assert notices == [f"left out of {copy}, as links that lead out of it: out"]
    assert os.readlink(copy / "inside") == "sub/../sub/f"
    assert (copy / "inside").read_text() == "text"
