"""Flags and arguments that several verbs share, and the parsing of their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, TypeVar

from typer import Argument, Option

from tpukit.cli.pages import LEFT_OUT as LEFT_OUT
from tpukit.errors import BadInput, Fix
from tpukit.provision import recipe_names
from tpukit.text import is_utf8, one_line, quote

AcceleratorTypeName = Annotated[
    str, Argument(metavar="ACCELERATOR_TYPE", help="v3-8, v6e-4, …: `tpukit types`.")
]
Name = Annotated[str, Argument(metavar="NAME", help="Name of the slice.")]
OptionalName = Annotated[
    str, Argument(metavar="[NAME]", help="Name of the slice; default: USER-ACCELERATOR_TYPE.")
]
OnlyName = Annotated[
    str,
    Argument(
        metavar="[NAME]", help="Name of the slice; default: your only one.", show_default=False
    ),
]
Names = Annotated[
    str,
    Argument(metavar="NAME[,NAME…]", help="Names of slices, a pattern, or a label KEY=VALUE."),
]
OnlyNames = Annotated[
    str,
    Argument(
        metavar="[NAME[,NAME…]]",
        help="Names of slices, a pattern, or a label KEY=VALUE; default: your only slice.",
        show_default=False,
    ),
]
RunId = Annotated[
    str, Argument(metavar="[RUN]", help="Run id; default: the run that started last.")
]
Command = Annotated[list[str] | None, Argument(metavar="[-- COMMAND…]")]
Labels = Annotated[
    str, Option("--label", metavar="KEY[=VALUE],…", help="Only slices with all of these labels.")
]
Measure = Annotated[
    bool, Option("--measure", help="Also measure the devices, as tpukit smoke --level 2 does.")
]
PortHere = Annotated[
    int, Option("--port", metavar="PORT", help="Port here; 0 takes a free one.", min=0, max=65535)
]
With = Annotated[
    str, Option("--with", metavar="RECIPE", help="Use the provisioned environment's programs.")
]
JsonLines = Annotated[
    bool, Option("--json-lines", help="Print each line of output as a JSON document.")
]
ReapOwn = Annotated[
    bool,
    Option("--reap-own", help="If a quota is used up, delete your dead slices and requests first."),
]
Ttl = Annotated[str, Option(metavar="DURATION", help="How long it may live: 90m, 8h, 3d.")]
Purpose = Annotated[str, Option(metavar="TEXT", help="Purpose of the slice, as a label.")]
PerChip = Annotated[
    bool, Option("--per-chip", help="Start a process for each chip, which sees only that chip.")
]
Timeout = Annotated[str, Option(metavar="DURATION", help="How long to wait: 90s, 20m, 1h.")]
Workers = Annotated[str, Option("--worker", metavar="WORKERS", help="all, 0 or 0,2-5.")]
SourceRanges = Annotated[
    list[str] | None,
    Option(
        "--source-range",
        metavar="RANGE",
        help="Range that may reach port 22; default: your address.",
    ),
]
NoFirewall = Annotated[
    bool,
    Option("--no-firewall", help="Make no firewall rule, if the network already lets you in."),
]
RECIPES = f"{' or '.join(recipe_names())}."
DEFAULT_RECIPE = "jax"
Recipe = Annotated[str, Option("--with", metavar="RECIPE", help=RECIPES)]

WorkerNumber = Annotated[int, Option("--worker", metavar="N", help="Number of the worker.")]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


#: USER@HOST:PORT. A slice's name matches `_JUMP_WORKER` first.
_JUMP_HOST = re.compile(
    r"(?P<user>[^@:\s-][^@:\s]*@)?(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*)(?::(?P<port>\d{1,5}))?",
    re.ASCII,
)
_JUMP_WORKER = re.compile(r"(?P<slice>[a-z][a-z0-9-]*)(?::(?P<worker>\d{1,5}))?", re.ASCII)


@dataclass(frozen=True)
class ProxyFlags:
    """Routes to workers' internal addresses, and the trust in a first host key."""

    iap: Annotated[
        bool, Option("--iap", help="Connect through Identity-Aware Proxy; needs gcloud.")
    ] = False
    jump: Annotated[
        str,
        Option(
            "--jump",
            metavar="NAME[:N]|USER@HOST[:PORT]",
            help="Connect through a slice's worker, or through a host that your ssh reaches.",
        ),
    ] = ""
    accept_new_host_keys: Annotated[
        bool,
        Option(
            "--accept-new-host-keys",
            help="If a worker publishes no host key, trust its first one, and later only that.",
        ),
    ] = False

    @property
    def proxied(self) -> bool:
        return self.iap or bool(self.jump)

    @property
    def jump_worker(self) -> tuple[str, str]:
        """The slice and the number of the worker to jump through; both "" if there is none."""
        match = _JUMP_WORKER.fullmatch(self.jump)
        return (match["slice"], match["worker"] or "0") if match else ("", "")

    @property
    def jump_host(self) -> tuple[str, str]:
        """The host for ssh(1), and its port or ""; both "" if there is no such host."""
        match = None if self.jump_worker[0] else _JUMP_HOST.fullmatch(self.jump)
        return (f"{match['user'] or ''}{match['host']}", match["port"] or "") if match else ("", "")

    def check(self) -> None:
        """Raise `BadInput` for flags that contradict each other or make no sense."""
        if self.iap and self.jump:
            raise BadInput("--iap and --jump exclude each other", fix=Fix(note="choose one"))
        if self.jump and not (self.jump_worker[0] or self.jump_host[0]):
            raise BadInput(
                f"{one_line(self.jump)!r} is neither a worker nor a host",
                fix=Fix(note="--jump demo, demo:2 or ada@bastion.example.com:22"),
            )

    def route(self, internal_ips: bool) -> RouteFlags:
        """Return the route to a slice; `internal_ips` is True if it has no external addresses."""
        return RouteFlags(self.iap, self.jump, self.accept_new_host_keys, internal_ips)


