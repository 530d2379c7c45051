"""The steps of a recipe: each turns facts into commands, or into the reason why none is needed.

Every step is a pure function. No command changes the system's Python, its packages, or anything
outside `~/.tpukit` and uv's cache. Every command can be repeated: after an interruption, the facts
show that it is not finished.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tpukit.errors import Fix, ProvisionFailed
from tpukit.jobs.shell_environment import recipe_lines
from tpukit.provision.facts import Facts, Python, Venv, minor
from tpukit.provision.kernel_log import kernel_log_advice
from tpukit.provision.packages import Package
from tpukit.provision.recipes import Recipe, Release, uv_requirement
from tpukit.provision.requirements import VARIABLES, Requirements
from tpukit.ssh import worker_files
from tpukit.ssh.programs import program_text
from tpukit.text import quote


@dataclass(frozen=True)
class Run:
    """A command to run as a job."""

    words: tuple[str, ...]

    @property
    def shell(self) -> str:
        return quote(self.words)


@dataclass(frozen=True)
class Upload:
    """A file to write on the worker."""

    path: str
    data: bytes


Command = Run | Upload

#: The files in an environment that mark its requirements, verification and upgrade.
_REQUIREMENTS, _VERIFIED = "tpukit-requirements", "tpukit-verified"
_UPGRADED = "tpukit-upgraded"
#: Missing packages that a reason names.
_NAMED = 5


@dataclass(frozen=True)
class Decision:
    """The commands of a step and the reason for them; no commands if nothing is needed."""

    reason: str
    commands: tuple[Command, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A recipe to apply, with additional requirements.

    If `several` plans are applied, the labels of steps name their recipe.
    """

    recipe: Recipe
    requirements: Requirements | None = None
    several: bool = False

    def label(self, step: str) -> str:
        """Return the name of a step in reports: `packages`, or `flax:packages`."""
        return f"{self.recipe.name}:{step}" if self.several else step


#: The decision of a step; it may raise `ProvisionFailed`.
Decide = Callable[[Facts, Plan], Decision]


def system(facts: Facts, plan: Plan) -> Decision:
    """Refuse a worker on which the framework's wheels cannot run.

    Raises `ProvisionFailed` if the worker has another system, another architecture or an old glibc,
    or if it is emulated and the recipe has no stand-in.
    """
    host, recipe = facts.host, plan.recipe
    seen = f"{host.system} {host.architecture}" + (f", glibc {host.glibc}" if host.glibc else "")
    if host.emulated and recipe.no_stand_in:
        raise ProvisionFailed(
            f"an emulated worker cannot have {recipe.name}",
            reason=recipe.no_stand_in,
            fix=Fix(note="choose another recipe on the emulator"),
        )
    if host.emulated:
        return Decision(f"{seen}, emulated: {host.emulated_devices} devices")
    if host.system != "Linux" or host.architecture != recipe.architecture:
        raise ProvisionFailed(f"{recipe.name} needs Linux {recipe.architecture}", reason=seen)
    if _numbers(host.glibc) < _numbers(recipe.glibc):
        raise ProvisionFailed(
            f"{recipe.name} needs glibc {recipe.glibc} or later",
            reason=seen,
            fix=Fix(note="create the slice with the default runtime version of its type"),
        )
    return Decision(seen)


def disk(facts: Facts, plan: Plan) -> Decision:
    """Refuse to fill the disk: a boot disk of 100 GB cannot grow (vllm-project/ci-infra#103).

    Raises `ProvisionFailed` if the packages do not fit.
    """
    needed = room(facts, plan)
    check_room(facts, (plan,))
    free = _free(facts)
    return Decision(
        f"{free} MB free, {f'{needed} MB needed' if needed else 'the packages are there'}"
    )


def check_room(facts: Facts, plans: Sequence[Plan], besides: int = 0) -> None:
    """Raise `ProvisionFailed` unless all plans' packages and `besides` more megabytes fit."""
    needed = {plan.recipe.name: room(facts, plan) for plan in plans}
    names = [name for name, megabytes in needed.items() if megabytes]
    whole, free = sum(needed.values()), _free(facts)
    if names and free < whole + besides:
        beyond = f" beside {besides} MB for system steps" if besides else ""
        raise ProvisionFailed(
            f"{' and '.join(names)} {'needs' if len(names) == 1 else 'need'} {whole} MB of disk"
            f"{beyond}, but only {free} MB are free",
            reason=facts.host.home,
            why=kernel_log_advice(facts.host.kernel_log_bytes),
            fix=Fix(note="make room on the worker"),
        )


