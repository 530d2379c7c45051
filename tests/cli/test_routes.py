"""How workers are reached: the same flags on every verb that reaches one."""

from __future__ import annotations

import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from support.local_cloud import ZONE, Cloud, json_reply, scripted

from cli.conftest import Run
from tpukit.access import ssh_rule
from tpukit.cli.global_flags import CONNECTING
from tpukit.cli.main import application
from tpukit.cli.parameters import RouteFlags
from tpukit.errors import BadInput
from tpukit.ssh import dial
from tpukit.ssh.target import Target

pytestmark = pytest.mark.process

#: A command line of each verb that reaches workers.
VERBS = {
    "attach": ("attach", "demo"),
    "cp": ("cp", "demo:a", "b"),
    "diagnose": ("diagnose", "demo"),
    "forward": ("forward", "demo", "0:80"),
    "jobs": ("jobs", "demo"),
    "kill": ("kill", "demo", "--all"),
    "logs": ("logs", "demo"),
    "notebook": ("notebook", "demo"),
    "profile": ("profile", "demo"),
    "provision": ("provision", "demo"),
    "provision plan": ("provision", "plan", "demo"),
    "provision status": ("provision", "status", "demo"),
    "provision undo": ("provision", "undo", "demo", "jax"),
    "push": ("push", "demo", "project"),
    "run": ("run", "demo"),
    "run --detach": ("run", "demo", "--detach"),
    "smoke": ("smoke", "demo"),
    "ssh": ("ssh", "demo"),
    "ssh-config": ("ssh-config", "demo"),
    "top": ("top", "demo", "--once"),
}


def words_of(verb: str, *flags: str) -> tuple[str, ...]:
    line = VERBS[verb]
    remote = ("--", "true") if line[0] in ("run", "ssh", "diagnose") else ()
    return (*line, *flags, *remote)


def test_each_verb_whose_suggested_lines_repeat_the_route_takes_its_flags() -> None:
    commands = typer.main.get_command(application())
    for name in CONNECTING:
        command = commands.commands[name]
        command = command.commands["apply"] if name == "provision" else command
        for one in command.commands.values() if name == "ray" else (command,):
            assert {"iap", "jump", "internal_ips"} <= {flag.name for flag in one.params}, name


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_reaches_workers_goes_by_the_route_that_was_asked_for(
    run: Run, standing: Cloud, tmp_path: Path, verb: str
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "pushed").touch()
    result = run(*words_of(verb, "--jump", "ghost"), environment=standing.environment())
    assert result.status == 3, result.err
    assert "no slice ghost" in result.err


@pytest.mark.parametrize("verb", VERBS)
def test_without_external_addresses_every_verb_names_the_routes_before_it_waits(
    run: Run, prompt_cloud: Cloud, tmp_path: Path, verb: str
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "pushed").touch()
    prompt_cloud.tpu.create(prompt_cloud.request(external_addresses=False))
    result = run(*words_of(verb), environment=prompt_cloud.environment()).says(2)
    assert "the workers of slice demo have no external addresses" in result.err
    assert "--iap, --jump with a host inside, or --internal-ips" in result.err


def test_the_rule_for_identity_aware_proxy_admits_its_range_alone(
    run: Run, prompt_cloud: Cloud
) -> None:
    prompt_cloud.tpu.create(prompt_cloud.request(external_addresses=False))
    result = run("firewall", "apply", "demo", "--iap", environment=prompt_cloud.environment())
    assert result.status == 0, result.err
    (rule,) = prompt_cloud.firewall.list()
    assert rule.source_ranges == ("35.235.240.0/20",)
    found = prompt_cloud.tpu.get(ZONE, "demo")
    assert ssh_rule.missing(prompt_cloud.firewall, found, "35.235.240.0/20") == ""
    assert "admits tcp:22" in ssh_rule.missing(prompt_cloud.firewall, found, "35.235.0.0/16")


