"""The moving picture of `up`: a screen as SVG, and what the documentation shows of it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorial" / "up.svg"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recording", ROOT / "scripts" / "recording.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def last_picture(page: Path) -> list[str]:
    """Return the lines that stay on the screen, without times, versions and rules of a table."""
    name = "{http://www.w3.org/2000/svg}"
    pictures = ElementTree.parse(page).getroot().findall(f"{name}g")
    lines = ["".join(text.itertext()) for text in pictures[-1].findall(f"{name}text")]
    return [re.sub(r"\d+:\d\d|\d+(\.\d+)+|\s+", " ", line).rstrip(" ─") for line in lines]


@pytest.mark.process
def test_what_a_terminal_shows_is_drawn_with_its_colours(tmp_path: Path) -> None:
    recording = script()
    says = "print('<up>\\x1b[32m✓ create\\x1b[0m \\x1b[2mlog\\x1b[0m')"
    environment = {**os.environ, "PYTHONUTF8": "1"}
    pictures = list(recording.recorded([sys.executable, "-c", says], environment))
    page = tmp_path / "page.svg"
    page.write_text(recording.drawn(pictures), encoding="utf-8")
    assert last_picture(page) == [f"$ {recording.COMMAND}", "<up>✓ create log"]
    drawn = page.read_text(encoding="utf-8")
    for text, colour in (("✓ create", "green"), ("log", "brightblack")):
        assert f'<tspan fill="{recording.COLOURS[colour]}">{text}</tspan>' in drawn


@pytest.mark.process
def test_a_command_that_fails_is_no_recording() -> None:
    words = [sys.executable, "-c", "print('no'); raise SystemExit(3)"]
    with pytest.raises(SystemExit, match=r"ended with 3:\n"):
        list(script().recorded(words, dict(os.environ)))


def test_the_picture_in_the_tutorial_ends_well_and_tells_nothing_of_its_machine() -> None:
    lines = last_picture(PAGE)
    assert "✓ smoke passed" in lines
    assert lines[-6:-3] == [
        "next: tpukit --local ssh demo --with jax",
        "next: tpukit --local delete demo",
        "note: until then it stays",
    ]
    assert "".join(lines[-3:-1]) == (  # two lines of the terminal
        'next: sh -c \'eval "$(tpukit emulator env)"; gcloud compute '
        "firewall-rules update default-allow-ssh --disabled --project tpukit-local'"
    )
    assert lines[-1] == "note: --no-disabled opens it again"
    assert not re.search(r"/root|/home/|/tmp/|WARNING", PAGE.read_text(encoding="utf-8"))


@pytest.mark.pages
def test_the_picture_in_the_tutorial_is_what_up_shows_today(tmp_path: Path) -> None:
    page = tmp_path / "up.svg"
    words = [sys.executable, "scripts/recording.py", str(page)]
    subprocess.run(words, cwd=ROOT, check=True, timeout=300)
    assert last_picture(page) == last_picture(PAGE)
