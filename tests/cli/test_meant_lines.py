"""A mistyped line ends with the line that was meant, and that line works."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.local_cloud import Cloud, bare_environment

from cli.conftest import Local, Run
from tpukit.cli.main import _command_of
from tpukit.cli.meant_lines import _BEFORE, GROUP_WORDS, WORDS, meant_line
from tpukit.cli.pages import GROUPS, VERBS

MEANT = {
    # other programs' words
    "rm demo": "delete demo",
    "rm -f demo": "delete --yes demo",
    "rm -rf demo": "delete demo",
    "ps": "jobs",
    "ls": "list",
    "status": "list",
    "status demo": "describe demo",
    "exec demo -- ls -la": "ssh demo -- ls -la",
    "docker exec -it demo bash": "ssh -t demo -- bash",
    "kubectl get pods": "list",
    "kubectl get pods --all-namespaces": "list",
    "get demo": "describe demo",
    "list demo": "describe demo",
    "list demo other": "",
    "describe demo": "",
    "tpus list": "list",
    "tpu-vm": "list",
    "tpu-vm delete demo --async": "delete demo",
    "tpu-vm list --format=json": "list --output json",
    "list --format 'value(name)'": "list --output name",
    "list --format=yaml": "list --output json",
    "tpu-vm scp --recurse train.py demo: --worker=all": "cp train.py demo: --worker=all",
    "queued-resources list": "queue list",
    "queue rm demo": "queue delete demo",
    "firewall open demo": "firewall apply demo",
    "emulator up": "emulator start",
    "version": "--version",
    "port-forward demo 8888:8888": "forward demo 8888:8888",
    "--zone us-central2-b tpu-vm describe demo": "--zone us-central2-b describe demo",
    "gcloud compute tpus tpu-vm create demo --zone us-central1-a --accelerator-type=v3-8 "
    "--version=tpu-vm-base": "create v3-8 demo --zone us-central1-a --runtime-version tpu-vm-base",
    "gcloud compute tpus tpu-vm ssh demo --zone=us-central2-b --worker=all --command='pip list'": (
        "run demo --zone=us-central2-b --worker=all -- 'pip list'"
    ),
    "tpu-vm ssh demo --command hostname": "ssh demo -- hostname",
    # settings
    "config zone": "config get zone",
    "config zone us-central2-b": "config set zone us-central2-b",
    "config set compute/zone us-central2-b": "config set zone us-central2-b",
    # misspelled words
    "lits": "list",
    "queue lst": "queue list",
    "list --zne us-central2-b": "list --zone us-central2-b",
    "up v3-8 demo --tll 8h": "up v3-8 demo --ttl 8h",
    # a name or type that was left out, or given as a flag
    "delete": "delete demo",
    "extend --ttl 8h": "extend demo --ttl 8h",
    "queue describe": "queue list",
    "config set": "",
    "wait": "wait demo",
    "watch": "watch demo",
    "firewall apply": "firewall apply demo",
    "create": "types",
    "create x --accelerator-type=v3-8": "create v3-8 x",
    "create --name x --accelerator-type v3-8": "create v3-8 x",
    "create x --type v3-8": "create v3-8 x",
    "tpu-vm ssh demo --worker=all": "run demo --worker=all -- hostname",
    "ssh demo --worker all": "run demo --worker all -- hostname",
    "ssh --worker all": "run --worker all -- hostname",
    "ssh demo -- launch --worker all": "",
    # the -- of a remote command
    "run demo python3 -c 'print(1)'": "run demo -- python3 -c 'print(1)'",
    "run demo --worker 0 ls --all": "run demo --worker 0 -- ls --all",
    "run ls -la": "run -- ls -la",
    "run hostname": "run -- hostname",
    "run python train.py": "run -- python train.py",
    "run python -- train.py": "run -- python train.py",
    "ssh hostname": "ssh -- hostname",
    "watch python train.py": "watch demo -- python train.py",
    "run train.py --steps 5": "run -- python train.py --steps 5",
    "train train.py": "train -- python train.py",
    "train demo": "train demo -- python train.py",
    "run demo": "run demo -- hostname",
    "run demo --": "run demo -- hostname",
    # the colon of a copy
    "cp train.py demo": "cp train.py demo:",
    "cp -r train.py demo": "cp train.py demo:",
    "cp demo train.py": "cp train.py demo:",
    "cp demo/results .": "cp demo:results .",
    "cp train.py demo/x": "cp train.py demo:x",
    "rsync demo:results .": "cp demo:results .",
    "push . demo:": "cp . demo:",
    "push . --watch": "push demo . --watch",
    "push other": "",
    # nothing is deleted, started or billed that was not meant
    "state demo": "describe demo",
    "undelete demo": "",
    "delete --yes": "list",
    "rm -f": "list",
    "delete --all": "",
    "delete --all --yes": "list",
    "delete other -l team=vision": "delete other --label team=vision",
    "delete other --selector=team=vision": "delete other --label team=vision",
    "kubectl delete pod demo": "delete demo",
    "gcloud compute tpus queued-resources delete demo --force": "queue delete demo",
    "delete demo --force --lable a=b": "delete demo --force --label a=b",
    # no mistake that is known
    "run demo -- ls": "",
    "run demo hostname": "",
    "ssh demo": "",
    "cp train.py demo:": "",
    "cp . /tmp": "",
    "provision demo jax": "",
    "whatever": "",
    "create v3-8 --frobnicate": "",
    "list --zone": "",
    "report demo --file x.html": "",  # no --profile
    "fetch demo": "",
    "delete --label a=b": "",
    "delete --label=a=b": "",
    "watch --list": "",
    "tpu-vm create --accelerator-type": "",
    "": "",
}


@pytest.fixture
def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_program")
@pytest.mark.parametrize(("given", "meant"), MEANT.items())
def test_a_line_is_taken_for_the_one_that_was_meant(given: str, meant: str) -> None:
    fix = meant_line(shlex.split(given), _command_of, ["demo"])
    assert (fix and str(fix)) == (f"tpukit {meant}" if meant else None)


@pytest.mark.parametrize("given", ["delete", "stop", "extend --ttl 8h", "push ."])
@pytest.mark.parametrize("names", [[], ["one", "two"]])
def test_if_there_is_not_one_slice_its_name_is_to_be_chosen(given: str, names: list[str]) -> None:
    assert str(meant_line(given.split(), _command_of, names)) == "tpukit list"


def test_no_word_of_ours_is_taken_for_another_program_s() -> None:
    ours = {*VERBS, *GROUPS}
    assert not ours & {*WORDS, *_BEFORE}
    targets = {word.split()[0] for meant in WORDS.values() for word in meant.split("|")}
    assert targets <= ours | {"--version"}
    for group, words in GROUP_WORDS.items():
        commands = {*_command_of(group).commands}
        assert not commands & {*words}, group
        assert {*words.values()} <= commands, group


@pytest.mark.process
def test_an_error_shows_the_line_that_was_meant(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    assert "fix: tpukit delete demo\n" in run("rm", "demo", environment=environment).says(2).err
    said = run("lits", "--json", environment=environment)
    assert said.status == 2
    assert said.document["error"]["fix_arguments"] == ["tpukit", "list", "--json"]
    assert (
        "error: No such command 'ls'\nfix: tpukit list\n" in run("ls", environment=environment).err
    )
    told = run("config", "set", "compute/zone", "us-east5-a", environment=environment).says(2).err
    assert "fix: tpukit config set zone us-east5-a\nfix: tpukit config explain\n" in told


@pytest.mark.process
def test_without_a_home_folder_a_mistyped_line_is_an_error_too(run: Run) -> None:
    assert (
        "fix: tpukit delete demo\n" in run("rm", "demo", environment={"PATH": "/bin"}).says(2).err
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("given", "status"),
    [
        ("status NAME", 2),
        ("exec NAME -- hostname", 2),
        ("run NAME python3 -c 'print(1)'", 2),
        ("run NAME", 2),
        ("run ls -la /", 2),
        ("run python3 -V", 2),
        ("run hostname", 2),
        ("tpu-vm ssh NAME --worker=all --command=hostname", 2),
        ("cp train.py NAME", 2),
        ("tpus list", 2),
    ],
)
@pytest.mark.usefixtures("_program")
def test_a_suggested_line_works_when_it_is_pasted(alone: Local, given: str, status: int) -> None:
    failed = alone.run(*shlex.split(given.replace("NAME", "single")))
    assert failed.status == status, failed.err
    (line,) = (
        line.removeprefix("fix: ")
        for line in failed.err.splitlines()
        if line.startswith("fix: tpukit")
    )
    done = alone.run(*shlex.split(line)[1:])
    assert done.status == 0, f"{line}: {done.err}"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """An emulator with one slice, `single`."""
    home = tmp_path_factory.mktemp("alone")
    job = Local({**bare_environment(home), "TPUKIT_LOCAL": "1"})
    for words in (
        ("emulator", "start", "--create-seconds", "0.2"),
        ("create", "v3-8", "single"),
        ("firewall", "apply", "single"),
    ):
        done = job.run(*words)
        assert done.status == 0, done.err
    yield job
    job.close()
