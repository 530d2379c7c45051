"""Uploads: whole or not at all, resumed after a loss, sent to each worker once."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.agent_program import put_agent
from support.processes import eventually
from support.transfer_workers import (
    NEVER,
    SIZE,
    ByteCounter,
    CuttingGauge,
    Fleet,
    on_openssh,
    verbs,
)

from tpukit.errors import TpukitError, TransportFailed
from tpukit.files.copies import Copy, upload
from tpukit.files.payload import Payload, file_payload, tree_members, tree_payload
from tpukit.files.spread import distribute
from tpukit.files.upload import Delivery, Placement, TransferContext

pytestmark = pytest.mark.process


def file_to(target: str, name: str = "noise") -> Placement:
    return Placement(target, name, kind="file")


def send(
    to: Fleet, payload: Payload, placement: Placement, counter: ByteCounter, relay: bool = True
) -> list[str | TpukitError]:
    context = TransferContext(NEVER, counter, relay)
    done = distribute(payload, to.workers, context, placement)
    return [outcome.error or outcome.value or "" for outcome in done]


def leftovers(home: Path) -> list[str]:
    return [path.name for path in home.rglob("*") if path.name.startswith(".tpukit-")]


def staged(to: Fleet, payload: Payload, placement: Placement, index: int = 0) -> Path:
    """Return where a worker keeps what has arrived for a target in its home folder."""
    context = TransferContext(NEVER, ByteCounter())
    words = Delivery(payload, to.workers[index], context, placement).request()
    return to.home(index) / words["staged"]


@on_openssh("one")
def test_a_pipe_on_a_worker_is_neither_opened_nor_replaced(
    one: Fleet, noise: Path, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "pipe").write_text("a file here")
    (one.home(0) / "folder").mkdir()
    pipes = one.home(0) / "pipe", one.home(0) / "folder" / "pipe"
    for pipe in pipes:
        os.mkfifo(pipe)
    tree = tree_payload(list(tree_members(tmp_path / "folder", "folder")))
    into = Placement("./", "folder", into=True, kind="tree")
    for payload, placement in ((file_payload(noise), file_to("./pipe")), (tree, into)):
        (found,) = send(one, payload, placement, ByteCounter())
        assert isinstance(found, TpukitError)
        assert found.reason.endswith("pipe: it is neither a file nor a folder")
    assert all(pipe.is_fifo() for pipe in pipes)


@on_openssh("one")
def test_a_file_arrives_with_its_mode_and_leaves_nothing_beside(one: Fleet, noise: Path) -> None:
    noise.chmod(0o750)
    placement = replace(file_to("./deep/down/copy"), mode=0o750)
    assert send(one, file_payload(noise), placement, ByteCounter()) == ["sent"]
    copy = one.home(0) / "deep" / "down" / "copy"
    assert copy.read_bytes() == noise.read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o750
    assert not leftovers(one.home(0))
    assert [path.name for path in (one.home(0) / ".tpukit").iterdir()] == ["agent"]


@on_openssh("one")
def test_a_file_that_is_there_already_is_not_sent(one: Fleet, noise: Path) -> None:
    placement = file_to("./copy")
    send(one, file_payload(noise), placement, ByteCounter())
    counter = ByteCounter()
    assert send(one, file_payload(noise), placement, counter) == ["unchanged"]
    assert counter.moved == 0
    assert one.taken(0) == 1


def test_a_folder_that_is_there_takes_a_file_by_its_name(one: Fleet, noise: Path) -> None:
    (one.home(0) / "folder").mkdir()
    send(one, file_payload(noise), file_to("./folder"), ByteCounter())
    assert (one.home(0) / "folder" / "noise").read_bytes() == noise.read_bytes()


def test_a_folder_of_a_files_name_is_not_taken_for_its_place(one: Fleet, noise: Path) -> None:
    folder = one.home(0) / "noise"
    folder.mkdir()
    (one.home(0) / "link").symlink_to("noise")
    for name in ("noise", "link"):
        placement = replace(file_to("./", name), into=True)
        (found,) = send(one, file_payload(noise), placement, ByteCounter())
        assert isinstance(found, TpukitError)
        assert found.reason == f"{folder} is a folder there"
    assert not list(folder.iterdir())
    assert not leftovers(one.home(0))


def test_odd_names_arrive_as_they_are(one: Fleet, noise: Path) -> None:
    name = "-rf $(touch canary) `touch canary`;'\"\n*"
    placement = file_to(f"./{name}")
    assert send(one, file_payload(noise), placement, ByteCounter()) == ["sent"]
    assert {path.name for path in one.home(0).iterdir()} == {name, ".tpukit"}


@on_openssh("one")
def test_a_lost_connection_is_made_again_and_goes_on_where_it_stopped(
    one: Fleet, noise: Path
) -> None:
    payload, placement = file_payload(noise), file_to("./copy")
    part = staged(one, payload, placement)

    def cut() -> None:
        eventually(lambda: part.exists() and part.stat().st_size)
        one.servers[0].cut()

    counter = CuttingGauge(act=cut)
    assert send(one, payload, placement, counter) == ["sent"]
    assert (one.home(0) / "copy").read_bytes() == noise.read_bytes()
    assert one.taken(0) == 2
    # Packets that arrived at the moment of the loss may not be counted.
    assert SIZE - (1 << 18) <= counter.moved < 2 * SIZE


def test_what_an_earlier_process_sent_is_not_sent_again(one: Fleet, noise: Path) -> None:
    payload, placement = file_payload(noise), file_to("./copy")
    part = staged(one, payload, placement)
    part.write_bytes(noise.read_bytes()[: SIZE - 1000])
    for days in (6, 9):
        other = one.home(0) / f".tpukit-upload-{days:032}.part"
        other.write_bytes(b"another's")
        os.utime(other, (time.time() - days * 86400,) * 2)
    counter = ByteCounter()
    assert send(one, payload, placement, counter) == ["sent"]
    assert counter.moved == counter.expected == 1000
    assert (one.home(0) / "copy").read_bytes() == noise.read_bytes()
    assert leftovers(one.home(0)) == [f".tpukit-upload-{6:032}.part"], "kept for a week"


def test_a_broken_beginning_is_found_and_everything_sent_anew(one: Fleet, noise: Path) -> None:
    payload, placement = file_payload(noise), file_to("./copy")
    staged(one, payload, placement).write_bytes(b"\0" * (SIZE - 1000))
    send(one, payload, placement, ByteCounter())
    assert (one.home(0) / "copy").read_bytes() == noise.read_bytes()


def test_a_file_that_changes_while_it_is_sent_never_arrives(one: Fleet, noise: Path) -> None:
    payload = file_payload(noise)
    assert payload.digest
    noise.write_bytes(os.urandom(SIZE))
    (found,) = send(one, payload, file_to("./copy"), ByteCounter())
    assert isinstance(found, TpukitError)
    assert found.why == f"{noise} changed while it was sent"
    assert not (one.home(0) / "copy").exists()


def test_a_file_that_shrinks_while_it_is_sent_is_an_error_that_names_it(
    one: Fleet, noise: Path
) -> None:
    large = noise.with_name("large")
    large.write_bytes(os.urandom(5 * SIZE))
    counter = CuttingGauge(act=lambda: os.truncate(large, SIZE))
    found = send(one, file_payload(large), file_to("./copy", "large"), counter)
    assert isinstance(found[0], TpukitError)
    assert found[0].what == f"{large} became shorter while it was read"
    assert one.taken(0) == 1
    assert not (one.home(0) / "copy").exists()


def test_a_file_that_grows_while_it_is_sent_arrives_as_long_as_it_was(
    one: Fleet, noise: Path
) -> None:
    before = noise.read_bytes()

    def grow() -> None:
        with noise.open("ab") as file:
            file.write(b"more")
        one.servers[0].cut()

    counter = CuttingGauge(act=grow)
    placement = file_to("./copy")
    assert send(one, file_payload(noise), placement, counter) == ["sent"]
    assert (one.home(0) / "copy").read_bytes() == before


@on_openssh("one")
def test_two_senders_of_the_same_at_once_do_no_harm(one: Fleet, noise: Path) -> None:
    """A part that another sender has written, and goes on writing, is the same part."""
    payload = file_payload(noise)
    other = ByteCounter()

    def send_too() -> None:
        for name in ("./second", "./first"):
            assert send(one, payload, file_to(name), other) == ["sent"]

    counter = CuttingGauge(act=send_too)
    found = send(one, payload, file_to("./first"), counter)
    assert found == ["unchanged"], "the other one has put it there"
    for name in ("first", "second"):
        assert (one.home(0) / name).read_bytes() == noise.read_bytes()
    assert not leftovers(one.home(0))


def test_what_another_sender_has_brought_meanwhile_is_not_sent_again(
    one: Fleet, noise: Path
) -> None:
    payload = file_payload(noise)

    def send_too_and_cut() -> None:
        context = TransferContext(NEVER, ByteCounter())
        other = Delivery(payload, one.workers[0], context, placement)
        with other.connection:
            other.send()
        one.servers[0].cut()

    placement = file_to("./copy")
    assert send(one, payload, placement, CuttingGauge(act=send_too_and_cut)) == ["unchanged"]
    assert one.taken(0) == 2


def test_text_is_compressed_on_its_way(one: Fleet, tmp_path: Path) -> None:
    text = tmp_path / "log"
    text.write_bytes(b"step 1 loss 0.5\n" * 100_000)
    before = one.servers[0].received
    send(one, file_payload(text), file_to("./log"), ByteCounter())
    assert (one.home(0) / "log").read_bytes() == text.read_bytes()
    assert one.servers[0].received - before < 400_000


def test_a_folder_arrives_beside_and_is_renamed_or_merged(one: Fleet, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "file").write_text("new")
    (root / "link").symlink_to("sub/file")
    payload = tree_payload(tree_members(root, "tree"))
    send(one, payload, Placement("./there", "tree", into=False, kind="tree"), ByteCounter())
    assert (one.home(0) / "there" / "link").read_text() == "new"
    merged = one.home(0) / "folder" / "tree"
    (merged / "sub").mkdir(parents=True)
    (merged / "sub" / "own").write_text("kept")
    merged.parent.chmod(0o700)
    send(one, payload, Placement("./folder", "tree", into=True, kind="tree"), ByteCounter())
    assert (merged / "sub" / "file").read_text() == "new"
    assert (merged / "sub" / "own").read_text() == "kept"
    assert merged.parent.stat().st_mode & 0o777 == 0o700
    assert not leftovers(one.home(0))


def test_what_a_folder_replaces_is_renamed_over_and_never_written_to(
    one: Fleet, tmp_path: Path
) -> None:
    """Neither a full disk nor a cut leaves half a file, and whoever reads the old one has it.

    A link stays one: what it leads to is replaced, as with `cp`.
    """
    root, there = tmp_path / "tree", one.home(0) / "tree"
    for folder, text in ((root, "new"), (there, "old")):
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "file").write_text(text)
    (root / "link").write_text("new")
    (there / "link").symlink_to("elsewhere")
    (there / "elsewhere").write_text("old")
    with (there / "sub" / "file").open() as reader:
        payload = tree_payload(tree_members(root, "tree"))
        send(one, payload, Placement("./", "tree", into=True, kind="tree"), ByteCounter())
        assert reader.read() == "old"
    found = {path.name: path.read_text() for path in there.rglob("*") if path.is_file()}
    assert found == {"file": "new", "link": "new", "elsewhere": "new"}
    assert (there / "link").is_symlink()


@on_openssh("one")
@pytest.mark.parametrize("into", [False, True], ids=["renamed", "merged"])
def test_a_folder_that_nobody_may_write_to_arrives(one: Fleet, tmp_path: Path, into: bool) -> None:
    sub = tmp_path / "tree" / "sub"
    sub.mkdir(parents=True)
    for text in ("old", "new"):
        (sub / "file").write_text(text)
        sub.chmod(0o555)
        sub.parent.chmod(0o555)
        payload = tree_payload(tree_members(sub.parent, "tree"))
        target = "./" if into or text == "new" else "./tree"
        placement = Placement(target, "tree", into=into, kind="tree")
        (found,) = send(one, payload, placement, ByteCounter())
        assert found == "sent", found
        assert (one.home(0) / "tree" / "sub" / "file").read_text() == text
        assert not leftovers(one.home(0))
        if not into:
            break


def test_two_copies_of_the_same_bytes_are_two_files(one: Fleet, noise: Path) -> None:
    for name in ("./one", "./two"):
        send(one, file_payload(noise), file_to(name), ByteCounter())
    with (one.home(0) / "one").open("ab") as file:
        file.write(b"a line more")
    assert (one.home(0) / "two").read_bytes() == noise.read_bytes()


def test_a_mode_alone_is_set_and_nothing_sent(one: Fleet, noise: Path) -> None:
    copies = [Copy("demo", "up", (str(noise),), "./copy", into=False)] * 3
    context, results = TransferContext(NEVER, counter := ByteCounter()), []
    for mode, copy in zip((0o644, 0o755, 0o755), copies, strict=True):
        noise.chmod(mode)
        results += [each.value for each in upload(copy, one.workers, context)]
        assert (one.home(0) / "copy").stat().st_mode & 0o777 == mode
    assert results == ["sent", "sent", "unchanged"]
    assert counter.moved == SIZE


@pytest.mark.parametrize("there", [False, True], ids=["new", "into"])
def test_a_folder_whose_answer_is_lost_is_put_in_place_once(
    one: Fleet, tmp_path: Path, there: bool
) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / ".file").write_text("text")
    (one.home(0) / "there").mkdir() if there else None
    placings: list[int] = []

    def loses(number: int) -> bool:
        found = verbs(one.servers[0])[number - 1] == "receive_upload" and not placings
        placings.extend([number] * found)
        return found

    one.servers[0].loses = loses
    copy = Copy("demo", "up", (str(tmp_path / "tree"),), "./there", into=False)
    (done,) = upload(copy, one.workers, TransferContext(NEVER, ByteCounter()))
    assert (done.value, len(placings)) == ("sent", 1)
    root = one.home(0) / "there"
    files = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
    assert files == ["tree/sub/.file" if there else "sub/.file"]


def test_a_worker_that_cannot_write_says_why(one: Fleet, noise: Path) -> None:
    (one.home(0) / "file").write_text("in the way")
    (error,) = send(one, file_payload(noise), file_to("./file/copy"), ByteCounter())
    assert isinstance(error, TpukitError)
    assert "cannot keep the upload" in error.what
    assert "Not a directory" in error.reason
    assert one.taken(0) == 0


@on_openssh("four")
def test_four_workers_get_one_upload(four: Fleet, noise: Path) -> None:
    counter = ByteCounter()
    placement = file_to("./copy")
    assert send(four, file_payload(noise), placement, counter) == ["sent"] * 4
    assert counter.moved == counter.expected == SIZE
    assert [four.taken(index) for index in range(4)] == [1, 0, 0, 0]
    for index in range(4):
        assert (four.home(index) / "copy").read_bytes() == noise.read_bytes()


def test_the_relay_is_gone_when_the_transfer_is_over(four: Fleet, noise: Path) -> None:
    send(four, file_payload(noise), file_to("./copy"), ByteCounter())
    four.servers[0].wait_until(lambda: not _relays(four))


def test_without_a_relay_each_worker_gets_its_own_upload(four: Fleet, noise: Path) -> None:
    counter = ByteCounter()
    placement = file_to("./copy")
    assert send(four, file_payload(noise), placement, counter, relay=False) == ["sent"] * 4
    assert counter.moved == 4 * SIZE
    assert [four.taken(index) for index in range(4)] == [1] * 4


def test_workers_that_cannot_reach_the_first_one_get_it_from_here(four: Fleet, noise: Path) -> None:
    # 192.0.2.0/24 belongs to nobody (RFC 5737): no worker has the address to serve at.
    four.addresses = ["192.0.2.1"] * 4
    placement = file_to("./copy")
    assert send(four, file_payload(noise), placement, ByteCounter()) == ["sent"] * 4
    assert [four.taken(index) for index in range(4)] == [1] * 4


def test_a_number_beyond_all_measure_ends_one_worker_alone(
    four: Fleet, noise: Path, tmp_path: Path
) -> None:
    """Python refuses to read one: it would end the command of all."""
    put_agent(four.home(1))
    tools = tmp_path / "tools"
    tools.mkdir()
    number = "9" * 5000
    (tools / "python3").write_text(
        "#!/bin/sh\n" f"""echo 'tpukit-agent {{"state": "partial", "size": {number}}}'\n"""
    )
    (tools / "python3").chmod(0o755)
    four.servers[1].path = f"{tools}:{four.servers[1].path}"
    found = send(four, file_payload(noise), file_to("./copy"), ByteCounter())
    assert [each for index, each in enumerate(found) if index != 1] == ["sent"] * 3
    assert isinstance(found[1], TpukitError)
    assert "not JSON" in found[1].what


@on_openssh("four")
def test_losing_the_first_worker_in_the_middle_fails_nobody(four: Fleet, noise: Path) -> None:
    counter = CuttingGauge(act=four.servers[0].cut)
    placement = file_to("./copy")
    assert send(four, file_payload(noise), placement, counter) == ["sent"] * 4
    for index in range(4):
        assert (four.home(index) / "copy").read_bytes() == noise.read_bytes()


def test_a_fetch_that_goes_on_after_a_broken_beginning_is_not_believed(
    four: Fleet, noise: Path
) -> None:
    payload = file_payload(noise)
    beginnings = {1: noise.read_bytes()[: SIZE // 2], 2: noise.read_bytes()[:1000], 3: b"\0" * 1000}
    placement = file_to("./copy")
    for index, beginning in beginnings.items():
        staged(four, payload, placement, index).write_bytes(beginning)
    assert send(four, payload, placement, ByteCounter()) == ["sent"] * 4
    for index in range(4):
        assert (four.home(index) / "copy").read_bytes() == noise.read_bytes()


@on_openssh("four")
def test_a_dead_worker_is_named_and_holds_up_nobody(four: Fleet, noise: Path) -> None:
    four.end(2)
    found = send(four, file_payload(noise), file_to("./copy"), ByteCounter())
    assert [each for index, each in enumerate(found) if index != 2] == ["sent"] * 3
    assert isinstance(found[2], TransportFailed)


def test_the_relay_answers_nobody_who_does_not_know_its_secret(four: Fleet, noise: Path) -> None:
    """Every request but the right one gets not a byte."""
    seen: list[bytes] = []

    def look() -> None:
        ports = {
            connection.laddr.port
            for relay in _relays(four)
            for connection in relay.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        for port in ports:
            for secret in (b"", b"token", b"../.tpukit/transfers"):
                with socket.create_connection(("127.0.0.1", port), 60) as connection:
                    connection.sendall(secret + b" 0\n")
                    seen.append(connection.recv(1 << 10))

    send(four, file_payload(noise), file_to("./c"), CuttingGauge(act=look))
    assert seen
    assert set(seen) == {b""}


def test_the_relays_secret_is_on_no_command_line(four: Fleet, noise: Path) -> None:
    seen: list[str] = []

    def look() -> None:
        seen.extend(" ".join(process.cmdline()) for process in _relays(four))

    send(four, file_payload(noise), file_to("./copy"), CuttingGauge(act=look))
    lines = [*seen, *(line for server in four.servers for line in server.commands)]
    assert any("serve_upload" in line for line in seen)
    assert not any("token" in line or "address" in line for line in lines)


def _relays(fleet: Fleet) -> list[psutil.Process]:
    """Return the processes that serve in one of these homes."""
    homes = {str(server.home) for server in fleet.servers}
    return [
        process
        for process in psutil.process_iter(["cmdline", "environ"])
        if (process.info["cmdline"] or [""])[-1] == "serve_upload"
        and (process.info["environ"] or {}).get("HOME") in homes
    ]
