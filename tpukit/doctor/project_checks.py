"""Checks of the account, the project and this machine, before any slice exists."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit

from tpukit.accelerators import AcceleratorType, is_listed
from tpukit.access.packet_filter import open_to_world
from tpukit.access.ssh_config import SshConfig
from tpukit.access.ssh_rule import close_command
from tpukit.clock import Clock
from tpukit.doctor.findings import Finding, Outcome, checked, failed
from tpukit.doctor.permission_checks import permission_findings
from tpukit.doctor.quota_checks import type_findings, zone_findings
from tpukit.errors import Fix, NotAllowed, SecurityRefusal
from tpukit.google.failures import LOGIN
from tpukit.google.login_profiles import OsLogin
from tpukit.google.project import GoogleProject
from tpukit.google.provider import FirewallProvider, SliceProvider
from tpukit.google.retrying_session import CLOCK_DIFFERENCE
from tpukit.models import LOST_STATES, Slice
from tpukit.settings.config_files import read_gcloud
from tpukit.settings.resolution import Settings
from tpukit.settings.table import BY_NAME, is_loopback
from tpukit.slices.lifetime import span
from tpukit.text import counted, one_line, shown_path

_LEFT_BEHIND = frozenset({"SUSPENDED", "FAILED"})
_UNCHECKED = "it needs a project, and credentials that the API accepts"
_ON = (
    "the first create makes the key and says how to register it; the organisation policy"
    " compute.requireOsLogin turns OS Login on"
)
_TWO_LOGINS = "gcloud auth login does not change the account of other programs"


#: Checks by name, with the outcome if one raises an error.
Table = tuple[tuple[str, Callable[[], Iterable[Finding]], Outcome], ...]


@dataclass(frozen=True)
class ProjectChecks:
    """The checks; clients are made when a check first uses them, and their errors are findings."""

    settings: Settings
    environ: Mapping[str, str]
    clock: Clock
    account: Callable[[], str]
    provider: Callable[[], SliceProvider]
    firewall: Callable[[], FirewallProvider]
    project: Callable[[], GoogleProject]
    login: Callable[[], OsLogin]
    #: Our user on workers with OS Login; raises an error if our key is not registered there.
    login_user: Callable[[], str]
    #: The file of the private key; None if tpukit has not made its own yet.
    key: Callable[[], Path | None]
    ssh_config: SshConfig
    #: The type of slice to look for quota for; "" stands for all types of the zone.
    accelerator_type: str = ""

    def findings(self) -> list[Finding]:
        """Return the findings in the order in which a first slice needs them."""
        begin: Table = (
            ("project", self._project, "failure"),
            ("account", self._account, "failure"),
        )
        api: Table = (("Cloud TPU API", self._slices, "failure"),)
        cloud: Table = (
            ("clock", self._clock, "failure"),
            ("zone", self._zone, "failure"),
            ("roles", self._roles, "not checked"),
            ("quota", self._quota, "not checked"),
            ("queued resources", self._queued, "failure"),
            ("Compute Engine API", self._network, "failure"),
            ("OS Login", self._os_login, "not checked"),
            ("gcloud", self._logins, "not checked"),
        )
        here: Table = (
            ("gcloud", self._gcloud, "failure"),
            ("SSH key", self._key, "failure"),
            ("ssh", self._ssh, "failure"),
            ("proxy", self._proxy, "failure"),
        )
        access = _all(begin)
        if failed(access):
            return [*access, *_none((*api, *cloud)), *_all(here)]
        answer = _all(api)
        if any(finding.fix == LOGIN for finding in answer):  # each further call would wait too
            return [*access, *answer, *_none(cloud), *_all(here)]
        silent = Finding("clock", "not checked", "it needs an answer of the API")
        rest = [silent, *_all(cloud[1:])] if failed(answer) else _all(cloud)
        return [*access, *answer, *rest, *_all(here)]

    def _project(self) -> Iterator[Finding]:
        project = self.settings.require("project")
        origin = self.settings.values["project"].origin
        yield Finding("project", "ok", f"{project} ({origin})")

    def _account(self) -> Iterator[Finding]:
        yield Finding("account", "ok", self.account())

    def _slices(self) -> Iterator[Finding]:
        listed = self.provider().list("-")
        lost = [slice_ for slice_ in listed.slices if slice_.state in LOST_STATES]
        yield Finding("Cloud TPU API", "ok", f"it answers: {counted(len(listed.slices), 'slice')}")
        if listed.unreachable:
            silent = ", ".join(listed.unreachable)
            yield Finding("Cloud TPU API", "warning", f"no answer from {silent}")
        if lost:
            names = ", ".join(slice_.name for slice_ in lost)
            said = f"preempted or terminated, and part of the quota until deleted: {names}"
            yield Finding("slices", "warning", said, Fix.command("tpukit", "reap"))
        if not listed.unreachable:
            yield from self._hosts(listed.slices)

    def _hosts(self, slices: Iterable[Slice]) -> Iterator[Finding]:
        """Yield the finding on OpenSSH's hosts of slices that no longer exist."""
        stale = self.ssh_config.stale(slices, self.settings.require("project"))
        if stale:
            said = f"OpenSSH has hosts of slices that are gone: {', '.join(stale)}"
            fix = Fix.command("tpukit", "ssh-config", "--remove", *stale)
            yield Finding("ssh-config", "warning", said, fix, lambda: self._forget(stale))

    def _forget(self, names: list[str]) -> str:
        removed = ", ".join(self.ssh_config.remove(names))
        return f"removed from tpukit's OpenSSH configuration: {removed or 'nothing'}"

    def _clock(self) -> Iterator[Finding]:
        if is_loopback(self.settings.get("tpu_endpoint")):
            yield Finding("clock", "not checked", "the API is on this machine")
            return
        ahead = self.clock.time() - self.provider().now()
        if abs(ahead) <= CLOCK_DIFFERENCE:
            yield Finding("clock", "ok", "it agrees with the API's")
            return
        side = "ahead of" if ahead > 0 else "behind"
        fix = Fix(note="set this machine's clock, for example with timedatectl set-ntp true")
        yield Finding("clock", "failure", f"it is {span(abs(ahead))} {side} the API's", fix)

    def _zone(self) -> Iterator[Finding]:
        zone = self.settings.get("zone")
        if not zone:
            choose = Fix.command("tpukit", "zones", note="lists the zones; give one with --zone")
            yield Finding("zone", "warning", "no zone is set", choose)
            return
        zones = self.provider().zones()
        if zone not in zones:
            near = get_close_matches(zone, zones, 1)
            meant = f"; perhaps {near[0]}" if near else ""
            said = f"this project has no zone {zone} for TPUs{meant}"
            yield Finding("zone", "failure", said, Fix.command("tpukit", "zones"))
            return
        offered = self.provider().accelerator_types(zone)
        origin = self.settings.values["zone"].origin
        said = f"{zone} ({origin}) offers {counted(len(offered), 'type')}"
        fix = None if offered else Fix.command("tpukit", "zones")
        yield Finding("zone", "ok" if offered else "failure", said, fix)

    def _roles(self) -> Iterator[Finding]:
        project, network = self.settings.require("project"), self.settings.get("network")
        apis = self.settings.get("apis").split(",")
        yield from permission_findings(self.project(), project, network, self.account(), apis)

    def _quota(self) -> Iterator[Finding]:
        zone = self.settings.get("zone")
        if not zone or zone == "-":
            yield Finding("quota", "not checked", "it needs a zone")
            return
        limits = self.project().limits([zone])[zone]
        if self.accelerator_type:
            yield from type_findings(limits, zone, AcceleratorType.parse(self.accelerator_type))
            return
        offered = filter(is_listed, self.provider().accelerator_types(zone))
        generations = {AcceleratorType.parse(name).facts.name for name in offered}
        yield from zone_findings(limits, zone, generations)

    def _os_login(self) -> Iterator[Finding]:
        setting = self.login().project_metadata().get("enable-oslogin", "")
        if setting.upper() != "TRUE":
            yield Finding("OS Login", "ok", "it is off: workers take keys from their metadata")
        elif self.key() is None:
            said = "it is on, and tpukit has no key yet that it could know"
            yield Finding("OS Login", "warning", said, Fix(note=_ON))
        else:
            yield self._login()

    def _login(self) -> Finding:
        try:
            return Finding("OS Login", "ok", f"it is on, and you log in as {self.login_user()}")
        except NotAllowed as error:
            return Finding("OS Login", "failure", one_line(error.summary()), error.fix)

    def _queued(self) -> Iterator[Finding]:
        requests = self.provider().list_queued("-").requests
        dead = [request.name for request in requests if request.state in _LEFT_BEHIND]
        if dead:
            said = f"came to nothing, and part of the quota until deleted: {', '.join(dead)}"
            fix = Fix.command("tpukit", "reap")
            yield Finding("queued resources", "warning", said, fix)
        else:
            yield Finding("queued resources", "ok", counted(len(requests), "request"))

    def _network(self) -> Iterator[Finding]:
        firewall, project = self.firewall(), self.settings.require("project")
        rules = firewall.list()
        yield Finding("Compute Engine API", "ok", f"it answers: {counted(len(rules), 'rule')}")
        for rule in open_to_world(rules):
            said = f"rule {rule.name} lets the whole world reach port 22 on {rule.network}"
            yield Finding("firewall", "warning", said, close_command(rule, project))
        network = self.settings.get("network")
        if "/" not in network and not firewall.has_network(network):
            words = ("gcloud", "compute", "networks", "create", network, "--project", project)
            fix = Fix.command(*words, note="or name a network of yours with --network")
            yield Finding("network", "failure", f"the project has no network {network}", fix)
        zone = self.settings.get("zone")
        region = zone.rpartition("-")[0]
        if region and firewall.free_addresses(region) == 0:
            said = f"no external address is free in {region}"
            fix = Fix(note="release addresses, or create slices with --internal-ips")
            yield Finding("addresses", "failure", said, fix)

    def _gcloud(self) -> Iterator[Finding]:
        home = self.environ.get("HOME", "")
        name, values = read_gcloud(self.environ, Path(home) if home.startswith("/") else None)
        for setting in ("project", "zone"):
            theirs, ours = values.get(BY_NAME[setting].gcloud, ""), self.settings.get(setting)
            if theirs and ours and theirs != ours:
                origin = self.settings.values[setting].origin
                said = f"gcloud uses {setting} {theirs} ({name}), tpukit {ours} ({origin})"
                fix = Fix.command("tpukit", "config", "explain")
                yield Finding("gcloud", "warning", said, fix)

    def _logins(self) -> Iterator[Finding]:
        theirs, ours = self.settings.values["account"], self.account()
        # An access token alone may have no account, and then `ours` is the local user.
        if theirs.value and "@" in ours and theirs.value.lower() != ours.lower():
            said = f"gcloud uses account {theirs.value} ({theirs.origin}), tpukit {ours}"
            fix = Fix.command("gcloud", "auth", "application-default", "login", note=_TWO_LOGINS)
            yield Finding("gcloud", "warning", said, fix)

    def _key(self) -> Iterator[Finding]:
        try:
            key = self.key()
        except SecurityRefusal as error:
            yield _refused_key(error)
            return
        said = one_line(key.name) if key else "the first connection makes one"
        yield Finding("SSH key", "ok" if key else "not checked", said)

    def _ssh(self) -> Iterator[Finding]:
        if shutil.which("ssh", path=self.environ.get("PATH", os.defpath)):
            yield Finding("ssh", "ok", "OpenSSH is installed")
            return
        fix = Fix(note="install the OpenSSH client, which shells on a terminal and --jump need")
        yield Finding("ssh", "warning", "there is no program ssh", fix)

    def _proxy(self) -> Iterator[Finding]:
        proxy = self.environ.get("HTTPS_PROXY") or self.environ.get("https_proxy")
        if proxy:
            place = urlsplit(proxy)
            said = f"calls go through {place.hostname}:{place.port or 80}"
            yield Finding("proxy", "ok", f"{said}; SSH does not")


def _all(table: Table) -> list[Finding]:
    return [finding for row in table for finding in checked(*row)]


def _none(table: Table) -> list[Finding]:
    names = dict.fromkeys(name for name, *_ in table)
    return [Finding(name, "not checked", _UNCHECKED) for name in names if name != "gcloud"]


def _refused_key(error: SecurityRefusal) -> Finding:
    """Return the finding on a private key that is refused; its mode can be repaired."""
    words = error.fix.arguments if error.fix else ()

    def restrict() -> str:
        os.chmod(words[-1], 0o600)
        return f"only you can read {shown_path(Path(words[-1]))} now"

    can = words[:2] == ("chmod", "600")
    return Finding(
        "SSH key", "failure", one_line(error.summary()), error.fix, restrict if can else None
    )
