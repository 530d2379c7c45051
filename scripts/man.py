"""Makes man pages from docs/reference/commands.md and exit-codes.md, for the wheel.

`python scripts/man.py FOLDER` writes them, to look at. It needs nothing but Python, because the
build of a wheel has none of tpukit's dependencies.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"


def pages() -> dict[str, str]:
    """Return the roff text of each page by its file's name, such as tpukit-run.1."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    _, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    commands = {name: body for name, _, body in (part.partition("\n") for part in sections)}
    shared = commands.pop("Global flags")
    made = {name.replace(" ", "-"): _command(name, body) for name, body in commands.items()}
    made["tpukit"] = _program(project["description"], commands, shared)
    return {
        f"{name}.1": f'.TH {name.upper()} 1 "" "tpukit {project["version"]}" "tpukit"\n{page}'
        for name, page in made.items()
    }


def _program(summary: str, commands: dict[str, str], flags: str) -> str:
    codes = _tables((REFERENCE / "exit-codes.md").read_text(encoding="utf-8"))
    rows = [(name, _summary(body)) for name, body in commands.items()]
    parts = (
        f".SH NAME\ntpukit \\- {_escaped(summary.removesuffix('.'))}",
        ".SH SYNOPSIS\n.B tpukit\n[FLAGS] COMMAND",
        ".SH COMMANDS\nEach has a page: man tpukit\\-run.",
        *(_item(f"`{name}`", meaning) for name, meaning in rows),
        ".SH FLAGS\nThese are global: they may come before or after the command.",
        *(_item(*row) for row in _tables(flags)),
        ".SH EXIT STATUS",
        *(_item(f"{code} {kind}".strip(), meaning) for code, kind, meaning in codes),
    )
    return "\n".join(parts) + "\n"


def _command(name: str, body: str) -> str:
    usage, *blocks = re.findall(r"^```\w*\n(.*?)^```", body, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```|^\|.*?$", "", body, flags=re.MULTILINE | re.DOTALL)
    prose = prose.partition("<!--")[0]
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n{2,}", prose) if part.strip()]
    examples = [f".PP\n.nf\n{_literal(block)}\n.fi" for block in blocks]
    flags = [_item(*row) for row in _tables(body)]
    parts = (
        f".SH NAME\n{_escaped(name.replace(' ', '-'))} \\- {_escaped(_summary(body))}",
        f".SH SYNOPSIS\n.nf\n{_literal(usage)}\n.fi",
        ".SH DESCRIPTION",
        *(f".PP\n{_escaped(paragraph)}" for paragraph in paragraphs),
        *(flags and (".SH FLAGS", *flags)),
        *(examples and (".SH EXAMPLES", *examples)),
        ".SH SEE ALSO\n.BR tpukit (1)\nhas the global flags and the exit status.",
    )
    return "\n".join(parts) + "\n"


def _summary(body: str) -> str:
    """Return the first sentence after the usage, without its full stop."""
    paragraph = body.split("```\n", 1)[1].strip().partition("\n\n")[0]
    return " ".join(paragraph.split()).removesuffix(".")


def _tables(text: str) -> Iterator[list[str]]:
    """Yield the cells of each row below a table's rule."""
    for table in re.findall(r"^\| --- .*\n((?:\|.*\n)*)", text, flags=re.MULTILINE):
        for row in table.splitlines():
            cells = re.split(r"(?<!\\)\|", row.strip().strip("|"))
            yield [cell.strip().replace("\\|", "|") for cell in cells]


def _item(term: str, meaning: str) -> str:
    return f".TP\n{_escaped(term)}\n{_escaped(meaning)}"


def _literal(block: str) -> str:
    return "\n".join(map(_escaped, block.rstrip().splitlines()))


def _escaped(text: str) -> str:
    """Return a line as roff, with Markdown's `code` in bold and *words* in italics."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", text)
    text = re.sub(r"(?<!\S)\*([^*]+)\*(?!\S)", r"\\fI\1\\fR", text)
    return re.sub(r"^(?=[.'])", r"\\&", text)


if __name__ == "__main__":
    for name, page in pages().items():
        Path(sys.argv[1], name).write_text(page, encoding="utf-8")
