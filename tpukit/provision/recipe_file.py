"""The TOML file of a recipe, checked key by key."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from tpukit.errors import BadInput, Fix
from tpukit.provision.packages import Package
from tpukit.settings.config_files import toml_table
from tpukit.text import one_line

#: Messages for a wrong key, in TOML's terms instead of Python's.
_WRONG = {
    "missing": "it is missing",
    "extra_forbidden": "there is no such key",
    "string_type": "it is not a string",
    "tuple_type": "it is not a list",
    "dict_type": "it is not a table",
    "model_type": "it is not a table",
}


def _requirement(text: str) -> str:
    Package.parse(text)
    return text


def _versions(text: str) -> str:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(str(error)) from error
    return text


#: The name of a recipe, and of its environment's folder.
NAME = r"^[a-z][a-z0-9_-]{0,39}$"
Name = Annotated[str, Field(pattern=NAME)]
PythonVersion = Annotated[str, Field(pattern=r"^3\.[0-9]{1,2}$")]
Requirement = Annotated[str, AfterValidator(_requirement)]
Versions = Annotated[str, AfterValidator(_versions)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
Value = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f]*$")]
Module = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")]
Megabytes = Annotated[int, Field(ge=0, le=10_000_000)]
Names = Annotated[
    tuple[Name, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]


class Table(BaseModel):
    """A table of the file; an unknown key is an error, to reveal misspelled keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


ProgramFile = Annotated[str, Field(pattern=r"^[a-z_]*(_program\.py)?$")]


@dataclass(frozen=True)
class SmokeProgram:
    """The programs of a framework's smoke test."""

    program: ProgramFile  #: a file in `tpukit/smoke`
    names_device_kind: bool  #: True if the framework names the kind of a TPU (`TPU v3`)
    has_ring: bool = False  #: True if each device also sends its number to the next one
    bench_program: ProgramFile = ""  #: measures performance from level 2 on
    soak_program: ProgramFile = ""  #: keeps the devices busy at level 3

    def files(self, level: int) -> tuple[str, ...]:
        """Return the files that a level needs."""
        return (self.program, self.bench_program, self.soak_program)[: max(1, level)]


Port = Annotated[int, Field(ge=1, le=65535)]
ShellLine = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f]*$")]
UrlPath = Annotated[str, Field(max_length=200, pattern=r"^(/[!-~]*)?$")]
Counter = Annotated[str, Field(pattern=r"^([A-Za-z_:][A-Za-z0-9_:]*)?$")]


class RecipeService(Table):
    """A program that answers HTTP requests on a worker's loopback."""

    command: ShellLine  #: `{model}` and `{port}` are replaced
    port: Port  #: on the user's machine; the worker takes a free one
    ready: UrlPath = "/"  #: its answer is 200 once the service is ready
    metrics: UrlPath = ""  #: counters in Prometheus's text format
    requests: Counter = ""  #: the counter of answered requests
    tokens: Counter = ""  #: the counter of generated tokens
    stand_in: Literal["", "openai"] = ""  #: the program that emulated workers run instead


class ReleaseTable(Table):
    """`[[releases]]`. `stand_in_packages` defaults to `packages` without the TPU driver."""

    pythons: tuple[PythonVersion, ...]
    packages: tuple[Requirement, ...] = ()
    stand_in_packages: tuple[Requirement, ...] | None = None
    disk_megabytes: Megabytes = 0
    stand_in_disk_megabytes: Megabytes = 0
    sources: tuple[str, ...] = ()


class RecipeFile(Table):
    """The file of a recipe. A recipe that extends another inherits the keys that it omits."""

    name: Name
    description: str
    extends: Names = ()
    packages: tuple[Requirement, ...] = ()  #: for every release
    modules: tuple[Module, ...] = ()
    managed_python: PythonVersion | None = None
    glibc: str = ""
    architecture: str = ""
    experimental: str = ""
    no_stand_in: str = ""
    smoke: SmokeProgram | None = None
    runtimes: tuple[str, ...] = ()  #: patterns of the runtime versions that it fits
    environment: Annotated[dict[Variable, Value], Field(max_length=30)] = {}
    conflicts: dict[str, str] = {}
    unfit: dict[Requirement, str] = {}
    fits: dict[str, Versions] = {}
    together: tuple[tuple[Requirement, ...], ...] = ()
    needs_python: dict[Requirement, Versions] = {}
    service: RecipeService | None = None
    releases: tuple[ReleaseTable, ...] = ()


def parse_recipe_file(shown: str, text: str) -> RecipeFile:
    """Return the parsed file of a recipe; errors name the file as `shown`.

    Raises `BadInput` if it is not TOML, or for the first invalid key.
    """
    fix = Fix(note=f"edit {shown}")
    table = toml_table(shown, text, fix)
    try:
        return RecipeFile.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        wrong = _WRONG.get(first["type"], first["msg"].removeprefix("Value error, "))
        reason = one_line(f"{place}: {wrong}")[:300]
        raise BadInput(f"{shown} is not a recipe", reason=reason, fix=fix) from error
