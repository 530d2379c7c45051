"""Wires settings, clients and console for one command, each made when it is first needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tpukit import console as consoles
from tpukit.cli.global_flags import GlobalFlags, local_by_environment
from tpukit.cli.parameters import EXTERNAL, RouteFlags
from tpukit.clock import Clock, Deadline, SystemClock
from tpukit.console import Console
from tpukit.errors import BadInput, Fix, NotFound, TpukitError, together
from tpukit.paths import Paths, private_directory

if TYPE_CHECKING:
    from tpukit.access.cleanup import Cleanup
    from tpukit.access.context import Context
    from tpukit.access.hints import Hint, Hints
    from tpukit.access.os_login import OsLogins
    from tpukit.cli.dialer import Dialer
    from tpukit.cli.identity import Identity
    from tpukit.cli.stages import Stages
    from tpukit.cloud.provider import (
        DiskProvider,
        FirewallProvider,
        LoginProvider,
        Note,
        SliceProvider,
    )
    from tpukit.models import Slice
    from tpukit.provision.own_recipes import OwnRecipes
    from tpukit.provision.surroundings import Surroundings
    from tpukit.provision.wanted import Profiles
    from tpukit.remote.connection.client import Connector
    from tpukit.remote.connection.keys import KeyPair
    from tpukit.remote.connection.openssh import OpenSsh
    from tpukit.remote.connection.worker import RemoteWorker
    from tpukit.settings.resolution import Settings
    from tpukit.slices.journal import Journal
    from tpukit.slices.last_seen import LastSeen
    from tpukit.slices.name_hints import NameHints
    from tpukit.smoke.history import History
    from tpukit.smoke.smoke_report import SmokeReport


#: Seconds for each connection where the timeout is that of a longer job.
CONNECT_SECONDS = 300.0
#: The folder in which a project has recipes, beside its tpukit.toml.
PROJECT_RECIPES = "tpukit-recipes"
PROJECT_PROFILES = "tpukit-profiles"


class _Deferred:
    """Stands for a client until it is used: a command that asks no API imports none."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)


