"""Downloads: what was asked for, verified, resumed, and nothing of what a hostile worker sends."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from support.agent_program import put_agent
from support.clocks import HandClock
from support.transfer_workers import NEVER, ByteCounter, CuttingGauge, Fleet, on_openssh, verbs

from files.test_unpack import REGULAR, archive
from tpukit.clock import Deadline
from tpukit.console import amount
from tpukit.errors import (
    BadInput,
    DeadlinePassed,
    NotFound,
    SecurityRefusal,
    TpukitError,
    TransportFailed,
)
from tpukit.files.copies import Copy, fetch
from tpukit.files.download import NotReadable, Source, download
from tpukit.files.upload import TransferContext
from tpukit.ssh.worker import RetryingConnection

pytestmark = pytest.mark.process

#: More than the client's window, so that a cut in the middle loses something.
SIZE = 20 << 20
Take = Callable[..., Path]


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
    """Let the worker, which has the agent, have other programs than it should."""
    put_agent(one.home(0))
    tools = directory / "tools"
    tools.mkdir()
    for name, text in programs.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    one.servers[0].path = f"{tools}:{one.servers[0].path}"


@on_openssh("one")
def test_a_file_arrives_under_the_name_that_was_given(one: Fleet, take: Take) -> None:
    (one.home(0) / "run").write_bytes(b"#!/bin/sh\n")
    (one.home(0) / "run").chmod(0o755)
    place = take("./run", "copy")
    assert place.name == "copy"
    assert place.read_bytes() == b"#!/bin/sh\n"
    assert place.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("dangles", [False, True])
def test_a_link_that_the_user_names_stays_and_its_file_is_replaced(
    one: Fleet, take: Take, tmp_path: Path, dangles: bool
) -> None:
    (one.home(0) / "run").write_text("new")
    (tmp_path / "data").mkdir()
    if not dangles:
        (tmp_path / "data" / "run").write_text("old")
    (tmp_path / "here").symlink_to("data/run")
    assert take("./run") == tmp_path / "here"
    assert os.readlink(tmp_path / "here") == "data/run"
    assert (tmp_path / "data" / "run").read_text() == "new"
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["run"]


@on_openssh("one")
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


@pytest.mark.parametrize("into", [True, False])
def test_nothing_is_written_through_a_link_that_leads_out_of_the_chosen_folder(
    one: Fleet, take: Take, tmp_path: Path, into: bool
) -> None:
    for folder in (one.home(0) / "results", tmp_path / "here", tmp_path / "elsewhere"):
        folder.mkdir()
    (one.home(0) / "results" / "1").write_text("new")
    (tmp_path / "elsewhere" / "1").write_text("precious")
    (tmp_path / "here" / "results").symlink_to("../elsewhere")
    with pytest.raises(TpukitError, match="here/results is a symbolic link"):
        take("./results", "here", into=into)
    assert (tmp_path / "elsewhere" / "1").read_text() == "precious"
    assert "send_download" not in verbs(one.servers[0])
    # The user names the folder, or the link leads to another folder in it.
    assert take("./results/*", "here/results").joinpath("1").read_text() == "new"
    (tmp_path / "here" / "inside").mkdir()
    (tmp_path / "here" / "results").unlink()
    (tmp_path / "here" / "results").symlink_to("inside")
    take("./results", "here", into=into)
    assert (tmp_path / "here" / "inside" / "1").read_text() == "new"


def test_a_worker_s_folder_is_no_way_out_of_the_chosen_one(four: Fleet, tmp_path: Path) -> None:
    for worker in range(4):
        (four.home(worker) / "log").write_text(str(worker))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-1").symlink_to(tmp_path)
    context = TransferContext(NEVER, ByteCounter())
    copy = Copy.parse(["demo:log", str(tmp_path / "logs")])
    first, refused, *_ = fetch(copy, four.workers, context)
    assert first.value == [tmp_path / "logs" / "worker-0" / "log"]
    assert "logs/worker-1 is a symbolic link" in str(refused.error)
    assert not (tmp_path / "log").exists()


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


@on_openssh("one")
def test_what_is_not_there_is_not_found(take: Take, tmp_path: Path) -> None:
    for path in ["./absent", "./absent*", "./absent/"]:
        with pytest.raises(NotFound, match="there is no"):
            take(path)
        assert not (tmp_path / "here").exists()


def test_a_path_without_a_name_is_bad_input(take: Take) -> None:
    for path in ["./", ".", "/", "..", "a/.."]:
        with pytest.raises(BadInput, match="does not name a file or folder"):
            take(path)


#: Another copy puts the very file in place between our opening and our locking it.
RACE = """
import sys
from pathlib import Path
from tpukit.errors import BadInput
from tpukit.files.download import Source, download
place = Path(sys.argv[1])
def act(event, words):
    if event == "fcntl.flock":
        (part,) = place.parent.glob(".tpukit-*.part")
        part.write_text("whole")
        part.rename(place)
