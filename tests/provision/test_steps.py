"""Facts in, commands out: every row of the table goes through one runner."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass, replace

import pytest

from tpukit.errors import ProvisionFailed
from tpukit.jobs.shell_environment import recipe_lines
from tpukit.provision.facts import Facts, HostFacts, Python, Venv
from tpukit.provision.recipes import Recipe, uv_requirement
from tpukit.provision.requirements import Requirements
from tpukit.provision.steps import STEPS, Plan, Run, Upload, interpreter, room
from tpukit.provision.system_apply import SystemPlan, check_plan
from tpukit.provision.system_facts import StepFact, SystemFacts
from tpukit.provision.system_steps import SystemStep, parse
from tpukit.ssh.programs import program_text
from tpukit.ssh.worker import RemoteWorker
from tpukit.ssh.worker_files import UV_VERSION
from tpukit.text import quote

HOME = "/home/me"
UV = f"{HOME}/.tpukit/uv-{UV_VERSION}"
RUN_UV = f"{UV}/bin/uv --no-progress --color=never"
VENV = f"{HOME}/.tpukit/venvs/jax"
VENV_OF_VLLM = f"{HOME}/.tpukit/venvs/vllm"
JAX_PINS = "'jax[tpu]==0.12.0.1' jaxlib==0.12.0.1 libtpu==0.0.50.1 requests tpu-info==0.14.2"
LOCKED = f"--require-hashes --requirements {VENV}/tpukit-lock.txt"


def locked(python: str, emulated: bool = False) -> dict[str, str]:
    """What the lock of the recipe jax names, with versions."""
    lines = Recipe.named("jax").lock_text(python, emulated).splitlines()
    pins = [line.split()[0].split("==") for line in lines if not line.startswith("#")]
    return dict(pins)


INSTALLED = locked("3.12")
PYTHON_3_8 = Python(path="/usr/bin/python3", version="3.8.10", pip=True)
PYTHON_3_10 = Python(path="/usr/bin/python3", version="3.10.12", pip=True)
PYTHON_3_11 = Python(path="/opt/python3.11", version="3.11.7", pip=True)
PYTHON_3_12 = Python(path="/opt/python3.12", version="3.12.1", pip=True)
REQUIREMENTS = Requirements(
    {"requirements.txt": b"-r 0-own.txt\n", "0-own.txt": b"einops==0.8.0\n"}
)
DIGEST = REQUIREMENTS.digest
FOLDER = f"{VENV}/requirements-{DIGEST[:12]}"


def host(**changes: object) -> HostFacts:
    usual = {"system": "Linux", "architecture": "x86_64", "glibc": "2.35"}
    room = {"home": HOME, "free_kilobytes": 90_000_000, "emulated_devices": 0}
    return HostFacts(**{**usual, **room, **changes})


def venv(version: str = "3.12.1", packages: dict[str, str] = INSTALLED, **marks: object) -> Venv:
    return Venv(name="jax", version=version, packages=packages, **marks)


def facts(*pythons: Python, on: HostFacts | None = None, venvs: tuple[Venv, ...] = ()) -> Facts:
    return Facts(host=on or host(), pythons=pythons, venvs=venvs, uvs=frozenset())


@dataclass(frozen=True)
class Row:
    """A step, the facts it sees, and either commands, or what its reason, its error and why say."""

    step: str
    facts: Facts
    commands: tuple[str, ...] = ()
    says: str = ""
    fails: str = ""
    recipe: str = "jax"
    requirements: Requirements | None = None


MAKE = "venv --clear --no-project --no-python-downloads --python"
INSTALL = f"install_packages.sh {VENV} {RUN_UV} pip install --python {VENV}/bin/python"
#: What the shell programs are shown as.
PROGRAMS = ("install_uv.sh", "install_packages.sh", "install_requirements.sh")

TABLE = {
    "a TPU VM that fits": Row("system", facts(), says="Linux x86_64, glibc 2.35"),
    "another architecture": Row(
        "system", facts(on=host(architecture="aarch64")), fails="jax needs Linux x86_64"
    ),
    "nothing that stands in": Row(
        "system",
        facts(on=host(emulated_devices=8)),
        fails="an emulated worker cannot have torch_tpu",
        recipe="torch_tpu",
    ),
    "vllm on the emulator": Row(
        "system",
        facts(on=host(emulated_devices=8)),
        fails="an emulated worker cannot have vllm",
        recipe="vllm",
    ),
    "an old glibc": Row(
        "system", facts(on=host(glibc="2.27")), fails="jax needs glibc 2.31 or later"
    ),
    "no glibc": Row("system", facts(on=host(glibc="")), fails="jax needs glibc 2.31 or later"),
    "an emulated worker on a Mac": Row(
        "system",
        facts(on=host(system="Darwin", architecture="arm64", glibc="", emulated_devices=8)),
        says="Darwin arm64, emulated: 8 devices",
    ),
    "room enough": Row("disk", facts(PYTHON_3_12), says="87890 MB free, 3000 MB needed"),
    "vllm needs a large disk": Row(
        "disk",
        facts(PYTHON_3_12, on=host(free_kilobytes=10_000_000)),
        fails="vllm needs 16000 MB of disk, but only 9765 MB are free",
        recipe="vllm",
    ),
    "a full disk": Row(
        "disk",
        facts(PYTHON_3_12, on=host(free_kilobytes=2_000_000)),
        fails="jax needs 3000 MB of disk, but only 1953 MB are free",
    ),
    "a disk that a log fills": Row(
        "disk",
        facts(PYTHON_3_12, on=host(free_kilobytes=9, kernel_log_bytes=16 << 30)),
        fails="jax needs 3000 MB of disk, but only 0 MB are free",
        says="sudo systemctl restart healthagent.service",
    ),
    "a stand-in needs less": Row(
        "disk",
        facts(PYTHON_3_12, on=host(free_kilobytes=2_000_000, emulated_devices=8)),
        says="1953 MB free, 1500 MB needed",
    ),
    "a full disk with all installed": Row(
        "disk", facts(venvs=(venv(),), on=host(free_kilobytes=1)), says="the packages are there"
    ),
    "uv by pip": Row(
        "uv",
        facts(PYTHON_3_8),
        (f"install_uv.sh /usr/bin/python3 pip {UV} '{uv_requirement()}'",),
    ),
    "uv by a throw-away environment": Row(
        "uv",
        facts(Python(path="/usr/bin/python3", version="3.10.12", venv=True)),
        (f"install_uv.sh /usr/bin/python3 venv {UV} '{uv_requirement()}'",),
    ),
    "neither pip nor venv": Row(
        "uv",
        facts(Python(path="/usr/bin/python3", version="3.10.12")),
        fails="no Python on the worker can install uv",
    ),
    "too old for uv": Row(
        "uv",
        facts(Python(path="/usr/bin/python3", version="3.6.15", pip=True)),
        fails="no Python on the worker can install uv",
    ),
    "no Python at all": Row("uv", facts(), fails="no Python on the worker can install uv"),
    "uv is there": Row(
        "uv",
        facts(PYTHON_3_8).model_copy(update={"uvs": frozenset({UV_VERSION, "0.1"})}),
        says=f"uv {UV_VERSION}",
    ),
    "another uv is there": Row(
        "uv",
        facts(PYTHON_3_8).model_copy(update={"uvs": frozenset({"0.13.8"})}),
        (f"install_uv.sh /usr/bin/python3 pip {UV} '{uv_requirement()}'",),
    ),
    "the worker's own Python fits": Row(
        "python", facts(PYTHON_3_10, PYTHON_3_11), says="Python 3.11.7 at /opt/python3.11"
    ),
    "the preferred release decides": Row(
        "python", facts(PYTHON_3_11, PYTHON_3_12), says="Python 3.12.1 at /opt/python3.12"
    ),
    "the environment's Python stays": Row(
        "python", facts(PYTHON_3_12, venvs=(venv("3.11.7"),)), says="3.11.7 in the environment"
    ),
    "an image with Python 3.10": Row(
        "python",
        facts(PYTHON_3_10),
        (f"{RUN_UV} python install 3.12 --install-dir {HOME}/.tpukit/pythons --no-bin",),
        says="needs Python 3.11 or 3.12 or 3.13 or 3.14, the worker has /usr/bin/python3 3.10.12",
    ),
    "another implementation of Python": Row(
        "python",
        facts(Python(path="/opt/pypy3", version="3.11.11", implementation="PyPy")),
        (f"{RUN_UV} python install 3.12 --install-dir {HOME}/.tpukit/pythons --no-bin",),
    ),
    "torch_xla runs on 3.10": Row(
        "python", facts(PYTHON_3_10), says="Python 3.10.12 at", recipe="torch_xla"
    ),
    "vllm has a wheel for one Python": Row(
        "python",
        facts(PYTHON_3_11),
        (f"{RUN_UV} python install 3.12 --install-dir {HOME}/.tpukit/pythons --no-bin",),
        says="needs Python 3.12, the worker has /opt/python3.11 3.11.7",
        recipe="vllm",
    ),
    "no environment": Row("venv", facts(PYTHON_3_12), (f"{RUN_UV} {MAKE} /opt/python3.12 {VENV}",)),
    "an environment that fits": Row(
        "venv", facts(PYTHON_3_12, venvs=(venv("3.11.7"),)), says="with Python 3.11.7"
    ),
    "an environment that does not": Row(
        "venv",
        facts(PYTHON_3_12, venvs=(venv("3.10.12"),)),
        (f"{RUN_UV} {MAKE} /opt/python3.12 {VENV}",),
        says="its Python 3.10.12 does not fit",
    ),
    "no Python for an environment": Row(
        "venv", facts(PYTHON_3_10), fails="no Python on the worker fits jax"
    ),
    "packages on a TPU VM": Row(
        "packages",
        facts(venvs=(venv(packages={}),)),
        (f"upload {VENV}/tpukit-lock.txt", f"{INSTALL} {LOCKED}"),
        says="missing: jax==0.12.0.1, jaxlib==0.12.0.1, libtpu==0.0.50.1, requests==",
    ),
    "vllm on a TPU VM, from its lock": Row(
        "packages",
        facts(venvs=(venv(packages={}).model_copy(update={"name": "vllm"}),)),
        tuple(
            command.replace(VENV, VENV_OF_VLLM)
            for command in (f"upload {VENV}/tpukit-lock.txt", f"{INSTALL} {LOCKED}")
        ),
        says="missing: jax==0.11.2, jaxlib==0.11.2, libtpu==0.0.48",
        recipe="vllm",
    ),
    "packages on a Mac, for which there is no lock": Row(
        "packages",
        facts(
            venvs=(venv("3.11.7", packages={}),),
            on=host(system="Darwin", architecture="arm64", emulated_devices=8),
        ),
        (f"{INSTALL} jax==0.10.2 jaxlib==0.10.2 requests tpu-info==0.14.2",),
    ),
    "a package of another version by the user's requirements": Row(
        "packages",
        facts(venvs=(venv(packages={**INSTALLED, "numpy": "2.3"}, requirements="sha"),)),
        says="jax==0.12.0.1",
    ),
    "a package that the lock alone names": Row(
        "packages",
        facts(venvs=(venv(packages={**INSTALLED, "numpy": "2.3"}),)),
        (f"upload {VENV}/tpukit-lock.txt", f"{INSTALL} {LOCKED}"),
        says="missing: numpy==",
    ),
    "packages on an emulated worker": Row(
        "packages",
        facts(venvs=(venv("3.11.7", packages={}),), on=host(emulated_devices=8)),
        (f"upload {VENV}/tpukit-lock.txt", f"{INSTALL} {LOCKED}"),
    ),
    "a package of another version": Row(
        "packages",
        facts(venvs=(venv(packages={**INSTALLED, "libtpu": "0.0.52"}),)),
        (f"upload {VENV}/tpukit-lock.txt", f"{INSTALL} {LOCKED}"),
        says="missing: libtpu==0.0.50.1",
    ),
    "all packages there": Row(
        "packages", facts(venvs=(venv(),)), says="jax==0.12.0.1, jaxlib==0.12.0.1, libtpu"
    ),
    "an installation that was cut short": Row(
        "packages",
        facts(venvs=(venv(installing=True),)),
        (f"upload {VENV}/tpukit-lock.txt", f"{INSTALL} {LOCKED}"),
        says="an installation was not finished",
    ),
    "the driver is no matter on an emulated worker": Row(
        "packages",
        facts(
            venvs=(venv(packages={**INSTALLED, "libtpu": "1"}),),
            on=host(emulated_devices=8),
        ),
        says="jax==0.12.0.1, jaxlib==0.12.0.1",
    ),
    "no requirements": Row("requirements", facts(venvs=(venv(),)), says="none given"),
    "requirements": Row(
        "requirements",
        facts(venvs=(venv(),)),
        (
            f"upload {FOLDER}/requirements.txt",
            f"upload {FOLDER}/0-own.txt",
            f"install_requirements.sh {FOLDER} '' {VENV} {UV}/bin/uv {INSTALL} {JAX_PINS}",
            f"upload {VENV}/tpukit-requirements",
        ),
        requirements=REQUIREMENTS,
    ),
    "requirements that are installed": Row(
        "requirements",
        facts(venvs=(venv(requirements=DIGEST),)),
        says=f"installed, sha256 {DIGEST[:12]}",
        requirements=REQUIREMENTS,
    ),
    "a project": Row(
        "requirements",
        facts(venvs=(venv(requirements=DIGEST),)),
        (
            f"upload {FOLDER}/requirements.txt",
            f"upload {FOLDER}/0-own.txt",
            f"upload {FOLDER}/variables",
            f"install_requirements.sh {FOLDER} work {VENV} {UV}/bin/uv {INSTALL} {JAX_PINS}",
            f"upload {VENV}/tpukit-requirements",
        ),
        requirements=replace(REQUIREMENTS, editable="work", variables={"TOKEN": "secret"}),
    ),
    "a project that is installed": Row(
        "requirements",
        facts(venvs=(venv(requirements=DIGEST, editable="work"),)),
        says="work as it is there",
        requirements=replace(REQUIREMENTS, editable="work"),
    ),
    "requirements in an environment that does not fit": Row(
        "requirements",
        facts(PYTHON_3_12, venvs=(venv("3.10.12", requirements=DIGEST),)),
        (
            f"upload {FOLDER}/requirements.txt",
            f"upload {FOLDER}/0-own.txt",
            f"install_requirements.sh {FOLDER} '' {VENV} {UV}/bin/uv {INSTALL} {JAX_PINS}",
            f"upload {VENV}/tpukit-requirements",
        ),
        requirements=REQUIREMENTS,
    ),
    "variables": Row(
        "variables",
        facts(venvs=(venv(),)),
        (f"upload {VENV}/tpukit-variables",),
        says="not as the recipe has them",
    ),
    "variables that are there": Row(
        "variables",
        facts(venvs=(venv(variables=recipe_lines(Recipe.named("jax").environment)),)),
        says="JAX_COMPILATION_CACHE_DIR",
    ),
    "variables of an earlier recipe": Row(
        "variables",
        facts(venvs=(venv(variables="export OLD=1\n").model_copy(update={"name": "torch_xla"}),)),
        (f"upload {HOME}/.tpukit/venvs/torch_xla/tpukit-variables",),
        recipe="torch_xla",
    ),
    "no variables": Row(
        "variables",
        facts(venvs=(venv().model_copy(update={"name": "torch_xla"}),)),
        says="none",
        recipe="torch_xla",
    ),
    "not verified": Row(
        "verify",
        facts(venvs=(venv(),)),
        (
            f"upload {VENV}/tpukit-verify.py",
            f'sh -c \'. "$0" && exec "$@"\' {VENV}/tpukit-variables {VENV}/bin/python -I '
            f"{VENV}/tpukit-verify.py jax "
            "jax==0.12.0.1 jaxlib==0.12.0.1 libtpu==0.0.50.1 requests tpu-info==0.14.2",
            f"upload {VENV}/tpukit-verified",
        ),
    ),
}


def shown(command: Run | Upload) -> str:
    if isinstance(command, Upload):
        return f"upload {command.path}"
    line = command.shell
    for name in PROGRAMS:
        program = quote(["sh", "-c", program_text(f"provision/{name}"), "sh"])
        line = line.replace(program, name)
    return line


def decide(row: Row):
    return STEPS[row.step](row.facts, Plan(Recipe.named(row.recipe), row.requirements))


def test_a_step_yields_exactly_these_commands_or_says_why_none_is_needed():
    for row in TABLE.values():
        if row.fails:
            with pytest.raises(ProvisionFailed) as caught:
                decide(row)
            assert row.fails in caught.value.what
            assert row.says in caught.value.why
        else:
            decision = decide(row)
            assert tuple(map(shown, decision.commands)) == row.commands
            assert row.says in decision.reason
            assert decision.reason


def test_what_is_not_pinned_is_told_as_it_is_installed():
    newest = Recipe.named("jax").upgraded("now")
    found = facts(venvs=(venv(upgraded="now"),))
    decision = STEPS["packages"](found, Plan(newest))
    assert (decision.commands, "jax==0.12.0.1, " in f"{decision.reason}, ") == ((), True), decision


def test_every_step_has_rows():
    assert {row.step for row in TABLE.values()} == STEPS.keys()


def test_room_is_needed_for_steps_and_recipes_together_where_they_share_a_disk():
    """Each: MB free at home and in all, MB that the step needs, whether it moves caches away."""
    jax = Plan(Recipe.named("jax"))
    megabytes = room(facts(PYTHON_3_12), jax)
    much = 10 * megabytes
    for home, least, step_needs, makes_room, refused in (
        (megabytes + 200, megabytes + 200, 200, False, ""),
        (megabytes + 199, megabytes + 199, 200, False, f"beside 200 MB .* {megabytes + 199} MB"),
        (megabytes + 199, 200, 200, False, ""),  # a home on a disk of its own
        (megabytes - 1, 200, 200, False, f"needs {megabytes} MB of disk"),
        (megabytes - 1, megabytes - 1, 0, True, ""),  # how much that makes nobody knows yet
        (much, 199, 200, False, "only 199 MB of disk free, but 200 MB may be needed"),
    ):
        step = replace(parse("dotfiles=file:///x"), step=SystemStep("x", "", megabytes=step_needs))
        step = replace(step, step=replace(step.step, makes_room=makes_room))
        system = SystemFacts({step.word: StepFact(["much"])}, free_kilobytes=least * 1024)
        own = facts(PYTHON_3_12, on=host(free_kilobytes=home * 1024))
        worker = RemoteWorker(0, lambda: pytest.fail("it was connected to"))
        plan = SystemPlan((step,), {worker: system}, {worker: own})
        if not refused:
            check_plan(plan, (jax,))
            continue
        with pytest.raises(ProvisionFailed, match=refused) as caught:
            check_plan(plan, (jax,))
        assert caught.value.why == "nothing was changed"
    fills = SystemFacts({step.word: StepFact(["much"])}, kernel_log_bytes=16 << 30)
    with pytest.raises(ProvisionFailed, match="0 MB of disk free, but 200 MB may be") as caught:
        check_plan(SystemPlan((step,), {worker: fills}, {}))
    assert "sudo systemctl restart healthagent.service" in caught.value.why
    strange = facts(PYTHON_3_12, on=host(architecture="aarch64"))
    with pytest.raises(ProvisionFailed, match="needs Linux") as caught:
        check_plan(SystemPlan((), {worker: SystemFacts()}, {worker: strange}), (jax,))
    assert caught.value.reason.startswith("worker 0, ")


def test_a_verified_environment_is_verified_again_once_a_package_changes():
    row = Row("verify", facts(venvs=(venv(),)))
    *_, mark = decide(row).commands
    digest = mark.data.decode()
    assert not decide(Row("verify", facts(venvs=(venv(verified=digest),)))).commands
    changed = {**INSTALLED, "numpy": "2.0"}
    assert decide(Row("verify", facts(venvs=(venv(packages=changed, verified=digest),)))).commands


def test_no_command_reaches_outside_its_own_folder_or_for_more_rights():
    for row in TABLE.values():
        for command in () if row.fails else decide(row).commands:
            words = shlex.split(shown(command).replace("&&", " "))
            assert not {"sudo", "apt", "apt-get", "reboot"} & set(words)
            if "rm" in words or "upload" in words:
                assert all(
                    word.startswith(f"{HOME}/.tpukit/")
                    for word in words
                    if word.startswith("/") and "python" not in word
                )


def test_the_programs_stay_below_the_folder_they_are_given_and_ask_for_no_more_rights():
    for name in PROGRAMS:
        program = program_text(f"provision/{name}")
        assert not re.search(r"sudo|apt|reboot|\s/(?!dev/null)", program), name
        subprocess.run(["sh", "-n"], input=program.encode(), check=True)


def test_a_home_with_blanks_reaches_the_shell_as_one_word():
    home = "/home/a b'; touch x"
    row = Row("venv", facts(PYTHON_3_12, on=host(home=home)))
    (command,) = decide(row).commands
    assert shlex.split(command.shell)[-1] == f"{home}/.tpukit/venvs/jax"


def test_the_interpreter_is_the_environments_own():
    assert interpreter(facts(), Plan(Recipe.named("jax"))) == f"{VENV}/bin/python"
