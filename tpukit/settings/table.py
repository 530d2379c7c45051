"""The table of settings. A check returns the value to use, or raises `BadInput`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from tpukit.errors import BadInput, Fix, SecurityRefusal
from tpukit.text import one_line

_URL_FIX = Fix(note="use https and a host, or http on 127.0.0.1 for the emulator")


def check_endpoint(url: str) -> str:
    """Return the URL of an API endpoint, which gets credentials.

    Raises `BadInput` if it is not a plain http(s) URL, and `SecurityRefusal` for http to another
    machine.
    """
    parts = _parts(url)
    if parts.scheme == "http" and not is_loopback(url):
        raise SecurityRefusal(
            f"{_shown(url)} would get credentials over http",
            reason="use http only for this machine",
            fix=_URL_FIX,
        )
    return url


def is_loopback(url: str) -> bool:
    """Return True if a URL reaches only this machine; raise `BadInput` if it is no endpoint."""
    from ipaddress import ip_address

    host = _parts(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _parts(url: str) -> SplitResult:
    # Clients disagree about the host of a URL with blanks, backslashes or user names.
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


def _matching(noun: str, pattern: str, *, reason: str = "", fix: Fix) -> Callable[[str], str]:
    """Return a check that a whole value matches a pattern."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value, re.ASCII):
            raise BadInput(f'"{_shown(value)}" is not {noun}', reason=reason, fix=fix)
        return value

    return check


# Google Cloud documentation, "Creating and managing projects": 6 to 30 characters; older ids may
# start with a domain: example.com:name.
check_project = _matching(
    "a project id",
    r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]",
    reason="an id has 6 to 30 of a-z, 0-9 and -, and starts with a letter; its number and title "
    "do not count",
    fix=Fix.command("gcloud", "projects", "list"),
)
check_profile = _matching(
    "the name of a profile",
    r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}",
    fix=Fix(note="a name has at most 40 letters, digits, _ and -"),
)
check_user = _matching(
    "a user name",
    r"[a-z_][a-z0-9_-]{0,31}",
    reason="a name has at most 32 of a-z, 0-9, _ and -, and starts with a letter or _",
    fix=Fix(note="set TPUKIT_USER to such a name"),
)
check_network = _matching(
    "a network", r"[a-z0-9][a-z0-9:._/-]*", fix=Fix.command("gcloud", "compute", "networks", "list")
)
check_account = _matching("an account", r"[!-~]+", fix=Fix.command("gcloud", "auth", "list"))
check_impersonation = _matching(
    "a service account, or several joined by commas",
    r"\s*[a-z0-9@.:-]+@[a-z0-9.-]+\s*(,\s*[a-z0-9@.:-]+@[a-z0-9.-]+\s*)*",
    fix=Fix.command("gcloud", "iam", "service-accounts", "list"),
)
check_seconds = _matching(
    "a number of seconds", r"[1-9]\d{0,4}", fix=Fix(note="write whole seconds, such as 60")
)

check_rates = _matching(
    "a list of prices",
    r"\s*[a-z0-9]+(:[a-z-]+)?=\d{1,6}(\.\d+)?\s*(,\s*[a-z0-9]+(:[a-z-]+)?=\d{1,6}(\.\d+)?\s*)*",
    reason="give the price of a chip for an hour, by generation, or by generation and capacity",
    fix=Fix(note="for example: v6e=2.70,v6e:spot=1.10"),
)

check_cache = _matching(
    "a folder or a bucket",
    r"(/|gs://[a-z0-9])[!-~ ]*",
    fix=Fix(note="write the path on the workers in full, or gs://BUCKET/FOLDER"),
)

check_count = _matching("a number", r"\d{1,4}", fix=Fix(note="write a whole number, such as 2"))
check_hours = _matching(
    "a number of hours", r"\d{1,5}(\.\d{1,3})?", fix=Fix(note="write hours, such as 8 or 1.5")
)
check_types = _matching(
    "a list of accelerator types",
    r"\s*[a-z0-9]+-\d+\s*(,\s*[a-z0-9]+-\d+\s*)*",
    fix=Fix(note="for example: v6e-4,v6e-8"),
)
check_apis = _matching(
    "a list of APIs",
    r"tpu|compute|tpu,compute|compute,tpu",
    fix=Fix(note="use tpu, compute or tpu,compute"),
)

#: The words that gcloud accepts as `billing/quota_project` (`gcloud topic configurations`).
QUOTA_WORDS = ("CURRENT_PROJECT", "CURRENT_PROJECT_WITH_FALLBACK", "LEGACY")


def check_quota_project(value: str) -> str:
    """Return a project id or one of `QUOTA_WORDS`; raise `BadInput` for anything else."""
    return value if value in QUOTA_WORDS else check_project(value)


def check_switch(value: str) -> str:
    """Return `yes` or `no` for gcloud's words for them; raise `BadInput` for anything else."""
    if value.lower() in ("1", "true", "yes", "on", "y"):
        return "yes"
    if value.lower() in ("0", "false", "no", "off", "n", "none"):
        return "no"
    raise BadInput(f'"{_shown(value)}" is neither yes nor no', fix=Fix(note="use yes or no"))


def check_zone(value: str) -> str:
    """Return a zone, or `-` for all zones; raise `BadInput` for anything else."""
    if value != "-" and not re.fullmatch(r"[a-z]+-[a-z]+\d+-[a-z0-9]+", value, re.ASCII):
        raise BadInput(
            f'"{_shown(value)}" is not a zone',
            reason="this is a region" if re.fullmatch(r"[a-z]+-[a-z]+\d", value) else "",
            fix=Fix.command(
                *("tpukit", "types", "v3-8"),
                note="shows the zones of a type, such as us-central1-a",
            ),
        )
    return value


