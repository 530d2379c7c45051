"""What comes on top of a recipe: requirements files with all that they include, and a project.

Files are read here and travel together. `${NAME}` in them, as pip and uv have it, is a variable of
ours: it travels in a file of its own that the installation removes, and is on no command line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tpukit.errors import BadInput, Fix
from tpukit.provision.packages import Package
from tpukit.text import is_utf8, one_line, quote, shown_path

_INCLUDE = re.compile(r"(-r|-c|--requirement|--constraint)(?:\s*=\s*|\s+|(?<=-[rc]))(\S+)")
_VARIABLE = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")
_LOCAL = re.compile(r"(-e\b|--editable\b|\.{0,2}/|file:|[\w.-]+\s*@\s*(file:|\.{0,2}/))")
_PASSWORD = re.compile(r"://[^/@\s]*:(?!\$\{)[^/@\s]+@")
#: Bytes that all files may have together, and files.
_LARGEST, _MANY = 1 << 20, 100
#: The folder that the files have on a worker, and the files in it that are always there.
ROOT, VARIABLES = "requirements.txt", "variables"


@dataclass(frozen=True)
class Requirements:
    """Files by the names that they get on a worker, the first of which includes the others.

    `variables` stand in the files; `editable` is a folder on the workers, of a project.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    packages: tuple[Package, ...] = ()  #: what the files name themselves
    editable: str = ""

    @property
    def digest(self) -> str:
        """The SHA-256 of the files, in which no variable has its value."""
        parts = (
            f"{name}\n{hashlib.sha256(data).hexdigest()}\n" for name, data in self.files.items()
        )
        return hashlib.sha256("".join(parts).encode()).hexdigest()

    @property
    def variable_lines(self) -> bytes:
        """The POSIX shell lines that set the variables."""
        lines = [f"export {name}={quote([value])}\n" for name, value in self.variables.items()]
        return "".join(lines).encode()


def read_requirements(
    path: str, indexes: tuple[str, ...], editable: str, own: Mapping[str, str]
) -> Requirements | None:
    """Return what is to come on top, or None where nothing was named.

    Raises `BadInput` for a file that cannot be read, a path in it that only this machine has, a
    variable that is not set, and a password where others can read it.
    """
    for index in indexes:
        _check_index(index)
    reader = _Reader()
    root = [f"--extra-index-url {index}\n" for index in indexes]
    if path:
        root.append(f"-r {reader.add(Path(path), '--requirements')}\n")
    if not (root or editable):
        return None
    files = {ROOT: "".join(root).encode(), **reader.files} if root else {}
    names = {name for data in files.values() for name in _VARIABLE.findall(data.decode())}
    return Requirements(files, _values(sorted(names), own), tuple(reader.packages), editable)


class _Reader:
    """Reads a file and all that it includes, each once."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.packages: list[Package] = []
        self._names: dict[Path, str] = {}
        self._size = 0

    def add(self, path: Path, by: str, *, limits: bool = False) -> str:
        """Return the name that a file has on a worker, having read it and what it includes.

        What a file that only `limits` names is not asked for.
        """
        known = path.resolve()
        if known in self._names:
            return self._names[known]
        text = self._read(path, by)
        name = self._names[known] = f"{len(self._names)}-{re.sub(r'[^A-Za-z0-9.]', '_', path.name)}"
        self.files[name] = b""  # in the order in which they are met
        lines = [self._line(line, path, number, limits) for number, line in _logical_lines(text)]
        self.files[name] = "".join(f"{line}\n" for line in lines).encode()
        return name

    def _read(self, path: Path, by: str) -> str:
        try:
            with path.open("rb") as file:
                content = file.read(_LARGEST + 1)
        except OSError as error:
            raise BadInput(
                f"cannot read {one_line(str(path))} ({by})", why=error.strerror or ""
            ) from error
        self._size += len(content)
        if self._size > _LARGEST:
            raise BadInput(f"{one_line(str(path))} ({by}) is larger than {_LARGEST} bytes")
        if len(self._names) >= _MANY:
            raise BadInput(f"{one_line(str(path))} ({by}) is one file too many: {_MANY} are read")
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadInput(f"{one_line(str(path))} ({by}) is not UTF-8 text") from error

    def _line(self, line: str, path: Path, number: int, limits: bool) -> str:
        place = f"{shown_path(path)}, line {number}"
        if found := _INCLUDE.fullmatch(line):
            option = "-r" if found[1] in ("-r", "--requirement") else "-c"
            if "://" in found[2]:
                return line
            included = path.parent / found[2]
            return f"{option} {self.add(included, place, limits=limits or option == '-c')}"
        if _LOCAL.match(line):
            raise BadInput(
                f"{place}: {one_line(line)[:80]} is on this machine only",
                fix=Fix(note="push the folder, then name it there: --editable FOLDER"),
            )
        if not (limits or line.startswith("-")):
            self._note(line)
        return line

    def _note(self, line: str) -> None:
        """Remember a package; what is none the installer refuses with its own words."""
        try:
            self.packages.append(Package.parse(re.split(r"\s+--|;", line)[0].strip()))
        except ValueError:
            return


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, without comments, those that a backslash joins as one."""
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first or number
        if line.endswith("\\"):
            joined += line[:-1].rstrip() + " "
            continue
        whole = re.sub(r"(^|\s)#.*$", "", joined + (line.lstrip() if joined else line)).strip()
        if whole:
            yield first, whole
        joined, first = "", 0
    if joined.strip():
        yield first, joined.strip()


def _check_index(index: str) -> None:
    if not re.fullmatch(r"https?://\S+", index):
        raise BadInput(f"{one_line(index)[:80]!r} is not the URL of an index", fix=Fix(note=_SAFE))
    if _PASSWORD.search(index):
        raise BadInput("a password on a command line can be read by others", fix=Fix(note=_SAFE))


_SAFE = "--index 'https://user:${TOKEN}@host/simple', with TOKEN in your environment"


def _values(names: list[str], own: Mapping[str, str]) -> dict[str, str]:
    for name in names:
        if name not in own:
            raise BadInput(
                f"${{{name}}} is not set here", fix=Fix(note=f"set {name} in your environment")
            )
        if not is_utf8(own[name]):
            raise BadInput(f"the value of {name} is not UTF-8 text")
    return {name: own[name] for name in names}
