"""tpukit's own error messages, read from its source: exit code, reason and next step."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tpukit
from tpukit import errors
from tpukit.errors import Fix, TpukitError
from tpukit.explain.known_errors import Explanation
from tpukit.explain.known_words import word_explanations
from tpukit.text import one_line, sanitize

KINDS: Mapping[str, type[TpukitError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, TpukitError)
}
#: When the same command may succeed, by exit code; otherwise after the fix.
_RETRIES = {6: "other-zone", 7: "never", 8: "wait", 255: "same-zone"}
_CALL = re.compile(rf"\b(?:{'|'.join(KINDS)})\(|\.check\(")
#: Where statements of a module and methods begin, so that only those with a message are parsed.
_BEGIN = re.compile(r"^(?= {4}(?:@|def |async def )|[\w@#])", re.MULTILINE)
_LABEL = re.compile(r"^(?:error|also): (.*)$", re.MULTILINE)
_FIX = re.compile(r"^fix: (.*)$", re.MULTILINE)
#: A message needs this many fixed characters, so that another program's words are not taken for it.
_FIXED = 6
#: Texts that may stand in a message; None is a part that varies.
Template = tuple[str | None, ...]


@dataclass(frozen=True)
class Message:
    """A message of the source: its template, its class, its reason and its next step."""

    template: Template
    kind: type[TpukitError]
    why: str
    fix: Fix | None

    @property
    def fixed(self) -> int:
        """The number of characters that do not vary."""
        return sum(len(part) for part in self.template if part)

    def fits(self, line: str) -> bool:
        """Return True if the line is this message, with or without a reason in parentheses."""
        at, loose = 0, False
        for part in self.template:
            if part is None:
                loose = True
                continue
            found = line.find(part, at)
            if found < 0 or (found > at and not loose):
                return False
            at, loose = found + len(part), False
        return loose or at == len(line) or line[at : at + 2] in (" (", ": ")


def own_explanations(text: str) -> list[Explanation]:
    """Return the explanation of an error that tpukit has printed, or nothing.

    The text is the message alone, or output with `error:` lines.
    """
    plain = sanitize(text).strip()
    lines = [one_line(line) for line in _LABEL.findall(plain)] or [one_line(plain)]
    fixes = _FIX.findall(plain)
    given = Fix(note=one_line(fixes[0])) if fixes and len(lines) == 1 else None
    known = [*messages()]
    return [
        _explanation(line, message, given)
        for line in dict.fromkeys(lines)
        for message in fitting(line, known)
    ]


def fitting(line: str, known: Sequence[Message]) -> list[Message]:
    """Return the most exact message that fits a line; several if their exit codes differ."""
    fits = sorted(
        (message for message in known if message.fits(line)),
        key=lambda message: (-message.fixed, message.fix is None),
    )
    exact = [message for message in fits if message.fixed == fits[0].fixed]
    codes = [message.kind.exit_code for message in exact]
    return [message for at, message in enumerate(exact) if codes.index(codes[at]) == at]


def _explanation(line: str, message: Message, given: Fix | None) -> Explanation:
    code = message.kind.exit_code
    (meaning,) = word_explanations(str(code))
    why = f"{message.why}; " if message.why else ""
    return Explanation(
        message.kind.__name__,
        "cause",
        _RETRIES.get(code, "after-fix"),
        f"{line}: {why}exit {code}: {meaning.cause}",
        given or message.fix or meaning.fix,
        meaning.source,
        meaning.page,
    )


def messages() -> Iterator[Message]:
    """Yield every message of the source that has fixed words."""
    for path in sorted(Path(tpukit.__file__).parent.rglob("*.py")):
        text = path.read_text("utf-8")
        for part in _BEGIN.split(text) if _CALL.search(text) else ():
            if _CALL.search(part):
                with suppress(SyntaxError):  # a part of a text that looks like a function
                    yield from _messages(ast.parse(textwrap.dedent(part)))


def _messages(tree: ast.AST) -> Iterator[Message]:
    nodes = [*ast.walk(tree)]
    named: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            named.setdefault(node.targets[0].id, []).append(node.value)
    for node in nodes:
        if isinstance(node, ast.Call) and node.args and (kind := _kind(node.func)):
            given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
            why = _only_fixed(_texts(given.get("why"), named))
            fix = _fix(given.get("fix"), named)
            for template in _texts(node.args[0], named):
                if sum(len(part) for part in template if part) >= _FIXED:
                    yield Message(template, kind, why, fix)


def _kind(function: ast.expr) -> type[TpukitError] | None:
    if isinstance(function, ast.Attribute) and function.attr == "check":  # of a deadline
        return errors.DeadlinePassed
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return KINDS.get(name)


def _texts(node: ast.expr | None, named: Mapping[str, list[ast.expr]]) -> list[Template]:
    """Return the texts that an expression may have."""
    if isinstance(node, ast.Constant):
        return [(node.value,)] if isinstance(node.value, str) else [(None,)]
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else None for part in node.values)
        return [tuple(str(part) if part is not None else None for part in parts)]
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body, named), *_texts(node.orelse, named)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        before, after = _texts(node.left, named), _texts(node.right, named)
        return [_joined((*one, *other)) for one in before for other in after]
    if isinstance(node, ast.Name) and node.id in named:
        others = {name: values for name, values in named.items() if name != node.id}
        return [text for value in named[node.id] for text in _texts(value, others)]
    return [(None,)]


def _joined(parts: Template) -> Template:
    """Return the parts with fixed neighbours as one."""
    joined: list[str | None] = []
    for part in parts:
        last = joined[-1] if joined else None
        if part is not None and last is not None:
            joined[-1] = last + part
        else:
            joined.append(part)
    return tuple(joined)


def _only_fixed(texts: Sequence[Template]) -> str:
    text = texts[0] if len(texts) == 1 else ()
    return text[0] if len(text) == 1 and text[0] else ""


def _fix(node: ast.expr | None, named: Mapping[str, list[ast.expr]]) -> Fix | None:
    """Return the fix of a message; a command with words that vary becomes a sentence."""
    if isinstance(node, ast.Name) and len(named.get(node.id, ())) == 1:
        (node,) = named[node.id]
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("Fix", "Fix.command"):
        return None
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    note = _shown(_texts(given.get("note"), named)[0]) if "note" in given else ""
    words = [_shown(_texts(word, named)[0]) for word in node.args]
    if not words or "…" in words[0]:
        return Fix(note=note) if note.strip("…") else None
    if "…" in "".join(words):
        return Fix(note=f"{' '.join(words)} {note}".strip())
    return Fix.command(*words, note=note)


def _shown(text: Template) -> str:
    return "".join("…" if part is None else part for part in text)
