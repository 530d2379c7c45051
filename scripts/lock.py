"""Lock what recipes install: every package, with the SHA-256 of each wheel that a worker may take.

    lock.py [RECIPE…]

Runs the uv that workers run (from the package index, into a folder of its own), for each Python of
a recipe, for workers and for their stand-ins, and locks uv itself for every machine that may be a
worker. A lock names no index: hashes hold wherever the files come from.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from tpukit.provision import recipe_names
from tpukit.provision.recipes import Recipe, Release
from tpukit.ssh.worker_files import UV_VERSION

LOCKS = Path(__file__).parent.parent / "tpukit/provision/locks"
#: Machines that may be workers: TPU VMs, and those that emulate them.
UV_PLATFORM = re.compile(r"(linux|macosx).*_(x86_64|aarch64|arm64)$")
#: Where wheels run: glibc of the recipes and later, as far as uv knows them.
NEWEST_GLIBC = 40


def install_uv(folder: Path) -> Path:
    """Return the program of the uv that workers get."""
    # What is there already is as good: a version is one set of files.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    subprocess.run([*pip, "--only-binary=:all:", f"uv=={UV_VERSION}"], check=True)
    return folder / "bin/uv"


def resolve(uv: Path, requirements: list[str], python: str, glibc: str) -> list[dict[str, Any]]:
    """Return the packages that requirements come to, each with its wheels."""
    platform = f"x86_64-manylinux_{glibc.replace('.', '_')}"
    where = ("--python-version", python, "--python-platform", platform, "--no-python-downloads")
    return compiled(uv, requirements, *where)


def compiled(uv: Path, requirements: list[str], *where: str) -> list[dict[str, Any]]:
    """Return what `uv pip compile` makes of requirements."""
    compile_ = (uv, "pip", "compile", "--quiet", "--upgrade", "--only-binary", ":all:")
    with tempfile.TemporaryDirectory() as folder:
        pylock = Path(folder) / "pylock.toml"
        words = [*compile_, *where, "--format", "pylock.toml", "--output-file", pylock, "-"]
        subprocess.run(words, input="\n".join(requirements), text=True, check=True)
        return list(tomllib.loads(pylock.read_text())["packages"])


def wheel_tags(python: str) -> frozenset[Tag]:
    """Return what a worker with this Python can load."""
    version = tuple(map(int, python.split(".")))
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(5, NEWEST_GLIBC)]
    platforms += ["manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64"]
    return frozenset(
        [
            *cpython_tags(version, platforms=platforms),
            *compatible_tags(version, f"cp{version[0]}{version[1]}", platforms),
        ]
    )


def locked(packages: list[dict[str, Any]], python: str) -> Iterator[tuple[str, int]]:
    """Yield the lines of a lock, each with the bytes of its largest wheel."""
    tags = wheel_tags(python)
    for package in sorted(packages, key=lambda each: str(each["name"])):
        wheels = [
            wheel
            for wheel in package["wheels"]
            if parse_wheel_filename(wheel["url"].rpartition("/")[2].replace("%2B", "+"))[3] & tags
        ]
        if not wheels:
            raise SystemExit(f"{package['name']} has no wheel for Python {python}")
        hashes = sorted(wheel["hashes"]["sha256"] for wheel in wheels)
        shown = " ".join(f"--hash=sha256:{digest}" for digest in hashes)
        yield f"{package['name']}=={package['version']} {shown}", max(w["size"] for w in wheels)


def write_uv_lock(uv: Path) -> None:
    (package,) = compiled(uv, [f"uv=={UV_VERSION}"], "--universal")
    names = {
        wheel["url"].rpartition("/")[2]: wheel["hashes"]["sha256"] for wheel in package["wheels"]
    }
    hashes = sorted(sha for name, sha in names.items() if UV_PLATFORM.search(Path(name).stem))
    shown = " ".join(f"--hash=sha256:{digest}" for digest in hashes)
    heading = "# Made by scripts/lock: uv for Linux and macOS, x86_64 and aarch64.\n"
    (LOCKS / "uv.txt").write_text(f"{heading}uv=={UV_VERSION} {shown}\n")
    print(f"uv {UV_VERSION}: {len(hashes)} wheels")


def write_lock(uv: Path, recipe: Recipe, release: Release, python: str, emulated: bool) -> None:
    requirements = [package.requirement for package in release.packages_for(emulated)]
    packages = resolve(uv, requirements, python, recipe.glibc)
    lines = list(locked(packages, python))
    megabytes = sum(size for _, size in lines) // 10**6
    kind = "stand-in" if emulated else "worker"
    path = LOCKS / recipe.name / f"{python}{'-stand-in' if emulated else ''}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    day = datetime.now(UTC).date().isoformat()
    heading = (
        f"# Made by scripts/lock on {day} with uv {UV_VERSION}: {recipe.name}, Python {python},\n"
        f"# {kind}, x86_64, glibc {recipe.glibc}. {megabytes} MB to download.\n"
    )
    path.write_text(heading + "".join(f"{line}\n" for line, _ in lines))
    print(f"{recipe.name} {python} {kind}: {len(lines)} packages, {megabytes} MB")


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        uv = install_uv(Path(folder))
        write_uv_lock(uv)
        for name in names or recipe_names():
            recipe = Recipe.named(name)
            for release in recipe.releases:
                for python in release.pythons:
                    for emulated in (False, True):
                        if not (emulated and recipe.no_stand_in):
                            write_lock(uv, recipe, release, python, emulated)


if __name__ == "__main__":
    main(sys.argv[1:])
