"""A worker that says nothing, or never stops, ends a copy within its time and in little memory."""

from __future__ import annotations

import json
import shutil
import time
import tracemalloc
from collections.abc import Callable

import pytest
from support.agent_program import ask_agent, put_agent
from support.transfer_workers import NEVER, ByteCounter, Fleet

from files.test_upload import file_to
from tpukit.errors import DeadlinePassed, TpukitError
from tpukit.files.download import Source, download
from tpukit.files.payload import file_payload
from tpukit.files.spread import distribute
from tpukit.files.upload import TransferContext

pytestmark = pytest.mark.slow

SILENCE = 1.5
SIZE = 1 << 20


def instead_of_python(one: Fleet, text: str) -> None:
    put_agent(one.home(0))
    tools = one.home(0).parent / "tools"
    tools.mkdir()
    (tools / "python3").write_text(f"#!/bin/sh\n{text}\n")
    (tools / "python3").chmod(0o755)
    one.servers[0].path = f"{tools}:{one.servers[0].path}"


def real_python(one: Fleet) -> str:
    return str(shutil.which("python3", path=one.servers[0].path))


def up(one: Fleet, context: TransferContext) -> None:
    file = one.home(0).parent / "file"
    file.write_bytes(bytes(range(256)) * (SIZE // 256))
    payload = file_payload(file)
    (done,) = distribute(payload, one.workers, context, file_to("./copy", "file"))
    if done.error:
        raise done.error


def down(one: Fleet, context: TransferContext) -> None:
    target = one.home(0).parent / "here"
    with context.connection(one.workers[0]) as connection:
        download(connection, Source("./file"), target, context, into=False)


Copying = Callable[[Fleet, TransferContext], None]
BOTH = pytest.mark.parametrize("copy", [up, down])
LIE = r'\ntpukit-agent {"progress": %s}\n'
ENDLESS = {
    "nothing": "exec sleep 1000",
    "zeros": "exec cat /dev/zero",
    "zeros on stderr": "exec cat /dev/zero >&2",
    "empty lines": "exec yes ''",
    "the same progress": f"yes | while read x; do printf '{LIE % 7}' >&$to; done",
    "impossible progress": f"n={10**9}; while :; do n=$((n + 1)); printf '{LIE}' $n >&$to; done",
}
#: Where the worker says how far it is: standard output has the bytes of a download.
STREAM = {up: 1, down: 2}


@BOTH
@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_a_worker_that_gets_nowhere_is_given_up(one: Fleet, copy: Copying, text: str) -> None:
    instead_of_python(one, f"to={STREAM[copy]}; {text}")
    context = TransferContext(NEVER, ByteCounter(), silence=SILENCE)
    begun = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises(DeadlinePassed):
            copy(one, context)
        # The worker's server is in this process too, and reads ahead.
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert time.monotonic() - begun < 20 * SILENCE
    assert not list(one.home(0).parent.glob(".tpukit*"))


@BOTH
def test_a_worker_that_reads_nothing_of_what_is_sent_is_given_up(one: Fleet, copy: Copying) -> None:
    real = real_python(one)
    instead_of_python(one, f'case "$*" in *look_at*) exec {real} "$@" ;; esac; exec sleep 1000')
    context = TransferContext(NEVER, ByteCounter(), silence=SILENCE)
    with pytest.raises(DeadlinePassed):
        copy(one, context)


@BOTH
def test_a_worker_that_gets_on_is_waited_for(one: Fleet, copy: Copying) -> None:
    """It says that it reads what it has, for longer than it may be silent."""
    (one.home(0) / "file").write_text("text")
    step = f"printf '{LIE}' $n >&{STREAM[copy]}"
    steps = f"for n in 1 2 3 4 5; do {step}; sleep 0.5; done"
    instead_of_python(one, f'{steps}; exec {real_python(one)} "$@"')
    copy(one, TransferContext(NEVER, ByteCounter(), silence=SILENCE))


ODD: dict[str, object] = {
    "no state": {"size": 0, "path": "/x", "into": False, "free": 10**12},
    "an unknown state": {"state": "\x1b[2J", "size": 0},
    "more than there is": {"state": "partial", "size": SIZE + 1},
    "less than nothing": {"state": "partial", "size": -1},
    "a number as a text": {"state": "partial", "size": "0"},
    "no path": {"state": "partial", "size": 0, "into": False, "free": 10**12},
    "a list": [],
}


@BOTH
@pytest.mark.parametrize("answer", ODD.values(), ids=ODD)
def test_an_odd_answer_is_an_error_of_that_worker(
    one: Fleet, copy: Copying, answer: object
) -> None:
    text = json.dumps(answer)
    instead_of_python(one, f"cat <<'END'\n\ntpukit-agent {text}\nEND\n")
    with pytest.raises(TpukitError) as caught:
        copy(one, TransferContext(NEVER, ByteCounter()))
    assert "\x1b" not in "".join(caught.value.lines())


@pytest.mark.parametrize("size", [SIZE + 1, -1])
def test_a_worker_cannot_have_more_than_there_is_nor_less_than_nothing(
    one: Fleet, size: int
) -> None:
    answer = {"state": "partial", "size": size, "path": "/x", "into": False, "free": 10**12}
    instead_of_python(one, f"cat <<'END'\n\ntpukit-agent {json.dumps(answer)}\nEND\n")
    with pytest.raises(TpukitError, match=f"worker 0 cannot have {size} of {SIZE} bytes"):
        up(one, TransferContext(NEVER, ByteCounter()))


def test_the_agent_says_how_far_it_is_with_a_large_file(one: Fleet) -> None:
    """It hashes what it has for longer than the pause between two reports."""
    home = one.home(0)
    with (home / "copy").open("wb") as file:
        file.truncate(1 << 30)
    request = {"kind": "file", "target": "./copy", "name": "copy", "into": False, "mode": 0o644}
    request |= {"path": "", "staged": ".tpukit-upload-1", "size": 1 << 30, "digest": "0" * 64}
    done = ask_agent(home, "look_at_upload", request)
    reports = [line for line in done.stdout.splitlines() if b'"progress"' in line]
    numbers = [json.loads(line.partition(b" ")[2])["progress"] for line in reports]
    assert numbers
    assert numbers == sorted(set(numbers))
