"""The settings that emulated workers inherit from the account that runs the emulator.

An organisation's image of a TPU VM is prepared for its network: proxies, certificates, package
indexes. Emulated workers get these from the emulator's environment. They also share its package
caches, so that the second worker downloads nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

_NETWORK = re.compile(r"(?i:.+_proxy)|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|(PIP|UV)_.+")
#: Settings for one command or interpreter; they would install a worker's packages elsewhere.
_ELSEWHERE = re.compile(
    r"PIP_(TARGET|PREFIX|ROOT|USER|PYTHON|REQUIRE_VIRTUALENV)"
    r"|UV_(PROJECT.*|PYTHON|SYSTEM_PYTHON|WORKING_DIR|ENV_FILE|TOOL_.+|RUN_RECURSION_DEPTH|INTERNAL_.+)"
)


def inherited_environment(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the variables that workers inherit from `environment`; `home` is its account's."""
    settings = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    caches = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    pip_cache, uv_file = caches / "pip", settings / "uv/uv.toml"
    pip_files = [settings / "pip/pip.conf", home / ".config/pip/pip.conf", home / ".pip/pip.conf"]
    if sys.platform == "darwin":
        pip_cache = home / "Library/Caches/pip"
        pip_files.insert(0, home / "Library/Application Support/pip/pip.conf")
    pip_file = next((path for path in pip_files if path.is_file()), None)
    return {
        **({"PIP_CONFIG_FILE": str(pip_file)} if pip_file else {}),
        **({"UV_CONFIG_FILE": str(uv_file)} if uv_file.is_file() else {}),
        "PIP_CACHE_DIR": str(pip_cache),
        "UV_CACHE_DIR": str(caches / "uv"),
        **{
            name: value
            for name, value in environment.items()
            if _NETWORK.fullmatch(name) and not _ELSEWHERE.fullmatch(name)
        },
    }
