"""Settings, each with its value and origin.

The order is flag > `TPUKIT_*` > the emulator > the profile > `CLOUDSDK_*` and Google's variables >
project file > user file > gcloud's active configuration > default. With a profile, the user file
and gcloud's configuration are not read, so that a profile never gets the project of another one.
In a local run, endpoints and credentials come only from the emulator, so that it cannot reach the
real cloud.
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
from tpukit.settings.config_files import parse_toml, project_file, read_gcloud, read_text
from tpukit.settings.table import BY_NAME, DEFINITIONS, Definition, check_path, is_loopback
from tpukit.settings.trust import TrustedFiles
from tpukit.settings.user_file import own_file, read_own_file
from tpukit.text import one_line, shown_path

NOT_SET = "not set"
#: The user on the workers if the local user is root: sshd there refuses root (Compute Engine
#: documentation, "Connect to Linux VMs as the root user").
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
    profile: str = ""  #: the chosen one, which replaces config.toml and gcloud's configuration

    @classmethod
    def load(
        cls,
        flags: Mapping[str, str | None],
        environ: Mapping[str, str],
        directory: Path,
        overlay: Mapping[str, str] | None = None,
        profile: str = "",
        *,
        may_be_new: bool = False,
    ) -> Settings:
        """Read the settings from all their places.

        `overlay` has the emulator's CLOUDSDK_* variables in a local run. A profile that
        `may_be_new` has no settings if it does not exist.

        Raises:
            BadInput: a value is invalid, a file is unreadable, or there is no such profile; the
                error names the origin.
            SecurityRefusal: an endpoint would get credentials unencrypted, or a project file sets a
                guarded setting.
        """
        places = tuple(_places(flags, environ, directory, overlay, profile, may_be_new))
        local = overlay is not None
        settings = cls(_resolve_all(places, local), profile)
        _refuse_mixed_endpoints(settings, local)
        return settings

    def get(self, name: str) -> str:
        """Return the value, or "" if there is none.

        Raises `SecurityRefusal` if an untrusted project file sets it.
        """
        setting = self.values[name]
        if setting.refusal:
            raise setting.refusal
        return setting.value

    def is_on(self, name: str) -> bool:
        """Return True if a setting is `yes`."""
        return self.get(name) == "yes"

    def require(self, name: str) -> str:
        """Return the value; raise `BadInput` if there is none or if it is `-`, all zones."""
        setting, spoken = self.values[name], name.replace("_", " ")
        if not self.get(name):
            raise BadInput(f"there is no {spoken}", fix=BY_NAME[name].fix(self.profile))
        if setting.value == "-":
            raise BadInput(
                f"this needs one {spoken}, but - means all",
                reason=setting.origin,
                fix=BY_NAME[name].fix(self.profile),
            )
        return setting.value

    @property
    def source_ranges(self) -> tuple[str, ...]:
        """The address ranges (CIDR) that may reach the workers."""
        return tuple(filter(None, self.get("source_ranges").split(",")))

    def explain(self) -> tuple[Setting, ...]:
        """Return every setting with its origin, including those without a value."""
        return tuple(self.values.values())


@dataclass(frozen=True)
class _Place:
    """The settings from one place; `base` is the folder for relative paths in it."""

    settings: Mapping[str, Setting]
    base: Path
    emulator: bool = False
    untrusted: Path | None = None  #: the project file, if the user does not trust it


def _places(
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    directory: Path,
    overlay: Mapping[str, str] | None,
    profile: str,
    may_be_new: bool,
) -> Iterator[_Place]:
    """Yield the places of settings, the highest precedence first."""
    google = attrgetter("google_variables")
    home = Path(environ["HOME"]) if environ.get("HOME", "").startswith("/") else None
    given = {
        name: Setting(name, value, f"flag {BY_NAME[name].flag}")
        for name, value in flags.items()
        if value is not None  # an empty value is kept, so that it is refused
    }
    yield _Place(given, directory)
    yield _Place(_settings(environ, lambda definition: (definition.variable,)), directory)
    if overlay is not None:
        emulated = _settings(overlay, google, lambda key: "emulator")
        yield _Place(emulated, directory, emulator=True)
    paths = Paths.from_environment(environ)
    values = read_own_file(paths, profile, may_be_new=may_be_new)
    own = _Place(_from(own_file(paths, profile), values), paths.config)
    if profile:
        yield own
    yield _Place(_settings(environ, google), directory)
    if project := project_file(directory, home):
        text = read_text(project) or ""
        trusted = TrustedFiles(paths.trusted).holds(project, text)
        yield _Place(
            in_project_file(project, text), project.parent, untrusted=None if trusted else project
        )
    if not profile:
        yield own
        configuration, properties = read_gcloud(environ, home)
        origin = f"gcloud configuration '{configuration}'"
        gcloud = _settings(properties, lambda definition: (definition.gcloud,), lambda key: origin)
        yield _Place(gcloud, home or directory)
    yield _Place(_defaults(environ), directory)


def _settings(
    values: Mapping[str, str],
    names: Callable[[Definition], tuple[str, ...]],
    origin: Callable[[str], str] = lambda key: key,
) -> dict[str, Setting]:
    """Return the settings with a value under one of their names; the first name wins."""
    return {
        definition.name: Setting(definition.name, values[key], origin(key))
        for definition in DEFINITIONS
        for key in reversed(names(definition))
        if values.get(key)
    }


def _defaults(environ: Mapping[str, str]) -> dict[str, Setting]:
    defaults = [(entry.name, entry.default, "default") for entry in DEFINITIONS if entry.default]
    defaults.append(("user", _user_of(environ), "default, the local account"))
    return {name: Setting(name, value, origin) for name, value, origin in defaults}


def in_project_file(path: Path, text: str) -> dict[str, Setting]:
    """Return the settings in the text of a project file.

    Raises:
        BadInput: the text contains anything else.
        SecurityRefusal: the text contains a guarded setting or a permission.
    """
    personal = [definition.name for definition in DEFINITIONS if definition.personal]
    return _from(path, parse_toml(path, text, personal))


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
    """Return the name of the local account, in characters that user names on workers may have."""
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
    """Return all settings; raise one error for all invalid values."""
    settings: dict[str, Setting] = {}
    wrong: list[TpukitError] = []
    for definition in DEFINITIONS:
        try:
            settings[definition.name] = _resolve(definition, places, local)
        except TpukitError as error:
            wrong.append(error)
    if wrong:
        raise together("settings are wrong", wrong)
    return settings


def _resolve(definition: Definition, places: tuple[_Place, ...], local: bool) -> Setting:
    """Return the setting from the first place that contains it and is allowed to set it."""
    for place in places:
        setting = place.settings.get(definition.name)
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
    """Raise BadInput if only one of the endpoints for slices and firewall rules is local."""
    pair = [settings.values[name] for name in ("tpu_endpoint", "compute_endpoint")]
    here = [bool(setting.value) and is_loopback(setting.value) for setting in pair]
    if all(here) or not (any(here) or local):
        return
    raise BadInput(
        "the two endpoints do not belong to one cloud",
        reason="; ".join(
            f"{setting.name} {setting.value or 'is missing'}, {setting.origin}" for setting in pair
        ),
        fix=Fix(note="add --local, or set both endpoints or none"),
    )
