"""`tpukit run` against the real emulator: what it prints, collects, ends and remembers."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.processes import eventually

from cli.conftest import Local

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def crew(local: Local) -> Iterator[str]:
    """A slice of four workers whose rule admits us."""
    with local.slice("crew", "v3-32") as name:
        yield name


@pytest.fixture(scope="module")
def single(local: Local) -> Iterator[str]:
    with local.slice("single") as name:
        yield name


def test_a_failing_worker_is_named_at_the_end_with_its_last_lines(local: Local, crew: str) -> None:
    command = "seq 10 >&2; test $TPUKIT_WORKER != 2 || exit 7"
    done = local.run("run", crew, "--", command)
    assert done.status == 7
    end = done.err.splitlines()[-6:]
    assert end[0] == "warning: crew worker 2 exited with status 7"
    assert end[1:] == [f"warning: crew worker 2: {number}" for number in range(6, 11)]


def test_an_environment_that_was_not_provisioned_is_one_error_with_the_command_for_it(
    local: Local, crew: str
) -> None:
    for words in (["--with", "torch_xla"], ["--with", "torch_xla", "--detach"]):
        done = local.run("run", crew, *words, "--", "python", "-V").says(3)
        assert f"error: {crew} has no environment torch_xla on workers 0, 1, 2, 3" in done.err
        assert f"fix: tpukit --local provision {crew} torch_xla" in done.err
    assert local.run("jobs", crew).out == ""


def test_a_program_that_is_missing_in_an_environment_is_the_commands_own_failure(
    local: Local, single: str
) -> None:
    made = "python3 -m venv --without-pip .tpukit/venvs/jax"
    assert local.run("run", single, "--", made).status == 0
    assert local.run("run", single, "--with", "jax", "--", "no-such-program").status == 127
    plain = local.run("run", single, "--", "no-such-program")
    assert plain.status == 127
    assert "next: add --with jax: then its programs are found" in plain.err


def test_ssh_has_an_environments_programs_in_a_command_and_in_a_shell(
    local: Local, single: str
) -> None:
    """The environment is first in PATH, whatever the worker's login files do to it."""
    made = "python3 -m venv --without-pip .tpukit/venvs/jax; echo PATH=/usr/bin:/bin >.profile"
    assert local.run("run", single, "--", made).status == 0
    line = "command -v python; echo $VIRTUAL_ENV; exit 3"
    done = local.run("ssh", single, "--with", "jax", "--", line)
    python, environment = done.out.split()
    assert (done.status, python) == (3, f"{environment}/bin/python")
    assert environment.endswith("/.tpukit/venvs/jax")
    shell = local.run("ssh", single, "--with", "jax", stdin=line)
    assert (shell.status, shell.out.split()) == (3, [python, environment])
    assert "in other shells there, type: . ~/.tpukit/venvs/jax/bin/activate" in shell.err
    refused = local.run("ssh", single, "--with", "flax").says(3)
    assert f"fix: tpukit --local provision {single} flax" in refused.err
    assert "no recipe" in local.run("ssh", single, "--with", "flux").says(2).err


@pytest.mark.parametrize("verb", ["run", "ssh"])
def test_a_framework_that_the_system_s_python_lacks_is_offered(
    local: Local, single: str, verb: str
) -> None:
    done = local.run(verb, single, "--", "python3 -c 'import jax'")
    assert done.status == 1
    assert f"next: tpukit --local provision {single} jax\n" in done.err


def test_a_pattern_stands_for_several_slices_and_a_shell_needs_one(
    local: Local, crew: str, single: str
) -> None:
    done = local.run("run", "[cs]*e*", "--worker", "0", "--", "echo here")
    assert sorted(done.out.splitlines()) == [f"[{crew}:0] here", f"[{single}:0] here"]
    twice = local.run("run", f"{single},sing*", "--worker", "0", "--", "echo once")
    assert twice.out == "once\n"
    for several in ("[cs]*e*", f"{crew},{single}"):
        for words in (("ssh", several, "--", "true"), ("forward", several, "0:22")):
            assert f"stands for several slices: {crew}, {single}\n" in local.run(*words).says(2).err


