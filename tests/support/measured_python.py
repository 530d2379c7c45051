"""Run Python as asked, and count the lines of a program that was sent to a worker for its file.

A program reaches a worker as text: on stdin, in an argument, or as a file of another name. Where
the text is that of `*_program.py` files of the package, one after the other, each is compiled under
its file's name. This is started by the script that `measuring` writes.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent.parent / "tpukit"


def measuring(interpreter: Path, script: Path, settings: str | None = None) -> Path:
    """Write a script that runs an interpreter, and return it.

    It is measured by `settings`, where they are none by those of this process, where it has any.
    """
    words = [str(interpreter)]
    if settings is None:
        settings = os.environ.get("COVERAGE_PROCESS_CONFIG", "")
    if settings:
        import coverage

        # The first argument says whether Python is isolated, here as there.
        words += [
            '$([ "$1" != -I ] || echo -I)',
            __file__,
            str(Path(coverage.__file__).parent.parent),
        ]
    script.parent.mkdir(parents=True, exist_ok=True)
    line = f'COVERAGE_PROCESS_CONFIG={settings} exec {" ".join(words)} "$@"'
    script.write_text(f"#!/bin/sh\n{line}\n")
    script.chmod(0o755)
    return script


def measured_path() -> str:
    """Return what stands before a worker's PATH: a folder with a measured python3, or nothing."""
    settings = os.environ.get("COVERAGE_PROCESS_CONFIG")
    return f"{_measured_folder(settings)}:" if settings else ""


@cache
def _measured_folder(settings: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tpukit-measured-"))
    atexit.register(shutil.rmtree, folder)
    python = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    measuring(python, folder / "python3", settings)
    return folder


def main(packages: str, *words: str) -> None:
    if _is_agent(words):
        _run_agent(packages, words)
        return
    text, arguments = _program(words)
    files = _files(text)
    if not files and not _was_on_stdin(words):
        os.execv(sys.executable, [sys.executable, *words])
    if files:
        sys.path.append(packages)
        import coverage

        coverage.process_startup()
        sys.path.remove(packages)
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
    sys.argv = arguments
    if not sys.flags.isolated:  # not from where this file is, but from where the program is
        sys.path[0] = "" if arguments[0] in ("-", "-c") else str(Path(arguments[0]).parent)
    variables = {"__name__": "__main__"}
    for name, part in files or [("<stdin>", text)]:
        exec(compile(part, str(name), "exec"), variables)


def _is_agent(words: tuple[str, ...]) -> bool:
    """Return True for the agent, and False for a program that a test has put in its place."""
    file = Path(words[2]) if words[:2] == ("-I", "-S") and words[2:] else None
    return bool(file and file.name == "__main__.py" and "tpukit.agent.main" in file.read_text())


def _run_agent(packages: str, words: tuple[str, ...]) -> None:
    """Run the agent from the package's files, of which its folder was made."""
    sys.path[:0] = [str(PACKAGE.parent)]
    sys.path.append(packages)
    import coverage

    coverage.process_startup()
    sys.path.remove(packages)
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
    sys.argv = list(words[2:])
    from tpukit.agent.main import main as agent_main

    agent_main()


def _was_on_stdin(words: tuple[str, ...]) -> bool:
    return "-" in words[:2]


def _files(text: str) -> list[tuple[Path, str]]:
    """Return the package's programs of which a text is made, or nothing."""
    found = []
    known = {path: path.read_text() for path in PACKAGE.rglob("*_program.py")}
    while text:
        match = next((each for each in known.items() if text.startswith(each[1])), None)
        if match is None:
            return []
        found.append(match)
        text = text[len(match[1]) :].removeprefix("\n")
    return found


def _program(words: tuple[str, ...]) -> tuple[str, list[Any]]:
    """Return the text that Python is to run, empty where it has another form, and sys.argv."""
    rest = list(words[1:] if words[:1] == ("-I",) else words)
    if rest[:1] == ["-"]:
        return sys.stdin.read(), rest
    if rest[:1] == ["-c"]:
        return rest[1], ["-c", *rest[2:]]
    if rest and Path(rest[0]).is_file():
        return Path(rest[0]).read_text(), rest
    return "", rest


if __name__ == "__main__":
    main(*sys.argv[1:])
