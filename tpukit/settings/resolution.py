"""Settings: each value with the place it came from.

The order is flag > `TPUKIT_*` > the emulator > `CLOUDSDK_*` and Google's variables > project file >
user file > gcloud's active configuration > default. While the emulator is in use, endpoints and
credentials come from it alone: a local run cannot reach the real cloud.
"""

from __future__ import annotations

import os
import pwd
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from tpukit.errors import BadInput, Fix, SecurityRefusal, TpukitError, together
from tpukit.paths import Paths
from tpukit.settings.files import parse_toml, project_file, read_gcloud, read_text
from tpukit.settings.table import BY_NAME, DEFINITIONS, Definition, check_path, is_loopback
from tpukit.settings.trust import TrustedFiles
from tpukit.text import one_line, shown_path

NOT_SET = "not set"
#: Who root is on the workers, where sshd refuses root (Compute Engine documentation, "Connect to
#: Linux VMs as the root user").
ROOT_USER = "tpukit"


@dataclass(frozen=True)
class Setting:
    """A value and its origin. Without a value, `value` is empty and `origin` is "not set".

    If an untrusted project file sets it, `value` is empty and reading it raises `refusal`.
    """

    name: str
    value: str
    origin: str
    refusal: TpukitError | None = None


@dataclass(frozen=True)
class Settings:
    """All settings of one command, by name."""

    values: Mapping[str, Setting]

    @classmethod
    def load(
        cls,
        flags: Mapping[str, str | None],
        environ: Mapping[str, str],
        directory: Path,
        overlay: Mapping[str, str] | None = None,
    ) -> Settings:
        """Read every place settings come from; `overlay` holds the emulator's CLOUDSDK_* variables.

        Raises:
            BadInput: a value cannot be, or a file cannot be read; it names the origin.
            SecurityRefusal: an endpoint would get credentials in the clear, or a project file sets
                where they go.
        """
        places = tuple(_places(flags, environ, directory, overlay))
        local = overlay is not None
        settings = cls(_resolve_all(places, local))
        _refuse_mixed_endpoints(settings, local)
        return settings

    def get(self, name: str) -> str:
        """Return the value, empty if there is none.

        Raises `SecurityRefusal` if an untrusted project file sets the value.
        """
        setting = self.values[name]
        if setting.refusal:
            raise setting.refusal
        return setting.value

    def is_on(self, name: str) -> bool:
        """Return whether a setting is `yes`."""
        return self.get(name) == "yes"

    def require(self, name: str) -> str:
        """Return the value.

        Raises `BadInput` where there is none, or the zone `-`, which stands for all zones; its
        `fix` has the ways to give it.
        """
        setting, spoken = self.values[name], name.replace("_", " ")
        if not self.get(name):
            raise BadInput(f"there is no {spoken}", fix=BY_NAME[name].fix)
        if setting.value == "-":
            raise BadInput(
                f"one {spoken} is needed, - stands for all",
                reason=setting.origin,
                fix=BY_NAME[name].fix,
            )
        return setting.value

    @property
    def source_ranges(self) -> tuple[str, ...]:
        """The address ranges that may reach the workers, in CIDR notation."""
        return tuple(filter(None, self.get("source_ranges").split(",")))

    def explain(self) -> tuple[Setting, ...]:
        """Return every setting with its origin, those without a value too."""
        return tuple(self.values.values())


@dataclass(frozen=True)
class _Place:
    """Settings from one place, and where relative paths in it start."""

    found: Mapping[str, Setting]
    base: Path
    emulator: bool = False
    untrusted: Path | None = None  #: the project file, where the user does not trust it


def _places(
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    directory: Path,
    overlay: Mapping[str, str] | None,
) -> Iterator[_Place]:
    """Yield the places in the order in which they win."""
    google = attrgetter("google_variables")
    home = Path(environ["HOME"]) if environ.get("HOME", "").startswith("/") else None
    given = {
        name: Setting(name, value, f"flag {BY_NAME[name].flag}")
        for name, value in flags.items()
        if value is not None  # an empty one is a wrong value
    }
    yield _Place(given, directory)
    yield _Place(_found(environ, lambda each: (each.variable,)), directory)
    if overlay is not None:
        found = _found(overlay, google, lambda key: "emulator")
        yield _Place(found, directory, emulator=True)
    yield _Place(_found(environ, google), directory)
    paths = Paths.from_environment(environ)
    if project := project_file(directory, home):
        text = read_text(project) or ""
        trusted = TrustedFiles(paths.trusted).holds(project, text)
        yield _Place(
            in_project_file(project, text), project.parent, untrusted=None if trusted else project
        )
    own = parse_toml(paths.config_file, read_text(paths.config_file) or "")
    yield _Place(_from(paths.config_file, own), paths.config)
    configuration, properties = read_gcloud(environ, home)
    origin = f"gcloud configuration '{configuration}'"
    found = _found(properties, lambda each: (each.gcloud,), lambda key: origin)
    yield _Place(found, home or directory)
    yield _Place(_defaults(environ), directory)


