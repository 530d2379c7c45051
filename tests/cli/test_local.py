"""Command lines against the real emulator: SSH, its refusals, and what reaches a terminal."""

from __future__ import annotations

import os
import pty
import select
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import loaded_by
from support.local_cloud import Cloud

from cli.conftest import Local
from tpukit.access import ssh_rule
from tpukit.emulator.control_client import EmulatorClient
from tpukit.slices import naming

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def slice_name(local: Local) -> Iterator[str]:
    """A slice of four workers whose rule admits us."""
    with local.slice("four", "v3-32") as name:
        yield name


def test_a_command_s_output_and_status_are_the_worker_s(local: Local, slice_name: str) -> None:
    done = local.run("ssh", slice_name, "--", "echo out; echo err >&2; exit 7")
    assert (done.status, done.out) == (7, "out\n")
    assert done.err.endswith("err\n")


def test_a_second_command_on_a_slice_loads_nothing_that_it_does_not_use(
    local: Local, slice_name: str
) -> None:
    words = ("run", slice_name, "--", "true")
    assert local.run(*words).status == 0
    loaded = loaded_by(*words, environment=local.environment)
    assert "tpukit.ssh.transport" in loaded
    assert not {"http.client", "ssl", "tpukit.google.http_client"} & loaded
    others = {"tpukit.cli.verbs.push", "tpukit.slices.capacity_memory", "tpukit.slices.update"}
    assert not others & loaded


def test_a_label_selects_the_slices_for_a_command(local: Local, slice_name: str) -> None:
    assert local.run("update", slice_name, "--update-labels", "team=vision").status == 0
    done = local.run("run", "team=vision", "--json", "--", "true")
    assert {result["status"] for result in done.document["results"]} == {0}
    for words in (("jobs", "team=vision"), ("ssh-config", "team=vision")):
        assert local.run(*words).status == 0, words


def test_a_program_in_python_without_python_has_the_line_that_starts_it(
    local: Local, slice_name: str
) -> None:
    done = local.run("run", slice_name, "--worker", "0", "--", "train.py")
    assert done.status == 127
    assert "next: start it with Python: -- python train.py\n" in done.err


