"""The shape of the house: rooms, layers, circles, names, what a command may load."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from support.command_line import loaded_by
from support.local_cloud import Cloud

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tpukit"

#: The only files at the top, but for `__init__` and `__main__`: facts, the printer, the main job.
TOP = ("errors", "text", "clock", "models", "paths", "accelerators", "console", "up")
#: From the ground up: each may import itself and those before it.
LAYERS = (
    ("errors", "text", "clock", "models", "paths", "accelerators", "console"),
    ("fit", "report", "settings"),
    ("google",),
    ("slices",),
    ("explain", "ssh"),
    ("access", "files", "jobs"),
    ("provision",),
    ("smoke",),
    ("doctor", "up"),
    ("watch", "mcp"),
    ("cli",),
    ("__main__",),
)
#: The emulator stands apart: of ours it knows these facts, and of ours only these know it.
EMULATOR_IMPORTS = {"accelerators", "errors", "paths", "text"}
EMULATOR_IMPORTERS = ("cli/verbs/emulator", "cli/local.py")
#: The one part that may import each of these.
ONLY_IMPORTER = {
    "google.cloud": {"emulator/api/grpc_", "emulator/library.py"},
    "grpc": {"emulator/api/grpc_", "emulator/library.py", "jobs/profiles.py"},
    "paramiko": {"ssh/transport.py"},
    "asyncssh": {"emulator/workers/"},
    "rich": {"console.py"},
    "typer": {"cli/"},
    "mcp": {"mcp/server.py"},
}
#: The parts of the agent that both ends use: of a copy, and of the output of a chip.
SHARED = {
    *("tpukit.agent", "tpukit.agent.archives", "tpukit.agent.contents"),
    *("tpukit.agent.per_chip", "tpukit.agent.placing"),
}
SOURCES = sorted(PACKAGE.rglob("*.py"))
#: Programs that run on workers: sent as text, imported by nobody.
MODULES = [path for path in SOURCES if not path.stem.endswith("_program")]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {module_name(path): path for path in MODULES}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the full names of the modules that a file imports anywhere, lazily and for types."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= named & NAMES.keys() or {node.module}
            if named - NAMES.keys():
                found.add(node.module)
    return frozenset(found)


def part(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


@pytest.mark.process
def test_each_part_imports_only_what_lies_below_it() -> None:
    level = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    wrong = [
        f"{module_name(path)} -> {name}"
        for path in MODULES
        for name in imports(path) & NAMES.keys()
        if (own := part(module_name(path))) and (other := part(name)) and own != other
        if name not in SHARED and not _may_import(path, own, other, level)
    ]
    assert not wrong


def _may_import(path: Path, own: str, other: str, level: dict[str, int]) -> bool:
    if "agent" in (own, other):  # it is sent to workers, and knows and is known by nobody
        return False
    if own == "emulator":
        return other in EMULATOR_IMPORTS
    if other == "emulator":
        return str(path.relative_to(PACKAGE)).startswith(EMULATOR_IMPORTERS)
    return level[own] >= level[other]


def test_the_drawing_of_the_rooms_is_true() -> None:
    """Each arrow is an import, and each import follows from a chain of arrows."""
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    chains = re.findall(r"^ +(\w+(?: --> \w+)+)$", page, re.MULTILINE)
    arrows = {arrow for chain in chains for arrow in pairwise(chain.split(" --> "))}
    rooms = {module: "facts" if part(module) in LAYERS[0] else part(module) for module in NAMES}
    imported = {
        (rooms[name], rooms[other])
        for name, path in NAMES.items()
        for other in imports(path) & NAMES.keys()
        if {rooms[name], rooms[other]}.isdisjoint({"", "__main__"}) and rooms[name] != rooms[other]
    }
    assert arrows <= imported
    follows = set(arrows)
    while more := {(a, d) for a, b in follows for c, d in arrows if b == c} - follows:
        follows |= more
    assert imported <= follows


def test_no_module_leads_back_to_itself() -> None:
    edges = {name: imports(path) & NAMES.keys() - {name} for name, path in NAMES.items()}
    assert not list(circles(edges))


def circles(edges: Mapping[str, Set[str]]) -> Iterator[list[str]]:
    """Yield each group of modules that all lead to one another (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> Iterator[list[str]]:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in edges[name]:
            if other not in index:
                yield from visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = [stack.pop()]
            while group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                yield sorted(group)

    for name in edges:
        if name not in index:
            yield from visit(name)


def test_the_test_for_circles_finds_one() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert list(circles(edges)) == [["b", "c"]]


def test_the_files_at_the_top_are_facts_the_printer_and_the_main_job() -> None:
    found = {path.stem for path in PACKAGE.glob("*.py")}
    assert found == {*TOP, "__init__", "__main__"}


def test_each_room_says_what_lives_there_and_what_may_not() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        said = ast.get_docstring(tree(path)) or ""
        assert path.parent == PACKAGE or len(said.split("\n\n")) == 2, path


def test_no_module_shares_its_name_with_another() -> None:
    """A verb's file is named by the verb, whatever else is: `tpukit up` is cli/verbs/up.py."""
    names = Counter(
        name.rpartition(".")[2]
        for name, path in NAMES.items()
        if PACKAGE / "cli" not in path.parents and path.stem != "__main__"
    )
    assert not [name for name, number in names.items() if number > 1]


def test_no_public_class_shares_its_name_with_another() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module_name(path))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def policies(source: str) -> list[str]:
    """Return what a verb must leave to a room: waits, polls, retries, processes and signals."""
    called = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    names = [
        name.id if isinstance(name, ast.Name) else getattr(name, "attr", "") for name in called
    ]
    calls = [name for name in names if name in {"sleep", "polls", "Popen", "kill", "fork"}]
    return calls + ["while" for node in ast.walk(ast.parse(source)) if isinstance(node, ast.While)]


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli/verbs").glob("*.py")), ids=lambda p: p.stem)
def test_a_verb_parses_calls_and_shows(path: Path) -> None:
    assert not policies(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "line",
    ["while True: act()", "for _ in polls(deadline): act()", "clock.sleep(1)", "os.kill(1, 9)"],
)
def test_a_policy_in_a_verb_is_noticed(line: str) -> None:
    assert policies(line)


