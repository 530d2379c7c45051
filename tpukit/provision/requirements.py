"""Additions to a recipe: requirements files, with the files that they include, and a project.

The files are read on this machine and sent together. As in pip and uv, `${NAME}` in them is an
environment variable. Its value never appears on a command line: it travels in a separate file,
which the installation removes.
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
#: The most bytes of all files together, and the most files.
_LARGEST, _MANY = 1 << 20, 100
#: The names of two files on a worker: the one that includes the others, and the variables.
ROOT, VARIABLES = "requirements.txt", "variables"


@dataclass(frozen=True)
class Requirements:
    """Requirements files by their names on a worker; the first includes the others.

    `variables` has the values of the variables in the files. `editable` is a project's folder on
    the workers.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    packages: tuple[Package, ...] = ()  #: the packages that the files name
    editable: str = ""

    @property
    def digest(self) -> str:
        """The SHA-256 of the files, without the values of variables."""
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
    """Return the additions to a recipe, or None if there are none.

    Raises `BadInput` for an unreadable file, a local path in a file, an unset variable, and a
    password in an index URL.
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
    """Reads a file and the files that it includes, each once."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.packages: list[Package] = []
        self._names: dict[Path, str] = {}
        self._size = 0

    def add(self, path: Path, by: str, *, limits: bool = False) -> str:
        """Read a file and the files that it includes, and return its name on a worker.

        A file that only `limits` versions (a constraint) adds no packages.
        """
        known = path.resolve()
        if known in self._names:
            return self._names[known]
        text = self._read(path, by)
        name = self._names[known] = f"{len(self._names)}-{re.sub(r'[^A-Za-z0-9.]', '_', path.name)}"
        self.files[name] = b""  # keeps the order in which files are included
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
        if include := _INCLUDE.fullmatch(line):
            option = "-r" if include[1] in ("-r", "--requirement") else "-c"
            if "://" in include[2]:
                return line
            included = path.parent / include[2]
            return f"{option} {self.add(included, place, limits=limits or option == '-c')}"
        if _LOCAL.match(line):
            raise BadInput(
                f"{place}: {one_line(line)[:80]} is only on this machine",
                fix=Fix(note="push the folder, then name it there: --editable FOLDER"),
            )
        if not (limits or line.startswith("-")):
            self._note(line)
        return line

    def _note(self, line: str) -> None:
        """Remember a package; skip any other line, which the installer will refuse."""
        try:
            self.packages.append(Package.parse(re.split(r"\s+--|;", line)[0].strip()))
        except ValueError:
            return


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its number, without comments; a backslash joins lines into one."""
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
