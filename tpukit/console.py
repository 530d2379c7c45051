"""The one place that prints: data to stdout, narration to stderr, and the only importer of rich.

On a terminal a table is drawn; elsewhere its rows are tab-separated and uncut. Text from the cloud
or from a worker passes `sanitize` on its way, and never reaches rich as markup.
"""

from __future__ import annotations

import codecs
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from tpukit.errors import TpukitError
from tpukit.text import one_line, sanitize

_UTF8 = codecs.getincrementaldecoder("utf-8")
#: The version of every JSON document; it grows when a key changes its meaning or goes.
SCHEMA = 1
_CLEAR_LINE = "\r\x1b[K"


@dataclass(frozen=True)
class View:
    """A command's result as data: the JSON document, and its form for people.

    `columns` and `rows` are a table; without columns, `rows` of one cell are plain lines. `hint`
    is the command that comes next, and `warnings` what is odd about a success; both for stderr.
    """

    document: Mapping[str, Any]
    columns: tuple[str, ...] = ()
    rows: Sequence[Sequence[str]] = field(default_factory=tuple)
    hint: str = ""
    warnings: Sequence[str] = ()
    status: int = 0  #: exit status, where the result is not a success


class Console:
    """Shows results, narration and errors to whoever asked, person or program."""

    def __init__(
        self,
        out: IO[str],
        err: IO[str],
        *,
        as_json: bool = False,
        quiet: bool = False,
        verbose: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._out = out
        self._err = err
        self._json = as_json
        self._quiet = quiet
        self._verbose = verbose
        self._environ = os.environ if environ is None else environ
        self._painted = False  #: a line of progress is on the terminal
        #: They keep the first bytes of a letter that was cut in two on its way.
        self._decoders = {name: _UTF8("replace") for name in ("stdout", "stderr")}

    @property
    def as_json(self) -> bool:
        return self._json

    def emit(self, view: View) -> None:
        """Print a command's result."""
        if self._json:
            self._print_json(view.document)
        elif view.columns and self._out.isatty():
            self._draw(view)
        else:
            for row in view.rows:
                self._out.write("\t".join(one_line(cell) for cell in row) + "\n")
        self._out.flush()
        for line in view.warnings:
            self.warn(line)
        if view.hint:
            self.say(f"next: {view.hint}")

    def say(self, line: str) -> None:
        """Narrate one line, unless told to be quiet."""
        if not self._quiet:
            self._narrate(line)

    def detail(self, line: str) -> None:
        """Narrate a line that only `--verbose` asks for."""
        if self._verbose and not self._quiet:
            self._narrate(line)

    @property
    def repaints(self) -> bool:
        """Whether progress is one line that is painted over, rather than a line each time."""
        return self._err.isatty() and self._environ.get("TERM") != "dumb"

    def progress(self, line: str) -> None:
        """Show how far something is; an empty line takes away what was painted last."""
        if self._quiet or not (line or self._painted):
            return
        if not self.repaints:
            self._narrate(line)
            return
        self._painted = bool(line)
        width = max(20, shutil.get_terminal_size().columns - 1)
        self._err.write(_CLEAR_LINE + one_line(line)[:width])
        self._err.flush()

    def warn(self, line: str) -> None:
        self._narrate(f"warning: {line}")

    def fail(self, error: TpukitError) -> None:
        """Print an error: to stderr for people, as the one document on stdout for programs."""
        if self._json:
            self._print_json({"error": error.document()})
            self._out.flush()
            return
        for line in error.lines():
            self._narrate(line)

    def write_remote(self, stream: str, chunk: bytes) -> None:
        """Pass on a remote command's bytes: as they are into a pipe, sanitized onto a terminal."""
        target = self._out if stream == "stdout" else self._err
        if target.isatty():
            target.write(sanitize(self._decoders[stream].decode(chunk)))
            target.flush()
            return
        target.flush()
        target.buffer.write(chunk)  # type: ignore[attr-defined]
        target.buffer.flush()  # type: ignore[attr-defined]

    def write_prefixed(self, stream: str, prefix: str, line: bytes) -> None:
        """Print one line of one worker's output, marked with where it comes from.

        A progress bar's line has carriage returns: each of its parts gets the mark.
        """
        target = self._out if stream == "stdout" else self._err
        parts = sanitize(line.rstrip(b"\r")).split("\n")
        target.write("".join(f"{prefix}{part}\n" for part in parts))
        target.flush()

    def write_json_line(self, document: Mapping[str, Any]) -> None:
        """Print one versioned JSON document on a line of its own, at once."""
        self._out.write(json.dumps({"v": SCHEMA, **document}, ensure_ascii=True) + "\n")
        self._out.flush()

    def colour(self) -> bool:
        """Tell whether stderr takes colour: a terminal that nobody asked to stay plain."""
        plain = self._environ.get("NO_COLOR") or self._environ.get("TERM") == "dumb"
        return self._err.isatty() and not plain

    def _narrate(self, line: str) -> None:
        try:
            if self._painted:
                self._painted = False
                self._err.write(_CLEAR_LINE)
            self._err.write(sanitize(line) + "\n")
            self._err.flush()
        except (OSError, ValueError):  # the reader of stderr is gone; stdout may still matter
            return

    def _print_json(self, document: Mapping[str, Any]) -> None:
        versioned = {"v": SCHEMA, **document}
        self._out.write(json.dumps(versioned, ensure_ascii=True, indent=2) + "\n")

    def _draw(self, view: View) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console as RichConsole
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for column in view.columns:
            table.add_column(column, overflow="fold")
        for row in view.rows:
            table.add_row(*(Text(one_line(cell)) for cell in row))
        RichConsole(file=self._out, highlight=False).print(table)


def for_this_process(*, as_json: bool, quiet: bool, verbose: bool) -> Console:
    """Return the console on this process's own streams."""
    out, err = _stream("stdout"), _stream("stderr")
    return Console(out, err, as_json=as_json, quiet=quiet, verbose=verbose)


def _stream(name: str) -> IO[str]:
    """Return a stream of the process; one that the caller closed swallows what it gets."""
    if getattr(sys, name) is None:
        setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    stream: IO[str] = getattr(sys, name)
    # A locale that cannot encode a character must not end a command with a traceback.
    stream.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
    return stream
