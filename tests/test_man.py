"""The man pages: one for each command, and a formatter has no complaint."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from runpy import run_path
from typing import cast

import pytest
import typer
from support.pages import ROOT

from tpukit.cli.main import application


@cache
def pages() -> dict[str, str]:
    return cast("dict[str, str]", run_path(str(ROOT / "scripts" / "man.py"))["pages"]())


def commands(path: str, group: object) -> list[str]:
    inner = getattr(group, "commands", None)
    if inner is None:
        return [path]
    return [name for word, command in inner.items() for name in commands(f"{path}-{word}", command)]


def test_every_command_has_a_page_with_its_flags_and_examples() -> None:
    root = typer.main.get_command(application())
    assert set(pages()) == {"tpukit.1", *(f"{name}.1" for name in commands("tpukit", root))}
    run = pages()["tpukit-run.1"]
    assert "tpukit\\-run \\- Run a command once on every worker\n" in run
    assert "\\fB\\-\\-detach\\fR, \\fB\\-d\\fR\nStart it on every worker" in run
    assert "\ntpukit run \\-\\- hostname\n" in run
    assert "\\fINAME[:N]|USER@HOST[:PORT]\\fR\n" in run


@pytest.mark.parametrize("name", pages())
def test_a_page_has_the_parts_of_a_man_page(name: str) -> None:
    lines = pages()[name].splitlines()
    assert lines[0].startswith(f'.TH {name[:-2].upper()} 1 "" "tpukit ')
    heads = [line for line in lines if line.startswith(".SH")]
    assert heads[:2] == [".SH NAME", ".SH SYNOPSIS"]
    assert not [line for line in lines if line.startswith("'") or "`" in line or "](" in line]
    requests = {line.split()[0] for line in lines if line.startswith(".")}
    assert requests <= {".TH", ".SH", ".PP", ".TP", ".nf", ".fi", ".B", ".BR"}


@pytest.mark.process
def test_groff_has_no_complaint() -> None:
    if not shutil.which("groff"):
        pytest.skip("there is no groff")
    text = "".join(pages().values())
    words = ("groff", "-man", "-Kutf8", "-Tutf8", "-ww", "-z")
    done = subprocess.run(words, input=text.encode(), capture_output=True, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "")