def test_a_question_without_standard_input_is_not_asked(local: Local, slice_name: str) -> None:
    line = f"{shlex.join(local.words('delete', slice_name))} <&-"
    done = subprocess.run(
        ["sh", "-c", line], env=local.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"delete {slice_name} (" in done.stderr
    assert "needs an answer\nfix: add --yes\n" in done.stderr


def test_a_name_of_bytes_that_are_no_text_is_refused(local: Local) -> None:
    assert "is not a slice name" in local.run("run", "dem\udcffo", "--", "ls").says(2).err


def test_several_words_arrive_as_they_were_typed(local: Local, slice_name: str) -> None:
    words = ["a b", "$HOME", "'", '"', ";", "*"]
    done = local.run("ssh", slice_name, "--", "printf", "%s\\n", *words)
    assert done.out.splitlines() == words


def test_what_is_piped_in_reaches_the_command(local: Local, slice_name: str) -> None:
    done = subprocess.run(
        local.words("ssh", slice_name, "--", "cat"),
        env=local.environment,
        input=bytes(range(256)) * 1000,
        capture_output=True,
        check=True,
        timeout=300,
    )
    assert done.stdout == bytes(range(256)) * 1000


def test_each_worker_runs_the_command_and_the_highest_status_is_ours(
    local: Local, slice_name: str
) -> None:
    done = local.run("run", slice_name, "--", "echo $TPUKIT_WORKER; exit $TPUKIT_WORKER")
    assert done.status == 3
    assert sorted(done.out.splitlines()) == ["[0] 0", "[1] 1", "[2] 2", "[3] 3"]
    assert "worker 3 exited with status 3" in done.err


def test_chosen_workers_alone_run_the_command(local: Local, slice_name: str) -> None:
    done = local.run("run", slice_name, "--worker", "1,3", "--", "echo here")
    assert sorted(done.out.splitlines()) == ["[1] here", "[3] here"]
    assert local.run("run", slice_name, "--worker", "4", "--", "true").says(2)


def test_run_as_json_is_one_document(local: Local, slice_name: str) -> None:
    document = local.run("run", slice_name, "--json", "--", "printf 'a\\033[31m'; exit 2").document
    assert set(document) == {"v", "results"}
    assert [result["worker"] for result in document["results"]] == [0, 1, 2, 3]
    assert all(
        set(result) >= {"worker", "status", "stdout", "stderr"} for result in document["results"]
    )
    assert document["results"][0]["stdout"] == "a\x1b[31m"


def test_a_smoke_test_without_a_framework_is_10(local: Local, slice_name: str) -> None:
    done = local.run("smoke", slice_name, "--timeout", "300s").says(10)
    assert "the smoke test failed on worker" in done.err


def into_a_full_disk(local: Local, *words: str) -> subprocess.CompletedProcess[str]:
    with Path("/dev/full").open("w") as full:
        return subprocess.run(
            local.words(*words),
            env=local.environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.mark.full_size
def test_a_used_up_quota_where_a_watch_writes_ends_neither_it_nor_its_command(
    local: Local, slice_name: str, tmp_path: Path
) -> None:
    """Here a limit of 64 blocks for a file: any error but that of a closed pipe is outlasted."""
    command = "seq 100000; sleep 1"
    words = local.words("watch", slice_name, "--run-id", "quota", "--", command)
    with (tmp_path / "log").open("w") as file:
        done = subprocess.run(
            ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", *words],
            env=local.environment,
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    kept = local.run("watch", "--list", slice_name)
    assert kept.out.splitlines()[-1].endswith("\tended\tstatus 0"), done.stderr


@pytest.mark.full_size
def test_a_full_disk_where_a_watch_writes_ends_neither_it_nor_its_command(
    local: Local, slice_name: str
) -> None:
    words = ("watch", slice_name, "--run-id", "full", "--", "echo line; sleep 1")
    done = into_a_full_disk(local, *words)
    assert done.returncode == 1
    assert "error: this machine's disk has no room" in done.stderr
    assert "Exception" not in done.stderr
    kept = local.run("watch", "--list", slice_name)
    assert kept.out.splitlines()[-1].endswith("\tended\tstatus 0"), done.stderr
    assert local.run("logs", slice_name, "full", "--worker", "0").out == "line\n"


def test_a_full_disk_where_a_log_is_written_leaves_its_run_alone(
    local: Local, slice_name: str
) -> None:
    started = local.run("run", slice_name, "--detach", "--run-id", "logged", "--", "seq 100000")
    assert started.status == 0, started.err
    done = into_a_full_disk(local, "attach", slice_name, "logged", "--worker", "0")
    assert done.returncode == 1, done.stderr
    assert "error: the log of run logged cannot be written here (No space left" in done.stderr
    assert f"fix: tpukit --local attach {slice_name} logged\n" in done.stderr
    assert "Exception" not in done.stderr


def test_an_error_whose_document_has_no_room_is_on_stderr_alone(local: Local) -> None:
    done = into_a_full_disk(local, "describe", "nobody", "--json")
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("error: no slice nobody")
    assert "Traceback" not in done.stderr


@pytest.mark.full_size
def test_the_name_of_a_multislice_tests_each_of_its_slices(local: Local) -> None:
    assert local.run("queue", "create", "v3-8", "pair", "--count", "2").status == 0
    assert local.run("queue", "wait", "pair").status == 0
    assert local.run("firewall", "apply", "pair").status == 0
    done = local.run("smoke", "pair", "--level", "0", "--json")
    told = [(slice_["name"], slice_["smoke"]["ok"]) for slice_ in done.document["slices"]]
    assert told == [("pair-0", True), ("pair-1", True)]
    rows = [
        line.split("\t")[:3] for line in local.run("smoke", "pair", "--level", "0").out.splitlines()
    ]
    assert rows == [[name, "0", "8 of 8 devices"] for name in ("pair-0", "pair-1")]
    failed = local.run("smoke", "pair").says(10)
    assert "error: pair-0: the smoke test failed on worker 0" in failed.err
    assert "also: pair-1: the smoke test failed on worker 0" in failed.err
    planned = local.run("provision", "plan", "pair", "jax").out.splitlines()
    assert {tuple(row.split("\t")[:2]) for row in planned} == {("pair-0", "0"), ("pair-1", "0")}
    assert local.run("queue", "delete", "pair", "--yes", "--force").status == 0


@pytest.mark.full_size
def test_without_a_rule_the_missing_rule_is_named_soon(local: Local) -> None:
    local.run("emulator", "add", "network", "closed")
    words = ("create", "v3-8", "closed", "--network", "closed", "--no-firewall")
    assert local.run(*words).status == 0
    started = time.monotonic()
    done = local.run("ssh", "closed", "--", "true").says(255)
    assert time.monotonic() - started < 60.0
    assert "does not answer at" in done.err
    assert "no firewall rule of network closed admits tcp:22" in done.err
    assert "fix: tpukit --local firewall apply closed --zone" in done.err
    started = time.monotonic()
    done = local.run("run", "closed", "--", "true")
    assert (done.status, time.monotonic() - started < 50.0) == (255, True)
    assert "next: tpukit --local firewall apply closed --zone" in done.err
    assert local.run("delete", "closed", "--yes").status == 0


@pytest.mark.journey
def test_in_a_shared_vpc_workers_are_reached_by_a_rule_of_the_host_project(local: Local) -> None:
    environment = local.run("emulator", "env", "--json").document["environment"]
    token = Path(environment["CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"]).read_text(encoding="ascii").strip()
    url = environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"].rstrip("/")
    EmulatorClient(url, token).call("POST", "projects/lab-one:attach", {"host": "the-host"})
    refused = local.run("create", "v3-8", "shared", "--project", "lab-one").says(2)
    assert "fix: --network projects/the-host/global/networks/default" in refused.err
    network = "projects/the-host/global/networks/default"
    words = ("create", "v3-8", "shared", "--project", "lab-one", "--network", network)
    assert local.run(*words).status == 0
    done = local.run("run", "shared", "--project", "lab-one", "--", "true")
    assert done.status == 0, done.err
    rules = local.run("firewall", "list", "--project", "the-host", "--json").document
    assert [rule["name"] for rule in rules["rules"]] == [
        ssh_rule.tag("lab-one", "emulator-local1-a", "shared")
    ]
    assert rules["left_over"] == []
    assert local.run("delete", "shared", "--project", "lab-one", "--yes").status == 0
    assert local.run("firewall", "list", "--project", "the-host", "--json").document["rules"] == []


def on_a_terminal(words: list[str], environment: dict[str, str]) -> tuple[int, bytes]:
    """Run words with a terminal for their output, and return the status and all it was sent."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        words,
        env={**environment, "TERM": "xterm-256color", "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    while select.select([ours], [], [], 120)[0]:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # Linux ends a terminal so, when its last user has left
            break
        if not chunk:
            break
        seen += chunk
    os.close(ours)
    return process.wait(60), seen


HOSTILE = "\\033[31mred \\033]0;title\\007 \\033]52;c;ZXZpbA==\\007 \\302\\233 10%%\\r20%%"


@pytest.mark.parametrize("verb", ["ssh", "run"])
def test_a_worker_s_output_cannot_command_the_terminal(
    local: Local, slice_name: str, verb: str
) -> None:
    words = local.words(verb, slice_name, "--", f"printf '{HOSTILE}'; printf '{HOSTILE}' >&2")
    status, seen = on_a_terminal(words, local.environment)
    assert status == 0
    assert b"red" in seen
    assert not set(seen) & {0x1B, 0x07, 0x9B}
    assert b"\r2" not in seen


def test_letters_cut_in_two_on_their_way_arrive_whole_on_a_terminal(
    local: Local, slice_name: str
) -> None:
    command = "printf '\\303'; sleep 0.3; printf '\\274'"
    _, seen = on_a_terminal(local.words("ssh", slice_name, "--", command), local.environment)
    assert "ü".encode() in seen


def test_a_table_on_a_terminal_holds_only_its_own_escapes(prompt_cloud: Cloud) -> None:
    prompt_cloud.tpu.create(naming.labelled(prompt_cloud.request(), "ada", "nonce"))
    owner = "\x1b[2J[link=https://x]ada[/link]\x07\u202e"
    prompt_cloud.change("demo", labels={"tpukit-owner": owner})
    words = ["env", "NO_COLOR=1", "python3", "-m", "tpukit", "list"]
    words = [*words[:2], *Local(prompt_cloud.environment()).words("list")]
    status, seen = on_a_terminal(words, prompt_cloud.environment())
    text = seen.decode()
    assert status == 0
    assert "\\x1b[2J[link=https://x]ada[/link]\\x07\\u202e" in text.replace("\r\n", "")
    assert "\x1b[2J" not in text
    assert "\x1b]8" not in text
    assert "\x07" not in text


def test_an_error_on_a_terminal_holds_no_escape(prompt_cloud: Cloud) -> None:
    prompt_cloud.fault(
        method="nodes.list", status="PERMISSION_DENIED", message="\x1b[2J[bold]no\x07"
    )
    words = Local(prompt_cloud.environment()).words("list")
    status, seen = on_a_terminal(words, prompt_cloud.environment())
    assert status == 4
    assert b"\x1b" not in seen
    assert b"\x07" not in seen
    assert b"[bold]no" in seen