def test_a_slice_without_external_addresses_is_made_with_a_rule_for_the_route_alone(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    plain = ("create", "v3-8", "plain", "--internal-ips")
    result = run(*plain, environment=environment)
    assert result.status == 0
    assert f"next: tpukit up v3-8 plain --zone {ZONE} --internal-ips\n" in result.err
    assert prompt_cloud.firewall.list() == ()
    result = run("create", "v3-8", "demo", "--internal-ips", "--iap", environment=environment)
    assert result.status == 0, result.err
    assert f"next: tpukit up v3-8 demo --zone {ZONE} --iap --internal-ips\n" in result.err
    assert [rule.source_ranges for rule in prompt_cloud.firewall.list()] == [("35.235.240.0/20",)]


def test_the_rule_for_a_jump_admits_the_worker_that_leads_there(
    run: Run, prompt_cloud: Cloud
) -> None:
    prompt_cloud.tpu.create(prompt_cloud.request(external_addresses=False))
    prompt_cloud.tpu.create(prompt_cloud.request("gate", accelerator_type="v3-32"))
    environment = prompt_cloud.environment()
    result = run("firewall", "apply", "demo", "--jump", "gate:2", environment=environment)
    assert result.status == 0, result.err
    inside = prompt_cloud.tpu.get(ZONE, "gate").workers[2].internal_address
    assert prompt_cloud.firewall.list()[0].source_ranges == (f"{inside}/32",)


def test_the_address_of_a_jump_host_inside_the_network_has_to_be_given(
    run: Run, prompt_cloud: Cloud
) -> None:
    prompt_cloud.tpu.create(prompt_cloud.request(external_addresses=False))
    environment = prompt_cloud.environment()
    words = ("firewall", "apply", "demo", "--jump", "ada@bastion.example.com")
    assert "--source-range" in run(*words, environment=environment).says(2).err
    given = run(*words, "--source-range", "10.1.2.3", environment=environment)
    assert given.status == 0, given.err
    assert prompt_cloud.firewall.list()[0].source_ranges == ("10.1.2.3/32",)


def test_up_without_external_addresses_is_refused_before_the_create_where_no_way_leads_in(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    result = run("up", "v3-8", "demo", "--internal-ips", environment=environment).says(2)
    assert "it is not on Google's network" in result.err
    assert "--iap" in result.err
    assert prompt_cloud.nodes() == []


@pytest.mark.parametrize(
    ("jump", "worker", "host"),
    [
        ("demo", ("demo", "0"), ("", "")),
        ("demo:12", ("demo", "12"), ("", "")),
        ("ada@gate", ("", ""), ("ada@gate", "")),
        ("ada@gate.example.com:2222", ("", ""), ("ada@gate.example.com", "2222")),
        ("198.51.100.7", ("", ""), ("198.51.100.7", "")),
    ],
)
def test_a_jump_is_a_worker_or_a_host(
    jump: str, worker: tuple[str, str], host: tuple[str, str]
) -> None:
    flags = RouteFlags(jump=jump)
    flags.check()
    assert (flags.jump_worker, flags.jump_host) == (worker, host)


@pytest.mark.parametrize("jump", ["-oProxyCommand=x", "a b", "demo:x", "-x@gate.b", "gate.b:1:2"])
def test_a_jump_that_is_neither_is_refused(jump: str) -> None:
    with pytest.raises(BadInput, match="neither a worker nor a host"):
        RouteFlags(jump=jump).check()


def test_openssh_reads_the_command_line_of_a_jump_as_it_is_meant() -> None:
    target = Target("demo worker 0", 0, "10.128.0.2", 22, "ada", ())
    words = dial.jump_command("ada@gate.example.com", "2222", target)
    shown = subprocess.run([words[0], "-G", *words[1:]], capture_output=True, text=True, check=True)
    read = dict(line.split(" ", 1) for line in shown.stdout.splitlines() if " " in line)
    assert (read["user"], read["hostname"], read["port"]) == ("ada", "gate.example.com", "2222")
    assert read["batchmode"] == "yes"


#: Stands for `gcloud … start-iap-tunnel HOST PORT …` and for `ssh -W [ADDRESS]:PORT … HOST`.
STAND_IN = """#!{python}
import os, socket, sys, threading
words = sys.argv[1:]
if "-W" in words:
    host, _, port = words[words.index("-W") + 1].rpartition(":")
    address = host.strip("[]")
else:
    address, port = "{address}", words[words.index("start-iap-tunnel") + 2]
print("through", os.path.basename(sys.argv[0]), file=sys.stderr)
worker = socket.create_connection((address, int(port)))
def back():
    while data := worker.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=back, daemon=True).start()
while data := os.read(0, 65536):
    worker.sendall(data)
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder whose programs are found before all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "route"), [("gcloud", ("--iap",)), ("ssh", ("--jump", "ada@gate.example.com"))]
)
def test_a_run_that_was_started_through_a_proxy_is_listed_and_ended_through_it(
    run: Run, own_emulator: dict[str, str], programs: Path, program: str, route: tuple[str, ...]
) -> None:
    made = run("create", "v3-8", "demo", "--internal-ips", "--json", environment=own_emulator)
    address = made.document["slice"]["workers"][0]["internal_address"]
    stand_in = programs / program
    stand_in.write_text(STAND_IN.format(python=sys.executable, address=address))
    stand_in.chmod(stat.S_IRWXU)

    def call(*words: str) -> str:
        result = run(*words, environment=own_emulator)
        assert result.status == 0, result.err
        assert result.err.count(f"through {program}") == 1, result.err
        return result.out

    applied = ("firewall", "apply", "demo", "--internal-ips")
    assert run(*applied, environment=own_emulator).status == 0
    call("run", "demo", *route, "--detach", "--run-id", "long", "--", "sleep 60")
    assert "long" in call("jobs", "demo", *route)
    call("kill", "demo", "long", *route)


def test_what_gcloud_says_of_a_tunnel_is_in_the_error(
    run: Run, own_emulator: dict[str, str], programs: Path
) -> None:
    said = "ERROR: (gcloud.alpha.compute.start-iap-tunnel) [4033: 'not authorized']."
    stand_in = programs / "gcloud"
    stand_in.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    stand_in.chmod(stat.S_IRWXU)
    assert run("create", "v3-8", "demo", "--internal-ips", environment=own_emulator).status == 0
    words = ("run", "demo", "--iap", "--timeout", "2s", "--json", "--", "true")
    result = run(*words, environment=own_emulator)
    assert result.status == 255
    (outcome,) = result.document["results"]
    assert outcome["error"]["message"] == "gcloud does not lead to demo worker 0"
    assert outcome["error"]["reason"] == said


@pytest.mark.process
def test_a_jump_host_that_refuses_us_is_to_be_tried_by_hand(
    run: Run, own_emulator: dict[str, str], programs: Path
) -> None:
    stand_in = programs / "ssh"
    stand_in.write_text("#!/bin/sh\necho 'gate: Permission denied (publickey).' >&2; exit 255\n")
    stand_in.chmod(stat.S_IRWXU)
    assert run("create", "v3-8", "demo", "--internal-ips", environment=own_emulator).status == 0
    words = ("run", "demo", "--jump", "ada@gate.example.com:2222", "--timeout", "2s", "--", "true")
    result = run(*words, environment=own_emulator)
    assert result.status == 255
    assert "does not lead to demo worker 0 (gate: Permission denied (publickey).)" in result.err
    assert "next: ssh -p 2222 -- ada@gate.example.com true\n" in result.err
    without = {**own_emulator, "PATH": str(programs.parent)}
    for flag, program in (("--iap", "gcloud"), ("--jump=ada@gate.example.com", "ssh")):
        missing = run("run", "demo", flag, "--", "true", environment=without)
        assert missing.status == 2, "it does not wait for a minute"
        assert f"goes through {program}, which cannot be run" in missing.err


@pytest.mark.process
@pytest.mark.parametrize("missing", [True, False])
def test_up_through_a_gcloud_that_cannot_tunnel_ends_before_the_create(
    run: Run, own_emulator: dict[str, str], programs: Path, missing: bool
) -> None:
    if missing:
        environment = {**own_emulator, "PATH": str(programs)}
        status, words = 2, ("cannot be run: No such file", "cloud.google.com/sdk/docs/install")
    else:
        stand_in = programs / "gcloud"
        stand_in.write_text("#!/bin/sh\necho no active account >&2; echo more >&2; exit 1\n")
        stand_in.chmod(stat.S_IRWXU)
        environment = own_emulator
        status, words = 4, ("why: no active account\n", "fix: gcloud auth login")
    up = ("up", "v2-8", "demo", "--internal-ips", "--iap")
    result = run(*up, environment=environment).says(status)
    assert all(word in result.err for word in words)
    assert run("list", "--json", environment=own_emulator).document["slices"] == []


#: Stands for OpenSSH: says that it runs, waits to be let go on, and looks for its host's keys.
WAITING_SSH = """#!{python}
import pathlib, sys
options = dict(each.split("=", 1) for each in sys.argv if "=" in each)
print("runs", flush=True)
sys.stdin.readline()
known = pathlib.Path(options["UserKnownHostsFile"].strip('"')).read_text()
sys.exit(0 if options["HostKeyAlias"] in known else 255)
"""


@pytest.mark.process
def test_two_shells_at_once_do_not_take_each_other_s_known_hosts(
    run: Run, own_emulator: dict[str, str], programs: Path
) -> None:
    assert run("create", "v4-16", "demo", environment=own_emulator).status == 0
    assert run("firewall", "apply", "demo", environment=own_emulator).status == 0
    stand_in = programs / "ssh"
    stand_in.write_text(WAITING_SSH.format(python=sys.executable))
    stand_in.chmod(stat.S_IRWXU)
    shells = [
        subprocess.Popen(
            [sys.executable, "-m", "tpukit", "ssh", "demo", "--worker", worker],
            env=own_emulator,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for worker in "01"
    ]
    for shell in shells:
        assert shell.stdout
        assert shell.stdout.readline() == "runs\n"
    for shell in shells:
        shell.communicate("go on\n", timeout=60)
    assert [shell.returncode for shell in shells] == [0, 0]


def test_ssh_config_leads_through_a_worker_and_through_a_host(
    run: Run, prompt_cloud: Cloud, tmp_path: Path
) -> None:
    prompt_cloud.tpu.create(prompt_cloud.request(external_addresses=False))
    prompt_cloud.tpu.create(prompt_cloud.request("gate", accelerator_type="v3-32"))
    environment = prompt_cloud.environment()
    config = Path(environment["TPUKIT_HOME"], "state/ssh/config")

    def proxy(jump: str, host: str) -> str:
        words = ("ssh-config", "demo", "--jump", jump)
        result = run(*words, environment=environment)
        assert result.status == 0, result.err
        assert f"next: tpukit {' '.join(words)} --install\n" in result.err
        shown = subprocess.run(
            ["ssh", "-F", str(config), "-G", host], capture_output=True, text=True, check=True
        ).stdout
        (line,) = (line for line in shown.splitlines() if line.startswith("proxycommand "))
        return line.removeprefix("proxycommand ")

    address = prompt_cloud.tpu.get(ZONE, "demo").workers[0].internal_address
    through = proxy("ada@gate.example.com:2222", "tpu.demo")
    assert through.endswith(f"-W '[{address}]:22' -p 2222 -- ada@gate.example.com")
    program, *words = shlex.split(proxy("gate:3", "tpu.demo"))
    shown = subprocess.run([program, "-G", *words], capture_output=True, text=True, check=True)
    gate = prompt_cloud.tpu.get(ZONE, "gate")
    assert f"\nhostname {gate.workers[3].external_address}\n" in f"\n{shown.stdout}"
    assert f"\nhostkeyalias tpukit.{gate.project}.{ZONE}.gate.3\n" in shown.stdout
    assert "\nstricthostkeychecking true\n" in shown.stdout
    assert words[words.index("-W") + 1] == f"[{address}]:22"


def test_ssh_config_names_the_zones_that_did_not_answer(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    with scripted(json_reply(200, {"unreachable": ["us-east1-d"]})) as server:
        environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"] = f"{server.url}/"
        result = run("ssh-config", environment=environment)
    assert "no answer from us-east1-d: slices there are left out" in result.err
