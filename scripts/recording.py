"""Records `tpukit up` on a terminal, from the emulator, as a moving picture for the documentation.

    python scripts/recording.py [PAGE.svg]

The terminal is a real one (a pty); pyte reads what arrives there as a terminal would.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path

import pyte

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tutorial" / "up.svg"
COLUMNS, LINES = 108, 24
COMMAND = "tpukit --local up v4-16 demo"
#: Seconds between two pictures, those in which nothing but times changes, and of the last one.
STEP, STILL, STAYS = 0.8, 5.0, 6.0
#: Seconds without a byte after which a screen is whole.
SETTLED = 0.02
CELL, ROW, MARGIN = 8.0, 18.0, 14.0
COLOURS = {"default": "#d8d8d8", "green": "#7ec97e", "red": "#f07178", "brightblack": "#868c98"}
#: pyte knows no dim letters; it knows bright black ones.
DIM, GREY = b"\x1b[2m", b"\x1b[90m"

Picture = tuple[float, list[str]]


def recorded(words: list[str], environment: dict[str, str]) -> Iterator[Picture]:
    """Yield (seconds, rows of SVG text) whenever the screen of a command has changed."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    stream.feed(f"$ {COMMAND}\r\n".encode())
    began, shown, rows = time.monotonic(), -STEP, [""]
    with subprocess.Popen(
        words, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True
    ) as process:
        os.close(slave)
        over = False
        while not over:
            if select.select([master], [], [], STEP)[0]:
                try:
                    data = os.read(master, 1 << 16)
                except OSError:  # the command has ended: EIO is a pty's end of file
                    data = b""
                over = not data
                stream.feed(data.replace(DIM, GREY))
                if not over and select.select([master], [], [], SETTLED)[0]:
                    continue  # half of a picture
            now = time.monotonic() - began
            found = [_row(screen, number) for number in range(LINES)]
            wait = STILL if _words(found) == _words(rows) else STEP
            if (over or now - shown >= wait) and found != rows:
                yield now, found
                shown, rows = now, found
    os.close(master)
    if process.returncode:
        text = "\n".join(screen.display)
        raise SystemExit(f"{COMMAND} ended with {process.returncode}:\n{text}")


def _words(rows: list[str]) -> str:
    """Return what is on a screen beside spinners and times."""
    return re.sub(r"[\u2800-\u28ff]|\d+:\d\d", "", "".join(rows))


def _row(screen: pyte.Screen, number: int) -> str:
    """Return a row of the screen as SVG text, a span for each run of cells that look the same."""
    spans: list[tuple[str, str]] = []
    for column in range(COLUMNS):
        cell = screen.buffer[number][column]
        look = COLOURS.get(cell.fg, COLOURS["default"]) + ("|bold" if cell.bold else "")
        if spans and spans[-1][0] == look:
            spans[-1] = (look, spans[-1][1] + cell.data)
        else:
            spans.append((look, cell.data))
    if not "".join(text for _, text in spans).strip():
        return ""
    spans[-1] = (spans[-1][0], spans[-1][1].rstrip())
    return "".join(_span(look, text) for look, text in spans if text)


def _span(look: str, text: str) -> str:
    colour, _, bold = look.partition("|")
    weight = ' font-weight="bold"' if bold else ""
    return f'<tspan fill="{colour}"{weight}>{escape(text)}</tspan>'


def drawn(pictures: list[Picture]) -> str:
    """Return the pictures as one SVG that shows them one after the other, again and again."""
    height = max(number for _, rows in pictures for number, row in enumerate(rows) if row) + 1
    over = pictures[-1][0] + STAYS
    width, tall = COLUMNS * CELL + 2 * MARGIN, height * ROW + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {tall:g}" role="img" '
        f'aria-label="{COMMAND}" font-family="monospace" font-size="13.3" xml:space="preserve">',
        f'<rect width="{width:g}" height="{tall:g}" rx="6" fill="#1c1f26"/>',
    ]
    for at, (begun, rows) in enumerate(pictures):
        end = pictures[at + 1][0] if at + 1 < len(pictures) else over
        parts.append(f'<g visibility="{"visible" if at + 1 == len(pictures) else "hidden"}">')
        parts.append(_shown_between(begun / over if at else 0.0, end / over, over))
        for number, row in enumerate(rows):
            if row:
                parts.append(
                    f'<text x="{MARGIN:g}" y="{MARGIN + ROW * (number + 0.8):g}">{row}</text>'
                )
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _shown_between(begin: float, end: float, over: float) -> str:
    times = [0.0, begin, end] if begin else [0.0, end]
    values = ["hidden", "visible", "hidden"] if begin else ["visible", "hidden"]
    if end >= 1.0:
        times, values = times[:-1], values[:-1]
    return (
        f'<animate attributeName="visibility" calcMode="discrete" repeatCount="indefinite" '
        f'dur="{over:.1f}s" values="{";".join(values)}" '
        f'keyTimes="{";".join(f"{each:.4f}" for each in times)}"/>'
    )


def main(page: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="tpukit-recording-") as home:
        foreign = ("TPUKIT_", "CLOUDSDK_", "GOOGLE_", "COLUMNS", "LINES")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
        own = {"TPUKIT_HOME": f"{home}/.tpukit", "CLOUDSDK_CONFIG": f"{home}/gcloud"}
        environment = {**kept, **own, "TERM": "xterm-256color", "PYTHONUTF8": "1", "USER": "ada"}
        tpukit = [sys.executable, "-P", "-m", "tpukit"]
        quietly = {"env": environment, "check": True, "stdout": subprocess.DEVNULL}
        start = ["emulator", "start", "--create-seconds", "4"]
        subprocess.run([*tpukit, *start], stderr=subprocess.DEVNULL, **quietly)  # type: ignore[call-overload]
        try:
            pictures = list(recorded([*tpukit, *COMMAND.split()[1:]], environment))
        finally:
            subprocess.run([*tpukit, "emulator", "stop"], stderr=subprocess.DEVNULL, **quietly)  # type: ignore[call-overload]
    # Where this machine has its Python is nobody's business, and longer than most.
    page.write_text(drawn(pictures).replace(home, "~").replace(sys.base_prefix, "/usr"))
    print(f"{page}: {len(pictures)} pictures, {page.stat().st_size >> 10} KB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE)