sys.addaudithook(act)
try:
    download(None, Source("./file"), place, None, into=False)
except BadInput as error:
    print(error.what)
"""


def test_what_another_copy_has_just_put_in_place_is_not_written_to(tmp_path: Path) -> None:
    words = [sys.executable, "-c", RACE, str(tmp_path / "here")]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    told = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert told.stdout == "another copy of the same is under way to the same place\n"
    assert (tmp_path / "here").read_text() == "whole"


@on_openssh("one")
def test_a_lost_connection_is_made_again_and_goes_on(one: Fleet, take: Take) -> None:
    (one.home(0) / "noise").write_bytes(os.urandom(SIZE))
    counter = CuttingGauge(act=one.servers[0].cut, at=1 << 20)
    place = take("./noise", counter=counter)
    assert place.read_bytes() == (one.home(0) / "noise").read_bytes()
    assert _downloads(one) > 1
    assert counter.moved == counter.expected == SIZE


def test_a_worker_from_which_nothing_comes_is_given_up(one: Fleet, tmp_path: Path) -> None:
    """Its system answers, and the program does not: a disk that hangs."""
    pretend(one, tmp_path, python3="exec sleep 1000")
    clock = HandClock()
    one.servers[0].on_command = lambda: clock.advance(61)
    context = TransferContext(Deadline.never(clock), ByteCounter())
    with context.connection(one.workers[0]) as connection, pytest.raises(DeadlinePassed):
        download(connection, Source("./file"), tmp_path / "here", context, into=False)


def test_a_loss_is_told(one: Fleet, tmp_path: Path) -> None:
    (one.home(0) / "noise").write_bytes(os.urandom(SIZE))
    lost: list[TransportFailed] = []
    counter = CuttingGauge(act=one.servers[0].cut, at=1 << 20)
    context = TransferContext(NEVER, counter, on_loss=lost.append)
    with context.connection(one.workers[0]) as connection:
        download(connection, Source("./noise"), tmp_path / "here", context, into=False)
    assert [error.what for error in lost] == ["lost demo worker 0 while a command ran"]


@on_openssh("one")
def test_a_folder_goes_on_too_compressed_or_not(one: Fleet, take: Take) -> None:
    root = one.home(0) / "results"
    root.mkdir()
    for index in range(300):
        (root / f"log-{index}").write_bytes(os.urandom(40_000).hex().encode())
    counter = CuttingGauge(act=one.servers[0].cut, at=1 << 20)
    place = take("./results", counter=counter)
    assert len(list(place.iterdir())) == 300
    assert _downloads(one) > 1
    assert counter.moved == counter.expected


@on_openssh("one")
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
    with pytest.raises(Killed):
        take("./noise", counter=CuttingGauge(act=kill, at=1 << 20))
    (one.home(0) / "noise").write_text("a new and shorter one")
    assert take("./noise").read_text() == "a new and shorter one"


@pytest.mark.parametrize(("path", "cut"), [("noise", False), ("noise", True), ("", False)])
def test_what_changes_while_it_is_copied_is_copied_again(
    one: Fleet, take: Take, path: str, cut: bool
) -> None:
    noise = one.home(0) / "data" / "noise"
    noise.parent.mkdir()
    noise.write_bytes(os.urandom(SIZE))

    def change() -> None:
        with noise.open("r+b") as file:
            file.write(os.urandom(64))
        one.servers[0].cut() if cut else None

    counter = CuttingGauge(act=change, at=1 << 20)
    place = take(f"./data/{path}", counter=counter)
    found = place if place.is_file() else place / "noise"
    assert found.read_bytes() == noise.read_bytes()
    assert counter.moved == counter.expected > SIZE


@pytest.mark.parametrize("path", ["noise", ""], ids=["file", "folder"])
def test_what_becomes_shorter_while_it_is_copied_is_copied_again(
    one: Fleet, take: Take, path: str
) -> None:
    noise = one.home(0) / "data" / "noise"
    noise.parent.mkdir()
    noise.write_bytes(os.urandom(SIZE))
    counter = CuttingGauge(act=lambda: os.truncate(noise, 1 << 10), at=1 << 20)
    place = take(f"./data/{path}", counter=counter)
    file = place if place.is_file() else place / "noise"
    assert file.read_bytes() == noise.read_bytes()
    assert counter.moved == counter.expected


def test_a_talkative_login_script_spoils_nothing(one: Fleet, take: Take, tmp_path: Path) -> None:
    (one.home(0) / "file").write_text("content")
    real = shutil.which("python3", path=one.servers[0].path)
    talk = r"printf '\033]0;worker\007'; printf 'half a line' >&2"
    pretend(one, tmp_path, python3=f'{talk}; exec {real} "$@"')
    assert take("./file").read_text() == "content"


FILE: dict[str, object] = {
    "kind": "file", "size": 1, "stored": 1, "mode": 0o644, "modified": 0, "gzip": False,
}  # fmt: skip


TREE = {**FILE, "kind": "tree", "size": 0, "stored": 0}


def impostor(one: Fleet, directory: Path, header: object, content: bytes = b"") -> None:
    """Let the worker answer with these bytes, whatever it is asked for."""
    whole = {"state": "whole", "digest": hashlib.sha256(content).hexdigest()}
    whole |= {"names": [], "left_out": 0}  # type: ignore[dict-item]
    (directory / "answer").write_bytes(_line(header) + content)
    (directory / "end").write_bytes(_line(whole))
    pretend(one, directory, python3=f"cat {directory / 'answer'}; cat {directory / 'end'} >&2")


def _line(answer: object) -> bytes:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return f"\ntpukit-agent {text}\n".encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "cut"),
    [("./logs/log", False), ("./logs/log", True), ("./logs", True), ("./lo*", True)],
)
def test_a_log_that_grows_arrives_as_long_as_it_was(
    one: Fleet, take: Take, path: str, cut: bool
) -> None:
    """Over a connection that is lost meanwhile, as long as it was at the one or the other."""
    log = one.home(0) / "logs" / "log"
    log.parent.mkdir()
    (log.parent / "old").write_text("finished")
    log.write_bytes(before := os.urandom(SIZE))

    def grow() -> None:
        with log.open("ab") as file:
            file.write(b"more")
        one.servers[0].cut() if cut else None

    place = take(path, counter=CuttingGauge(act=grow, at=1 << 20))
    found = place if place.is_file() else next(place.rglob("log"))
    assert found.read_bytes() in (before, before + b"more" * cut)


@pytest.mark.slow
def test_a_folder_whose_log_grows_arrives_whatever_the_losses(one: Fleet, take: Take) -> None:
    """After each of them, more than passes, the archive begins with another size of the log."""
    log = one.home(0) / "logs" / "log"
    log.parent.mkdir()
    log.write_bytes(os.urandom(SIZE))
    losses: list[int] = []

    class Cuts(ByteCounter):
        def advance(self, size: int) -> None:
            super().advance(size)
            if len(losses) < 5 and self.moved > (len(losses) + 1) << 20:
                losses.append(self.moved)
                with log.open("ab") as file:
                    file.write(b"more")
                one.servers[0].cut()

    place = take("./logs", counter=(counter := Cuts()))
    assert (place / "log").read_bytes() == log.read_bytes()
    assert len(losses) == 5
    assert counter.moved == counter.expected


def test_what_is_another_file_by_now_is_not_read_to_its_end_for_nothing(
    one: Fleet, take: Take, tmp_path: Path
) -> None:
    noise = one.home(0) / "noise"
    noise.write_bytes(os.urandom(SIZE))

    def give_up() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take("./noise", counter=CuttingGauge(act=give_up, at=1 << 20))
    noise.write_bytes(os.urandom(SIZE))
    counter = ByteCounter()
    assert take("./noise", counter=counter).read_bytes() == noise.read_bytes()
    assert counter.moved == counter.expected == SIZE


def test_what_changes_all_the_time_is_an_error_that_names_it(
    one: Fleet, take: Take, tmp_path: Path
) -> None:
    class Restless(ByteCounter):
        def advance(self, size: int) -> None:
            with state.open("r+b") as file:
                file.write(os.urandom(64))

    state = one.home(0) / "state"
    state.write_bytes(os.urandom(SIZE // 2))
    (tmp_path / "here").write_text("the copy of yesterday")
    with pytest.raises(TpukitError, match="state was written to while it was read"):
        take("./state", counter=Restless())
    assert (tmp_path / "here").read_text() == "the copy of yesterday"
    assert not list(tmp_path.glob(".tpukit*"))


@on_openssh("one")
def test_files_of_one_name_keep_the_folders_that_the_pattern_matched(
    one: Fleet, take: Take
) -> None:
    for run in ("a", "b", ".c"):
        (one.home(0) / "runs" / run).mkdir(parents=True)
        (one.home(0) / "runs" / run / "log.txt").write_text(run)
    for pattern in "./runs/*/log.txt", "./runs/*//./log.txt":
        place = take(pattern)
        found = {str(path.relative_to(place)): path.read_text() for path in place.rglob("*.txt")}
        assert found == {"a/log.txt": "a", "b/log.txt": "b"}
        shutil.rmtree(place)


def test_what_cannot_be_put_in_place_is_kept_and_not_sent_again(
    one: Fleet, take: Take, tmp_path: Path
) -> None:
    (one.home(0) / "results" / "sub").mkdir(parents=True)
    (one.home(0) / "results" / "sub" / "file").write_bytes(os.urandom(SIZE))
    (tmp_path / "here" / "results").mkdir(parents=True)
    (tmp_path / "here" / "results" / "sub").symlink_to(tmp_path)
    with pytest.raises(TpukitError, match="is a symbolic link") as failed:
        take("./results", into=True)
    (part,) = (tmp_path / "here").glob(".tpukit-*.part")
    assert str(part) in failed.value.exists[0]
    (tmp_path / "here" / "results" / "sub").unlink()
    counter = ByteCounter()
    assert (take("./results", into=True, counter=counter) / "sub" / "file").stat().st_size == SIZE
    assert counter.moved == counter.expected == 0
    assert not part.exists()


def test_a_disk_that_is_full_is_one_error_and_what_arrived_is_kept(
    one: Fleet, take: Take, tmp_path: Path
) -> None:
    """A limit on the size of files stands in for the disk."""
    (one.home(0) / "noise").write_bytes(os.urandom(SIZE))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, limits[1]))
    try:
        with pytest.raises(TpukitError, match=r"cannot write .*\.tpukit-.*\.part") as failed:
            take("./noise")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert failed.value.reason == "File too large"
    assert "the same command goes on there" in failed.value.exists[0]
    counter = ByteCounter()
    assert take("./noise", counter=counter).stat().st_size == SIZE
    assert counter.moved == SIZE // 2


def test_a_target_whose_name_is_too_long_is_an_error(one: Fleet, take: Take) -> None:
    (one.home(0) / "small").touch()
    with pytest.raises(TpukitError, match="cannot write"):
        take("./small", target="n" * 300)


@on_openssh("one")
def test_links_empty_files_and_odd_names_arrive(one: Fleet, take: Take) -> None:
    home = one.home(0)
    (home / "empty").touch()
    (home / "link").symlink_to("empty")
    assert (take("./empty").read_bytes(), take("./link").is_symlink()) == (b"", False)
    names = (b"two\nlines", b"-rf", b"not UTF-8 \xff", b"*")
    for name in names if hasattr(one.servers[0], "account") else names[:2]:
        (home / os.fsdecode(name)).write_bytes(name)
        source = "./" + os.fsdecode(name).replace("*", "[*]")
        place = take(source, f"copy-{len(name)}")
        path = next(place.iterdir()) if place.is_dir() else place
        assert path.read_bytes() == name


def test_no_pipe_or_device_here_is_replaced(one: Fleet, take: Take, tmp_path: Path) -> None:
    (one.home(0) / "folder").mkdir()
    (one.home(0) / "folder" / "pipe").write_text("a file there")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder/pipe"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "device").symlink_to("/dev/null")
    for path, target in (("./folder/pipe", "pipe"), ("./folder/pipe", "device"), ("./folder", "")):
        with pytest.raises(TpukitError) as refused:
            take(path, target)
        assert refused.value.reason == "it is neither a file nor a folder"
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "folder" / "pipe").is_fifo()
    assert (tmp_path / "device").is_symlink()


@on_openssh("one")
def test_what_holds_no_bytes_is_refused(one: Fleet, take: Take) -> None:
    os.mkfifo(one.home(0) / "pipe")
    (one.home(0) / "dangling").symlink_to("nowhere")
    with pytest.raises(TpukitError, match="pipe is no file or folder"):
        take("./pipe")
    with pytest.raises(NotFound):
        take("./dangling")


@on_openssh("one")
def test_what_the_user_may_not_read_is_named_and_replaces_nothing(
    one: Fleet, take: Take, tmp_path: Path
) -> None:
    """Everything that root alone may read is named, before a byte is sent."""
    account = getattr(one.servers[0], "account", None)
    if account is None or not account.made:
        pytest.skip("no ordinary user can be made: unreadable files are NOT checked")
    root = one.home(0) / "results"
    for name in ("open", "mine/secret", "closed/secret"):
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        (root / name).write_text(name)
        (root / name).chmod(0o600 if name.endswith("secret") else 0o644)
    for target in ("here", "there"):
        (tmp_path / target).write_text("the copy of yesterday")
    for path, target in [("./results", "here"), ("./res*", "here"), ("./results/mine/*", "there")]:
        counter = ByteCounter()
        with pytest.raises(NotReadable) as failed:
            take(path, target, counter=counter)
        assert "mine/secret" in failed.value.why
        assert ("closed/secret" in failed.value.why) == (target == "here")
        assert (tmp_path / target).read_text() == "the copy of yesterday"
        assert counter.moved == 0
    (root / "closed").chmod(0o711)
    with pytest.raises(NotReadable, match="may not read all of"):
        take("./results")
    with pytest.raises(NotReadable) as failed:
        take("./results/closed/*")
    assert failed.value.why == str(root / "closed")
    with RetryingConnection(one.workers[0].connect, NEVER) as connection:
        context = TransferContext(NEVER, ByteCounter())
        download(connection, Source("./results"), tmp_path, context, into=True, sudo=True)
    assert (tmp_path / "results" / "closed" / "secret").read_text() == "closed/secret"
    assert not list(tmp_path.glob(".tpukit*"))


def test_modes_and_times_come_with_a_file(one: Fleet, take: Take) -> None:
    (one.home(0) / "key").write_text("secret")
    (one.home(0) / "key").chmod(0o600)
    for seconds in (1e9, -1e8):  # before 1970, where a clock was wrong
        os.utime(one.home(0) / "key", (seconds, seconds))
        stat = take("./key").stat()
        assert (stat.st_mode & 0o777, stat.st_mtime) == (0o600, seconds)


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
    impostor(one, tmp_path, TREE, crafted.read_bytes())
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
    impostor(one, tmp_path, TREE, crafted.read_bytes())
    with pytest.raises(SecurityRefusal, match="leads out of the target"):
        take("./results", "", into=True)
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "results").exists()


def test_a_worker_that_never_stops_sending_fills_neither_disk_nor_memory(
    one: Fleet, take: Take, tmp_path: Path
) -> None:
    (tmp_path / "header").write_bytes(_line({**FILE, "size": 100_000, "stored": 100_000}))
    pretend(one, tmp_path, python3=f"cat {tmp_path / 'header'} /dev/zero")
    counter = CuttingGauge(act=lambda: pytest.fail("more arrives than was announced"), at=500_001)
    tracemalloc.start()
    try:
        with pytest.raises(TpukitError, match="differ from the worker's announcement"):
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
    impostor(one, tmp_path, {**FILE, "size": size, "stored": size}, b"x")
    with pytest.raises(TpukitError, match=r"there is no room for \./file here") as failed:
        take("./file")
    assert failed.value.reason.startswith(f"it needs {amount(size)}, and ")
    assert failed.value.reason.endswith(f" are free in {tmp_path}")
    assert not list(tmp_path.glob(".tpukit*"))


@pytest.mark.parametrize(
    "header",
    [
        {**FILE, "size": 10**17, "stored": 10**17},
        {**FILE, "size": 10**100, "stored": 1},
        {**FILE, "size": -1},
        {**FILE, "stored": -1},
        {**FILE, "modified": 10**30},
        {**FILE, "mode": -1},
        {**FILE, "gzip": True},
        {**FILE, "kind": "\x1b]0;owned\x07"},
        '{"size": ' + "9" * 5000 + "}",
        "{",
        {},
    ],
)
def test_a_lying_header_is_refused(one: Fleet, take: Take, tmp_path: Path, header: object) -> None:
    impostor(one, tmp_path, header, b"x")
    with pytest.raises(TpukitError) as raises:
        take("./file")
    assert "\x1b" not in "".join(raises.value.lines())
    assert not (tmp_path / "here").exists()


def test_a_worker_for_which_every_beginning_differs_is_given_up(
    one: Fleet, take: Take, tmp_path: Path
) -> None:
    impostor(one, tmp_path, {**FILE, "size": 100_000, "stored": 100_000}, b"something")
    (tmp_path / "end").write_bytes(_line({"state": "differs", "names": []}))
    with pytest.raises(TpukitError, match="differ from the worker's announcement"):
        take("./file")
    assert _downloads(one) == 2
    assert not list(tmp_path.glob(".tpukit*"))


def _downloads(one: Fleet) -> int:
    """Return how often the worker was asked to send; the first time, the agent is not there."""
    return verbs(one.servers[0]).count("send_download") - 1
