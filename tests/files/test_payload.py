"""Payloads: the same files are the same bytes, readable from any offset."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import time
from pathlib import Path

import pytest

from tpukit.agent.contents import compressed, inflated, inflater
from tpukit.errors import BadInput, TpukitError
from tpukit.files.payload import (
    Payload,
    file_payload,
    push_payload,
    tree_members,
    tree_payload,
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "sub" / "data").write_bytes(os.urandom(3000))
    (root / ("n" * 150)).write_bytes(b"long")
    (root / os.fsdecode(b"latin-\xe9")).write_bytes(b"odd")
    program = root / "run"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (root / "link").symlink_to("sub/data")
    return root


def test_any_offset_continues_the_same_bytes(tree: Path) -> None:
    payload = push_payload(b"first", {"data": tree / "sub/data"})
    whole = b"".join(payload.chunks())
    assert len(whole) == payload.size
    assert payload.digest == hashlib.sha256(whole).hexdigest()
    for offset in (1, 511, 512, 600, 5000, payload.size - 1, payload.size):
        assert b"".join(payload.chunks(offset)) == whole[offset:]


def test_an_archive_has_every_member_as_it_is_on_disk(tree: Path) -> None:
    payload = tree_payload(tree_members(tree, "named"))
    with tarfile.open(fileobj=io.BytesIO(b"".join(payload.chunks()))) as archive:
        members = {getmember.name: getmember for getmember in archive.getmembers()}
        content = archive.extractfile("named/sub/data")
        assert content is not None
        assert content.read() == (tree / "sub" / "data").read_bytes()
    assert set(members) == {
        "named",
        "named/sub",
        "named/sub/empty",
        "named/sub/data",
        f"named/{'n' * 150}",
        os.fsdecode(b"named/latin-\xe9"),
        "named/run",
        "named/link",
    }
    assert members["named/link"].linkname == "sub/data"
    assert members["named/run"].mode & 0o100


def test_the_order_of_an_archive_is_no_matter_of_the_disks(tmp_path: Path) -> None:
    folders = [f"folder-{number}" for number in range(8)]
    for folder in reversed(folders):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").touch()
    names = ["tree"]
    for folder in folders:
        names += [f"tree/{folder}", f"tree/{folder}/file"]
    assert [member.name for member in tree_members(tmp_path, "tree")] == names


def test_what_pushes_keep_in_a_tree_is_no_part_of_it(tmp_path: Path) -> None:
    for folder, name in (("", "pushed"), ("sub", "own")):
        (tmp_path / folder / ".tpukit").mkdir(parents=True)
        (tmp_path / folder / ".tpukit" / name).touch()
    names = {member.name for member in tree_members(tmp_path, "tree")}
    assert names == {"tree", "tree/sub", "tree/sub/.tpukit", "tree/sub/.tpukit/own"}


def test_a_file_that_shrinks_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"x" * 100)
    payload = file_payload(file)
    file.write_bytes(b"x" * 50)
    with pytest.raises(TpukitError, match="became shorter"):
        list(payload.chunks())


def test_what_is_neither_file_nor_folder_nor_link_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="pipe is no file, folder or link"):
        tree_payload(tree_members(tmp_path, "tree"))


def test_only_what_shrinks_is_worth_compressing(tmp_path: Path) -> None:
    text, noise = tmp_path / "text", tmp_path / "noise"
    text.write_bytes(b"step 1 loss 0.5\n" * 10000)
    noise.write_bytes(os.urandom(100_000))
    assert file_payload(text).compressible
    assert not file_payload(noise).compressible


def test_many_small_files_cost_no_more_than_their_bytes() -> None:
    """Where each of 20,000 pieces copied those before it, this took seconds."""
    payload = Payload((bytes(200),) * 20_000)
    begun = time.process_time()
    assert payload.compressible
    assert time.process_time() - begun < 1


def test_inflation_undoes_compression_whatever_the_pieces() -> None:
    plain = [b"abc" * 5000, b"", os.urandom(100_000)]
    stream = b"".join(compressed(plain))
    unzip = inflater()
    pieces = [stream[start : start + 777] for start in range(0, len(stream), 777)]
    join = b"".join(each for piece in pieces for each in inflated(piece, unzip))
    assert join == b"".join(plain)


def test_inflation_hands_on_a_bomb_in_bounded_pieces() -> None:
    bomb = b"".join(compressed(b"\0" * (1 << 20) for _ in range(64)))
    assert len(bomb) < 1 << 20
    sizes = [len(each) for each in inflated(bomb, inflater())]
    assert sum(sizes) == 64 << 20
    assert max(sizes) <= 1 << 20
