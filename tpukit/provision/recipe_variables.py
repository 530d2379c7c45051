"""The variables of a recipe, as shell lines for its environment."""

from __future__ import annotations

from collections.abc import Mapping

from tpukit.ssh import worker_files
from tpukit.text import quote

#: The word in a value for the folder or bucket of compiled programs.
CACHE = "{compilation_cache}"
#: The user's setting travels in this variable.
_CACHE_WORD = f'"${{TPUKIT_COMPILATION_CACHE:-$HOME/{worker_files.COMPILATION_CACHE}}}"'


def variable_lines(variables: Mapping[str, str]) -> str:
    """Return the POSIX shell lines that set and export variables, except those that are set."""
    return "".join(
        f'[ "${{{name}+set}}" ] || {name}={_word(value)}\nexport {name}\n'
        for name, value in variables.items()
    )


def _word(value: str) -> str:
    """Return the value as one shell word."""
    return _CACHE_WORD.join(quote([part]) if part else "" for part in value.split(CACHE))
