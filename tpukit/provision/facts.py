"""The facts for recipes: a worker's Pythons, its environments and their packages."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from tpukit.provision.packages import normalized

#: An absolute path, which no program takes for an option.
AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00-\x1f\x7f]*$", max_length=4096)]
Version = Annotated[str, Field(pattern=r"^[0-9][0-9A-Za-z.+!_-]*$", max_length=100)]
Count = Annotated[int, Field(ge=0, le=1 << 20)]
Word = Annotated[str, Field(max_length=200)]


class Fact(BaseModel):
    """A part of the answer of the agent's `read_facts`."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class HostFacts(Fact):
    """The machine. `glibc` is empty if its C library is another one.

    `emulated_devices` is 0 on a TPU VM, and on an emulated worker if its runtime version does not
    fit its chips. `emulator` is not empty on an emulated worker. `kernel_log_bytes` is the size of
    /var/log/kern.log.
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
    """A working interpreter. `venv` is True if it can make environments with pip."""

    path: AbsolutePath
    version: Version
    implementation: Word = "cpython"
    pip: bool = False
    venv: bool = False

    @property
    def minor(self) -> str:
        return minor(self.version)


class Venv(Fact):
    """One environment; `requirements`, `upgraded`, `verified` and `variables` are marks of steps.

    `editable` is the folder of a project that is installed in editable mode. `installing` is True
    while packages are being installed, and stays True if an installation was cut off.
    """

    name: Word
    version: Version
    packages: dict[Word, Word]
    installing: bool = False
    requirements: Word = ""
    editable: Annotated[str, Field(max_length=4096)] = ""
    upgraded: Word = ""
    verified: Word = ""
    variables: Annotated[str, Field(max_length=100_000)] = ""

    @property
    def minor(self) -> str:
        return minor(self.version)

    def installed(self, name: str) -> str | None:
        """Return the version of a package, by any spelling of its name, or None."""
        versions = {normalized(package): version for package, version in self.packages.items()}
        return versions.get(normalized(name))


class Facts(Fact):
    """All facts that steps need; `ended_jobs` has the ids of earlier attempts."""

    host: HostFacts
    pythons: tuple[Python, ...] = ()
    uvs: frozenset[Version] = frozenset()
    venvs: tuple[Venv, ...] = ()
    ended_jobs: frozenset[Word] = frozenset()

    def venv(self, name: str) -> Venv | None:
        """Return the environment of this name, or None."""
        return next((venv for venv in self.venvs if venv.name == name), None)


def minor(version: str) -> str:
    """Return `3.12` for `3.12.1`."""
    return ".".join(version.split(".")[:2])
