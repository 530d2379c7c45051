"""An interpreter with the JAX and the libtpu of a recipe."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tpukit.provision.recipes import Recipe

#: All that the smoke test's programs need to be compiled.
_NEEDED = {"jax", "jaxlib", "libtpu"}


def pins(recipe: Recipe) -> set[str]:
    """Return the versions of JAX and libtpu that a recipe takes, for every Python."""
    packages = [package for release in recipe.releases for package in release.packages]
    return {package.pin for package in packages if package.key in _NEEDED}


def install(folder: Path, name: str = "jax") -> Path:
    """Make an environment in a folder; return its Python, for this version of Python."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("no Linux on x86_64: libtpu has no wheel, the programs are NOT compiled")
    venv = folder / "venv"
    release = Recipe.named(name).release_for("{}.{}".format(*sys.version_info))
    if not release:
        pytest.skip(f"{name} has no JAX for this Python: the programs are NOT compiled")
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    packages = [
        package.requirement
        for package in release.packages_for(emulated=False)
        if package.key in _NEEDED
    ]
    pip = [str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    # Of a thousand modules, a few are imported: those are compiled then.
    subprocess.run([*pip, "--no-compile", *packages], check=True)
    return venv / "bin/python"
