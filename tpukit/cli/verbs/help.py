"""`tpukit help`: pages on flags, variables and exit codes."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Annotated, get_type_hints

from typer import Argument

from tpukit import errors
from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.text import one_line

#: The topics with a page; `cli/main.py` turns `help COMMAND` into `COMMAND --help`.
TOPICS = ("flags", "environment", "exit-codes")
_OWN_VARIABLES = {
    "TPUKIT_LOCAL": "1: use the emulator, as --local does",
    "TPUKIT_PROFILE": "use the settings of a profile, as --profile does",
    "TPUKIT_HOME": "one directory for settings, state and cache",
    "TPUKIT_EMULATOR_OPERATION_METADATA": "common or tpu: as emulator start --operation-metadata",
}
Topic = Annotated[
    str, Argument(metavar="[TOPIC]", help=f"{', '.join(TOPICS)}, or a command's name.")
]


def help(toolkit: Toolkit, topic: Topic = "") -> View:
    """Explain flags, variables, exit codes, or a command.

    Examples:
      tpukit help flags
      tpukit help run
    """
    pages = {
        "flags": ("flag", _flags),
        "environment": ("variable", _environment),
        "exit-codes": ("status", _exit_codes),
    }
    if topic == "":
        topic = TOPICS[0]
    if topic not in pages:
        fix = Fix.command("tpukit", "help", TOPICS[0])
        raise BadInput(f"there is no page on {one_line(topic)!r}", fix=fix)
    what, rows = pages[topic][0], pages[topic][1]()
    document = {"topic": topic, "rows": [list(row) for row in rows]}
    return View(document, (what.upper(), "MEANING"), rows)


def _flags() -> list[tuple[str, str]]:
    hints = get_type_hints(GlobalFlags, include_extras=True)
    rows = []
    for field in fields(GlobalFlags):
        (flag,) = hints[field.name].__metadata__
        # Typer keeps the first name of a flag as its default until it reads the whole signature.
        written = [name for name in (flag.default, *flag.param_decls) if isinstance(name, str)]
        names = ", ".join(written or [f"--{field.name.replace('_', '-')}"])
        rows.append((f"{names} {flag.metavar or ''}".strip(), str(flag.help)))
    return rows


def _environment() -> list[tuple[str, str]]:
    from tpukit.settings.table import DEFINITIONS

    settings = [
        (
            definition.variable,
            ", before ".join([f"the setting {definition.name}", *definition.google_variables]),
        )
        for definition in DEFINITIONS
    ]
    return [*_OWN_VARIABLES.items(), *settings]


def _exit_codes() -> list[tuple[str, str]]:
    tree = re.findall(r"(\w+) +(\d+) {2,}(.+)", errors.__doc__ or "")
    return [("0", "success"), *((f"{code} {name}", meaning) for name, code, meaning in tree)]