@pytest.mark.parametrize("library", sorted(ONLY_IMPORTER))
def test_a_library_has_one_importer(library: str) -> None:
    places = {
        str(path.relative_to(PACKAGE))
        for path in MODULES
        if any(name == library or name.startswith(f"{library}.") for name in imports(path))
    }
    allowed = tuple(ONLY_IMPORTER[library])
    assert places
    assert all(place.startswith(allowed) for place in places)


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"], ["--version"], ["types"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    heavy = {"google.cloud.tpu_v2", "google.auth", "grpc", "paramiko", "pydantic", "requests"}
    heavy |= {
        "rich",
        "asyncssh",
        "dns",
        "psutil",
        "tpukit.provision.apply",
        "tpukit.emulator.process.daemon",
    }
    assert not heavy & loaded_by(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["describe", "demo"],
        ["create", "v3-8", "other", "--no-firewall"],
        ["delete", "demo", "--yes", "--force"],
    ],
)
def test_a_command_that_calls_the_api_loads_nothing_of_google_s(
    prompt_cloud: Cloud, arguments: list[str]
) -> None:
    prompt_cloud.tpu.create(prompt_cloud.request("demo"))
    heavy = {"google", "requests", "urllib3", "grpc", "paramiko", "pydantic", "rich"}
    loaded = loaded_by(*arguments, environment=prompt_cloud.environment())
    assert "tpukit.google.http_client" in loaded
    assert not heavy & loaded


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