def check_zones(value: str) -> str:
    """Return zones joined by commas, or `-` for all zones; raise `BadInput` for anything else."""
    return ",".join(check_zone(zone.strip()) for zone in value.split(","))


def check_ranges(value: str) -> str:
    """Return address ranges in CIDR notation, joined by commas; raise `BadInput` for others."""
    from ipaddress import ip_network

    parts = [part.strip() for part in value.split(",") if part.strip()]
    for part in parts:
        try:
            ip_network(part, strict=True)
        except ValueError as error:
            raise BadInput(
                f'"{_shown(part)}" is not an address range',
                reason=one_line(str(error)),
                fix=Fix(note="use CIDR notation, such as 203.0.113.7/32"),
            ) from error
    return ",".join(parts)


def check_path(value: str) -> str:
    """Return a path; raise `BadInput` if it starts with `~`, which only shells expand."""
    if not value or "\0" in value or value.startswith("~"):
        raise BadInput(f'"{_shown(value)}" is not a path', fix=Fix(note="write the path in full"))
    return value


def _shown(value: str) -> str:
    return one_line(value)[:60]


@dataclass(frozen=True)
class Definition:
    """A setting: its check, its names in gcloud and in the environment, its default.

    A project file may set a `harmless` setting, and others only if the user trusts the file. It
    must never set a `guarded` one, which decides the destination of requests and credentials, nor a
    `permission`.
    """

    name: str
    check: Callable[[str], str]
    gcloud: str = ""  #: `section/property`; its variable is CLOUDSDK_SECTION_PROPERTY
    google: str = ""  #: the environment variable of Google's libraries
    guarded: bool = False
    permission: bool = False  #: what the user permits to an agent
    harmless: bool = False
    default: str = ""

    @property
    def personal(self) -> bool:
        """True if a project file must never set it, trusted or not."""
        return self.guarded or self.permission

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        return f"TPUKIT_{self.name.upper()}"

    @property
    def google_variables(self) -> tuple[str, ...]:
        """The variables of gcloud and of Google's libraries; the first one that is set wins."""
        gcloud = f"CLOUDSDK_{self.gcloud.replace('/', '_').upper()}" if self.gcloud else ""
        return tuple(filter(None, (gcloud, self.google)))

    def fix(self, profile: str = "") -> Fix:
        """Three ways to give a missing `project` or `zone`; a profile replaces gcloud's."""
        last = f"it in profile {profile}" if profile else f"gcloud's {self.gcloud}"
        return Fix(note=f"pass {self.flag}, or set {self.variable}, or {last}")


DEFINITIONS = (
    Definition("project", check_project, "core/project", "GOOGLE_CLOUD_PROJECT"),
    Definition("zone", check_zone, "compute/zone", harmless=True),
    Definition("user", check_user),
    Definition("network", check_network, default="default"),
    Definition("source_ranges", check_ranges),
    Definition(
        "tpu_endpoint",
        check_endpoint,
        "api_endpoint_overrides/tpu",
        guarded=True,
        default="https://tpu.googleapis.com/",
    ),
    Definition(
        "compute_endpoint",
        check_endpoint,
        "api_endpoint_overrides/compute",
        guarded=True,
        default="https://compute.googleapis.com/compute/v1/",
    ),
    Definition(
        "oslogin_endpoint",
        check_endpoint,
        "api_endpoint_overrides/oslogin",
        guarded=True,
        default="https://oslogin.googleapis.com/",
    ),
    Definition(
        "resourcemanager_endpoint",
        check_endpoint,
        "api_endpoint_overrides/cloudresourcemanager",
        guarded=True,
        default="https://cloudresourcemanager.googleapis.com/",
    ),
    Definition(
        "serviceusage_endpoint",
        check_endpoint,
        "api_endpoint_overrides/serviceusage",
        guarded=True,
        default="https://serviceusage.googleapis.com/",
    ),
    Definition(
        "cloudquotas_endpoint",
        check_endpoint,
        "api_endpoint_overrides/cloudquotas",
        guarded=True,
        default="https://cloudquotas.googleapis.com/",
    ),
    Definition("access_token_file", check_path, "auth/access_token_file", guarded=True),
    Definition(
        "credentials_file",
        check_path,
        "auth/credential_file_override",
        "GOOGLE_APPLICATION_CREDENTIALS",
        guarded=True,
    ),
    Definition(
        "quota_project",
        check_quota_project,
        "billing/quota_project",
        "GOOGLE_CLOUD_QUOTA_PROJECT",
        guarded=True,
    ),
    Definition("account", check_account, "core/account", guarded=True),
    Definition(
        "impersonate_service_account",
        check_impersonation,
        "auth/impersonate_service_account",
        guarded=True,
    ),
    Definition("disable_credentials", check_switch, "auth/disable_credentials", guarded=True),
    Definition(
        "iamcredentials_endpoint",
        check_endpoint,
        "api_endpoint_overrides/iamcredentials",
        guarded=True,
    ),
    Definition("ssh_key", check_path, guarded=True),
    Definition("keep_tokens", check_switch, guarded=True, default="yes"),
    Definition("keep_hints", check_switch, default="yes"),
    # Healthy workers were seen to be silent for 14 s.
    Definition("silence", check_seconds, default="30"),
    Definition("persist", check_seconds),
    Definition("rates", check_rates),
    Definition("apis", check_apis, default="tpu"),
    Definition("compilation_cache", check_cache),
    Definition("agent_max_slices", check_count, permission=True, default="0"),
    Definition("agent_max_hours", check_hours, permission=True, default="0"),
    Definition("agent_types", check_types, permission=True),
    Definition("agent_zones", check_zones, permission=True),
)
BY_NAME = {definition.name: definition for definition in DEFINITIONS}
