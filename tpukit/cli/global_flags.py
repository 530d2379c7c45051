"""The global flags, and how suggested commands repeat them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated

from typer import Option

from tpukit.errors import BadInput, Fix
from tpukit.text import one_line

#: Values of `TPUKIT_LOCAL` that mean no.
_NO = ("", "0", "false", "no", "off")
#: The forms of a result. Without one it is a table on a terminal, and tsv elsewhere.
FORMATS = ("table", "tsv", "json", "name")
COLOURS = ("auto", "always", "never")
#: The verbs and groups that do not call the cloud, and those of them that read no settings.
_OFFLINE = ("config", "emulator", "explain", "types")
_UNSET = ("emulator", "explain", "types")
#: Verbs that connect to the workers of one slice or several; all take the flags of a route.
CONNECTING = (
    *("attach", "cp", "diagnose", "jobs", "kill", "logs", "push", "run", "smoke", "ssh", "top"),
    *("doctor", "notebook", "profile", "provision", "ray", "serve", "train", "wait", "watch"),
)
_GCLOUD_OFFLINE = ("auth", "config")


def verb_index(arguments: Sequence[str]) -> int:
    """Return where the first word after the global flags is; the length of the line if nowhere."""
    takes_value = {
        f"--{field.name}" for field in fields(GlobalFlags) if isinstance(field.default, str)
    } | {"-o"}
    value = False
    for at, word in enumerate(arguments):
        if not value and not word.startswith("-"):
            return at
        if not value and word in ("--help", "-h"):
            break
        value = not value and word in takes_value
    return len(arguments)


@dataclass(frozen=True)
class GlobalFlags:
    """The global flags of a command line, before the verb or after it."""

    json: Annotated[bool, Option("--json", help="Print one JSON document, as -o json does.")] = (
        False
    )
    output: Annotated[
        str, Option("--output", "-o", metavar="FORMAT", help=f"Form: {', '.join(FORMATS)}.")
    ] = ""
    color: Annotated[str, Option(metavar="WHEN", help=f"{', '.join(COLOURS)}; default: auto.")] = ""
    project: Annotated[str, Option(metavar="PROJECT", help="Project that pays.")] = ""
    zone: Annotated[str, Option(metavar="ZONE", help="Zone of the slice.")] = ""
    profile: Annotated[
        str, Option(metavar="PROFILE", help="Use the settings of this profile of yours.")
    ] = ""
    local: Annotated[bool, Option("--local", help="Use the emulator; start it if none runs.")] = (
        False
    )
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print no progress messages.")] = False
    verbose: Annotated[bool, Option("--verbose", "-v", help="Print more progress messages.")] = (
        False
    )
    yes: Annotated[bool, Option("--yes", "-y", help="Answer yes to every question.")] = False
    no_input: Annotated[bool, Option("--no-input", help="Never ask.")] = False

    def merge(self, after: GlobalFlags) -> GlobalFlags:
        """Return these flags with those given after the verb."""
        given = {field.name: getattr(after, field.name) for field in fields(after)}
        return replace(self, **{name: value for name, value in given.items() if value})

    def check(self) -> None:
        """Raise `BadInput` for a value that a flag does not have."""
        choices = {"--output": (self.output, FORMATS), "--color": (self.color, COLOURS)}
        for flag, (given, known) in choices.items():
            if given and given not in known:
                raise BadInput(
                    f"{one_line(given)[:60]!r} is not a value of {flag}",
                    fix=Fix(note=f"{flag} {' or '.join(known)}"),
                )
        if self.json and self.output not in ("", "json"):
            raise BadInput(f"--json and --output {self.output} exclude each other")

    @property
    def as_json(self) -> bool:
        """True if the result is one JSON document."""
        return self.json or self.output == "json"

    def complete(self, fix: Fix, environ: Mapping[str, str], route: Sequence[str] = ()) -> Fix:
        """Return a fix with the flags that its command needs to reach the same cloud and workers.

        It gets `--local` even if `TPUKIT_LOCAL` is set: in another shell it must not reach the real
        cloud. For the same reason a gcloud command gets the emulator's environment, and a command
        the profile of `TPUKIT_PROFILE`. `route` has the flags of the way to the workers, which only
        the verbs that connect to them get.
        """
        program, verb = (*fix.arguments, "", "")[:2]
        if program == "env":  # env NAME=VALUE tpukit …
            inner = self.complete(replace(fix, arguments=fix.arguments[2:]), environ, route)
            return replace(fix, arguments=(*fix.arguments[:2], *inner.arguments))
        local = self.is_local(environ)
        if program == "gcloud" and local and verb not in _GCLOUD_OFFLINE:
            line = f'eval "$(tpukit emulator env)"; {fix}'
            return replace(fix, arguments=("sh", "-c", line))
        if program != "tpukit" or not verb or "--help" in fix.arguments:
            return fix
        live, profile = "--live" in fix.arguments, self.chosen_profile(environ)
        words: list[str] = []
        if verb not in _OFFLINE or live:
            words += ["--local"] if local else []
            words += ["--project", self.project] if self.project else []
            words += ["--zone", self.zone] if self.zone else []
        if (verb not in _UNSET or live) and fix.arguments[1:3] != ("config", "list"):
            words += ["--profile", profile] if profile else []
        for flag in ("--local", "--project", "--zone", "--profile"):
            if flag in fix.arguments and flag in words:
                at = words.index(flag)
                del words[at : at + (1 if flag == "--local" else 2)]
        rest = fix.arguments[1:]
        if verb in CONNECTING and not {*route} & {*rest}:
            end = rest.index("--") if "--" in rest else len(rest)
            rest = (*rest[:end], *route, *rest[end:])
        return replace(fix, arguments=(program, *words, *rest))

    def chosen_profile(self, environ: Mapping[str, str]) -> str:
        """Return the profile that the flags or the environment choose, or ""."""
        return self.profile or environ.get("TPUKIT_PROFILE", "")

    def is_local(self, environ: Mapping[str, str]) -> bool:
        """Return True if the flags or the environment select the emulator."""
        return self.local or environ.get("TPUKIT_LOCAL", "") not in _NO
