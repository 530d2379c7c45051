"""What emulated workers take over from the account that runs the emulator, and nothing else.

A TPU VM of an organisation comes from an image prepared for its network: proxies, certificates,
package indexes. Emulated workers get the same from the emulator's environment, and share its
package caches so that the second worker downloads nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_NETWORK = re.compile(r"(?i:.+_proxy)|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|(PIP|UV)_.+")
#: Settings of one invocation or one interpreter, which would send a worker's packages elsewhere.
_ELSEWHERE = re.compile(
    r"PIP_(TARGET|PREFIX|ROOT|USER|PYTHON|REQUIRE_VIRTUALENV)"
    r"|UV_(PROJECT.*|PYTHON|SYSTEM_PYTHON|WORKING_DIR|ENV_FILE|TOOL_.+|RUN_RECURSION_DEPTH|INTERNAL_.+)"
)


def site_environment(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the variables that pass from `environment`, whose account lives in `home`."""
    passed = {
        name: value
        for name, value in environment.items()
        if _NETWORK.fullmatch(name) and not _ELSEWHERE.fullmatch(name)
    }
    return {**_configuration(environment, home), **_caches(environment, home), **passed}


def _configuration(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    found = {
        "PIP_CONFIG_FILE": _first_file(_pip_files(environment, home)),
        "UV_CONFIG_FILE": _first_file(
            iter([_configuration_folder(environment, home) / "uv/uv.toml"])
        ),
    }
    return {name: str(path) for name, path in found.items() if path}


def _pip_files(environment: Mapping[str, str], home: Path) -> Iterator[Path]:
    if sys.platform == "darwin":
        yield home / "Library/Application Support/pip/pip.conf"
    yield _configuration_folder(environment, home) / "pip/pip.conf"
    yield home / ".config/pip/pip.conf"
    yield home / ".pip/pip.conf"


def _caches(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    shared = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    pip = home / "Library/Caches/pip" if sys.platform == "darwin" else shared / "pip"
    return {"PIP_CACHE_DIR": str(pip), "UV_CACHE_DIR": str(shared / "uv")}


def _configuration_folder(environment: Mapping[str, str], home: Path) -> Path:
    return Path(environment.get("XDG_CONFIG_HOME") or home / ".config")


def _first_file(candidates: Iterator[Path]) -> Path | None:
    return next((path for path in candidates if path.is_file()), None)
