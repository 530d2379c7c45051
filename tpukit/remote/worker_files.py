"""Where a worker keeps our things: paths from its home folder, in which every command starts."""

from __future__ import annotations

from tpukit.text import quote

ROOT = ".tpukit"
JOBS = f"{ROOT}/jobs"
TRANSFERS = f"{ROOT}/transfers"
PYTHONS = f"{ROOT}/pythons"
NOTEBOOK_PROGRAM = f"{ROOT}/notebook.py"
SMOKE_LOCK = f"{ROOT}/smoke.lock"
#: What shell programs begin with: they know the folder as $tpukit.
SHELL_LINE = f"tpukit=$HOME/{ROOT}\n"


def job_folder(job: str) -> str:
    """Return the folder of a job."""
    return f"{JOBS}/{job}"


def venv(recipe: str) -> str:
    """Return the folder of a recipe's virtual environment."""
    return f"{ROOT}/venvs/{recipe}"


def venv_python(recipe: str) -> str:
    """Return the interpreter of a recipe's virtual environment."""
    return f"{venv(recipe)}/bin/python"


def uv_folder(version: str) -> str:
    """Return the folder of a version of uv."""
    return f"{ROOT}/uv-{version}"


def uv_program(version: str) -> str:
    """Return the program of a version of uv."""
    return f"{uv_folder(version)}/bin/uv"


def shell_word(path: str) -> str:
    """Return the path as a word that means the same in every folder."""
    return f'"$HOME"/{quote([path])}'
