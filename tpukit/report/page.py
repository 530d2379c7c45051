"""A self-contained HTML page of tables and one timeline; it loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tpukit.errors import BadInput, Fix
from tpukit.text import one_line, sanitize, shown_path

#: By this line a page is known as ours, which a new one may replace.
_MARK = '<meta name="generator" content="tpukit">'
_STYLE = """\
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { margin: 0 auto; max-width: 70rem; padding: 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0 }
th { border-bottom: 1px solid; font-size: .8rem }
.bar { position: relative; height: 1.2rem; margin: .2rem 0; border-left: 1px solid }
.bar i { position: absolute; top: 0; bottom: 0; min-width: 2px; background: #3b82c4 }
.step { display: grid; grid-template-columns: 9rem 1fr 4rem; gap: .8rem }
.step b { font-weight: normal; text-align: right }
"""


@dataclass(frozen=True)
class Section:
    """A table with a heading, and notes below it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Span:
    """A step of a timeline; both times are in seconds after its beginning."""

    name: str
    start: float
    end: float


def page(title: str, made: str, sections: Iterable[Section], timeline: Sequence[Span] = ()) -> str:
    """Return the page; `made` is the line below the title. All texts are escaped."""
    parts = [_timeline(timeline)] if timeline else []
    parts += [_section(section) for section in sections]
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8">\n{_MARK}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>\n{_STYLE}</style></head>\n"
        f"<body>\n<h1>{_text(title)}</h1>\n<p>{_text(made)}</p>\n{''.join(parts)}</body></html>\n"
    )


def check_page(given: str) -> Path:
    """Return the path of a page to write; raise `BadInput` if it would replace another file."""
    path = Path(given).expanduser()
    try:
        is_page = not path.exists() or _MARK in path.read_text("utf-8", "replace")[:500]
    except OSError as error:
        raise _unwritable(path, error) from error
    if not is_page or not path.parent.is_dir():
        what = "is another file" if path.parent.is_dir() else "is in no existing folder"
        raise BadInput(f"{shown_path(path)} {what}", fix=Fix(note="name another file for the page"))
    return path


def write_page(path: Path, text: str) -> None:
    """Write the page; raise `BadInput` if that is impossible."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> BadInput:
    return BadInput(f"cannot write {shown_path(path)}", reason=error.strerror or "")


def _timeline(spans: Sequence[Span]) -> str:
    whole = max(span.end for span in spans) or 1.0
    rows = "".join(
        f'<div class="step"><span>{_text(span.name)}</span><div class="bar"><i style="'
        f"left:{100 * span.start / whole:.1f}%;width:{100 * (span.end - span.start) / whole:.1f}%"
        f'"></i></div><b>{span.end - span.start:.1f} s</b></div>\n'
        for span in spans
    )
    return f"<h2>Timeline</h2>\n{rows}"


def _section(section: Section) -> str:
    cells = [[_text(str(cell)) for cell in row] for row in section.rows]
    filled = [at for at in range(len(section.columns)) if any(row[at] for row in cells)]
    head = "".join(f"<th>{_text(section.columns[at].lower())}</th>" for at in filled)
    body = "".join(f"<tr>{''.join(f'<td>{row[at]}</td>' for at in filled)}</tr>\n" for row in cells)
    table = f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}</table></div>\n'
    notes = "".join(f"<p>{_text(note)}</p>\n" for note in section.notes)
    return f"<h2>{_text(section.title)}</h2>\n{table if body else '<p>none</p>'}\n{notes}"


def _text(text: str) -> str:
    return escape(one_line(sanitize(text)))
