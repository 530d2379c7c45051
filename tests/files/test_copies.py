"""What `tpukit cp` makes of its words: which side is which, and what is packed under which name."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tpukit.errors import BadInput
from tpukit.files.copies import Copy, RemotePath, packed


def test_one_side_of_a_copy_is_a_slice() -> None:
    for words, wanted in [
        (["a", "demo:"], Copy("demo", "up", ("a",), "./", True)),
        (["a", "demo:~"], Copy("demo", "up", ("a",), "./", True)),
        (["a", "demo:x"], Copy("demo", "up", ("a",), "./x", False)),
        (["a", "demo:~/x/"], Copy("demo", "up", ("a",), "./x/", True)),
        (["a", "demo:x/.."], Copy("demo", "up", ("a",), "./x/..", True)),
        (["a", "demo:x/~"], Copy("demo", "up", ("a",), "./x/~", False)),
        (["a", "demo:/x"], Copy("demo", "up", ("a",), "/x", False)),
        (["a", "demo:-rf"], Copy("demo", "up", ("a",), "./-rf", False)),
        (["a", "b", "demo:x"], Copy("demo", "up", ("a", "b"), "./x", True)),
        (["./b:c", "demo:x"], Copy("demo", "up", ("./b:c",), "./x", False)),
        (["demo:x", "."], Copy("demo", "down", ("./x",), ".", False)),
        (["demo:x", "y/"], Copy("demo", "down", ("./x",), "y/", True)),
        (["demo:x", "demo:y", "z"], Copy("demo", "down", ("./x", "./y"), "z", True)),
        (["demo:a:b", "."], Copy("demo", "down", ("./a:b",), ".", False)),
    ]:
        assert Copy.parse(words) == wanted


def test_what_has_no_one_meaning_is_bad_input() -> None:
    for words in [
        [],
        ["a"],
        ["a", "b"],
        ["demo:a", "demo:b"],
        ["demo:a", "b", "demo:c"],
        ["demo:a", "b", "c"],
        ["demo:a", "other:b", "c"],
        ["", "demo:"],
        ["a\0b", "demo:"],
    ]:
        with pytest.raises(BadInput):
            Copy.parse(words)


def test_a_path_below_the_home_folder_never_looks_absolute() -> None:
    assert RemotePath("demo", "~//etc").clean == "/etc"
    assert RemotePath("demo", "~etc").clean == "./~etc"


def names(words: list[str], directory: Path) -> list[str]:
    copy = Copy.parse([*(str(directory / word) for word in words), "demo:"])
    payload, _ = packed(copy)
    with tarfile.open(fileobj=io.BytesIO(b"".join(payload.chunks()))) as archive:
        return archive.getnames()


def test_one_file_travels_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("text")
    (tmp_path / "run").chmod(0o700)
    payload, placement = packed(Copy.parse([str(tmp_path / "run"), "demo:bin/"]))
    assert b"".join(payload.chunks()) == b"text"
    assert (placement.target, placement.name, placement.into) == ("./bin", "run", True)
    assert (placement.kind, placement.mode) == ("file", 0o700)


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="no /proc here")
def test_a_file_that_says_it_has_no_bytes_travels_with_those_that_it_has() -> None:
    payload, _ = packed(Copy.parse(["/proc/version", "demo:"]))
    assert b"".join(payload.chunks()) == Path("/proc/version").read_bytes()


def test_several_sources_keep_their_own_names(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_text("2")
    assert names(["a", "d/"], tmp_path) == ["a", "d", "d/x"]


def test_a_pattern_that_the_shell_left_is_expanded(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.csv"):
        (tmp_path / name).write_text("1")
    assert names(["*.txt"], tmp_path) == ["a.txt", "b.txt"]


def test_a_folder_given_as_a_link_or_a_dot_arrives_as_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").write_text("1")
    (tmp_path / "link").symlink_to("real")
    assert names(["link"], tmp_path) == ["link", "link/x"]
    monkeypatch.chdir(tmp_path / "real")
    _, placement = packed(Copy.parse([".", "demo:"]))
    assert placement.name == "real"
    assert placement.kind == "tree"


def test_two_sources_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same").write_text(name)
    with pytest.raises(BadInput, match="the same name"):
        names(["a/same", "b/same"], tmp_path)


def test_a_source_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no .*absent"):
        names(["absent"], tmp_path)
