"""The facts for recipes: this worker's Pythons, its uv, and the environments of recipes."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
from typing import Any, Iterator, Sequence

from tpukit.agent.chips import KERNEL_LOG, size
from tpukit.agent.main import Home, Request, say
from tpukit.agent.system.commands import output

#: The steps of recipes, by their names in job ids.
ENVIRONMENT_STEPS = ("uv", "python", "venv", "packages", "requirements", "verify")
#: Seconds for a program that may hang, such as one on a lost network disk.
_SECONDS = 10
_NAMES = (*(f"python3.{minor}" for minor in (15, 14, 13, 12, 11, 10)), "python3")
#: Its imports take most of the time for reading facts, so it imports little.
_PROBE = """
import sys
from importlib.util import find_spec
venv = find_spec("venv") is not None and find_spec("ensurepip") is not None
version, implementation = sys.version.split()[0], sys.implementation.name
print(sys.executable, version, implementation, find_spec("pip") is not None, venv, sep="\\n")
"""
_FIELDS = ("path", "version", "implementation", "pip", "venv")
_VERSION = "import sys; print(sys.version.split()[0])"


def look_at_environments(home: Home, ended_jobs: Sequence[str]) -> dict[str, Any]:
    """Return the facts about the host, its Pythons and its environments."""
    return {
        "host": _host(home),
        "pythons": list(_pythons(home)),
        "uvs": list(_uvs(home)),
        "venvs": list(_venvs(home)),
        "ended_jobs": ended_jobs,
    }


def remove_environments(home: Home, request: Request) -> None:
    """Remove the environments `names`, or all if it is null; answer the removed names.

    With the last one, also remove uv, its Pythons, and the caches of tpukit.
    """
    folder, removed = f"{home.folder}/venvs", []
    present = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for name in present if request["names"] is None else request["names"]:
        if name in present:
            shutil.rmtree(f"{folder}/{name}")
            removed.append(name)
    _remove_folder(folder)
    if not os.path.isdir(folder):
        _remove_tools(home)
    _remove_folder(f"{home.folder}/jobs")
    say({"removed": removed})


def _remove_tools(home: Home) -> None:
    caches = f"{home.path}/.cache"
    for cache in ("uv", "pip"):
        mark, path = f"{home.folder}/made-{cache}-cache", f"{caches}/{cache}"
        if os.path.exists(mark):  # install_uv.sh writes the mark if the cache did not exist before
            if not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            os.unlink(mark)
    if os.path.exists(f"{home.folder}/made-cache"):
        os.unlink(f"{home.folder}/made-cache")
        _remove_folder(caches)
    jobs = [f"{home.folder}/jobs/provision-{step}-*/status" for step in ENVIRONMENT_STEPS]
    ended = [os.path.dirname(status) for pattern in jobs for status in glob.glob(pattern)]
    own = (f"{home.folder}/pythons", f"{home.folder}/compilation-cache")
    for path in (*ended, *glob.glob(f"{home.folder}/uv-*"), *own):
        if os.path.isdir(path):
            shutil.rmtree(path)


def _remove_folder(path: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(path)


def _host(home: Home) -> dict[str, Any]:
    name, glibc = os.uname(), "CS_GNU_LIBC_VERSION"
    devices = os.environ.get("TPUKIT_EMULATED_DEVICES", "")
    return {
        "home": home.path,
        "system": name.sysname,
        "architecture": name.machine,
        "glibc": (os.confstr(glibc) or "")[len("glibc ") :] if glibc in os.confstr_names else "",
        "free_kilobytes": shutil.disk_usage(home.path).free // 1024,
        "kernel_log_bytes": size(KERNEL_LOG),
        "emulated_devices": home.emulated_devices,
        "emulator": "yes" if devices else "",
    }


def _pythons(home: Home) -> Iterator[dict[str, Any]]:
    """Yield every Python that runs; a pyenv shim can exist for a missing one."""
    programs = glob.glob(f"{home.folder}/pythons/*/bin/python3")
    files = set()
    for folder in filter(os.path.isabs, os.environ.get("PATH", "").split(":")):
        for name in _NAMES:
            program = os.path.join(os.path.realpath(folder), name)
            # Of several names for one file in one folder (/bin is /usr/bin), take the first.
            file = (os.path.dirname(program), os.path.realpath(program))
            if os.access(program, os.X_OK) and file not in files:
                files.add(file)
                programs.append(program)
    for program in programs:
        lines = output(program, "-I", "-c", _PROBE, seconds=_SECONDS).splitlines()
        if len(lines) == len(_FIELDS):
            said: dict[str, Any] = dict(zip(_FIELDS, lines))
            yield {**said, "pip": said["pip"] == "True", "venv": said["venv"] == "True"}


def _uvs(home: Home) -> Iterator[str]:
    """Yield each installed version; one that is being installed is not yet in its folder."""
    for program in glob.glob(f"{home.folder}/uv-*/bin/uv"):
        version = "".join(output(program, "--version", seconds=_SECONDS).split()[1:2])
        if program == f"{home.folder}/uv-{version}/bin/uv":
            yield version


def _venvs(home: Home) -> Iterator[dict[str, Any]]:
    """Yield every environment whose Python runs, with the marks of steps in it."""
    for venv in sorted(glob.glob(f"{home.folder}/venvs/*")):
        version = output(f"{venv}/bin/python", "-I", "-S", "-c", _VERSION, seconds=_SECONDS)
        if version:
            minor = ".".join(version.split(".")[:2])
            site = f"{venv}/lib/python{minor}/site-packages"
            yield {
                "name": os.path.basename(venv),
                "version": version,
                "packages": dict(_packages(site)),
                "installing": os.path.exists(f"{venv}/tpukit-installing"),
                "requirements": _beginning(f"{venv}/tpukit-requirements"),
                "editable": _editable(home, venv),
                "upgraded": _beginning(f"{venv}/tpukit-upgraded"),
                "verified": _beginning(f"{venv}/tpukit-verified"),
                "variables": _beginning(f"{venv}/tpukit-variables", 100_000),
            }


def _packages(site: str) -> Iterator[tuple[str, str]]:
    """Yield the names and versions of packages; skip half-installed ones."""
    for folder in glob.glob(f"{glob.escape(site)}/*.dist-info"):
        head = _beginning(f"{folder}/METADATA", 4096).partition("\n\n")[0]
        lines = (line.partition(": ") for line in reversed(head.split("\n")))
        fields = {key: text for key, _, text in lines}
        name, version = fields.get("Name", "").strip(), fields.get("Version", "").strip()
        if name and version:
            yield name, version


def _editable(home: Home, venv: str) -> str:
    """Return the folder of the installed project, or "" if its project files have changed since."""
    then, _, folder = _beginning(f"{venv}/tpukit-editable", 5000).partition(" ")
    if not then:
        return ""
    import hashlib  # slow, because it loads OpenSSL

    now = hashlib.sha256()
    for name in ("pyproject.toml", "setup.py", "uv.lock"):
        with contextlib.suppress(OSError), open(
            os.path.join(home.path, folder, name), "rb"
        ) as file:
            now.update(file.read())
    return folder if then == now.hexdigest() else ""


def _beginning(path: str, characters: int = 200) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read(characters)
    return ""
