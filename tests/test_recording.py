"""The moving pictures: a screen as SVG, and what the documentation shows of it."""

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
PREEMPTED = PAGE.with_name("preempted.svg")


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
    says = r"printf '<up>\033[32m✓ create\033[0m \033[2mlog\033[0m\n'"
    pictures = list(recording.recorded(["cd .", says], dict(os.environ), tmp_path))
    page = tmp_path / "page.svg"
    page.write_text(recording.drawn(pictures, "<up>"), encoding="utf-8")
    assert last_picture(page) == ["$ cd .", f"$ {says}", "<up>✓ create log"]
    drawn = page.read_text(encoding="utf-8")
    for text, colour in (("✓ create", "green"), ("log", "brightblack")):
        assert f'<tspan fill="{recording.COLOURS[colour]}">{text}</tspan>' in drawn


@pytest.mark.process
def test_a_command_that_fails_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"ended with 3:\n"):
        list(script().recorded(["echo no", "exit 3"], dict(os.environ), tmp_path))


def test_the_picture_in_the_tutorial_ends_well_and_tells_nothing_of_its_machine() -> None:
    lines = last_picture(PAGE)
    assert "✓ smoke passed" in lines
    assert lines[-8:-3] == [
        "next: tpukit --local ssh demo --with jax",
        "next: tpukit --local train demo -- python train.py",
        "note: pushes this folder, and runs the program there on every worker",
        "next: tpukit --local delete demo",
        "note: until then it stays",
    ]
    assert "".join(lines[-3:-1]) == (  # two lines of the terminal
        'next: sh -c \'eval "$(tpukit emulator env)"; gcloud compute '
        "firewall-rules update default-allow-ssh --disabled --project tpukit-local'"
    )
    assert lines[-1] == "note: --no-disabled opens it again"
    assert not re.search(r"/root|/home/|/tmp/|WARNING", PAGE.read_text(encoding="utf-8"))


def goes_on(page: Path) -> None:
    """Assert that a picture shows a program that continues where its slice was preempted."""
    text = page.read_text(encoding="utf-8")
    first, again = (int(step) for step in dict.fromkeys(re.findall(r"after step (\d+)", text)))
    assert first == 399
    assert 410 <= again < 436
    for line in (f"step {again}", "preempted", "made again", f"step {again + 1}"):
        assert line in text
    assert last_picture(page)[-3].endswith("step 436")
    assert not re.search(r"/root|/home/|/tmp/|WARNING", text)


def test_the_picture_of_a_preemption_shows_the_next_step() -> None:
    goes_on(PREEMPTED)


@pytest.mark.pages
def test_the_pictures_are_what_the_commands_show_today(tmp_path: Path) -> None:
    words = [sys.executable, "scripts/recording.py", str(tmp_path)]
    subprocess.run(words, cwd=ROOT, check=True, timeout=300)
    assert last_picture(tmp_path / PAGE.name) == last_picture(PAGE)
    goes_on(tmp_path / PREEMPTED.name)
