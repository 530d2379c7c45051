"""The shape of the house: who may import whom, what a command may load, what the files may say."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tpukit"

FACTS = {"errors", "text", "clock", "accelerators", "models", "paths"}
FACTS |= {"settings", "settings_files", "settings_table"}
SEAMS = {"provider", "journal"}
USE_CASES = {
    "lifecycle",
    "existence",
    "naming",
    "firewall",
    "access",
    "bootstrap",
    "fleet",
    "kept_fleet",
    "last_run",
    "detached",
}
USE_CASES |= {"copies", "means", "notebooks", "pushes", "ssh_config", "worktree"}

#: Which parts of tpukit each part may import, itself aside.
MAY_IMPORT = {
    **dict.fromkeys(FACTS, FACTS),
    "provider": FACTS,
    "journal": FACTS,
    "cloud": FACTS | SEAMS,
    "remote": FACTS,
    "provision": FACTS | {"remote"},
    "smoke": FACTS | {"remote"},
    **{
        name: FACTS | SEAMS | USE_CASES | {"cloud", "remote", "provision", "smoke"}
        for name in USE_CASES
    },
    "console": FACTS,
    "cli": FACTS
    | SEAMS
    | USE_CASES
    | {"cloud", "remote", "provision", "smoke", "console", "emulator"},
    "__main__": {"cli"},
    "emulator": {"accelerators", "errors", "text"},
}
#: The one part that may import each of these.
ONLY_IMPORTER = {
    "google.cloud": {"cloud/tpu.py", "emulator/grpc_"},
    "grpc": {"emulator/grpc_"},
    "paramiko": {"remote/transport.py"},
    "asyncssh": {"emulator/"},
    "rich": {"console.py"},
    "typer": {"cli/"},
}
SOURCES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Return the full names of the modules that a file imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_file_imports_only_what_its_layer_may(path: Path) -> None:
    if path.name == "__init__.py" and path.parent == PACKAGE:
        return
    own = part(path)
    parts = {path.stem for path in PACKAGE.iterdir()}
    wanted = {name.split(".")[1] for name in imports(path) if name.startswith("tpukit.")} & parts
    forbidden = wanted - MAY_IMPORT[own] - {own}
    if own == "cli" and not path.name.startswith("emulator"):
        forbidden |= wanted & {"emulator"}
    assert not forbidden


@pytest.mark.parametrize("library", sorted(ONLY_IMPORTER))
def test_a_library_has_one_importer(library: str) -> None:
    places = {
        str(path.relative_to(PACKAGE))
        for path in SOURCES
        if any(name == library or name.startswith(f"{library}.") for name in imports(path))
    }
    allowed = tuple(ONLY_IMPORTER[library])
    assert places
    assert all(place.startswith(allowed) for place in places)


def loaded_by(*arguments: str) -> set[str]:
    """Return the modules that a command line loads, by running it in a new interpreter."""
    program = (
        "import sys\n"
        "from tpukit.cli.main import status\n"
        f"status({list(arguments)!r})\n"
        "print('\\n'.join(['MODULES', *sys.modules]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.partition("MODULES\n")[2].split())


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"], ["--version"], ["types"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    heavy = {"google.cloud.tpu_v2", "google.auth", "grpc", "paramiko", "pydantic", "requests"}
    heavy |= {
        "rich",
        "asyncssh",
        "dns",
        "psutil",
        "tpukit.provision.apply",
        "tpukit.emulator.daemon",
    }
    assert not heavy & loaded_by(*arguments)


def test_no_file_speaks_of_anything_but_the_project() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    machine_path = re.compile(r"/(work|farm|root)/[a-z]")
    host = re.compile(r"pypi\.org|files\.pythonhosted|registry\.npmjs")
    offenders = [
        name
        for name in listed
        if name != "tests/test_house.py" and (ROOT / name).is_file()
        for text in [(ROOT / name).read_text(encoding="utf-8", errors="replace")]
        if machine_path.search(text) or host.search(text)
    ]
    assert not offenders


def test_no_unfinished_marks_are_left() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b")
    assert not [path for path in SOURCES if marks.search(path.read_text(encoding="utf-8"))]
