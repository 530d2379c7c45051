"""The settings there are, with checks that return the value to use or raise `BadInput`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from tpukit.errors import BadInput, SecurityRefusal
from tpukit.text import one_line

_URL_FIX = "use https://HOST/, or http://127.0.0.1:PORT/ for the emulator"


def check_endpoint(url: str) -> str:
    """Return the URL of an API endpoint; credentials go to it.

    Raises `BadInput` for what is no plain http(s) URL, `SecurityRefusal` for http beyond loopback.
    """
    parts = _parts(url)
    if parts.scheme == "http" and not is_loopback(url):
        raise SecurityRefusal(
            f"{_shown(url)} would get credentials over http",
            reason="http is for this machine alone",
            fix=_URL_FIX,
        )
    return url


def is_loopback(url: str) -> bool:
    """Tell whether a URL reaches this machine alone."""
    from ipaddress import ip_address

    host = _parts(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _parts(url: str) -> SplitResult:
    # Clients disagree about blanks, backslashes and user names in a URL, so nothing can be said
    # about the host that such a URL reaches.
    if re.search(r"[^!-~]|[\\@?#]", url):
        raise BadInput(f"{_shown(url)} is not the URL of an API endpoint", fix=_URL_FIX)
    try:
        parts = urlsplit(url)
        complete = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:
        raise BadInput(f"{_shown(url)} is not a URL", reason=str(error), fix=_URL_FIX) from error
    if not complete:
        raise BadInput(f"{_shown(url)} is not an http or https URL", fix=_URL_FIX)
    return parts


def check_project(value: str) -> str:
    """Return a project id."""
    # Google Cloud documentation, "Creating and managing projects": 6 to 30 characters; older ids
    # may carry a domain, as example.com:name.
    if not re.fullmatch(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]", value):
        raise BadInput(
            f'"{_shown(value)}" is not a project id',
            reason="6 to 30 of a-z, 0-9 and -, from a letter on; neither its number nor its title",
            fix="gcloud projects list",
        )
    return value


def check_zone(value: str) -> str:
    """Return a zone, or `-` for all of them."""
    if value != "-" and not re.fullmatch(r"[a-z]+-[a-z]+\d+-[a-z0-9]+", value, re.ASCII):
        raise BadInput(
            f'"{_shown(value)}" is not a zone',
            reason="a region has no last part" if re.fullmatch(r"[a-z]+-[a-z]+\d", value) else "",
            fix="use a name like us-central1-a; tpukit types shows the zones",
        )
    return value


def check_user(value: str) -> str:
    """Return a POSIX user name."""
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", value):
        raise BadInput(
            f'"{_shown(value)}" is not a user name',
            reason="at most 32 of a-z, 0-9, _ and -, from a letter on",
            fix="export TPUKIT_USER=NAME",
        )
    return value


def check_network(value: str) -> str:
    """Return a network, by name or path."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9:._/-]*", value):
        raise BadInput(
            f'"{_shown(value)}" is not a network',
            fix="gcloud compute networks list",
        )
    return value


def check_ranges(value: str) -> str:
    """Return address ranges in CIDR notation, joined by commas."""
    from ipaddress import ip_network

    parts = [part.strip() for part in value.split(",") if part.strip()]
    for part in parts:
        try:
            ip_network(part, strict=True)
        except ValueError as error:
            raise BadInput(
                f'"{_shown(part)}" is not an address range',
                reason=one_line(str(error)),
                fix="use CIDR notation, as 203.0.113.7/32",
            ) from error
    return ",".join(parts)


def check_path(value: str) -> str:
    """Return a path that can be opened; only a shell knows what `~` is."""
    if not value or "\0" in value or value.startswith("~"):
        raise BadInput(f'"{_shown(value)}" is not a path', fix="write the path in full")
    return value


def _shown(value: str) -> str:
    return one_line(value)[:60]


@dataclass(frozen=True)
class Known:
    """One setting: its check, its names in gcloud and in the environment, its default.

    `guarded` settings decide where requests and credentials go.
    """

    name: str
    check: Callable[[str], str]
    gcloud: str = ""  #: `section/property`; its variable is CLOUDSDK_SECTION_PROPERTY
    google: str = ""  #: the environment variable of Google's libraries
    guarded: bool = False
    default: str = ""

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        return f"TPUKIT_{self.name.upper()}"

    @property
    def google_variables(self) -> tuple[str, ...]:
        """The variables of gcloud and of Google's libraries, in the order they are looked at."""
        gcloud = f"CLOUDSDK_{self.gcloud.replace('/', '_').upper()}" if self.gcloud else ""
        return tuple(filter(None, (gcloud, self.google)))

    @property
    def ways(self) -> str:
        """Three ways to give the setting, as the `fix` of an error."""
        value = self.name.upper()
        file = "config.toml" if self.guarded else "tpukit.toml"
        stored = (
            f"gcloud config set {self.gcloud} {value}"
            if self.gcloud
            else f'put {self.name} = "{value}" into {file}'
        )
        return f"pass {self.flag} {value}, or export {self.variable}={value}, or {stored}"


KNOWN = (
    Known("project", check_project, "core/project", "GOOGLE_CLOUD_PROJECT"),
    Known("zone", check_zone, "compute/zone"),
    Known("user", check_user),
    Known("network", check_network, default="default"),
    Known("source_ranges", check_ranges),
    Known(
        "tpu_endpoint",
        check_endpoint,
        "api_endpoint_overrides/tpu",
        guarded=True,
        default="https://tpu.googleapis.com/",
    ),
    Known(
        "compute_endpoint",
        check_endpoint,
        "api_endpoint_overrides/compute",
        guarded=True,
        default="https://compute.googleapis.com/compute/v1/",
    ),
    Known("access_token_file", check_path, "auth/access_token_file", guarded=True),
    Known(
        "credentials_file",
        check_path,
        "auth/credential_file_override",
        "GOOGLE_APPLICATION_CREDENTIALS",
        guarded=True,
    ),
    Known(
        "quota_project",
        check_project,
        "billing/quota_project",
        "GOOGLE_CLOUD_QUOTA_PROJECT",
        guarded=True,
    ),
)
BY_NAME = {known.name: known for known in KNOWN}
