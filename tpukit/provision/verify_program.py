"""Import the framework and compare the installed versions with the pinned ones.

    python -I verify_program.py IMPORTED,NAMES NAME==VERSION...

Prints a line for each check, and exits with status 1 at the first that fails.
"""

import importlib
import importlib.metadata
import os
import sys


def check_version(pin: str) -> None:
    name, _, pinned = pin.partition("==")
    installed = importlib.metadata.version(name)
    if pinned and installed != pinned:
        raise SystemExit(f"{name} {installed} is installed, but {pinned} is pinned")
    print(name, installed)


def check_library() -> None:
    """Check that the TPU driver is there: with an old pip, `jax[tpu]` can install without it."""
    path = importlib.import_module("libtpu").get_library_path()
    if not os.path.getsize(path):
        raise SystemExit(f"{path} is empty")
    print("libtpu at", path)


def main(modules: list[str], pins: list[str]) -> None:
    for pin in pins:
        check_version(pin)
    for name in modules:
        importlib.import_module(name)
        print("imported", name)
    if any(pin.partition("==")[0] == "libtpu" for pin in pins):
        check_library()


if __name__ == "__main__":
    main([name for name in sys.argv[1].split(",") if name], sys.argv[2:])