@dataclass(eq=False)
class Toolkit:
    """What a command works with. Nothing is imported or contacted before a property is read."""

    flags: GlobalFlags
    route: RouteFlags = EXTERNAL
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Clock = field(default_factory=SystemClock)
    #: What the command has open until it is over, whatever the route.
    closing: ExitStack = field(default_factory=ExitStack)
    #: Whether writes are noted and not made.
    rehearsing: bool = False
    #: What is known of each slice that the command is about, by name.
    seen: dict[str, Callable[[], LastSeen]] = field(default_factory=dict)
    #: What was loaded, by file, so that no passphrase is asked for twice.
    private_keys: dict[Path, Any] = field(default_factory=dict)

    def by(self, route: RouteFlags) -> Toolkit:
        """Return a toolkit that reaches workers by another route."""
        route.check()
        return replace(self, route=route) if route != self.route else self

    def rehearsal(self, note: Note, full: int = 0) -> Toolkit:
        """Return a toolkit that does everything but write: it notes each write, as `rehearsed`."""
        from tpukit.cloud.rehearsal import RehearsedClock, rehearsed

        other = replace(self, clock=RehearsedClock(self.clock), rehearsing=True)
        provider, firewall = rehearsed(
            self.provider, self.firewall, self.settings.require("project"), note, full
        )
        kept = {"console": self.console, "settings": self.settings, "identity": self.identity}
        other.__dict__.update(kept, provider=provider, firewall=firewall)
        return other

    @cached_property
    def console(self) -> Console:
        return consoles.for_this_process(
            as_json=self.flags.as_json,
            quiet=self.flags.quiet,
            verbose=self.flags.verbose,
            complete=lambda fix: self.flags.complete(fix, self.environ),
        )

    @cached_property
    def paths(self) -> Paths:
        return Paths.from_environment(self.environ)

    @cached_property
    def settings(self) -> Settings:
        from tpukit.settings.resolution import Settings

        flags = {"project": self.flags.project or None, "zone": self.flags.zone or None}
        return Settings.load(flags, self.environ, working_folder(), self._overlay)

    @cached_property
    def own_recipes(self) -> OwnRecipes:
        """The recipes of the user's own, and of the project that we are in."""
        from tpukit.provision.own_recipes import OwnRecipes
        from tpukit.settings.trust import TrustedFiles

        trusted = TrustedFiles(self.paths.trusted)
        return OwnRecipes(self.paths.recipes, self._root / PROJECT_RECIPES, trusted.holds)

    @property
    def _root(self) -> Path:
        """The folder of the project that we are in."""
        from tpukit.settings.files import project_root

        home = Path(self.environ["HOME"]) if self.environ.get("HOME") else None
        return project_root(working_folder(), home).resolve()

    @cached_property
    def identity(self) -> Identity:
        """Whose calls this command makes."""
        from tpukit.cli.identity import Identity

        return Identity(self.settings, self.paths, self.environ, self.clock, self.console.say)

    @property
    def owner(self) -> str:
        """Whose slices this command makes, as their label has it."""
        from tpukit.slices import naming

        return naming.owner_label(self.identity.account)

    @cached_property
    def journal(self) -> Journal:
        from tpukit.slices.journal import Journal

        endpoint = self.settings.get("tpu_endpoint")
        return Journal(self.paths.journal, self.clock, endpoint, enabled=not self.rehearsing)

    @cached_property
    def name_hints(self) -> NameHints:
        from tpukit.slices.name_hints import NameHints

        return NameHints(self.paths.name_hints, self.clock)

    @property
    def rates(self) -> Mapping[str, float]:
        """What the user pays for a chip and an hour, by generation."""
        from tpukit.slices.lifetime import rates_of

        return rates_of(self.settings.get("rates"))

    def check_given(self, *names: str) -> None:
        """Raise one error for all that is missing: of these settings, and credentials."""
        missing: list[TpukitError] = []
        settings = [partial(self.settings.require, name) for name in names]
        for look in (*settings, partial(getattr, self.identity, "credentials")):
            try:
                look()
            except TpukitError as error:
                missing.append(error)
        if missing:
            raise together("things are missing", missing)

    @cached_property
    def provider(self) -> SliceProvider:
        from tpukit.cloud.tpu import CloudTpu

        endpoint = self.settings.get("tpu_endpoint")
        self.check_given("project")
        return CloudTpu(self.identity.session, self.settings.get("project"), endpoint)

    @property
    def costs(self) -> str:
        """What a slice does until it is deleted: it bills, or in an emulator only stays."""
        return "bills" if self.provider.bills else "stays"

    @cached_property
    def firewall(self) -> FirewallProvider:
        from tpukit.cloud.firewall_rules import ComputeFirewall

        endpoint = self.settings.get("compute_endpoint")
        self.check_given("project")
        return ComputeFirewall(self.identity.session, self.settings.get("project"), endpoint)

    @cached_property
    def disks(self) -> DiskProvider:
        from tpukit.cloud.compute_disks import ComputeDisks

        return ComputeDisks(self.identity.session, self.settings.get("compute_endpoint"))

    @cached_property
    def login_provider(self) -> LoginProvider:
        from tpukit.cloud.login_profiles import OsLogin

        get = self.settings.get
        self.check_given("project")
        endpoints = get("compute_endpoint"), get("oslogin_endpoint")
        return OsLogin(self.identity.session, get("project"), *endpoints)

    @property
    def cleanup(self) -> Cleanup:
        """What deletes slices with all that goes with them, and shows it."""
        from tpukit.access.cleanup import Cleanup

        return Cleanup(
            self.provider,
            self.firewall,
            self.settings.get("project"),
            self.journal,
            on_state=self.say_state,
            on_warning=self.console.warn,
            after=self._forget,
        )

    def _forget(self, slice_: Slice) -> None:
        from tpukit.access.ssh_config import SshConfig

        if self.rehearsing:
            return
        SshConfig(self.paths.ssh).forget(slice_)
        self.hints.forget(slice_.name)
        self.name_hints.forget([slice_.name])

    @cached_property
    def key(self) -> KeyPair:
        """The key that opens workers: ours, or the user's own that the setting `ssh_key` names."""
        from tpukit.remote.connection.keys import ensure_key_pair, own_key_pair

        own = self.settings.get("ssh_key")
        if own:
            return own_key_pair(Path(own), comment="tpukit")
        return ensure_key_pair(self.paths.key_directory, comment="tpukit")

    @cached_property
    def hints(self) -> Hints:
        from tpukit.access.hints import Hints

        place = "\n".join([self.settings.get("tpu_endpoint"), self.settings.require("project")])
        return Hints(self.paths.hints, place, self.clock, self.settings.is_on("keep_hints"))

    @cached_property
    def connector(self) -> Connector:
        from tpukit.remote.connection.client import Connector

        silence = float(self.settings.get("silence"))
        return Connector(
            self.key,
            self.clock,
            silence_seconds=silence,
            dial=self.dialer.dial,
            private_keys=self.private_keys,
        )

    def unlock_key(self) -> None:
        """Ask for the passphrase of the user's own key now, if it will be needed."""
        self.connector.unlock(self._passphrase)

    def _passphrase(self, path: Path) -> str:
        from getpass import getpass

        from tpukit.text import shown_path

        if self.flags.no_input or not _on_a_terminal():
            what = f"the SSH key {shown_path(path)} needs its passphrase"
            raise BadInput(what, fix=Fix.command("ssh-add", str(path), note="asks for it once"))
        return getpass(f"passphrase of {shown_path(path)}: ", sys.stderr)

    def context(self, source_ranges: tuple[str, ...] = ()) -> Context:
        """Return what access to workers, and the main job, work with."""
        from tpukit.access.context import Context
        from tpukit.access.pinned_keys import PinnedKeys

        return Context(
            provider=cast("SliceProvider", _Deferred(lambda: self.provider)),
            firewall=cast("FirewallProvider", _Deferred(lambda: self.firewall)),
            connector=self.connector,
            key=self.key,
            user=self.settings.get("user"),
            source_ranges=source_ranges or self.settings.source_ranges,
            source_address=self.dialer.source_address,
            clock=self.clock,
            journal=self.journal,
            own_addresses=self.paths.own_addresses,
            route=self.route.words,
            internal=self.route.inside,
            proxied=self.route.proxied,
            hints=self.hints,
            pinned=PinnedKeys(self.paths.pinned_keys),
            os_logins=self._os_logins,
            accept_new=self.route.accept_new_host_keys,
        )

    def deadline(self, seconds: float) -> Deadline:
        """Return the moment so many seconds from now."""
        return Deadline.after(self.clock, seconds)

    @cached_property
    def stages(self) -> Stages:
        """What shows the slices that this command waits for, a stage each."""
        from tpukit.cli.stages import Stages

        return self.closing.enter_context(Stages(self.console, self.clock))

    def job_stages(self, name: str, hint: str = "") -> Stages:
        """Return what shows the stages of the main job on a slice; its log is named for that."""
        from tpukit.cli.stages import Stages, timed

        log = self.paths.logs / f"{name}.log"
        return self.closing.enter_context(Stages(self.console, self.clock, timed, log, hint))

    def say_state(self, name: str) -> Callable[[str], None]:
        """Return what narrates each new state of a slice."""
        return lambda state: None if self.rehearsing else self.stages.say(name, state)

    def smoke_history(self, name: str) -> History:
        """Return the smoke tests of slices of that name that ran from here."""
        from tpukit.smoke.history import History

        return History(self.paths.smoke_tests / f"{name}.json", self.clock)

    def keep_smoke(self, found: Slice, report: SmokeReport) -> None:
        """Keep what a smoke test of a slice has found."""
        self.smoke_history(found.name).record(found, report)

    def about(self, name: str, zone: str = "", state: str = "") -> None:
        """Let Ctrl-C say what exists of a slice, and how to delete it.

        `state` is empty where nobody has looked, `zone` where it may be in several.
        """
        self.seen[name] = partial(self._last_seen, name, zone, state)

    def _last_seen(self, name: str, zone: str, state: str) -> LastSeen:
        from tpukit.slices.last_seen import LastSeen

        return LastSeen(name, zone, state, self.provider.bills)

    def interrupted(self, signal: KeyboardInterrupt) -> TpukitError:
        """Return the error for a signal, with what exists of what this command is about."""
        from tpukit.slices.last_seen import interrupted

        return interrupted(signal, [known() for known in self.seen.values()])

    def find(self, name: str, deadline: Deadline | None = None) -> Slice:
        """Return the slice that the command is about, in the zone that was asked for or in any."""
        with self._looking_for(name):
            found = self.look_up(name, deadline)
        self.about(name, found.zone, found.state)
        return found

    @contextmanager
    def _looking_for(self, name: str) -> Iterator[None]:
        """Let Ctrl-C say, while we look, that nobody knows; where there is none it says nothing."""
        self.about(name, self._zone)
        try:
            yield
        except NotFound:
            self.seen.pop(name)
            raise

    def look_up(self, name: str, deadline: Deadline | None = None) -> Slice:
        """Return a slice that the command is not about itself, found as `find` does."""
        from tpukit.slices import find, naming

        provider = self.provider.within(deadline) if deadline else self.provider
        found = find.find(provider, naming.check_name(name), self._zone)
        self.name_hints.saw([name])
        return found

    def find_named(self, name: str, deadline: Deadline | None = None) -> Sequence[Slice]:
        """Return the named slice, or all slices of the multislice of that name."""
        from tpukit.slices import find, naming

        with self._looking_for(name):
            provider = self.provider.within(deadline) if deadline else self.provider
            found = find.find_named(provider, naming.check_name(name), self._zone)
        self.name_hints.saw([name])
        self.seen.pop(name)  # it may be a multislice's
        for each in found:
            self.about(each.name, each.zone, each.state)
        return found

    def workers(
        self, wanted: str | Slice, selection: str, patience: float, *, for_others: bool = False
    ) -> list[RemoteWorker]:
        """Return the selected workers of a slice, or of a list of names such as `demo,demo2`.

        The name of a multislice stands for all of its slices.

        By name they may be where they were a few minutes ago, which is proved when they are
        connected to. `patience` is in seconds, for the API and for each connection; `for_others` as
        `slice_workers.workers` has it.
        """
        from tpukit.access import slice_workers

        found: list[Slice | Hint] = []
        deadline = self.deadline(patience)
        if isinstance(wanted, str):
            for each in dict.fromkeys(wanted.split(",")):
                hint = self.hints.recall(each, self._zone)
                if hint:
                    self.about(each, hint.slice.zone, hint.slice.state)
                found += [hint] if hint else self.find_named(each, deadline)
        else:
            found.append(wanted)
        if not for_others:
            self.unlock_key()
        return slice_workers.workers(
            self.context(),
            found,
            selection,
            deadline,
            patience,
            on_wait=self.console.say,
            everywhere=isinstance(wanted, str) and not self._zone,
            for_others=for_others,
        )

    @cached_property
    def profiles(self) -> Profiles:
        """The profiles of the project that we are in, before those of the user."""
        from tpukit.provision.wanted import Profiles

        recipes = self.own_recipes
        project = self._root / PROJECT_PROFILES
        return Profiles(self.paths.profiles, project, recipes.trusts, recipes)

    def surroundings(self, name: str) -> Surroundings:
        """Return what steps on a slice may need of others and of the firewall."""
        from tpukit.provision.surroundings import Surroundings

        return Surroundings(
            context=self.context(),
            slice=self.find(name),
            find=self.look_up,
            server=lambda found: self.workers(found, "0", CONNECT_SECONDS),
            say=self.console.say,
        )

    @property
    def can_ask(self) -> bool:
        """Whether somebody is there to answer a question, and it was not answered already."""
        return not (self._answered or self.flags.no_input) and _on_a_terminal()

    def confirm(self, question: str) -> None:
        """Ask on a terminal; raise `BadInput` where nobody can answer, or the answer is no."""
        if self._answered:
            return
        if not self.can_ask:
            raise BadInput(f"{question} needs an answer", fix=Fix(note="add --yes"))
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise BadInput("nothing was done")

    @property
    def _answered(self) -> bool:
        disabled = self.environ.get("CLOUDSDK_CORE_DISABLE_PROMPTS", "").lower()
        return self.flags.yes or disabled in ("1", "true", "yes", "on")

    @property
    def _zone(self) -> str:
        """The zone that slices are looked for in; empty for all, as a lone hyphen says."""
        return self.flags.zone.removeprefix("-")

    @cached_property
    def openssh(self) -> OpenSsh:
        """How the system's OpenSSH is called."""
        from tpukit.remote.connection.openssh import OpenSsh

        silence, persist = (int(self.settings.get(each) or 0) for each in ("silence", "persist"))
        return OpenSsh(self.key, private_directory(self.paths.ssh), silence, persist)

    @cached_property
    def dialer(self) -> Dialer:
        """What leads to workers by this route."""
        from tpukit.cli.dialer import Dialer

        direct = replace(self, route=self.route.direct, seen={})  # a jump is not what it is about
        return Dialer(
            flags=self.route,
            project=lambda: self.settings.require("project"),
            openssh=lambda: self.openssh,
            find=direct.find,
            workers=direct.workers,
            say=self.console.say,
        )

    @property
    def _os_logins(self) -> OsLogins:
        from tpukit.access.os_login import OsLogins

        # As gcloud finds it, also for a service that has no HOME.
        home = self.environ.get("HOME") or os.path.expanduser("~")
        return OsLogins(
            provider=cast("LoginProvider", _Deferred(lambda: self.login_provider)),
            account=lambda: self.identity.account,
            key=self.key,
            gcloud_key=Path(home, ".ssh", "google_compute_engine"),
        )

    @property
    def _overlay(self) -> Mapping[str, str] | None:
        if not self.flags.local and not local_by_environment(self.environ):
            return None
        from tpukit.cli.local import ensure_environment

        return ensure_environment(self.paths, self.console)


def _on_a_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def working_folder() -> Path:
    """Return the folder that the command was typed in; raise `BadInput` where it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        why = Fix(note="cd to a folder that exists")
        raise BadInput("the folder that you are in was deleted", fix=why) from error
