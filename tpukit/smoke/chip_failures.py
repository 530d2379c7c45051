"""Known reasons why libtpu does not use a worker's chips, by its output: chip_failures.toml."""

from __future__ import annotations

import tomllib
from importlib.resources import files

from tpukit.errors import Fix, SmokeFailed


def chip_failure(output: str, version: str) -> SmokeFailed | None:
    """Return the error for a known text of libtpu in the output, or None.

    `version` is the runtime version that the accelerator type needs.
    """
    table = files("tpukit.smoke").joinpath("chip_failures.toml").read_text("utf-8")
    for known in tomllib.loads(table)["failures"]:
        if any(text in output for text in known["texts"]):
            return SmokeFailed(known["what"], fix=Fix(note=known["fix"].format(version=version)))
    return None
