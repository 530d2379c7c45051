"""`tpukit serve` against the emulator: the stand-in of vLLM, and services of own recipes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Local, Run
from tpukit.agent.loopback import free_ports
from tpukit.emulator.control_client import EmulatorClient
from tpukit.emulator.process import daemon

pytestmark = pytest.mark.slow

MODEL = "Qwen/Qwen3-0.6B"
WORDS = ("--with", "vllm", "--port", "0", "--", MODEL)
OWN = """
name = "{name}"
description = "a service"
extends = "jax"
[service]
command = "{command}"
port = {port}
"""


@pytest.fixture(scope="module")
def served(local: Local) -> Iterator[str]:
    """A slice with one worker, on which nothing was provisioned."""
    with local.slice("served", "v5litepod-8") as name:
        yield name


def url_of(process: subprocess.Popen[str]) -> str:
    """Return the address that the command prints, once it answers there."""
    assert process.stdout
    return process.stdout.readline().strip()


def asked(url: str, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(url + path, data, timeout=60) as answer:
        return json.load(answer)


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """Return stderr up to a line with these words."""
    assert process.stderr
    text = ""
    for line in process.stderr:
        text += line
        if words in line:
            return text
    raise AssertionError(f"no line has {words!r}:\n{text}")


def state(local: Local, name: str) -> list[tuple[str, str]]:
    jobs = json.loads(local.run("jobs", name, "--json").out)["jobs"]
    return [(job["run"], job["state"]) for job in jobs]


def own_recipe(local: Local, name: str, command: str, port: int = 8080) -> None:
    folder = Path(local.environment["TPUKIT_HOME"]) / "config/recipes"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.toml").write_text(OWN.format(name=name, command=command, port=port))


def test_a_model_is_served_through_the_death_of_its_client_until_it_is_stopped(
    local: Local, served: str
) -> None:
    first = local.start("serve", served, *WORDS)
    url = url_of(first)
    assert asked(url, "/v1/models")["data"][0]["id"] == MODEL
    told = read_until(first, "in place of")
    assert "a CPU stand-in serves in place of vllm: no model computes its answers" in told
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    said = asked(url, "/v1/chat/completions", body)
    text = said["choices"][0]["message"]["content"]
    assert text.startswith(f"This is tpukit's CPU stand-in for {MODEL}")
    told = read_until(first, "tokens/s")
    assert f"1 request, {said['usage']['completion_tokens']} tokens" in told
    first.kill()
    first.communicate()
    assert state(local, served) == [("service", "running")]

    again = local.start("serve", served, "--port", "0")
    url = url_of(again)
    assert asked(url, "/v1/completions", {"prompt": "hi", "max_tokens": 1})["id"] == "cmpl-2"
    read_until(again, "POST /v1/chat/completions")  # the end of the log so far
    again.send_signal(signal.SIGINT)
    out, told = again.communicate(timeout=60)
    assert (again.returncode, out) == (130, "")
    assert f"next: tpukit --local serve {served} --stop" in told

    other = local.run("serve", served, "--with", "vllm", "--", "other/model").says(5)
    assert f"fix: tpukit --local serve {served} --stop" in other.err

    attached = local.start("serve", served, *WORDS)
    url_of(attached)
    stopped = local.run("serve", served, "--stop", "--json")
    assert stopped.status == 0, stopped.err
    assert json.loads(stopped.out)["ended"][0]["ended"] > 0
    _, told = attached.communicate(timeout=60)
    assert attached.returncode == 1
    assert f"error: the service on {served} worker 0 has ended (status 143" in told
    assert state(local, served) == [("service", "finished")]
    assert "POST /v1/chat/completions" in local.run("logs", served, "service").out
    local.run("serve", served).says(3)
    local.run("serve", served, "--stop").says(3)


def test_as_a_document_it_says_that_it_is_a_stand_in(local: Local, served: str) -> None:
    process = local.start("serve", served, *WORDS, "--max-model-len", "4096")
    url_of(process)
    process.terminate()
    _, told = process.communicate(timeout=60)
    assert process.returncode == 143
    assert f"exists: run service on {served} worker 0, which goes on" in told
    assert f"fix: tpukit --local serve {served}\n" in told
    jobs = json.loads(local.run("jobs", served, "--json").out)["jobs"]
    assert jobs[0]["command"] == (
        f"vllm serve {MODEL} --host 127.0.0.1 --port {{port}} --max-model-len 4096"
    )
    again = local.start("serve", served, "--port", "0", "--json")
    assert again.stdout
    text = ""
    while not text.endswith("\n}\n"):
        text += again.stdout.readline()
    document = json.loads(text)["service"]
    url = document.pop("url")
    assert document == {"run": "service", "recipe": "vllm", "stand_in": True}
    assert asked(url, "/v1/models")
    again.kill()
    assert local.run("kill", served, "service").status == 0


def test_a_lost_connection_is_made_again_to_the_same_service(local: Local, served: str) -> None:
    process = local.start("serve", served, *WORDS)
    url = url_of(process)
    assert asked(url, "/v1/completions", {"prompt": "hi"})["id"] == "cmpl-1"
    running = daemon.running(local.directory)
    assert running
    emulator = EmulatorClient(running.url, running.token)
    emulator.add_worker_fault({"node": served, "fault": "refusing"})
    try:
        told = read_until(process, "the connection is lost")
    finally:
        emulator.clear_worker_faults(served)
    told += read_until(process, "connected again")
    assert asked(url, "/v1/completions", {"prompt": "hi"})["id"] == "cmpl-2"
    assert local.run("serve", served, "--stop").status == 0
    told += process.communicate(timeout=60)[1]
    answered = [line for line in told.splitlines() if line.endswith('HTTP/1.1" 200 -')]
    assert len(answered) == 2  # no line of the log is shown twice


def test_a_recipe_of_one_s_own_runs_its_real_command_in_its_environment(
    local: Local, served: str
) -> None:
    (port,) = free_ports(1)
    command = "echo A is $A; exec python -m http.server {port} --bind 127.0.0.1"
    own_recipe(local, "files", command, port)
    missing = local.run("serve", served, "--with", "files").says(3)
    assert f"fix: tpukit --local provision {served} files" in missing.err
    make = (
        "python3 -m venv --without-pip .tpukit/venvs/files && mkdir -p site && echo hello > site/x"
    )
    assert local.run("run", served, "--", make).status == 0
    flags = ("--with", "files", "--workdir", "site", "--env", "A=1")
    process = local.start("serve", served, *flags, "--", "--protocol", "HTTP/1.1")
    assert url_of(process) == f"http://127.0.0.1:{port}"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/x", timeout=60) as answer:
        assert (answer.read(), answer.version) == (b"hello\n", 11)
    taken = local.run("serve", served).says(2)
    assert f"fix: tpukit --local serve {served} --port 0" in taken.err
    process.kill()
    _, told = process.communicate()
    assert "stand-in" not in told
    assert "A is 1\n" in told
    assert local.run("serve", served, "--stop").status == 0


def test_a_client_that_dies_while_the_service_loads_does_not_end_it(
    local: Local, served: str
) -> None:
    loads = "until [ -e loaded ]; do sleep 0.1; done"
    own_recipe(local, "late", f"{loads}; exec python -m http.server {{port}} --bind 127.0.0.1")
    make = "python3 -m venv --without-pip .tpukit/venvs/late; rm -f loaded"
    assert local.run("run", served, "--", make).status == 0
    first = local.start("serve", served, "--with", "late")
    read_until(first, "waiting until it answers")
    first.kill()
    first.communicate()
    again = local.start("serve", served, "--port", "0")
    read_until(again, "waiting until it answers")
    assert local.run("run", served, "--", "touch loaded").status == 0
    with urllib.request.urlopen(url_of(again), timeout=60) as answer:
        assert answer.status == 200
    again.kill()
    again.communicate()
    assert local.run("serve", served, "--stop").status == 0


def test_a_service_that_cannot_start_shows_the_end_of_its_log(local: Local, served: str) -> None:
    own_recipe(local, "broken", "echo no such model; exit 3")
    make = "python3 -m venv --without-pip .tpukit/venvs/broken"
    assert local.run("run", served, "--", make).status == 0
    done = local.run("serve", served, "--with", "broken").says(1)
    assert "has ended (status 3: no such model)" in done.err
    assert f"fix: tpukit --local logs {served} service" in done.err


def test_a_service_that_does_not_answer_goes_on_past_the_timeout(local: Local, served: str) -> None:
    own_recipe(local, "slow", "sleep 1000")
    make = "python3 -m venv --without-pip .tpukit/venvs/slow"
    assert local.run("run", served, "--", make).status == 0
    done = local.run("serve", served, "--with", "slow", "--timeout", "2s").says(8)
    assert f"exists: run service on {served} worker 0, which goes on" in done.err
    assert f"fix: tpukit --local serve {served}" in done.err
    assert local.run("serve", served, "--stop").status == 0


def test_a_strange_address_of_a_service_is_an_error_that_names_the_service(
    local: Local, served: str
) -> None:
    process = local.start("serve", served, *WORDS)
    url_of(process)
    process.kill()
    process.communicate()
    file = ".tpukit/jobs/run.service@*/service"
    assert local.run("run", served, "--", f"echo '[' > {file}").status == 0
    done = local.run("serve", served, "--port", "0").says(1)
    assert "an answer that is not JSON" in done.err
    assert f"exists: run service on {served} worker 0, which goes on" in done.err
    assert f"fix: tpukit --local serve {served}" in done.err
    assert local.run("serve", served, "--stop").status == 0


def test_a_service_does_not_go_on_without_its_slice(local: Local) -> None:
    assert local.run("create", "v5litepod-8", "brief").status == 0
    assert local.run("firewall", "apply", "brief").status == 0
    process = local.start("serve", "brief", *WORDS)
    url_of(process)
    assert local.run("delete", "brief", "--yes").status == 0
    _, told = process.communicate(timeout=120)
    assert process.returncode == 7, told
    # The connection breaks while the delete goes on: a read shows either moment.
    assert re.search("error: slice brief is (gone|being deleted)", told)
    assert "goes on" not in told


def test_a_slice_of_several_workers_is_refused(local: Local) -> None:
    assert local.run("create", "v3-32", "many").status == 0
    assert local.run("firewall", "apply", "many").status == 0
    done = local.run("serve", "many", *WORDS).says(2)
    assert "many has 4 workers, and serve uses slices with one" in done.err
    assert local.run("delete", "many", "--yes").status == 0


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--", MODEL), "there is no recipe to serve with"),
        (("--with", "jax", "--", MODEL), "the recipe jax has no service"),
        (("--with", "vllm"), "there is no model to serve"),
        (("--port", "65536"), "65536 is not in the range"),
        (("--stop", "--with", "vllm", "--", MODEL), "--stop takes no recipe and no model"),
    ],
)
def test_a_line_that_describes_no_service_is_refused_before_anything_is_asked(
    run: Run, words: tuple[str, ...], what: str
) -> None:
    assert what in run("serve", "nobody", *words).says(2).err


def test_no_run_of_a_user_can_be_taken_for_the_service(run: Run) -> None:
    done = run("run", "nobody", "--detach", "--run-id", "service", "--", "true").says(2)
    assert "the run service is that of tpukit serve" in done.err
