"""Known causes of failed installations, by texts in their logs: install_failures.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib.resources import files

from tpukit.errors import Fix, ProvisionFailed


def known_failure(lines: Iterable[str]) -> ProvisionFailed | None:
    """Return the error for the last lines of a log, or None if their cause is not known."""
    log = "\n".join(lines)
    table = files("tpukit.provision").joinpath("install_failures.toml").read_text("utf-8")
    for known in tomllib.loads(table)["failures"]:
        if any(text in log for text in known["texts"]):
            return ProvisionFailed(known["what"], fix=Fix(note=known["fix"]))
    return None