def room(facts: Facts, plan: Plan) -> int:
    """Return the megabytes of disk that the packages need; 0 if they are installed."""
    if not set(_missing(facts, plan)) & set(_packages(facts, plan)):
        return 0
    return _release(facts, plan).megabytes_for(facts.host.emulated)


def uv(facts: Facts, plan: Plan) -> Decision:
    """Install uv in a separate folder, with any suitable Python of the worker.

    Raises `ProvisionFailed` if no Python has pip or venv.
    """
    if worker_files.UV_VERSION in facts.uvs:
        return Decision(f"uv {worker_files.UV_VERSION}")
    by = "pip"
    python = _first(facts.pythons, lambda candidate: candidate.pip)
    if python is None:
        by, python = "venv", _first(facts.pythons, lambda candidate: candidate.venv)
    if python is None:
        raise ProvisionFailed(
            "no Python on the worker can install uv: none has pip or venv",
            reason=_described(facts.pythons),
            fix=Fix.command(
                "tpukit",
                "types",
                note="create the slice with the default runtime version of its type",
            ),
        )
    folder = _in_home(facts, worker_files.UV_FOLDER)
    install = _program("install_uv.sh", python.path, by, folder, uv_requirement())
    return Decision(
        f"no uv {worker_files.UV_VERSION} yet; installing it with {python.path}", (Run(install),)
    )


def python(facts: Facts, plan: Plan) -> Decision:
    """Find a Python that fits the recipe, or fetch one with uv."""
    if venv := _fitting_venv(facts, plan):
        return Decision(f"Python {venv.version} in the environment")
    if own := _own_python(facts, plan):
        return Decision(f"Python {own.version} at {own.path}")
    wanted, folder = plan.recipe.managed_python, _in_home(facts, worker_files.PYTHONS)
    fetch = _uv(facts, "python", "install", wanted, "--install-dir", folder, "--no-bin")
    return Decision(
        f"{plan.recipe.name} needs Python {' or '.join(plan.recipe.pythons)}, the worker has "
        f"{_described(facts.pythons)}; fetching Python {wanted}",
        (Run(fetch),),
    )


def venv(facts: Facts, plan: Plan) -> Decision:
    """Create the framework's environment; replace one whose Python does not fit.

    Raises `ProvisionFailed` if no Python fits, although the previous step should have fetched one.
    """
    if fitting := _fitting_venv(facts, plan):
        return Decision(f"environment with Python {fitting.version}")
    base = _own_python(facts, plan)
    if base is None:
        raise ProvisionFailed(
            f"no Python on the worker fits {plan.recipe.name}",
            reason=_described(facts.pythons),
            why=f"needed: Python {' or '.join(plan.recipe.pythons)}",
        )
    old = facts.venv(plan.recipe.name)
    why = f"its Python {old.version} does not fit" if old else "no usable environment yet"
    make = ("venv", "--clear", "--no-project", "--no-python-downloads", "--python", base.path)
    return Decision(why, (Run(_uv(facts, *make, _venv_path(facts, plan))),))


