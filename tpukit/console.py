"""The only module that prints (data to stdout, narration to stderr) and that imports rich.

On a terminal it draws tables; elsewhere rows are tab-separated and uncut. It sanitizes all text
from the cloud and from workers, and never lets rich read it as markup.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, Any

from tpukit.clock import Clock
from tpukit.errors import Fix, TpukitError
from tpukit.text import one_line, sanitize

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.live import Live
    from rich.progress import Progress
    from rich.text import Text

#: A line on a terminal and its style in rich's words.
PaintedLine = tuple[str, str]

_UTF8 = codecs.getincrementaldecoder("utf-8")
#: The version of every JSON document. Increase it if a key changes its meaning or is removed.
SCHEMA = 1
#: The least characters of a table's last column, which may be wrapped.
_LEAST = 20
#: Seconds before a transfer shows its progress, and between its lines if there is no terminal.
_SHORT, _REPEAT = 0.5, 10.0


#: The colours of words on a terminal. The colour says nothing that the word does not.
_STYLES = {
    **dict.fromkeys(("READY", "HEALTHY", "passed", "running", "ok"), "green"),
    **dict.fromkeys(
        ("CREATING", "STARTING", "STOPPING", "DELETING", "REPAIRING", "warning"), "yellow"
    ),
    **dict.fromkeys(("PREEMPTED", "TERMINATED", "FAILED", "failed", "lost", "failure"), "red"),
}


@dataclass(frozen=True)
class Cell:
    """A cell with the text `shown` on a terminal, and another one for programs."""

    text: str
    shown: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class View:
    """A command's result: the JSON document, and rows for people.

    `columns` and `rows` are a table; without columns, `rows` are plain lines of one cell. On a
    narrow terminal the columns in `spare` are left out, the first one first. stderr
    gets `warnings` and `next`, the commands that may be typed next.
    """

    document: Mapping[str, Any]
    columns: tuple[str, ...] = ()
    rows: Sequence[Sequence[object]] = field(default_factory=tuple)
    next: Sequence[Fix] = ()
    warnings: Sequence[str] = ()
    status: int = 0  #: the exit status
    name: str = ""  #: the thing whose fields the rows are; `-o name` prints it
    spare: Sequence[str] = ()

    def only(self, columns: Sequence[str]) -> View:
        """Return the view with these columns of its table, in this order, on every terminal."""
        places = [self.columns.index(column) for column in columns]
        rows = [[row[place] for place in places] for row in self.rows]
        return replace(self, columns=tuple(columns), rows=rows, spare=())


@dataclass(eq=False)
class Console:
    """Shows results, narration and errors to a person or a program."""

    out: IO[str]
    err: IO[str]
    as_json: bool = False
    output: str = ""  #: table, tsv or name; otherwise a table on a terminal, and tsv elsewhere
    color: str = ""  #: always or never; otherwise the variables and the terminal decide
    quiet: bool = False
    verbose: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    #: Adds the flags to a shown command that let it reach the same cloud.
    complete: Callable[[Fix], Fix] = lambda fix: fix
    _has_document: bool = field(default=False, init=False)
    #: The transfer's bar, or the painted lines, while they are on the terminal.
    _bar: Progress | Live | None = field(default=None, init=False)
    #: Held to paint or narrate, so that no line comes between a cursor movement and its lines.
    _painting: threading.RLock = field(default_factory=threading.RLock, init=False)
    #: They keep the first bytes of a character that is cut in two.
    _decoders: Mapping[str, codecs.IncrementalDecoder] = field(
        default_factory=lambda: {name: _UTF8("replace") for name in ("stdout", "stderr")},
        init=False,
    )

    def emit(self, view: View) -> None:
        """Print a command's result; with `--json`, only its first one."""
        if self.as_json:
            fixes = [self.complete(fix).document() for fix in view.next]
            self._print_once({**view.document, **({"next": fixes} if fixes else {})})
        elif view.columns and self._is_table:
            self._draw(view)
        else:
            shown = one_line if view.columns else _plain_line
            by_name = self.output == "name"
            for row in [[view.name]] if by_name and view.name else view.rows:
                cells = row[:1] if by_name else row
                self.out.write("\t".join(shown(str(cell)) for cell in cells) + "\n")
        self.out.flush()
        for line in view.warnings:
            self.warn(line)
        for fix in view.next:
            self.suggest(fix)

    @property
    def _is_table(self) -> bool:
        return self.output == "table" or (not self.output and self.out.isatty())

    def say(self, line: str, style: str = "") -> None:
        """Narrate one line unless `--quiet`; `style` counts only above painted lines."""
        if not self.quiet:
            self._narrate(line, style)

    def suggest(self, fix: Fix) -> None:
        """Narrate a command that may be typed next."""
        for line in self.complete(fix).lines("next"):
            self.say(line)

    def detail(self, line: str) -> None:
        """Narrate a line if `--verbose`."""
        if self.verbose and not self.quiet:
            self._narrate(line)

    @property
    def repaints(self) -> bool:
        """Whether progress is a moving bar; otherwise it is a line from time to time."""
        return self.err.isatty() and self.environ.get("TERM") != "dumb"

    def draw_progress(self, verb: str, done: int, total: int) -> None:
        """Show a bar on the terminal, until `end_progress`."""
        if self.quiet:
            return
        from rich import progress

        if not isinstance(self._bar, progress.Progress):
            self._bar = progress.Progress(
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(),
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
                console=self._terminal(),
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bar.add_task(verb)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def paint(self, render: Callable[[int], Sequence[PaintedLine]]) -> None:
        """Show the lines from `render`, which gets the number of columns, until `end_progress`.

        Lines are cut at the terminal's width. `repaint` renders them again. Narration goes above
        them.
        """
        from rich.live import Live

        self._bar = Live(
            _Painted(render),
            console=self._terminal(),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with self._painting:
            self._bar.start(refresh=True)

    def repaint(self) -> None:
        """Render the painted lines again, if there are any."""
        from rich.live import Live

        with self._painting:
            if isinstance(self._bar, Live):
                self._bar.refresh()

    @property
    def columns(self) -> int:
        """The width of stderr's terminal in characters."""
        return self._terminal().width

    def _terminal(self, stream: IO[str] | None = None) -> RichConsole:
        """Return rich's view of a stream, stderr by default.

        no-color.org, bixense.com/clicolors and force-color.org describe the variables.
        """
        from rich.console import Console as RichConsole

        always, never = self.color == "always", self.color == "never"
        if not (always or never):
            never = bool(self.environ.get("NO_COLOR")) or self.environ.get("CLICOLOR") == "0"
            forced = ("CLICOLOR_FORCE", "FORCE_COLOR")
            always = not never and any(
                self.environ.get(name, "") not in ("", "0") for name in forced
            )
        given: dict[str, Any] = {"force_terminal": True} if always else {}
        return RichConsole(file=stream or self.err, highlight=False, no_color=never, **given)

    def end_progress(self) -> None:
        """Remove the bar or the painted lines, if there are any."""
        with self._painting:
            bar, self._bar = self._bar, None
            if bar:
                bar.stop()

    def warn(self, line: str) -> None:
        """Narrate a warning, even if `--quiet`."""
        self._narrate(f"warning: {line}")

    def fail(self, error: TpukitError) -> None:
        """Print an error to stderr, and with `--json` also its document to stdout.

        After the document of a result, the error goes only to stderr.
        """
        for part in (error, *error.also):
            part.fix = part.fix and self.complete(part.fix)
            part.otherwise = part.otherwise and self.complete(part.otherwise)
        if self.as_json:
            with suppress(OSError):  # stdout takes nothing, and stderr says why
                printed = self._print_once({"error": error.document()})
                self.out.flush()
                if printed and self.out.isatty():  # the document is already on this terminal
                    return
        for line in error.lines():
            self._narrate(line)

    def write_remote(self, stream: str, chunk: bytes) -> None:
        """Write a remote command's output: sanitized to a terminal, unchanged to a pipe."""
        target = self.out if stream == "stdout" else self.err
        if target.isatty():
            target.write(sanitize(self._decoders[stream].decode(chunk)))
            target.flush()
            return
        target.flush()
        target.buffer.write(chunk)  # type: ignore[attr-defined]
        target.buffer.flush()  # type: ignore[attr-defined]

    def write_prefixed(self, stream: str, prefix: str, lines: bytes) -> None:
        """Print complete lines of one worker's output in one write, each with the prefix.

        Carriage returns, for example of a progress bar, also start a line.
        """
        target = self.out if stream == "stdout" else self.err
        prefixed = sanitize(lines).removesuffix("\n").replace("\n", f"\n{prefix}")
        target.write(f"{prefix}{prefixed}\n")
        target.flush()

    def write_json_lines(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Print versioned JSON documents in one write, one on each line."""
        self.out.write("".join(_json(document, indent=None) for document in documents))
        self.out.flush()

    def _narrate(self, line: str, style: str = "") -> None:
        try:
            with self._painting:
                if self._bar:
                    from rich.text import Text

                    # print(style=…) would also change the painted lines below.
                    self._bar.console.print(Text(sanitize(line), style), soft_wrap=True)
                    return
                self.err.write(sanitize(line) + "\n")
                self.err.flush()
        except (OSError, ValueError):  # the reader of stderr is gone; stdout may still matter
            return

    def _print_once(self, document: Mapping[str, Any]) -> bool:
        """Print the document and return True, or False if the command has already printed one."""
        first, self._has_document = not self._has_document, True
        if first:
            self.out.write(_json(document, indent=2))
        return first

    def _draw(self, view: View) -> None:
        """Draw a table if it fits, or else a card for each row, so that no word is broken."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        terminal = self._terminal(self.out)
        rows = [[_shown(cell) for cell in row] for row in view.rows]
        # Empty columns would only take space.
        filled = [at for at in range(len(view.columns)) if not rows or any(r[at][0] for r in rows)]
        for left_out in range(len(view.spare) + 1):
            spare = view.spare[:left_out]
            columns, shown = _table(view.columns, rows, filled, spare)
            if _widths(columns, shown) <= terminal.width:
                break
        else:
            self._draw_cards(terminal, *_table(view.columns, rows, filled))
            return
        looks = {"show_edge": False, "padding": (0, 1, 0, 0), "pad_edge": False}
        table = Table(box=SIMPLE_HEAD, header_style="bold", **looks)  # type: ignore[arg-type]
        for column in columns:
            # Only the last column, which has sentences, may take several lines.
            table.add_column(column, no_wrap=column is not columns[-1])
        for row in shown:
            table.add_row(*(Text(text, style) for text, style in row))
        terminal.print(table)

    def _draw_cards(
        self,
        terminal: RichConsole,
        columns: Sequence[str],
        rows: Sequence[Sequence[tuple[str, str]]],
    ) -> None:
        """Draw a card for each row."""
        from rich.table import Table
        from rich.text import Text

        for (title, style), *rest in rows:
            terminal.print(Text(f"{columns[0].lower()} {title}", style or "bold"))
            card = Table.grid(padding=(0, 2))
            card.add_column()
            card.add_column(overflow="fold")
            for column, (text, style) in zip(columns[1:], rest, strict=True):
                if text:
                    card.add_row(f"  {column.lower()}", Text(text, style))
            terminal.print(card)


@dataclass(frozen=True)
class _Painted:
    """The painted lines, rendered each time that rich draws them."""

    render: Callable[[int], Sequence[PaintedLine]]

    def __rich_console__(self, console: RichConsole, options: object) -> Iterator[Text]:
        from rich.text import Text

        for text, style in self.render(console.width):
            yield Text(sanitize(text), style, no_wrap=True, overflow="ellipsis")


@dataclass(eq=False)
class TransferProgress:
    """The progress of a transfer: a bar on a terminal, elsewhere a line every ten seconds.

    Threads may share it.
    """

    console: Console
    clock: Clock
    verb: str

    def __post_init__(self) -> None:
        self._expected = self._moved = 0
        self._started = self._shown = self.clock.monotonic()
        self._lock = threading.Lock()

    def expect(self, size: int) -> None:
        """Add to the number of bytes to transfer."""
        with self._lock:
            if not self._expected:  # the rate is of the transfer, not of the time before it
                self._started = self._shown = self.clock.monotonic()
            self._expected += size

    def advance(self, size: int) -> None:
        """Add to the number of transferred bytes, and show the progress if it is time."""
        with self._lock:
            self._moved += size
            now = self.clock.monotonic()
            if now - self._started <= _SHORT:
                return
            total = max(self._expected, self._moved)
            if self.console.repaints:
                self.console.draw_progress(self.verb, self._moved, total)
            elif now - self._shown >= _REPEAT:
                self._shown = now
                self.console.say(self._line(now - self._started, f" of {amount(total)}"))

    def finish(self) -> None:
        """Remove the bar, and narrate the size and rate if any byte was transferred."""
        self.console.end_progress()
        if self._moved:
            self.console.say(self._line(self.clock.monotonic() - self._started))

    def _line(self, seconds: float, of: str = "") -> str:
        rate = self._moved / max(seconds, 0.001)
        took = f"{seconds:.1f} s ({amount(rate)}/s)"
        return f"{self.verb} {amount(self._moved)}{of} in {took}"


def _json(document: Mapping[str, Any], indent: int | None) -> str:
    """Return a versioned JSON document with a newline."""
    return json.dumps({"v": SCHEMA, **document}, ensure_ascii=True, indent=indent) + "\n"


def _shown(cell: object) -> tuple[str, str]:
    """Return a cell's text and style for a terminal."""
    text = one_line(cell.shown if isinstance(cell, Cell) else str(cell))
    return text, _STYLES.get(text, "")


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[tuple[str, str]]],
    kept: Sequence[int],
    left_out: Sequence[str] = (),
) -> tuple[list[str], list[list[tuple[str, str]]]]:
    """Return the columns at these places and their cells, without the columns left out by name."""
    kept = [at for at in kept if columns[at] not in left_out]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _widths(columns: Sequence[str], rows: Sequence[Sequence[tuple[str, str]]]) -> int:
    """Return the least width of a table: its last column may be wrapped."""
    from rich.cells import cell_len

    widest = [
        max(map(cell_len, (column, *(row[at][0] for row in rows))))
        for at, column in enumerate(columns)
    ]
    words = [word for row in rows for word in row[-1][0].split()]
    least = _LEAST if len(columns) > 2 else 0  # a card of two rows reads worse than a narrow table
    widest[-1] = max([min(widest[-1], least), *map(cell_len, (columns[-1], *words))])
    return sum(widest) + 2 * (len(columns) - 1)


def _plain_line(text: str) -> str:
    """Return a sanitized line with all its blanks, because it may belong to a script."""
    return sanitize(text).replace("\n", " ")


def amount(size: float) -> str:
    """Return a number of bytes for people, such as `3.4 MB`."""
    from rich.filesize import decimal

    return decimal(int(size))


def for_this_process(**given: Any) -> Console:
    """Return a console for the streams of this process."""
    return Console(_stream("stdout"), _stream("stderr"), **given)


def _stream(name: str) -> IO[str]:
    """Return a stream of the process, or /dev/null if the caller has closed it."""
    if getattr(sys, name) is None:
        setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    stream: IO[str] = getattr(sys, name)
    # A locale that cannot encode a character must not end a command with a traceback.
    stream.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
    return stream
