"""An interpreter with the JAX and the libtpu of the recipe jax."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tpukit.provision.recipes import Recipe


def install(folder: Path) -> Path:
    """Make an environment in a folder; return its Python, for this version of Python."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("no Linux on x86_64: libtpu has no wheel, the programs are NOT compiled")
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    release = Recipe.named("jax").release_for("{}.{}".format(*sys.version_info))
    assert release, "the recipe has no JAX for this Python"
    packages = [package.requirement for package in release.packages_for(emulated=False)]
    pip = [str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    # Of a thousand modules, a few are imported: those are compiled then.
    subprocess.run([*pip, "--no-compile", *packages], check=True)
    return venv / "bin/python"