def packages(facts: Facts, plan: Plan) -> Decision:
    """Install the packages of the recipe's lock, verified by hash; without a lock, its pins."""
    wanted, missing = _packages(facts, plan), _missing(facts, plan)
    venv, lock = _fitting_venv(facts, plan), _lock(facts, plan)
    upgrade = plan.recipe.upgrade
    if upgrade and not (venv and venv.upgraded == upgrade):
        newest = _install(facts, plan, wanted, "--upgrade")
        mark = Upload(_in_venv(facts, plan, _UPGRADED), upgrade.encode())
        return Decision("installing the newest versions that are known to fit", (newest, mark))
    if missing:
        named, more = [package.pin for package in missing[:_NAMED]], len(missing) - _NAMED
        why = f"missing: {', '.join(named)}" + (f" and {more} more" if more > 0 else "")
    elif venv and venv.installing:
        why = "an installation was not finished"
    else:
        pins = [package.pin for package in wanted if package.version]
        return Decision(", ".join(pins or [_as_installed(venv, package) for package in wanted]))
    if not lock:
        return Decision(why, (_install(facts, plan, wanted),))
    path = _in_venv(facts, plan, "tpukit-lock.txt")
    hashed = _install(facts, plan, (), "--require-hashes", "--requirements", path)
    beyond = [package for package in wanted if package.key not in _locked(lock)]
    on_top = [_install(facts, plan, beyond, "--constraints", path)] if beyond else []
    return Decision(why, (Upload(path, lock.encode()), hashed, *on_top))


def requirements(facts: Facts, plan: Plan) -> Decision:
    """Install the additional requirements together with the recipe's pins; a conflict fails.

    The installation removes their files, which may contain secrets.
    """
    given = plan.requirements
    if given is None:
        return Decision("none given")
    venv, digest, short = _fitting_venv(facts, plan), given.digest, given.digest[:12]
    named = f", {given.editable} as it is there" if given.editable else ""
    if venv and venv.requirements == digest and venv.editable == given.editable:
        return Decision(f"installed, sha256 {short}{named}")
    folder = _in_venv(facts, plan, f"requirements-{short}")
    files = [Upload(f"{folder}/{name}", data) for name, data in given.files.items()]
    if given.variables:
        files.append(Upload(f"{folder}/{VARIABLES}", given.variable_lines))
    environment, (installer, *_) = _venv_path(facts, plan), _uv(facts)
    words = (folder, given.editable, environment, installer)
    install = _install(facts, plan, _packages(facts, plan)).words
    return Decision(
        f"not installed yet, sha256 {short}{named}",
        (
            *files,
            Run(_program("install_requirements.sh", *words, *install)),
            Upload(_in_venv(facts, plan, _REQUIREMENTS), digest.encode()),
        ),
    )


def variables(facts: Facts, plan: Plan) -> Decision:
    """Write the recipe's variables as shell lines, which commands with the environment read."""
    recipe, venv = plan.recipe, _fitting_venv(facts, plan)
    lines = recipe_lines(recipe.environment)
    if lines == (venv.variables if venv else ""):
        return Decision(", ".join(recipe.environment) or "none")
    path = _in_home(facts, worker_files.venv_variables(recipe.name))
    return Decision("not as the recipe has them", (Upload(path, lines.encode()),))


def verify(facts: Facts, plan: Plan) -> Decision:
    """Import the framework with its interpreter and variables, once for each set of packages."""
    program = program_text("provision/verify_program.py").encode()
    venv, pins = _fitting_venv(facts, plan), [package.pin for package in _packages(facts, plan)]
    installed = sorted(venv.packages.items()) if venv else []
    checked = json.dumps([venv and venv.version, installed, pins, program.decode()])
    digest = hashlib.sha256(checked.encode()).hexdigest()
    if venv and venv.verified == digest:
        return Decision(f"verified, sha256 {digest[:12]}")
    path = _in_venv(facts, plan, "tpukit-verify.py")
    modules = ",".join(plan.recipe.modules)
    words = (interpreter(facts, plan), "-I", path, modules, *pins)
    if plan.recipe.environment:
        own = _in_home(facts, worker_files.venv_variables(plan.recipe.name))
        words = ("sh", "-c", '. "$0" && exec "$@"', own, *words)
    return Decision(
        f"importing {modules}",
        (
            Upload(path, program),
            Run(words),
            Upload(_in_venv(facts, plan, _VERIFIED), digest.encode()),
        ),
    )


#: The steps by name, in order; each sees the facts after the steps before it.
STEPS: dict[str, Decide] = {
    decide.__name__: decide
    for decide in (system, disk, uv, python, venv, packages, requirements, variables, verify)
}


def _free(facts: Facts) -> int:
    return facts.host.free_kilobytes // 1024


def _in_home(facts: Facts, path: str) -> str:
    return f"{facts.host.home.rstrip('/')}/{path}"


