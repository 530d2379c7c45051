"""Downloads: what was asked for, verified, resumed, and nothing of what a hostile worker sends."""

from __future__ import annotations

import os
import shlex
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.transfer_workers import ByteCounter, Fleet, fleet

from remote.transfer.test_unpack import REGULAR, archive
from remote.transfer.test_upload import CuttingGauge
from tpukit.clock import Deadline, SystemClock
from tpukit.errors import BadInput, NotFound, SecurityRefusal, TpukitError
from tpukit.remote.connection.keys import KeyPair
from tpukit.remote.connection.worker import RetryingConnection
from tpukit.remote.transfer.download import Source, download
from tpukit.remote.transfer.upload import TransferContext

NEVER = Deadline.never(SystemClock())
#: More than the client's window, so that a cut in the middle loses something.
SIZE = 20 << 20
Take = Callable[..., Path]


@pytest.fixture
def one(tmp_path: Path, key: KeyPair) -> Iterator[Fleet]:
    with fleet(tmp_path, key, 1) as found:
        yield found


@pytest.fixture
def take(one: Fleet, tmp_path: Path) -> Take:
    def take(
        path: str, target: str = "here", into: bool = False, counter: ByteCounter | None = None
    ) -> Path:
        context = TransferContext(NEVER, counter or ByteCounter())
        with RetryingConnection(one.workers[0].connect, NEVER) as connection:
            return download(connection, Source(path), tmp_path / target, context, into=into)

    return take


def pretend(one: Fleet, directory: Path, **programs: str) -> None:
    """Let the worker have other programs than it should."""
    tools = directory / "tools"
    tools.mkdir()
    for name, text in programs.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    one.servers[0].path = f"{tools}:{one.servers[0].path}"


def test_a_file_arrives_under_the_name_that_was_given(one: Fleet, take: Take) -> None:
    (one.home(0) / "run").write_bytes(b"#!/bin/sh\n")
    (one.home(0) / "run").chmod(0o755)
    place = take("./run", "copy")
    assert place.name == "copy"
    assert place.read_bytes() == b"#!/bin/sh\n"
    assert place.stat().st_mode & 0o777 == 0o755


def test_a_folder_arrives_whole(one: Fleet, take: Take, tmp_path: Path) -> None:
    root = one.home(0) / "results"
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "sub" / "-odd $(name)\n").write_text("text")
    (root / "latest").symlink_to("sub")
    place = take("./results/", "", into=True)
    assert place == tmp_path / "results"
    assert (place / "sub" / "-odd $(name)\n").read_text() == "text"
    assert (place / "sub" / "empty").is_dir()
    assert os.readlink(place / "latest") == "sub"
    assert not list(tmp_path.glob(".tpukit*"))


def test_a_pattern_brings_what_it_matches_on_the_worker(one: Fleet, take: Take) -> None:
    logs = one.home(0) / "my logs"
    logs.mkdir()
    for name in ("a.txt", "b c.txt", "d.csv", ".hidden.txt"):
        (logs / name).write_text(name)
    place = take("./my logs/*.txt")
    assert sorted(path.name for path in place.iterdir()) == ["a.txt", "b c.txt"]


def test_a_pattern_is_expanded_and_nothing_else(one: Fleet, take: Take) -> None:
    (one.home(0) / "x$(touch canary)y").write_text("odd")
    place = take("./x$(touch canary)*")
    assert [path.name for path in place.iterdir()] == ["x$(touch canary)y"]
    assert not (one.home(0) / "canary").exists()


def test_what_is_not_there_is_not_found(take: Take, tmp_path: Path) -> None:
    for path in ["./absent", "./absent*", "./absent/"]:
        with pytest.raises(NotFound, match="there is no"):
            take(path)
        assert not (tmp_path / "here").exists()


def test_a_path_without_a_name_is_bad_input(take: Take) -> None:
    for path in ["./", ".", "/", "..", "a/.."]:
        with pytest.raises(BadInput, match="does not name a file or folder"):
            take(path)


def test_a_lost_connection_is_made_again_and_goes_on(one: Fleet, take: Take) -> None:
    (one.home(0) / "noise").write_bytes(os.urandom(SIZE))
    counter = CuttingGauge(act=one.servers[0].cut, at=1 << 20)
    place = take("./noise", counter=counter)
    assert place.read_bytes() == (one.home(0) / "noise").read_bytes()
    offsets = _offsets(one)
    assert offsets[0] == 0
    assert len(offsets) > 1
    assert offsets == sorted(set(offsets))
    assert counter.moved == counter.expected == SIZE


def test_a_folder_goes_on_too_compressed_or_not(one: Fleet, take: Take) -> None:
    root = one.home(0) / "results"
    root.mkdir()
    for index in range(300):
        (root / f"log-{index}").write_bytes(os.urandom(40_000).hex().encode())
    counter = CuttingGauge(act=one.servers[0].cut, at=1 << 20)
    place = take("./results", counter=counter)
    assert len(list(place.iterdir())) == 300
    assert len(_offsets(one)) > 1
    assert counter.moved == counter.expected


