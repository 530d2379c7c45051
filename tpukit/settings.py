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
from pathlib import Path

from tpukit.errors import BadInput, TpukitError
from tpukit.paths import Paths
from tpukit.settings_files import project_file, read_gcloud, read_toml
from tpukit.settings_table import BY_NAME, KNOWN, Known, check_endpoint, check_path, is_loopback
from tpukit.text import one_line

__all__ = ["NOT_SET", "Setting", "Settings", "check_endpoint"]

NOT_SET = "not set"


@dataclass(frozen=True)
class Setting:
    """A value and where it came from; without one, `value` is empty and `origin` is "not set"."""

    name: str
    value: str
    origin: str


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

        Raises `BadInput` with the origin of a value that cannot be, and `SecurityRefusal` for an
        endpoint that would get credentials in the clear.
        """
        places = tuple(_places(flags, environ, directory, overlay))
        local = overlay is not None
        settings = cls({known.name: _resolve(known, places, local) for known in KNOWN})
        _refuse_mixed_endpoints(settings, local)
        return settings

    def get(self, name: str) -> str:
        """Return the value, empty where there is none."""
        return self.values[name].value

    def require(self, name: str, *, allow_all: bool = False) -> str:
        """Return the value or raise `BadInput` with the ways to give it.

        `allow_all` admits the zone `-`, which stands for all zones.
        """
        setting, spoken = self.values[name], name.replace("_", " ")
        if not setting.value:
            raise BadInput(f"there is no {spoken}", fix=BY_NAME[name].ways)
        if setting.value == "-" and not allow_all:
            raise BadInput(
                f"one {spoken} is needed, - stands for all",
                reason=setting.origin,
                fix=BY_NAME[name].ways,
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
    explicit: bool = False  #: typed on the command line
    emulator: bool = False


def _places(
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    directory: Path,
    overlay: Mapping[str, str] | None,
) -> Iterator[_Place]:
    """Yield the places in the order in which they win."""
    home = Path(environ["HOME"]) if environ.get("HOME", "").startswith("/") else None
    yield _Place(_from_flags(flags), directory, explicit=True)
    yield _Place(_from_variables(environ, lambda known: (known.variable,)), directory)
    if overlay is not None:
        yield _Place(_from_overlay(overlay), directory, emulator=True)
    yield _Place(_from_variables(environ, lambda known: known.google_variables), directory)
    if project := project_file(directory, home):
        guarded = [known.name for known in KNOWN if known.guarded]
        yield _Place(_from_toml(project, refused=guarded), project.parent)
    user = Paths.from_environment(environ).config_file
    yield _Place(_from_toml(user), user.parent)
    yield _Place(_from_gcloud(environ, home), home or directory)
    yield _Place(_defaults(environ), directory)


def _from_flags(flags: Mapping[str, str | None]) -> dict[str, Setting]:
    return {
        known.name: Setting(known.name, value, f"flag {known.flag}")
        for known in KNOWN
        if (value := flags.get(known.name)) is not None
    }


def _from_variables(
    environ: Mapping[str, str], variables: Callable[[Known], tuple[str, ...]]
) -> dict[str, Setting]:
    found = {}
    for known in KNOWN:
        for variable in reversed(variables(known)):
            if value := environ.get(variable):
                found[known.name] = Setting(known.name, value, variable)
    return found


def _from_overlay(overlay: Mapping[str, str]) -> dict[str, Setting]:
    found = _from_variables(overlay, lambda known: known.google_variables)
    return {name: Setting(name, setting.value, "emulator") for name, setting in found.items()}


def _from_toml(path: Path, refused: tuple[str, ...] | list[str] = ()) -> dict[str, Setting]:
    values = read_toml(path, tuple(BY_NAME), refused)
    return {name: Setting(name, value, one_line(str(path))) for name, value in values.items()}


def _from_gcloud(environ: Mapping[str, str], home: Path | None) -> dict[str, Setting]:
    configuration, values = read_gcloud(environ, home)
    origin = f"gcloud configuration '{configuration}'"
    return {
        known.name: Setting(known.name, value, origin)
        for known in KNOWN
        if (value := values.get(known.gcloud))
    }


def _defaults(environ: Mapping[str, str]) -> dict[str, Setting]:
    constant = {
        known.name: Setting(known.name, known.default, "default")
        for known in KNOWN
        if known.default
    }
    return {**constant, "user": Setting("user", _user_of(environ), "default, the local account")}


def _user_of(environ: Mapping[str, str]) -> str:
    """Return the name of the local account in the letters that a worker's user name may have."""
    name = environ.get("USER") or environ.get("LOGNAME") or _account_name()
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    safe = re.sub(r"[^a-z0-9_-]", "_", plain)[:31]
    # Compute Engine documentation, "Connect to Linux VMs as the root user": sshd refuses root.
    if safe in ("", "root"):
        return "tpukit"
    return safe if re.match(r"[a-z_]", safe) else f"_{safe}"


def _account_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container whose user id has no account
        return ""


def _resolve(known: Known, places: tuple[_Place, ...], local: bool) -> Setting:
    """Return the setting of the first place that has it and may give it."""
    for place in places:
        setting = place.found.get(known.name)
        if setting is None:
            continue
        if local and known.guarded and not place.emulator:
            if place.explicit:
                raise BadInput(f"{known.flag} contradicts --local", fix=f"leave out {known.flag}")
            continue
        return _checked(known, setting, place.base)
    return Setting(known.name, "", NOT_SET)


def _checked(known: Known, setting: Setting, base: Path) -> Setting:
    try:
        value = known.check(setting.value)
    except TpukitError as error:
        reason = "; ".join(filter(None, (setting.origin, error.reason)))
        raise type(error)(error.what, reason=reason, why=error.why, fix=error.fix) from error
    if known.check is check_path:
        value = str(base / value)
    return Setting(known.name, value, setting.origin)


def _refuse_mixed_endpoints(settings: Settings, local: bool) -> None:
    """Refuse to make slices in one cloud and firewall rules in the other."""
    pair = [settings.values[name] for name in ("tpu_endpoint", "compute_endpoint")]
    here = [bool(setting.value) and is_loopback(setting.value) for setting in pair]
    if all(here) or not (any(here) or local):
        return
    raise BadInput(
        "the two endpoints do not belong to one cloud",
        reason="; ".join(f"{s.name} {s.value or 'is missing'}, {s.origin}" for s in pair),
        fix="tpukit --local, or set both endpoints or none",
    )