def test_ctrl_c_is_how_a_forward_ends_and_no_error(local: Local, single: str) -> None:
    process = local.start("forward", single, "0:22")
    assert process.stdout
    assert process.stderr
    listens, leads = process.stdout.readline().split("\t")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert (listens.partition(":")[0], leads) == ("127.0.0.1", f"{single} worker 0, 127.0.0.1:22\n")
    assert process.stderr.read() == ""


def test_the_ports_of_a_forward_are_data_as_soon_as_they_lead_somewhere(
    local: Local, single: str
) -> None:
    process = local.start("forward", single, "0:6006", "--json")
    assert process.stdout
    document = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
    (forward,) = document["forwards"]
    with socket.create_connection(("127.0.0.1", forward.pop("port")), timeout=60):
        process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert process.stdout.read() == "", "there is one document"
    assert forward == {"to": "127.0.0.1:6006"}


def test_where_a_port_is_taken_a_forward_to_a_free_one_can_be_pasted(
    local: Local, single: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        words = (f"{port}:6006", "0:h:80", "--worker", "0")
        told = local.run("forward", single, *words).says(2).err
    fix = next(line for line in told.splitlines() if line.startswith("fix: "))
    assert fix.endswith(f" forward {single} 0:6006 0:h:80")


def test_a_forward_of_nothing_is_refused(local: Local, single: str) -> None:
    assert "there is no port to forward" in local.run("forward", single).says(2).err


def test_several_slices_answer_as_one_and_are_told_apart(
    local: Local, crew: str, single: str
) -> None:
    done = local.run("run", f"{crew},{single}", "--worker", "0", "--", "echo here")
    assert sorted(done.out.splitlines()) == ["[crew:0] here", "[single:0] here"]


def test_standard_input_goes_to_every_worker(local: Local, crew: str) -> None:
    done = subprocess.run(
        local.words("run", crew, "--stdin", "--", "md5sum"),
        env=local.environment,
        input=b"x" * 3_000_000,
        capture_output=True,
        check=True,
        timeout=300,
    )
    sums = {line.split()[1] for line in done.stdout.splitlines()}
    assert len(done.stdout.splitlines()) == 4
    assert len(sums) == 1


def test_input_for_one_worker_takes_no_room_here(local: Local, single: str, crew: str) -> None:
    """It is larger than any file that may be written here, which input for several has to be."""

    def send(name: str) -> subprocess.CompletedProcess[bytes]:
        words = local.words("run", name, "--stdin", "--", "wc -c")
        return subprocess.run(
            ["sh", "-c", 'ulimit -f 1024 && exec "$@"', "sh", *words],
            env=local.environment,
            input=bytes(5_000_000),
            capture_output=True,
            timeout=300,
        )

    assert send(single).stdout == b"5000000\n"
    several = send(crew)
    assert several.returncode == 1
    assert b"standard input was cut short (File too large)" in several.stderr


def test_output_is_collected_complete_in_files(local: Local, crew: str, tmp_path: Path) -> None:
    folder = tmp_path / "output"
    command = "seq 100000; printf end >&2"
    done = local.run("run", crew, "--output-directory", str(folder), "--", command)
    assert (done.status, done.out) == (0, "")
    assert sorted(file.name for file in folder.iterdir()) == sorted(
        f"crew-{number}.{stream}" for number in range(4) for stream in ("stdout", "stderr")
    )
    wanted = "".join(f"{number}\n" for number in range(1, 100001))
    assert all((folder / f"crew-{number}.stdout").read_text() == wanted for number in range(4))
    assert (folder / "crew-3.stderr").read_text() == "end"
    again = local.run("run", crew, "--output-directory", str(folder), "--", "touch started")
    assert again.status == 2
    assert f"error: cannot make {folder}/crew-0.stdout (File exists)" in again.err
    assert (folder / "crew-0.stdout").read_text() == wanted
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "crew-2.stdout").touch()
    taken = local.run("run", crew, "--output-directory", str(tmp_path / "taken"), "--", "true")
    assert taken.status == 2
    assert [file.name for file in (tmp_path / "taken").iterdir()] == ["crew-2.stdout"]
    (tmp_path / "new").symlink_to("nowhere/new")
    none = local.run("run", crew, "--output-directory", str(tmp_path / "a/../new"), "--", "true")
    assert none.status == 2
    assert not (tmp_path / "a").exists()
    assert local.run("run", crew, "--", "test ! -e started").status == 0


