"""Counts constructions that make our English hard to read, in the pages and in the code."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "tpukit"
#: Each pattern finds one habit. A question, or a place after "where", is not a habit.
HABITS = {
    "a clause with what": r"(?<!\| )\b(?:what|whatever) (?:is|are|was|were|has|have|had|there|no"
    r"|nobody|nothing|cannot|can|may|must|goes|went|comes|came|stands|lies|remains|belongs|needs"
    r"|takes|brings|makes|made|holds|follows|differs|failed|ran|runs|ended|it (?:is|was|has|says)"
    r"|they (?:are|were|have|say)|becomes?|became|arrived|listens|leads)\b(?![^.;:|]*\?)",
    "whatever": r"\b(?:whatever|whichever|whoever)\b",
    "where for if": r"\bwhere (?:it|nothing|there|no|nobody|none|an?|the|that|this|they|neither"
    r"|one|not|all|any|every|each|something|two|you have|you may|tpukit|sudo|root)\b"
    r"(?![^.;:|]*\?)",
    "who as a thing": r"(?:^|[.;:(] )who(?! \w+[^.;:]*\?) \w+"
    r"|\b(?:for|of|to|by|with|and|but) who \w+",
    "but for": r"\bbut for\b|\brather\b(?! than)|\bhas it\b|\bfor want of\b|\bbe it\b"
    r"|\bso it is(?=[.;:,|]| where| when)",
    "nothing that": r"\b(?:nothing|nobody|none) (?:that|who|may|has)\b"
    r"|\bthat (?:nobody|nothing)\b",
    "of its own": r"\bof (?:its|their|his|our|one's) own\b|\bof (?:ours|theirs)\b",
    "is told": r"\b(?:is|are|was|were|be) (?:told|said)\b|\btold apart\b",
    "is to": r"\b(?:is|are|was|were|has|have) to be\b",
    "whether": r"^(?:tell|return|say) whether\b",
    "archaic": r"\b(?:anew|thereby|whereof|thereof|lest|beforehand|another's)\b",
}
_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in HABITS.items()}
_HIDDEN = re.compile(r"^```.*?^```$|<!-- generated.*?<!-- end -->", re.DOTALL | re.MULTILINE)
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def habits(text: str) -> list[tuple[str, str]]:
    """Return (habit, words around it) for each habit of a text."""
    text = " ".join(text.split())
    return [
        (name, text[max(0, match.start() - 40) : match.end() + 40])
        for name, pattern in _PATTERNS.items()
        for match in pattern.finditer(text)
    ]


def paragraphs(page: Path) -> list[str]:
    """Return the prose of a page: without blocks of code, generated parts, and targets of links."""
    text = _HIDDEN.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`\n]+`", "CODE", text))
    return re.split(r"\n\s*\n|\n(?=[-|#] ?)", text)


def code_texts() -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of each help text, message, docstring and comment of the package.

    The tables in TOML hold messages: causes, remedies, descriptions.
    """
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        docstrings = [
            node.body[0].value
            for node in ast.walk(tree)
            if isinstance(node, _Documented) and ast.get_docstring(node)
            if isinstance(node.body[0], ast.Expr)
        ]
        for node in docstrings:
            text = ast.literal_eval(node)
            is_help = PACKAGE / "cli" in path.parents and "Example" in text
            yield "help and messages" if is_help else "docstrings and comments", text
        for text in messages(tree, hidden=set(docstrings)):
            yield "help and messages", text
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield "docstrings and comments", token.string.lstrip("#: ")
    for path in sorted(PACKAGE.rglob("*.toml")):
        for text in strings(tomllib.loads(path.read_text(encoding="utf-8"))):
            yield "help and messages", text


def strings(value: object) -> Iterator[str]:
    """Yield the strings of at least four words in a TOML document."""
    if isinstance(value, str) and len(value.split()) > 3:
        yield value
    inside = value.values() if isinstance(value, dict) else value
    for inner in inside if isinstance(value, (dict, list)) else ():
        yield from strings(inner)


def messages(node: ast.AST, hidden: set[ast.expr]) -> Iterator[str]:
    """Yield the strings of at least four words, with CODE for each value that is put into them."""
    if isinstance(node, ast.JoinedStr):
        text = "".join(
            str(part.value) if isinstance(part, ast.Constant) else "CODE" for part in node.values
        )
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in hidden:
        text = node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from messages(child, hidden)
        return
    if len(text.split()) > 3:
        yield text
