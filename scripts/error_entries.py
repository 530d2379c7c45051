"""The entries of docs/reference/errors.md, from the tables that `tpukit explain` reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tpukit import errors
from tpukit.emulator.faults.presets import PRESETS, filled
from tpukit.explain.known_errors import explanations, worker_errors
from tpukit.google.failures import api_errors
from tpukit.text import quote

#: The sections of the page, each with the kinds of the API's errors and the places of the others.
SECTIONS = {
    "errors-capacity": ("NoCapacity",),
    "errors-quota": ("QuotaExceeded",),
    "errors-access": ("NotAuthenticated", "NotAllowed", "NotEnabled"),
    "errors-requests": ("BadInput", "TpukitError", "SliceLost", "api"),
    "errors-ssh": ("ssh",),
    "errors-gcloud": ("gcloud",),
    "errors-install": ("install",),
    "errors-chips": ("chips",),
    "errors-programs": ("worker",),
}
_RETRIES = {
    "same-zone": "the same command a little later",
    "wait": "wait, nothing is broken yet",
    "other-zone": "in another zone, or later",
    "after-fix": "after the fix",
    "never": "not this command",
}
_ISSUE = re.compile(r"\b([\w.-]+/[\w.-]+)#(\d+)")


def parts() -> Mapping[str, Callable[[], str]]:
    """Return a function for each section of the page."""
    return {name: partial(_section, places) for name, places in SECTIONS.items()}


def _section(places: tuple[str, ...]) -> str:
    rows = [row for _, row in (*api_errors(), *worker_errors()) if row.get("explain", True)]
    return "\n\n".join(_entry(row) for row in rows if _place(row) in places)


def _place(row: Mapping[str, Any]) -> str:
    return str(row.get("kind") or row["where"])


def _entry(row: Mapping[str, Any]) -> str:
    """Return an entry: its id as the anchor, the texts as users meet them, and the facts."""
    texts = "\n".join(row["examples"])
    words = [word[1:-1].upper() if word[0] == "{" else word for word in row.get("command", ())]
    command = f"`{quote(words)}`: " if words else ""
    facts = {
        "Fix": f"{command}{_plain(row['remedy'])}",
        "Again": _RETRIES.get(row["retry"], ""),
        "tpukit ends with": _exit(row),
        "Rehearse it": ", ".join(f"`tpukit emulator fault add {name}`" for name in _presets(row)),
        "Source": _ISSUE.sub(r"[\g<0>](https://github.com/\1/issues/\2)", _plain(row["source"])),
    }
    lines = [f"- {name}: {value}" for name, value in facts.items() if value]
    head = f"### {row['id']}\n\n```text\n{texts}\n```\n\n{_plain(row['cause'])}"
    return "\n".join([head, "", *lines])


def _exit(row: Mapping[str, Any]) -> str:
    kind = getattr(errors, row.get("kind", ""), None)
    return f"{kind.exit_code}, `{row['kind']}`" if kind else ""


def _presets(row: Mapping[str, Any]) -> list[str]:
    """Return the emulator's faults that answer with such a text."""
    words = {"project": "my-project", "number": "1", "zone": "us-central1-a", "name": "demo"}
    words |= {"region": "us-central1", "type": "v3-8"}
    texts = {name: filled(preset.status, words).message for name, preset in PRESETS.items()}
    return [name for name, text in texts.items() if row["id"] in _ids(text)[:1]]


def _ids(text: str) -> list[str]:
    return [explanation.id for explanation in explanations(text)]


def _plain(text: str) -> str:
    return re.sub(r"([*_<])", r"\\\1", text.replace("{version}", "of its type"))
