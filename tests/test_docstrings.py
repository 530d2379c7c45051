"""What a caller has to know is written where the code is: what it does, and what it may raise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from test_house import tree

PACKAGE = Path(__file__).parent.parent / "tpukit"
#: A command's docstring is its help page; the emulator's callers are HTTP clients.
LEFT_OUT = ("cli", "emulator")
MODULES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] not in LEFT_OUT and not path.stem.endswith("_program")
]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def public(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    """Yield the public functions and classes, and the public methods of the classes."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body)


def protocols() -> dict[str, set[str]]:
    """Return the methods that each protocol of ours documents: who implements it need not.

    A class that implements a part of a protocol counts like the protocol.
    """
    classes = [
        node for _, tree in parsed() for node in public(tree.body) if isinstance(node, ast.ClassDef)
    ]
    known = {
        node.name: {each.name for each in public(node.body) if ast.get_docstring(each)}
        for node in classes
        if any(map(is_protocol, node.bases))
    }
    while True:
        parts = {
            node.name: known[name]
            for node in classes
            for name in map(ast.unparse, node.bases)
            if name in known and node.name not in known
        }
        if not parts:
            return known
        known |= parts


def is_protocol(base: ast.expr) -> bool:
    return ast.unparse(base).partition("[")[0] == "Protocol"


def is_property(node: ast.AST) -> bool:
    names = [ast.unparse(each) for each in getattr(node, "decorator_list", ())]
    return bool({"property", "cached_property", "functools.cached_property"} & set(names))


def without_docstring(tree: ast.Module, known: dict[str, set[str]]) -> Iterator[str]:
    """Yield what has none; a class may be described by its module's, as those of errors.py are."""
    module = set(re.findall(r"\w+", ast.get_docstring(tree) or ""))
    inherited = {
        method
        for node in public(tree.body)
        if isinstance(node, ast.ClassDef)
        for method in public(node.body)
        if any(method.name in known.get(ast.unparse(base), ()) for base in node.bases)
    }
    for node in public(tree.body):
        described = isinstance(node, ast.ClassDef) and node.name in module
        if not (ast.get_docstring(node) or is_property(node) or described or node in inherited):
            yield f"{node.lineno} {node.name}"


def unnamed_raises(tree: ast.Module) -> Iterator[str]:
    """Yield each error that a public function raises itself and does not name."""
    for function in public(tree.body):
        if isinstance(function, ast.ClassDef):
            continue
        said = ast.get_docstring(function) or ""
        for node in own_nodes(function):
            raised = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(raised, ast.Call):
                name = ast.unparse(raised.func).rpartition(".")[2]
                if name[0].isupper() and name not in said:
                    yield f"{node.lineno} {function.name} {name}"


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function, those of the functions inside it left out."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            pending += ast.iter_child_nodes(node)


@cache
def parsed() -> list[tuple[Path, ast.Module]]:
    return [(path.relative_to(PACKAGE), tree(path)) for path in MODULES]


def test_every_public_function_and_class_has_a_docstring() -> None:
    """Properties are values: their names say what they are."""
    known = protocols()
    found = [f"{path}:{each}" for path, tree in parsed() for each in without_docstring(tree, known)]
    assert not found


def test_every_error_that_a_public_function_raises_is_in_its_docstring() -> None:
    assert not [f"{path}:{found}" for path, tree in parsed() for found in unnamed_raises(tree)]


def test_what_is_not_written_is_found() -> None:
    tree = ast.parse(
        "class Box(Thing):\n"
        "    'A box.'\n"
        "    @property\n"
        "    def size(self): ...\n"
        "    def open(self):\n"
        "        'Open it; raise `Locked`.'\n"
        "        if self.key: raise Broken('x')\n"
        "        raise Locked('x')\n"
        "    def close(self): ...\n"
        "    def move(self): ...\n"
        "def _private(): raise Broken('x')\n"
    )
    assert list(without_docstring(tree, {"Thing": {"move"}})) == ["9 close"]
    assert list(unnamed_raises(tree)) == ["7 open Broken"]