def test_another_process_goes_on_where_the_first_was_killed(
    one: Fleet, take: Take, tmp_path: Path
) -> None:
    class Killed(Exception):
        pass

    def kill() -> None:
        raise Killed

    (one.home(0) / "noise").write_bytes(os.urandom(SIZE))
    with pytest.raises(Killed):
        take("./noise", counter=CuttingGauge(act=kill, at=1 << 20))
    assert len(list(tmp_path.glob(".tpukit-*.part"))) == 1
    counter = ByteCounter()
    assert take("./noise", counter=counter).stat().st_size == SIZE
    assert 0 < counter.moved < SIZE
    assert not list(tmp_path.glob(".tpukit-*.part"))


def test_what_changes_while_it_is_copied_never_arrives(
    one: Fleet, take: Take, tmp_path: Path
) -> None:
    noise = one.home(0) / "noise"
    noise.write_bytes(os.urandom(SIZE))

    def change() -> None:
        noise.write_bytes(os.urandom(SIZE))
        one.servers[0].cut()

    with pytest.raises(TpukitError, match="not what the worker announced"):
        take("./noise", counter=CuttingGauge(act=change, at=1 << 20))
    assert not (tmp_path / "here").exists()
    assert not list(tmp_path.glob(".tpukit*"))


def test_a_talkative_login_script_spoils_nothing(one: Fleet, take: Take, tmp_path: Path) -> None:
    (one.home(0) / "file").write_text("content")
    pretend(one, tmp_path, sh='echo "Welcome to $HOME"; exec /bin/sh "$@"')
    assert take("./file").read_text() == "content"


HOSTILE = {
    "another name": ".ssh/authorized_keys",
    "a hidden name": ".bashrc",
    "a parent": "../.ssh/authorized_keys",
}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_worker_writes_nothing_for_a_pattern(
    one: Fleet, take: Take, tmp_path: Path, name: str
) -> None:
    crafted = archive(tmp_path / "archive", [("./a.txt", REGULAR, "x"), (name, REGULAR, "evil")])
    (one.home(0) / "a.txt").write_text("x")
    pretend(one, tmp_path, tar=f"exec cat {crafted}")
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(SecurityRefusal):
        take("./*", "target")
    assert not list(target.iterdir())
    assert not (tmp_path / ".ssh").exists()


def test_a_hostile_worker_chooses_no_name_for_a_folder(
    one: Fleet, take: Take, tmp_path: Path
) -> None:
    crafted = archive(tmp_path / "archive", [("../evil", REGULAR, "x")])
    (one.home(0) / "results").mkdir()
    pretend(one, tmp_path, tar=f"exec cat {crafted}")
    with pytest.raises(SecurityRefusal, match="leads out of the target"):
        take("./results", "", into=True)
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "results").exists()


def test_a_worker_that_never_stops_sending_fills_neither_disk_nor_memory(
    one: Fleet, take: Take, tmp_path: Path
) -> None:
    (one.home(0) / "file").write_bytes(b"x" * 100_000)
    pretend(one, tmp_path, tail="exec cat /dev/zero", gzip="exec cat")
    counter = CuttingGauge(act=lambda: pytest.fail("more arrives than was announced"), at=100_001)
    tracemalloc.start()
    try:
        with pytest.raises(TpukitError, match=r"not what the worker announced|no gzip stream"):
            take("./file", counter=counter)
        # The worker's server is in this process too, and reads ahead.
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert not list(tmp_path.glob(".tpukit*"))


def test_what_the_disk_has_no_room_for_is_not_asked_for(
    one: Fleet, take: Take, tmp_path: Path
) -> None:
    size = 2 * shutil.disk_usage(tmp_path).total
    (tmp_path / "answer").write_text(f"tpukit-listing file {size} {'0' * 64} 0\n")
    pretend(one, tmp_path, sh=f"exec cat {tmp_path / 'answer'}")
    with pytest.raises(TpukitError, match=f"there is no room for {size} bytes"):
        take("./file")
    assert _offsets(one) == []


@pytest.mark.parametrize(
    "answer",
    [
        "tpukit-listing file 99999999999999999 " + "0" * 64 + " 0",
        "tpukit-listing file -1 " + "0" * 64 + " 0",
        "tpukit-listing file 1 ../../x 0",
        "\x1b]0;owned\x07",
        "",
    ],
)
def test_a_lying_listing_is_refused(one: Fleet, take: Take, tmp_path: Path, answer: str) -> None:
    (tmp_path / "answer").write_text(answer + "\n")
    pretend(one, tmp_path, sh=f"exec cat {tmp_path / 'answer'}")
    with pytest.raises(TpukitError) as found:
        take("./file")
    assert "\x1b" not in "".join(found.value.lines())
    assert not (tmp_path / "here").exists()


def _offsets(one: Fleet) -> list[int]:
    """Return from where the worker was asked to send."""
    words = [shlex.split(command) for command in one.servers[0].commands]
    return [int(line[7]) for line in words if line[4:5] == ["send"]]
