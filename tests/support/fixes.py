"""A plugin of pytest: every command that tpukit suggested in any test is fed to its real parser.

Each `Fix` raises an audit event, in this process and in those that the tests start. At the end of
the session all of them are judged; a wrong one fails the session.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from support import second_attempts
from support.fix_recorder import FOLDER, VARIABLE, environment
from tpukit.cli.main import application

#: Programs whose command lines are not ours to judge.
_SYSTEM = ("apt-get", "chmod", "less", "ls", "mv", "python", "rm", "sh", "uvx")
_OPENSSH = ("ssh", "ssh-add", "ssh-keygen")
#: What a user would have to replace before the command means anything.
_BLANK = re.compile(r"[A-Z][A-Z_]+|.*(…|\.\.\.).*|<.*>")

Words = tuple[str, ...]
_FAULTS = pytest.StashKey[dict[Words, str]]()
_SUMMARY = pytest.StashKey[str]()


def faults(commands: Iterable[Words]) -> dict[Words, str]:
    """Return what is wrong with each of the commands that cannot be typed as they stand."""
    found = {words: _fault(words) for words in commands}
    foreign = [words for words, text in found.items() if words[0] == "gcloud" and not text]
    if foreign and shutil.which("gcloud"):
        found.update(_faults_of_gcloud(foreign))
    return {words: text for words, text in found.items() if text}


def _fault(words: Words) -> str:
    """Return what is wrong with a command as far as it takes no gcloud to tell."""
    program, *rest = words
    if blank := next(filter(_BLANK.fullmatch, rest), None):
        return f"{blank} is left to the reader"
    if program == "env" and "=" in words[1]:
        return _fault(words[2:])
    if program == "tpukit":
        return "" if rest == ["--version"] else _fault_of_ours(rest)
    known = program in (*_SYSTEM, *_OPENSSH, "gcloud") or Path(program).name.startswith("python")
    return "" if known else f"nobody here knows {program}"


def _fault_of_ours(words: list[str]) -> str:
    """Parse the words as the program would, and call nothing."""
    command = _commands()
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # --help prints as soon as it is parsed
            context = command.make_context("tpukit", words)
            while isinstance(command, TyperGroup):
                left = [*context._protected_args, *context.args]
                if not left:
                    return "there is no verb"
                name, command, rest = command.resolve_command(context, left)
                context = command.make_context(name, rest, parent=context)
    except typer.Exit:
        return ""
    except TyperException as error:
        return error.format_message() if hasattr(error, "format_message") else str(error)
    return ""


@cache
def _commands() -> Any:
    return typer.main.get_command(application())


def _faults_of_gcloud(commands: list[Words]) -> dict[Words, str]:
    """Let one gcloud judge them all: its start takes longer than a hundred verdicts."""
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "commands.json"
        file.write_text(
            json.dumps([{"command_string": shlex.join(command)} for command in commands])
        )
        done = subprocess.run(
            ["gcloud", "meta", "lint-gcloud-commands", f"--commands-file={file}", "--serialize"],
            env={**os.environ, "CLOUDSDK_CONFIG": home},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    verdicts = json.loads(done.stdout)
    found = {}
    for number, words in enumerate(commands):
        (verdict,) = verdicts[str(number)]
        found[words] = "" if verdict["success"] else str(verdict["error_message"])
    return found


def pytest_configure(config: pytest.Config) -> None:
    os.environ.update({VARIABLE: environment()[VARIABLE]})
    runpy.run_path(str(FOLDER / "sitecustomize.py"))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return
    file = Path(environment()[VARIABLE])
    lines = set(file.read_text(encoding="ascii").splitlines())
    commands = sorted(words for line in lines if (words := tuple(json.loads(line))))
    file.unlink()
    wrong = session.config.stash[_FAULTS] = faults(commands)
    foreign = sum(words[0] == "gcloud" for words in commands)
    unseen = f"; gcloud is not installed: {foreign} of its own were not parsed"
    session.config.stash[_SUMMARY] = f"{len(commands)} suggested commands, {len(wrong)} wrong" + (
        unseen if foreign and not shutil.which("gcloud") else ""
    )
    if wrong and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for words, text in config.stash.get(_FAULTS, {}).items():
        line = f"cannot be typed: {shlex.join(words)}: {text}"
        terminalreporter.write_line(line, red=True)
        second_attempts.keep(f"FAILED: a suggested command {line}\n")
    if summary := config.stash.get(_SUMMARY, ""):
        terminalreporter.write_line(summary)