def _venv_path(facts: Facts, plan: Plan) -> str:
    return _in_home(facts, worker_files.venv(plan.recipe.name))


def _in_venv(facts: Facts, plan: Plan, name: str) -> str:
    return f"{_venv_path(facts, plan)}/{name}"


def interpreter(facts: Facts, plan: Plan) -> str:
    """Return the path of the provisioned interpreter on the worker."""
    return _in_venv(facts, plan, "bin/python")


def _uv(facts: Facts, *words: str) -> tuple[str, ...]:
    program = _in_home(facts, worker_files.UV_PROGRAM)
    return (program, "--no-progress", "--color=never", *words)


def _program(name: str, *words: str) -> tuple[str, ...]:
    return ("sh", "-c", program_text(f"provision/{name}"), "sh", *words)


def _install(facts: Facts, plan: Plan, wanted: Sequence[Package], *more: str) -> Run:
    into = ("pip", "install", "--python", interpreter(facts, plan))
    install = _uv(facts, *into, *(package.requirement for package in wanted), *more)
    return Run(_program("install_packages.sh", _venv_path(facts, plan), *install))


def _as_installed(venv: Venv | None, package: Package) -> str:
    return f"{package.name}=={venv.installed(package.name) if venv else ''}"


def _fitting_venv(facts: Facts, plan: Plan) -> Venv | None:
    venv = facts.venv(plan.recipe.name)
    return venv if venv and plan.recipe.release_for(venv.minor) else None


def _own_python(facts: Facts, plan: Plan) -> Python | None:
    """Return the worker's Python for the most preferred release that it can run."""
    return next(
        (
            python
            for release in plan.recipe.releases
            for python in facts.pythons
            if python.minor in release.pythons and python.implementation == "cpython"
        ),
        None,
    )


def _release(facts: Facts, plan: Plan) -> Release:
    chosen = _fitting_venv(facts, plan) or _own_python(facts, plan)
    release = plan.recipe.release_for(chosen.minor if chosen else plan.recipe.managed_python)
    assert release is not None, f"the recipe {plan.recipe.name} has no release for its own Python"
    return release


def _packages(facts: Facts, plan: Plan) -> tuple[Package, ...]:
    return _release(facts, plan).packages_for(facts.host.emulated)


def _lock(facts: Facts, plan: Plan) -> str:
    """Return the lock for this worker's Python, or "" if its machine is of another kind."""
    chosen = _fitting_venv(facts, plan) or _own_python(facts, plan)
    if (facts.host.system, facts.host.architecture) != ("Linux", plan.recipe.architecture):
        return ""
    minor = chosen.minor if chosen else plan.recipe.managed_python
    return plan.recipe.lock_text(minor, facts.host.emulated)


def _locked(lock: str) -> dict[str, Package]:
    lines = [line for line in lock.splitlines() if not line.startswith("#")]
    packages = (Package.parse(line.split()[0]) for line in lines)
    return {package.key: package for package in packages}


def _missing(facts: Facts, plan: Plan) -> list[Package]:
    """Return the packages that are not installed in a suitable version.

    Additional requirements may have changed the versions of packages that the recipe does not pin;
    these packages need only be there.
    """
    venv = _fitting_venv(facts, plan)
    locked = _locked(_lock(facts, plan))
    if venv and venv.requirements:
        locked = {key: package.at("") for key, package in locked.items()}
    named = {
        package.key: package if package.specifier else locked.get(package.key, package)
        for package in _packages(facts, plan)
    }
    wanted = {**named, **{key: package for key, package in locked.items() if key not in named}}

    def holds(package: Package) -> bool:
        version = venv.installed(package.name) if venv else None
        return version is not None and package.admits(version)

    return [package for package in wanted.values() if not holds(package)]


def _first(pythons: Sequence[Python], fits: Callable[[Python], bool]) -> Python | None:
    # Installing uv needs Python 3.8 (its package's requires-python).
    return next(
        (python for python in pythons if _numbers(python.version) >= (3, 8) and fits(python)), None
    )


def _described(pythons: Sequence[Python]) -> str:
    return ", ".join(f"{python.path} {python.version}" for python in pythons) or "no Python at all"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in minor(version).split("."))