def _found(
    values: Mapping[str, str],
    names: Callable[[Definition], tuple[str, ...]],
    origin: Callable[[str], str] = lambda key: key,
) -> dict[str, Setting]:
    """Return the settings that have a value under one of their names, the first of which wins."""
    return {
        each.name: Setting(each.name, values[key], origin(key))
        for each in DEFINITIONS
        for key in reversed(names(each))
        if values.get(key)
    }


def _defaults(environ: Mapping[str, str]) -> dict[str, Setting]:
    defaults = [(each.name, each.default, "default") for each in DEFINITIONS if each.default]
    defaults.append(("user", _user_of(environ), "default, the local account"))
    return {name: Setting(name, value, origin) for name, value, origin in defaults}


def in_project_file(path: Path, text: str) -> dict[str, Setting]:
    """Return the settings in the text of a project file.

    Raises:
        BadInput: anything else is in it.
        SecurityRefusal: one decides where requests and credentials go.
    """
    guarded = [each.name for each in DEFINITIONS if each.guarded]
    return _from(path, parse_toml(path, text, guarded))


def _from(path: Path, values: Mapping[str, str]) -> dict[str, Setting]:
    return {name: Setting(name, value, one_line(str(path))) for name, value in values.items()}


def _untrusted(setting: Setting, path: Path) -> SecurityRefusal:
    return SecurityRefusal(
        f"{shown_path(path)} is not trusted to set {setting.name}",
        reason=f"it says {one_line(setting.value)[:60]}",
        why="the author of a project must not decide who pays, which slices are yours, or who may "
        "reach them",
        fix=Fix.command("tpukit", "config", "trust", str(path), note="read the file before"),
        otherwise=Fix(note=f"set {BY_NAME[setting.name].variable} yourself"),
    )


def _user_of(environ: Mapping[str, str]) -> str:
    """Return the name of the local account in the letters that a worker's user name may have."""
    name = environ.get("USER") or environ.get("LOGNAME") or _account_name()
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    safe = re.sub(r"[^a-z0-9_-]", "_", plain)[:31]
    if safe in ("", "root"):
        return ROOT_USER
    return safe if re.match(r"[a-z_]", safe) else f"_{safe}"


def _account_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container whose user id has no account
        return ""


def _resolve_all(places: tuple[_Place, ...], local: bool) -> dict[str, Setting]:
    """Return all settings; raise one error for all values that cannot be."""
    settings: dict[str, Setting] = {}
    wrong: list[TpukitError] = []
    for each in DEFINITIONS:
        try:
            settings[each.name] = _resolve(each, places, local)
        except TpukitError as error:
            wrong.append(error)
    if wrong:
        raise together("settings are wrong", wrong)
    return settings


def _resolve(definition: Definition, places: tuple[_Place, ...], local: bool) -> Setting:
    """Return the setting of the first place that has it and may give it."""
    for place in places:
        setting = place.found.get(definition.name)
        if setting is None or (local and definition.guarded and not place.emulator):
            continue
        checked = _checked(definition, setting, place.base)
        if place.untrusted and not definition.harmless:
            refusal = _untrusted(checked, place.untrusted)
            return Setting(definition.name, "", f"{checked.origin}, not trusted", refusal)
        return checked
    return Setting(definition.name, "", NOT_SET)


def _checked(definition: Definition, setting: Setting, base: Path) -> Setting:
    try:
        value = definition.check(setting.value)
    except TpukitError as error:
        reason = "; ".join(filter(None, (setting.origin, error.reason)))
        raise type(error)(error.what, reason=reason, why=error.why, fix=error.fix) from error
    if definition.check is check_path:
        value = str(base / value)
    return Setting(definition.name, value, setting.origin)


def _refuse_mixed_endpoints(settings: Settings, local: bool) -> None:
    """Refuse to make slices in one cloud and firewall rules in the other."""
    pair = [settings.values[name] for name in ("tpu_endpoint", "compute_endpoint")]
    here = [bool(setting.value) and is_loopback(setting.value) for setting in pair]
    if all(here) or not (any(here) or local):
        return
    raise BadInput(
        "the two endpoints do not belong to one cloud",
        reason="; ".join(f"{s.name} {s.value or 'is missing'}, {s.origin}" for s in pair),
        fix=Fix(note="add --local, or set both endpoints or none"),
    )