@dataclass(frozen=True)
class RouteFlags(ProxyFlags):
    """How to reach workers; with no flag, at their external addresses."""

    internal_ips: Annotated[
        bool, Option("--internal-ips", help="Connect to internal addresses, inside the network.")
    ] = False

    @property
    def words(self) -> list[str]:
        """The command-line words of the flags."""
        given = [field.name for field in fields(self) if getattr(self, field.name)]
        flags = {name: f"--{name.replace('_', '-')}" for name in given}
        return [w for name in given for w in (flags[name], self.jump)[: 1 + (name == "jump")]]

    @property
    def direct(self) -> RouteFlags:
        """The route to the worker of a jump."""
        return RouteFlags(accept_new_host_keys=self.accept_new_host_keys)

    @property
    def inside(self) -> bool:
        """True if connections go to workers' internal addresses."""
        return self.proxied or self.internal_ips


DIRECT, EXTERNAL = ProxyFlags(), RouteFlags()
_Verb = TypeVar("_Verb", bound=Callable[..., object])


def connecting(verb: _Verb) -> _Verb:
    """Let a verb take `RouteFlags`; its toolkit then reaches the workers by that route."""
    vars(verb)["connects"] = True
    return verb


def seconds(text: str, name: str = "--timeout") -> float:
    """Return a duration such as `90s`, `20m`, `1.5h`, `3d` or `30` in seconds, at least one."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([smhd]?)", text.strip(), re.ASCII)
    value = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if value < 1.0:
        raise BadInput(
            f"{name} {one_line(text)[:40]!r} is not a duration",
            fix=Fix(note=f"for example: {name} 20m"),
        )
    return value


def life(text: str, name: str) -> float:
    """Return how long something may live, in seconds: a duration that must have a unit.

    `--ttl 8` could mean hours or minutes, and a slice that lives for 8 seconds is nobody's wish.
    """
    given = text.strip()
    if not re.fullmatch(r"\d{1,6}(\.\d+)?", given, re.ASCII) or not float(given):
        return seconds(text, name)
    likely = "hm" if float(given) < 100 else "ms"
    note = " or ".join(f"{name} {given}{unit}" for unit in likely)
    raise BadInput(f"{name} {given} has no unit", fix=Fix(note=note))


def size(text: str, least: int = 1 << 20) -> int:
    """Return a size such as `200M` or `4G` in bytes; raise `BadInput` for less than a megabyte."""
    match = re.fullmatch(r"(\d{1,6})([KMGT]?)B?", text.strip(), re.ASCII | re.IGNORECASE)
    value = int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ") if match else 0
    if value < least:
        raise BadInput(f"{one_line(text)!r} is not a size of 1M or more", fix=Fix(note="200M, 4G"))
    return value


def check_recipe(name: str, own: Sequence[str] = ()) -> None:
    """Raise `BadInput` if the name is neither a built-in recipe nor in `own`; reads no recipe."""
    known = (*recipe_names(), *own)
    if name not in known:
        from difflib import get_close_matches

        near = get_close_matches(name[:40].lower(), known, n=1, cutoff=0.4)
        fix = Fix(
            note=f"did you mean --with {near[0]}?" if near else f"--with {' or '.join(known)}"
        )
        raise BadInput(f"there is no recipe {one_line(name)}", fix=fix)


def pairs(text: str, flag: str) -> dict[str, str]:
    """Return `key=value,key=value` as a dict; a value may hold further equals signs."""
    values: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not key.strip() or not equals:
            raise BadInput(
                f"{one_line(part)!r} in {flag} is not KEY=VALUE", fix=Fix(note=f"{flag} a=1,b=2")
            )
        values[key.strip()] = value
    return values


def words(text: str) -> tuple[str, ...]:
    """Return a comma-separated list without blanks and empty parts."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def zone_names(text: str) -> tuple[str, ...]:
    """Return the zones of `--zones`; raise `BadInput` for an invalid name."""
    from tpukit.settings.table import check_zone

    for zone in words(text):
        if check_zone(zone) == "-":
            raise BadInput("--zones takes names of zones; for all zones use --anywhere")
    return words(text)


def remote_command(command: list[str] | None) -> str:
    """Return the shell line for the words after `--`.

    One word is a shell line; several words are quoted, so that they run exactly as given. Raises
    `BadInput` if it is not UTF-8, which could not be sent unchanged.
    """
    if not command:
        return ""
    line = command[0] if len(command) == 1 else quote(command)
    if not is_utf8(line):
        raise BadInput("the command is not UTF-8 text", reason=one_line(line)[:60])
    return line


def file_bytes(path: str, flag: str, most: int = 1 << 20) -> bytes | None:
    """Return a file's content, or None without a path.

    Raises `BadInput` if the file is unreadable or larger than `most` bytes.
    """
    if not path:
        return None
    try:
        with Path(path).open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise BadInput(
            f"cannot read {one_line(path)} ({flag})", why=error.strerror or ""
        ) from error
    if len(content) > most:
        raise BadInput(f"{one_line(path)} ({flag}) is larger than {most} bytes")
    return content
