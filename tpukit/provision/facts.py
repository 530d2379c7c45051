"""Facts: what is true on a worker, read by one program that changes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from tpukit.clock import Deadline
from tpukit.errors import ProvisionFailed
from tpukit.provision.packages import normalized
from tpukit.remote.programs import program_text
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection

_MARK = b"TPUKIT-FACT "
_KEEP = 1 << 20

#: An absolute path: it can never be taken for an option.
AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00-\x1f\x7f]*$", max_length=4096)]
Version = Annotated[str, Field(pattern=r"^[0-9][0-9A-Za-z.+!_-]*$", max_length=100)]
Count = Annotated[int, Field(ge=0, le=1 << 20), BeforeValidator(lambda value: value or 0)]
Word = Annotated[str, Field(max_length=200)]


class Fact(BaseModel):
    """One fact that facts.sh prints; keys that we do not know are left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class HostFacts(Fact):
    """`emulated_devices` is 0 on a TPU VM; `glibc` is empty where there is none.

    `emulator` is not empty on an emulated worker, which has no device either where its runtime
    version does not fit its chips. `kernel_log_bytes` is the size of /var/log/kern.log.
    """

    home: AbsolutePath
    system: Word
    architecture: Word
    glibc: Word
    free_kilobytes: Annotated[int, Field(ge=0)]
    emulated_devices: Count
    emulator: Word = ""
    kernel_log_bytes: Annotated[int, Field(ge=0)] = 0

    @property
    def emulated(self) -> bool:
        return self.emulated_devices > 0 or bool(self.emulator)


class Python(Fact):
    """An interpreter that ran; `venv`: it can make environments that have pip."""

    path: AbsolutePath
    version: Version
    implementation: Word = "cpython"
    pip: bool = False
    venv: bool = False

    @property
    def minor(self) -> str:
        return minor(self.version)


class Venv(Fact):
    """One environment, with marks that steps leave in it: `requirements`, `upgraded`, `verified`.

    `editable` is the folder of a project that is installed as it is now. `installing`: packages are
    being installed, or whoever did so has died.
    """

    name: Word
    version: Version
    packages: dict[Word, Word]
    installing: bool = False
    requirements: Word = ""
    editable: Annotated[str, Field(max_length=4096)] = ""
    upgraded: Word = ""
    verified: Word = ""

    @property
    def minor(self) -> str:
        return minor(self.version)

    def installed(self, name: str) -> str | None:
        """Return the version of a package, by any spelling of its name, or None."""
        found = {normalized(each): version for each, version in self.packages.items()}
        return found.get(normalized(name))


class Facts(Fact):
    """Everything the steps decide by.

    `minimal` are Pythons without their standard library, `ended_jobs` the ids of earlier attempts.
    """

    host: HostFacts
    pythons: tuple[Python, ...] = ()
    minimal: tuple[AbsolutePath, ...] = ()
    uvs: frozenset[Version] = frozenset()
    venvs: tuple[Venv, ...] = ()
    ended_jobs: frozenset[Word] = frozenset()

    def venv(self, name: str) -> Venv | None:
        """Return the environment of this name, where there is one."""
        return next((venv for venv in self.venvs if venv.name == name), None)


def minor(version: str) -> str:
    """Return `3.12` for `3.12.1`."""
    return ".".join(version.split(".")[:2])


def read_facts(connection: Connection, deadline: Deadline) -> Facts:
    """Return the worker's facts in one round trip.

    Raises `ProvisionFailed` where the worker's answer is incomplete or makes no sense.
    """
    completed = connection.run(
        "sh -s", stdin=program_text("provision/facts.sh").encode(), deadline=deadline, keep=_KEEP
    )
    return parse_facts(completed.stdout, completed.stderr)


def parse_facts(output: bytes, complaints: bytes = b"") -> Facts:
    """Return the facts in a program's output, whatever a login script wrote around them.

    Raises `ProvisionFailed` where the output is incomplete or makes no sense.
    """
    lines = [line for line in output.splitlines() if line.startswith(_MARK)]
    try:
        facts = [json.loads(line.removeprefix(_MARK)) for line in lines]
        kinds = [fact.pop("fact") for fact in facts]
        return _assemble(kinds, facts)
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        # ValidationError and JSONDecodeError are ValueErrors.
        shown = one_line(complaints[-400:]) or _reason(error)
        raise ProvisionFailed("the worker's facts cannot be read", why=shown) from error


def _assemble(kinds: list[str], facts: list[dict[str, Any]]) -> Facts:
    if kinds[-1:] != ["end"]:
        raise ValueError("the answer has no end")

    def of(kind: str) -> list[dict[str, Any]]:
        return [values for name, values in zip(kinds, facts, strict=True) if name == kind]

    (host,) = of("host")
    pythons = {each["path"]: each for each in of("python")}
    return Facts.model_validate(
        {
            "host": host,
            "pythons": tuple(pythons.values()),
            "minimal": tuple(each["path"] for each in of("minimal")),
            "uvs": frozenset(each["version"] for each in of("uv")),
            "venvs": tuple(of("venv")),
            "ended_jobs": frozenset(each["name"] for each in of("job")),
        }
    )


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return one_line(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")[:400]
    return one_line(str(error))[:400]