def test_a_document_says_how_much_of_a_long_output_it_lacks(local: Local, single: str) -> None:
    command = "printf lost; head -c 4194304 /dev/zero | tr '\\0' x; echo whole >&2"
    for verb in ("run", "ssh"):
        (result,) = local.run(verb, single, "--json", "--", command).document["results"]
        assert result["stdout"] == "x" * 4194304
        assert (result["stdout_dropped"], result["stderr_dropped"]) == (4, 0)
        assert result["stderr"] == "whole\n"


def test_output_comes_as_json_lines(local: Local, crew: str) -> None:
    command = "echo 'a \"b\"'; exit $TPUKIT_WORKER"
    done = local.run("run", crew, "--worker", "1-2", "--json-lines", "--", command)
    documents = [json.loads(line) for line in done.out.splitlines()]
    lines = [document for document in documents if "line" in document]
    assert sorted((line["worker"], line["stream"], line["line"]) for line in lines) == [
        (1, "stdout", 'a "b"'),
        (2, "stdout", 'a "b"'),
    ]
    assert [(document["worker"], document["status"]) for document in documents[-2:]] == [
        (1, 1),
        (2, 2),
    ]
    assert {(document["v"], document["slice"]) for document in documents} == {(1, "crew")}


def test_a_carriage_return_cannot_pass_for_another_worker_s_line(local: Local, crew: str) -> None:
    done = local.run("run", crew, "--worker", "0,1", "--", r"printf 'a\r[9] forged\n'")
    lines = ["[0] [9] forged", "[0] a", "[1] [9] forged", "[1] a"]
    assert sorted(done.out.splitlines()) == lines


def test_secrets_travel_in_a_file_or_by_name(local: Local, crew: str, tmp_path: Path) -> None:
    file = tmp_path / "secrets.env"
    file.write_text("TOKEN=from the file\n")
    words = ("--env-file", str(file), "--env", "OWN", "--env", "PLAIN=x=y")
    command = 'echo "$TOKEN|$OWN|$PLAIN"'
    done = local.run("run", crew, "--worker", "3", *words, "--", command, extra={"OWN": "mine"})
    assert done.out == "from the file|mine|x=y\n"


def test_ctrl_c_ends_the_command_on_all_workers(local: Local, crew: str, tmp_path: Path) -> None:
    marks = [tmp_path / f"{number}" for number in range(4)]
    beat = f"while :; do date +%s%N >{tmp_path}/$TPUKIT_WORKER; sleep 0.05; done"
    process = local.start("run", crew, "--", f"trap '' INT; {beat}")
    eventually(lambda: all(mark.exists() for mark in marks))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "ended on every worker" in said
    eventually(lambda: not _running(tmp_path))


def test_words_differ_by_worker_and_slice(local: Local, crew: str, single: str) -> None:
    names = f"{crew},{single}"
    words = "{slice} {slice_index}/{slices} {worker}/{workers}"
    done = local.run("run", names, "--worker", "0", "--", f"echo {words}")
    assert set(done.out.splitlines()) == {
        f"[{crew}:0] {crew} 0/2 0/4",
        f"[{single}:0] {single} 1/2 0/1",
    }


def test_flags_are_refused_before_a_slice_is_looked_for(local: Local) -> None:
    for words in (
        ["--detach", "--stdin"],
        ["--detach", "--fail-fast"],
        ["--run-id", "x"],
        ["--with", "cobol"],
        ["--env", "1=2"],
        ["--signal", "STOP"],
        ["--grace", "5 minutes"],
        ["--deadline", "soon"],
        ["--detach", "--grace", "5s"],
        ["--detach", "--log-limit", "1"],
        ["--env", "NOT_SET_ANYWHERE"],
    ):
        local.run("run", "nobody", *words, "--", "true").says(2)
    assert local.run("run", "nobody", "--json", "--json-lines", "--", "true").status == 2


def _running(mark: Path) -> list[str]:
    """Return the command lines of live processes that name a path."""
    found = [
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ]
    return [words for words in found if str(mark) in words]
