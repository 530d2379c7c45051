"""The settings, clients and console of one command, each made when it is first used."""

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


#: Seconds for each connection if the verb's timeout is for a longer job.
CONNECT_SECONDS = 300.0
#: The folders with a project's recipes and profiles, beside its tpukit.toml.
PROJECT_RECIPES = "tpukit-recipes"
PROJECT_PROFILES = "tpukit-profiles"


class _Deferred:
    """A client that is made on first use, so that a command imports only the clients it uses."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)


@dataclass(eq=False)
class Toolkit:
    """The parts that a command uses. Each is imported and made when its property is read."""

    flags: GlobalFlags
    route: RouteFlags = EXTERNAL
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Clock = field(default_factory=SystemClock)
    #: Closed when the command ends; toolkits of other routes share it.
    closing: ExitStack = field(default_factory=ExitStack)
    #: True in a dry run: writes are recorded instead of sent.
    rehearsing: bool = False
    #: The last known state of each slice that the command works on, by name.
    seen: dict[str, Callable[[], LastSeen]] = field(default_factory=dict)
    #: Loaded private keys by file, so that tpukit asks for each passphrase only once.
    private_keys: dict[Path, Any] = field(default_factory=dict)

    def by(self, route: RouteFlags) -> Toolkit:
        """Return a toolkit that reaches workers by another route."""
        route.check()
        return replace(self, route=route) if route != self.route else self

    def rehearsal(self, note: Note, full: int = 0) -> Toolkit:
        """Return a toolkit that passes writes to `note` and sends none; see `rehearsed`."""
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
        """The user's recipes, and those of the current project."""
        from tpukit.provision.own_recipes import OwnRecipes
        from tpukit.settings.trust import TrustedFiles

        trusted = TrustedFiles(self.paths.trusted)
        return OwnRecipes(self.paths.recipes, self._root / PROJECT_RECIPES, trusted.holds)

    @property
    def _root(self) -> Path:
        """The folder of the current project."""
        from tpukit.settings.files import project_root

        home = Path(self.environ["HOME"]) if self.environ.get("HOME") else None
        return project_root(working_folder(), home).resolve()

    @cached_property
    def identity(self) -> Identity:
        """The identity with which this command makes its calls."""
        from tpukit.cli.identity import Identity

        return Identity(self.settings, self.paths, self.environ, self.clock, self.console.say)

    @property
    def owner(self) -> str:
        """The value of the owner label on slices that this command makes."""
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
        """The user's price of a chip for an hour, by generation."""
        from tpukit.slices.lifetime import rates_of

        return rates_of(self.settings.get("rates"))

    def check_given(self, *names: str) -> None:
        """Raise one error that names all missing settings of these, and missing credentials."""
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
        """The verb for messages about a slice: "bills", or in an emulator "stays"."""
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
        """Deletes slices with their firewall rules and queued resources."""
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
        """The SSH key for workers: tpukit's, or the user's if the setting `ssh_key` names one."""
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
        """Ask for the passphrase of the user's key now, if connections will need it."""
        self.connector.unlock(self._passphrase)

    def _passphrase(self, path: Path) -> str:
        from getpass import getpass

        from tpukit.text import shown_path

        if self.flags.no_input or not _on_a_terminal():
            what = f"the SSH key {shown_path(path)} needs its passphrase"
            raise BadInput(what, fix=Fix.command("ssh-add", str(path), note="asks for it once"))
        return getpass(f"passphrase of {shown_path(path)}: ", sys.stderr)

    def context(self, source_ranges: tuple[str, ...] = ()) -> Context:
        """Return the context for access to workers and for the main job."""
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
        """Shows the slices that this command waits for, one stage each."""
        from tpukit.cli.stages import Stages

        return self.closing.enter_context(Stages(self.console, self.clock))

    def job_stages(self, name: str, hint: str = "") -> Stages:
        """Return the display for the main job on a slice; the log file has the slice's name."""
        from tpukit.cli.stages import Stages, timed

        log = self.paths.logs / f"{name}.log"
        return self.closing.enter_context(Stages(self.console, self.clock, timed, log, hint))

    def say_state(self, name: str) -> Callable[[str], None]:
        """Return a function that shows each new state of a slice."""
        return lambda state: None if self.rehearsing else self.stages.say(name, state)

    def smoke_history(self, name: str) -> History:
        """Return the results of this machine's smoke tests of slices with that name."""
        from tpukit.smoke.history import History

        return History(self.paths.smoke_tests / f"{name}.json", self.clock)

    def keep_smoke(self, slice_: Slice, report: SmokeReport) -> None:
        """Store the result of a slice's smoke test on this machine."""
        self.smoke_history(slice_.name).record(slice_, report)

    def about(self, name: str, zone: str = "", state: str = "") -> None:
        """Let Ctrl-C report whether a slice exists, and how to delete it.

        An unknown `state` is empty, and so is a `zone` that could be any.
        """
        self.seen[name] = partial(self._last_seen, name, zone, state)

    def _last_seen(self, name: str, zone: str, state: str) -> LastSeen:
        from tpukit.slices.last_seen import LastSeen

        return LastSeen(name, zone, state, self.provider.bills)

    def interrupted(self, signal: KeyboardInterrupt) -> TpukitError:
        """Return the error for a signal, with the slices that this command knows to exist."""
        from tpukit.slices.last_seen import interrupted

        return interrupted(signal, [known() for known in self.seen.values()])

    def find(self, name: str, deadline: Deadline | None = None) -> Slice:
        """Return the slice that the command works on, from --zone or else from any zone."""
        with self._looking_for(name):
            slice_ = self.look_up(name, deadline)
        self.about(name, slice_.zone, slice_.state)
        return slice_

    @contextmanager
    def _looking_for(self, name: str) -> Iterator[None]:
        """Let Ctrl-C report an unknown state during the search; nothing if there is no slice."""
        self.about(name, self._zone)
        try:
            yield
        except NotFound:
            self.seen.pop(name)
            raise

    def look_up(self, name: str, deadline: Deadline | None = None) -> Slice:
        """Return a slice as `find` does, but without reporting it on Ctrl-C."""
        from tpukit.slices import find, naming

        provider = self.provider.within(deadline) if deadline else self.provider
        slice_ = find.find(provider, naming.check_name(name), self._zone)
        self.name_hints.saw([name])
        return slice_

    def find_named(self, name: str, deadline: Deadline | None = None) -> Sequence[Slice]:
        """Return the slice of that name, or all slices of the multislice of that name."""
        from tpukit.slices import find, naming

        with self._looking_for(name):
            provider = self.provider.within(deadline) if deadline else self.provider
            slices = find.find_named(provider, naming.check_name(name), self._zone)
        self.name_hints.saw([name])
        self.seen.pop(name)  # it may be a multislice's
        for slice_ in slices:
            self.about(slice_.name, slice_.zone, slice_.state)
        return slices

    def workers(
        self, wanted: str | Slice, selection: str, patience: float, *, for_others: bool = False
    ) -> list[RemoteWorker]:
        """Return the selected workers of a slice, or of a list of names such as `demo,demo2`.

        The name of a multislice stands for all of its slices.

        Addresses of named slices may come from a few minutes ago; the host keys prove them when a
        connection is made. `patience` is in seconds, for the API and for each connection. For
        `for_others` see `slice_workers.workers`.
        """
        from tpukit.access import slice_workers

        chosen: list[Slice | Hint] = []
        deadline = self.deadline(patience)
        if isinstance(wanted, str):
            for name in dict.fromkeys(wanted.split(",")):
                hint = self.hints.recall(name, self._zone)
                if hint:
                    self.about(name, hint.slice.zone, hint.slice.state)
                chosen += [hint] if hint else self.find_named(name, deadline)
        else:
            chosen.append(wanted)
        if not for_others:
            self.unlock_key()
        return slice_workers.workers(
            self.context(),
            chosen,
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
        """Return the other slices and firewall rules that steps on a slice may need."""
        from tpukit.provision.surroundings import Surroundings

        return Surroundings(
            context=self.context(),
            slice=self.find(name),
            find=self.look_up,
            server=lambda server: self.workers(server, "0", CONNECT_SECONDS),
            say=self.console.say,
        )

    @property
    def can_ask(self) -> bool:
        """True on a terminal, unless flags or the environment already answer every question."""
        return not (self._answered or self.flags.no_input) and _on_a_terminal()

    def confirm(self, question: str) -> None:
        """Ask on a terminal; raise `BadInput` if nobody can answer, or if the answer is no."""
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
        """The zone to search for slices; empty for all zones, which `--zone -` also means."""
        return self.flags.zone.removeprefix("-")

    @cached_property
    def openssh(self) -> OpenSsh:
        """The options for the system's OpenSSH."""
        from tpukit.remote.connection.openssh import OpenSsh

        silence, persist = (
            int(self.settings.get(setting) or 0) for setting in ("silence", "persist")
        )
        return OpenSsh(self.key, private_directory(self.paths.ssh), silence, persist)

    @cached_property
    def dialer(self) -> Dialer:
        """Opens connections to workers by this route."""
        from tpukit.cli.dialer import Dialer

        direct = replace(self, route=self.route.direct, seen={})  # Ctrl-C does not report the jump
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

        # A service may have no HOME; gcloud then uses the password database too.
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
    """Return the working folder; raise `BadInput` if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        why = Fix(note="cd to a folder that exists")
        raise BadInput("the working folder was deleted", fix=why) from error
