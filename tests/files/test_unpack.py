"""Archives of a hostile worker: nothing of them is ever written outside the target."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tpukit.errors import SecurityRefusal, TpukitError
from tpukit.files.unpack import unpack

Member = tuple[str, bytes, str]
REGULAR, FOLDER, LINK, HARD = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


def archive(place: Path, members: list[Member]) -> Path:
    """Write an archive of (name, type, content or destination of a link)."""
    with tarfile.open(place, "w", format=tarfile.GNU_FORMAT) as file:
        for name, kind, text in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            content = b""
            if kind in (LINK, HARD):
                info.linkname = text
            elif kind == REGULAR:
                content = text.encode()
                info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return place


@pytest.fixture
def world(tmp_path: Path) -> Callable[[], dict[str, str]]:
    """Return what all is there outside the target, when asked."""
    (tmp_path / "precious").write_text("kept")

    def see() -> dict[str, str]:
        return {
            str(path.relative_to(tmp_path)): path.read_text() if path.is_file() else ""
            for path in tmp_path.rglob("*")
            if path.name != "archive" and not path.is_relative_to(tmp_path / "target")
        }

    return see


LEADING_OUT: list[Member] = [
    ("a", LINK, ".."),
    ("a", LINK, "/etc/passwd"),
    ("a", LINK, "b/../../precious"),
    ("a", LINK, "deep/link/../.."),
    ("a", LINK, ""),
    ("a", LINK, "there/../.."),
    ("a", LINK, "there/file/../file"),
    ("a", LINK, "absent/../there/file"),
]
ESCAPES: dict[str, list[Member]] = {
    "absolute": [("/tmp/tpukit-escape", REGULAR, "x")],
    "parent": [("../precious", REGULAR, "x")],
    "parent in the middle": [("a/../../precious", REGULAR, "x")],
    "hidden parent": [("./a/./../../precious", REGULAR, "x")],
    "write through a link inside": [("a", LINK, "b"), ("a", REGULAR, "x")],
    "hard link outside": [("a", HARD, "../precious"), ("a", REGULAR, "x")],
    "hard link to an absolute file": [("a", HARD, "/etc/passwd")],
    "hard link through a link": [("a", LINK, ".."), ("b", HARD, "a/precious")],
    "device": [("a", tarfile.CHRTYPE, "")],
    "pipe": [("a", tarfile.FIFOTYPE, "")],
    "the root as a file": [(".", REGULAR, "x")],
    "the same file twice": [("a", REGULAR, "x"), ("a", REGULAR, "y")],
    "a file as a folder": [("a", REGULAR, "x"), ("a/b", REGULAR, "y")],
}


@pytest.mark.parametrize("members", ESCAPES.values(), ids=ESCAPES)
@pytest.mark.parametrize("there", [False, True], ids=["new target", "existing target"])
def test_a_hostile_archive_writes_nothing_at_all(
    tmp_path: Path, world: Callable[[], dict[str, str]], members: list[Member], there: bool
) -> None:
    target = tmp_path / "target"
    if there:
        target.mkdir()
    before = world()
    honest: Member = ("honest", REGULAR, "first")
    with pytest.raises(TpukitError):
        unpack(archive(tmp_path / "archive", [honest, *members]), target)
    assert world() == before
    assert not target.exists() or not list(target.iterdir())
    assert not Path("/tmp/tpukit-escape").exists()


def test_a_name_that_was_not_asked_for_is_refused(tmp_path: Path) -> None:
    place = archive(tmp_path / "archive", [("a.txt", REGULAR, "x"), (".bashrc", REGULAR, "x")])
    with pytest.raises(SecurityRefusal, match=r"sent \.bashrc, which was not asked for"):
        unpack(place, tmp_path / "target", lambda parts: parts[0].endswith(".txt"))
    assert not (tmp_path / "target").exists()


def test_an_honest_archive_arrives_with_its_links(tmp_path: Path) -> None:
    members: list[Member] = [
        ("./", FOLDER, ""),
        ("./a/b/file", REGULAR, "content"),
        ("./a/up", LINK, "../c"),
        ("./c", LINK, "a/b/file"),
        ("./a/second", HARD, "./a/b/file"),
        ("./a/round", LINK, "b/../../a/./b/file"),
    ]
    target = tmp_path / "target"
    unpack(archive(tmp_path / "archive", members), target)
    assert (target / "a" / "b" / "file").read_text() == "content"
    assert os.readlink(target / "a" / "up") == "../c"
    assert (target / "c").read_text() == "content"
    assert (target / "a" / "second").samefile(target / "a" / "b" / "file")
    assert (target / "a" / "round").read_text() == "content"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "target"]


def test_links_that_lead_out_are_left_out_and_named(
    tmp_path: Path, world: Callable[[], dict[str, str]]
) -> None:
    """What an archive would write through one of them goes into a folder of that name."""
    before = world()
    for link in LEADING_OUT:
        target = tmp_path / "target"
        others: list[Member] = [("deep/link", LINK, "."), link, ("a/precious", REGULAR, "x")]
        others.append(("there/file", REGULAR, "x"))
        assert unpack(archive(tmp_path / "archive", others), target).left_out == ["a"]
        assert (target / "a" / "precious").read_text() == "x"
        assert not (target / "a").is_symlink()
        shutil.rmtree(target)
    assert world() == before


def test_headers_about_headers_without_an_end_are_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2
    header = info.tobuf(tarfile.GNU_FORMAT) + b"x".ljust(tarfile.BLOCKSIZE, b"\0")
    (tmp_path / "archive").write_bytes(header * 3000)
    with pytest.raises(TpukitError, match="broken archive"):
        unpack(tmp_path / "archive", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_header_that_asks_for_all_memory_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 40 << 30
    (tmp_path / "archive").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024)
    with pytest.raises(TpukitError, match="broken archive"):
        unpack(tmp_path / "archive", tmp_path / "target")


def test_a_sparse_member_cannot_be_larger_than_the_archive(tmp_path: Path) -> None:
    info = tarfile.TarInfo("sparse")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 0
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b"77777777777\0"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "archive").write_bytes(bytes(header) + b"\0" * 1024)
    with pytest.raises(SecurityRefusal, match="no file, folder or link"):
        unpack(tmp_path / "archive", tmp_path / "target")


def test_setuid_bits_and_writable_modes_do_not_arrive(tmp_path: Path) -> None:
    info = tarfile.TarInfo("tool")
    info.mode, info.size = 0o6777, 1
    with tarfile.open(tmp_path / "archive", "w") as file:
        file.addfile(info, io.BytesIO(b"x"))
    unpack(tmp_path / "archive", tmp_path / "target")
    assert (tmp_path / "target" / "tool").stat().st_mode & 0o7022 == 0


def test_what_only_its_owner_may_read_stays_so(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "archive", "w") as file:
        for name, mode, kind in [("keys/mine", 0o600, b"0"), ("keys", 0o500, b"5"), ("x", 0, b"0")]:
            info = tarfile.TarInfo(name)
            info.mode, info.type = mode, kind
            file.addfile(info)
    unpack(tmp_path / "archive", tmp_path / "target")
    found = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "target").rglob("*")}
    assert found == {"keys": 0o700, "mine": 0o600, "x": 0o600}
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o755


def test_a_time_that_is_none_is_a_broken_archive(tmp_path: Path) -> None:
    for time in (1 << 80, float("nan")):
        info = tarfile.TarInfo("file")
        form, info.mtime = tarfile.GNU_FORMAT, time  # type: ignore[assignment]
        if time != time:
            info.mtime, info.pax_headers, form = 0, {"mtime": "nan"}, tarfile.PAX_FORMAT
        with tarfile.open(tmp_path / "archive", "w", format=form) as file:
            file.addfile(info)
        with pytest.raises(TpukitError, match="broken archive"):
            unpack(tmp_path / "archive", tmp_path / "target")


@pytest.mark.parametrize("there", [False, True], ids=["beside", "in an existing target"])
def test_what_a_killed_copy_left_is_gone_after_the_next(tmp_path: Path, there: bool) -> None:
    place = archive(tmp_path / ".tpukit-1.part", [("file", REGULAR, "text")])
    left = tmp_path / ("target" if there else "") / ".tpukit-1.new" / "folder"
    left.mkdir(parents=True)
    unpack(place, tmp_path / "target")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tpukit-1.part", "target"]
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["file"]


def test_merging_replaces_files_and_keeps_what_else_is_there(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "both").mkdir(parents=True)
    for name in ("file", "old"):
        (target / "both" / name).write_text("old")
    members: list[Member] = [("both/file", REGULAR, "new"), ("both/new", REGULAR, "new")]
    unpack(archive(tmp_path / "archive", members), target)
    found = {path.name: path.read_text() for path in (target / "both").iterdir()}
    assert found == {"file": "new", "new": "new", "old": "old"}


def test_what_stands_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    members: list[Member] = [("file", REGULAR, "x")]
    for content in (members, []):
        with pytest.raises(TpukitError, match=r"/target$"):
            unpack(archive(tmp_path / "archive", content), tmp_path / "target")
    assert (tmp_path / "target").read_text() == ""


def test_a_link_takes_the_place_of_no_folder(tmp_path: Path) -> None:
    (tmp_path / "target" / "a").mkdir(parents=True)
    members: list[Member] = [("b/file", REGULAR, "x"), ("a", LINK, "b")]
    with pytest.raises(TpukitError, match="target/a"):
        unpack(archive(tmp_path / "archive", members), tmp_path / "target")
    assert not list((tmp_path / "target" / "a").iterdir())


def test_a_target_that_is_a_link_to_a_folder_stays_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "target").symlink_to("disk")
    unpack(archive(tmp_path / "archive", [("file", REGULAR, "x")]), tmp_path / "target")
    assert (tmp_path / "target").is_symlink()
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["file"]


def test_merging_never_goes_through_a_link_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "a").symlink_to("../elsewhere")
    with pytest.raises(TpukitError, match="nothing goes through it"):
        unpack(archive(tmp_path / "archive", [("a/file", REGULAR, "x")]), tmp_path / "target")
    assert not list((tmp_path / "elsewhere").iterdir())
