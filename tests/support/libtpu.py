"""An interpreter with the JAX and the libtpu of a recipe."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tpukit.provision.recipes import Recipe

#: What compiles for TPUs; a recipe may have gigabytes beside it.
_COMPILER = {"jax", "jaxlib", "libtpu", "requests"}


def install(folder: Path, recipe: str = "jax", python: str = sys.executable) -> Path:
    """Make an environment with a recipe's compiler in a folder; return its Python."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("no Linux on x86_64: libtpu has no wheel, the programs are NOT compiled")
    venv = folder / "venv"
    subprocess.run([python, "-m", "venv", str(venv)], check=True)
    version = "import sys; print('{}.{}'.format(*sys.version_info))"
    done = subprocess.run([python, "-c", version], capture_output=True, text=True, check=True)
    release = Recipe.named(recipe).release_for(done.stdout.strip())
    assert release, "the recipe has no JAX for this Python"
    wanted = release.packages_for(emulated=False)
    packages = [package.requirement for package in wanted if package.name in _COMPILER]
    pip = [str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    # Of a thousand modules, a few are imported: those are compiled then.
    subprocess.run([*pip, "--no-compile", *packages], check=True)
    return venv / "bin/python"
