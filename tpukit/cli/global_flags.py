"""The global flags, and which of them a command that is suggested repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated

from typer import Option

from tpukit.errors import Fix

#: Values of `TPUKIT_LOCAL` that do not ask for the emulator.
_NO = ("", "0", "false", "no", "off")
#: The verbs and groups that ask no cloud.
_OFFLINE = ("config", "emulator", "types")
_GCLOUD_OFFLINE = ("auth", "config")


@dataclass(frozen=True)
class GlobalFlags:
    """The global flags of a command line, before the verb or after it."""

    as_json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False
    project: Annotated[str, Option(metavar="PROJECT", help="Project that pays.")] = ""
    zone: Annotated[str, Option(metavar="ZONE", help="Zone of the slice.")] = ""
    local: Annotated[bool, Option("--local", help="Use the emulator; start it if none runs.")] = (
        False
    )
    quiet: Annotated[bool, Option("--quiet", "-q", help="No narration.")] = False
    verbose: Annotated[bool, Option("--verbose", "-v", help="More narration.")] = False
    yes: Annotated[bool, Option("--yes", "-y", help="Answer yes to every question.")] = False
    no_input: Annotated[bool, Option("--no-input", help="Never ask.")] = False

    def merge(self, after: GlobalFlags) -> GlobalFlags:
        """Return both sets of flags as one: each means the same before and after the verb."""
        given = {each.name: getattr(after, each.name) for each in fields(after)}
        return replace(self, **{name: value for name, value in given.items() if value})

    def complete(self, fix: Fix, environ: Mapping[str, str]) -> Fix:
        """Return a fix whose command, typed as it stands, reaches the cloud of this command line.

        It has `--local` even if `TPUKIT_LOCAL` is set: pasted into another shell it must not reach
        the real cloud. So a command of gcloud is led to the emulator too.
        """
        program, verb = (*fix.arguments, "", "")[:2]
        local = self.local or local_by_environment(environ)
        if program == "gcloud" and local and verb not in _GCLOUD_OFFLINE:
            line = f'eval "$(tpukit emulator env)"; {fix}'
            return replace(fix, arguments=("sh", "-c", line))
        asks_none = verb in ("", *_OFFLINE) and "--live" not in fix.arguments
        if program != "tpukit" or asks_none or "--help" in fix.arguments:
            return fix
        words = ["--local"] if local else []
        words += ["--project", self.project] if self.project else []
        words += ["--zone", self.zone] if self.zone else []
        for flag in ("--local", "--project", "--zone"):
            if flag in fix.arguments and flag in words:
                at = words.index(flag)
                del words[at : at + (1 if flag == "--local" else 2)]
        return replace(fix, arguments=(program, *words, *fix.arguments[1:])) if words else fix


def local_by_environment(environ: Mapping[str, str]) -> bool:
    """Return whether the environment asks for the emulator."""
    return environ.get("TPUKIT_LOCAL", "") not in _NO
