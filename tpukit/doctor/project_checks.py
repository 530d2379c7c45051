"""Checks of the account, the project and this machine, before any slice exists."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit

from tpukit.access.packet_filter import open_to_world
from tpukit.access.ssh_rule import close_command
from tpukit.clock import Clock
from tpukit.doctor.findings import Finding, checked, failed
from tpukit.errors import Fix
from tpukit.google.provider import FirewallProvider, SliceProvider
from tpukit.google.session import CLOCK_DIFFERENCE
from tpukit.models import LOST_STATES
from tpukit.settings.config_files import read_gcloud
from tpukit.settings.resolution import Settings
from tpukit.settings.table import BY_NAME, is_loopback
from tpukit.slices.lifetime import span
from tpukit.text import counted, one_line

_LEFT_BEHIND = frozenset({"SUSPENDED", "FAILED"})
_UNCHECKED = "it needs a project and credentials"


@dataclass(frozen=True)
class ProjectChecks:
    """The checks; clients are made when a check first uses them, and their errors are findings."""

    settings: Settings
    environ: Mapping[str, str]
    clock: Clock
    account: Callable[[], str]
    provider: Callable[[], SliceProvider]
    firewall: Callable[[], FirewallProvider]
    #: The file of the private key; None if tpukit has not made its own yet.
    key: Callable[[], Path | None]

    def findings(self) -> list[Finding]:
        """Return the findings in the order in which a first slice needs them."""
        access = [*checked("project", self._project), *checked("account", self._account)]
        here = [
            *checked("gcloud", self._gcloud),
            *checked("SSH key", self._key),
            *checked("ssh", self._ssh),
            *checked("proxy", self._proxy),
        ]
        if failed(access):
            names = ("clock", "Cloud TPU API", "zone", "Compute Engine API")
            return [*access, *(Finding(name, "not checked", _UNCHECKED) for name in names), *here]
        api = checked("Cloud TPU API", self._slices)
        silent = Finding("clock", "not checked", "it needs an answer of the API")
        return [
            *access,
            *api,
            *([silent] if failed(api) else checked("clock", self._clock)),
            *checked("zone", self._zone),
            *checked("queued resources", self._queued),
            *checked("Compute Engine API", self._network),
            *here,
        ]

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

    def _key(self) -> Iterator[Finding]:
        key = self.key()
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
