"""Wires settings, clients and console for one command, each made when it is first needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit import console as consoles
from tpukit.cli.route import Route
from tpukit.clock import Clock, Deadline, SystemClock
from tpukit.console import Console
from tpukit.errors import BadInput
from tpukit.journal import Journal
from tpukit.paths import Paths, private_directory
from tpukit.settings import Settings

if TYPE_CHECKING:
    from tpukit.cloud.session import Session
    from tpukit.kept_fleet import KeptFleet
    from tpukit.means import Means
    from tpukit.models import Slice
    from tpukit.provider import FirewallProvider, SliceProvider
    from tpukit.remote.keeper_home import KeeperHome
    from tpukit.remote.keys import KeyPair
    from tpukit.remote.proxy import Dial
    from tpukit.remote.ssh import Connector
    from tpukit.remote.worker import RemoteWorker


#: Of the range that Identity-Aware Proxy connects from, 35.235.240.0/20:
#: https://cloud.google.com/iap/docs/using-tcp-forwarding
IAP_ADDRESS = "35.235.240.1"
#: Seconds for each connection to the worker that others are reached through.
_JUMP_SECONDS = 60.0
#: What `TPUKIT_LOCAL` says where it does not ask for the emulator.
NO = ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Flags:
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


class Toolkit:
    """What a command works with. Nothing is imported or contacted before a property is read."""

    def __init__(
        self, flags: Flags, environ: Mapping[str, str] | None = None, route: Route | None = None
    ) -> None:
        self.flags = flags
        self.route = route or Route()
        self.environ = os.environ if environ is None else environ
        self.clock: Clock = SystemClock()

    def by(self, route: Route) -> Toolkit:
        """Return a toolkit that reaches workers another way."""
        route.check()
        return Toolkit(self.flags, self.environ, route) if route != self.route else self

    @cached_property
    def console(self) -> Console:
        return consoles.for_this_process(
            as_json=self.flags.as_json, quiet=self.flags.quiet, verbose=self.flags.verbose
        )

    @cached_property
    def paths(self) -> Paths:
        return Paths.from_environment(self.environ)

    @cached_property
    def settings(self) -> Settings:
        flags = {"project": self.flags.project or None, "zone": self.flags.zone or None}
        return Settings.load(flags, self.environ, Path.cwd(), self._overlay)

    @cached_property
    def journal(self) -> Journal:
        return Journal(self.paths.journal, self.clock, self.settings.get("tpu_endpoint"))

    @cached_property
    def session(self) -> Session:
        from tpukit.cloud import session

        credentials = session.load_credentials(
            self.settings.get("access_token_file"),
            self.settings.get("credentials_file"),
            self._well_known_file,
            self.settings.get("quota_project"),
        )
        return session.Session(credentials, self.clock, on_retry=self.console.say)

    @cached_property
    def provider(self) -> SliceProvider:
        from tpukit.cloud.tpu import CloudTpu

        endpoint = self.settings.get("tpu_endpoint")
        return CloudTpu(self.session, self.settings.require("project"), endpoint)

    @cached_property
    def firewall(self) -> FirewallProvider:
        from tpukit.cloud.firewall import ComputeFirewall

        endpoint = self.settings.get("compute_endpoint")
        return ComputeFirewall(self.session, self.settings.require("project"), endpoint)

    @cached_property
    def key(self) -> KeyPair:
        from tpukit.remote.keys import ensure_key_pair

        directory = private_directory(self.paths.key_directory)
        return ensure_key_pair(directory, comment="tpukit")

    @cached_property
    def connector(self) -> Connector:
        from tpukit.remote.ssh import Connector

        return Connector(self.key, self.clock, dial=self._dial)

    def means(self, source_ranges: tuple[str, ...] = ()) -> Means:
        """Return what the stages of the main job work with."""
        from tpukit.cloud.caller import source_address
        from tpukit.means import Means

        return Means(
            provider=self.provider,
            firewall=self.firewall,
            connector=self.connector,
            key=self.key,
            user=self.settings.get("user"),
            source_ranges=source_ranges or self.settings.source_ranges,
            source_address=(lambda _: IAP_ADDRESS) if self.route.iap else source_address,
            clock=self.clock,
            journal=self.journal,
            internal=self.route.inside,
        )

    def deadline(self, seconds: float) -> Deadline:
        return Deadline.after(self.clock, seconds)

    def find(self, name: str) -> Slice:
        """Return the named slice, in the zone that was asked for or in any."""
        from tpukit import existence, naming

        zone = self.flags.zone.removeprefix("-")  # a lone hyphen stands for all zones
        return existence.find(self.provider, naming.check_name(name), zone)

    def workers(self, names: str, selection: str, patience: float) -> list[RemoteWorker]:
        """Return the selected workers of one slice or several, with a way in to each.

        `patience` is in seconds, for the API and for each connection that is made later.
        """
        from tpukit import fleet

        slices = [self.find(name) for name in dict.fromkeys(names.split(","))]
        deadline = self.deadline(patience)
        return fleet.workers(
            self.means(), slices, selection, deadline, patience, on_wait=self.console.say
        )

    def kept_fleet(self, names: str, patience: float) -> KeptFleet:
        """Return all workers of the slices, reached over connections that are kept."""
        from tpukit.kept_fleet import KeptFleet
        from tpukit.remote.kept import Request

        settings = self.settings
        who = [settings.get(each) for each in ("tpu_endpoint", "project", "user")]
        request = Request("\n".join([*who, self.flags.zone, names]), self.key)
        return KeptFleet(self.keeper, request, lambda: self.workers(names, "all", patience))

    @property
    def keeper(self) -> KeeperHome:
        """Where the process is that keeps connections."""
        from tpukit.remote.keeper_home import KeeperHome

        return KeeperHome(self.paths.connections)

    def confirm(self, question: str) -> None:
        """Ask on a terminal; raise `BadInput` where nobody can answer, or the answer is no."""
        if self.flags.yes or self.environ.get("CLOUDSDK_CORE_DISABLE_PROMPTS") in ("1", "true"):
            return
        if self.flags.no_input or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise BadInput(f"{question} needs an answer", fix="add --yes")
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise BadInput("nothing was done")

    @property
    def _dial(self) -> Dial:
        from tpukit.remote import proxy

        if self.route.iap:
            project, say = self.settings.require("project"), self.console.detail
            return proxy.through_program(lambda each: proxy.iap_command(project, each), say)
        if self.route.jump:
            name, worker = self.route.jump_worker
            plain = self.by(Route())
            return proxy.through_worker(
                lambda: plain.workers(name, worker, _JUMP_SECONDS)[0].connect()
            )
        return proxy.direct

    @property
    def _overlay(self) -> Mapping[str, str] | None:
        if not self.flags.local and self.environ.get("TPUKIT_LOCAL", "") in NO:
            return None
        from tpukit.cli.emulator import ensure_environment

        return ensure_environment(self.paths, self.console)

    @property
    def _well_known_file(self) -> Path:
        directory = self.environ.get("CLOUDSDK_CONFIG") or f"{Path.home()}/.config/gcloud"
        return Path(directory) / "application_default_credentials.json"
