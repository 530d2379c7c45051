"""Records commands on a terminal, from the emulator, as moving pictures for the documentation.

    python scripts/recording.py [DIRECTORY]

The pictures are up.svg, of the main job, and preempted.svg, of a program that outlives its slice.
The terminal is a real one (a pty); pyte reads what arrives there as a terminal would.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
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
PAGES = ROOT / "docs" / "tutorial"
COLUMNS, LINES = 108, 24
#: The typed lines of each picture.
TYPED = {
    "up": ["tpukit --local up v4-16 demo"],
    "preempted": [
        "export TPUKIT_LOCAL=1",
        "tpukit create v3-8 demo --spot --quiet",
        "(until grep -qs 41 ../bucket; do sleep 0.1; done; tpukit emulator preempt demo --quiet) &",
        "tpukit watch demo --push . -- python3 train.py",
    ],
}
#: A program that goes on from its checkpoint; a folder of this machine stands for a bucket.
TRAIN = """\
import pathlib, time
saved = pathlib.Path("{bucket}")
step = int(saved.read_text()) if saved.exists() else 399
print(f"goes on after step {{step}}", flush=True)
while step < 436:
    time.sleep(0.4)
    step += 1
    saved.write_text(str(step))
    print(f"step {{step}}", flush=True)
"""
#: Seconds between two pictures, those in which nothing but times changes, and of the last one.
STEP, STILL, STAYS = 0.8, 5.0, 6.0
#: Seconds without a byte after which a screen is whole.
SETTLED = 0.02
CELL, ROW, MARGIN = 8.0, 18.0, 14.0
COLOURS = {"default": "#d8d8d8", "green": "#7ec97e", "red": "#f07178", "brightblack": "#868c98"}
#: pyte knows no dim letters; it knows bright black ones.
DIM, GREY = b"\x1b[2m", b"\x1b[90m"

Picture = tuple[float, list[str]]


def recorded(lines: list[str], environment: dict[str, str], folder: Path) -> Iterator[Picture]:
    """Yield (seconds, rows of SVG text) whenever the screen of a shell with these lines changes."""
    typed = "".join(f"printf '$ %s\\n' {shlex.quote(line)}\n{line}\n" for line in lines)
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    began, shown, rows = time.monotonic(), -STEP, [""]
    with subprocess.Popen(
        ["bash", "-e", "-c", typed],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        cwd=folder,
        close_fds=True,
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
        raise SystemExit(f"{lines[-1]} ended with {process.returncode}:\n{text}")


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


def drawn(pictures: list[Picture], label: str) -> str:
    """Return the pictures as one SVG that shows them one after the other, again and again."""
    height = max(number for _, rows in pictures for number, row in enumerate(rows) if row) + 1
    over = pictures[-1][0] + STAYS
    width, tall = COLUMNS * CELL + 2 * MARGIN, height * ROW + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {tall:g}" role="img" '
        f'aria-label="{escape(label)}" font-family="monospace" font-size="13.3" '
        'xml:space="preserve">',
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


def main(folder: Path) -> None:
    for name, lines in TYPED.items():
        with tempfile.TemporaryDirectory(prefix="tpukit-recording-") as home:
            pictures = _pictures(lines, Path(home))
        # The path of this machine's Python is private, and longer than most.
        page = folder / f"{name}.svg"
        text = drawn(pictures, lines[-1]).replace(home, "~").replace(sys.base_prefix, "/usr")
        page.write_text(text)
        print(f"{page}: {len(pictures)} pictures, {page.stat().st_size >> 10} KB")


def _pictures(lines: list[str], home: Path) -> list[Picture]:
    foreign = ("TPUKIT_", "CLOUDSDK_", "GOOGLE_", "COLUMNS", "LINES")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
    tools, project = home / "bin", home / "project"
    for made in (tools, project):
        made.mkdir()
    (tools / "tpukit").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m tpukit "$@"\n')
    (tools / "tpukit").chmod(0o755)
    (project / "train.py").write_text(TRAIN.format(bucket=home / "bucket"))
    environment = {
        **kept,
        "PATH": f"{tools}:{kept['PATH']}",
        "TPUKIT_HOME": f"{home}/.tpukit",
        "CLOUDSDK_CONFIG": f"{home}/gcloud",
        "TERM": "xterm-256color",
        "PYTHONUTF8": "1",
        "USER": "ada",
    }
    quietly = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    start = [str(tools / "tpukit"), "emulator", "start", "--create-seconds", "4"]
    subprocess.run(start, check=True, **quietly)  # type: ignore[call-overload]
    try:
        return list(recorded(lines, environment, project))
    finally:
        subprocess.run([*start[:2], "stop"], check=True, **quietly)  # type: ignore[call-overload]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGES)
