"""The way from a command to the workers of its slices."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tpukit.access import slice_workers
from tpukit.access.context import Context
from tpukit.access.os_login import OsLogins
from tpukit.access.pinned_keys import PinnedKeys
from tpukit.cli.parameters import RouteFlags
from tpukit.cli.toolkit.cloud import Cloud
from tpukit.cli.toolkit.dialer import Dialer
from tpukit.cli.toolkit.known_slices import KnownSlices
from tpukit.cli.toolkit.questions import Questions
from tpukit.cli.toolkit.sightings import Sightings
from tpukit.clock import Deadline
from tpukit.errors import BadInput, Fix
from tpukit.paths import private_directory
from tpukit.ssh.client import Connector
from tpukit.ssh.keys import KeyPair, ensure_key_pair, has_key_pair, own_key_pair
from tpukit.ssh.openssh import OpenSsh
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.access.hints import Hint
    from tpukit.google.login_profiles import OsLogin
    from tpukit.google.provider import FirewallProvider, SliceProvider
    from tpukit.models import Slice
    from tpukit.provision.surroundings import Surroundings
    from tpukit.slices.capacity_memory import CapacityMemory
    from tpukit.ssh.worker import RemoteWorker


#: Seconds for each connection if the verb's timeout is for a longer job.
CONNECT_SECONDS = 300.0


class _Deferred:
    """A client that is made on first use, so that a command imports only the clients it uses."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)


def _place(known: Slice | Hint) -> tuple[str, str]:
    """Return the zone and the name of a slice or of its hint."""
    from tpukit.access.hints import Hint

    slice_ = known.slice if isinstance(known, Hint) else known
    return slice_.zone, slice_.name


@dataclass(eq=False)
class Reach:
    """Connects to workers by one route, with one SSH key."""

    cloud: Cloud
    slices: KnownSlices
    route: RouteFlags
    questions: Questions
    say: Callable[[str], None]
    #: Loaded private keys by file, so that tpukit asks for each passphrase only once.
    private_keys: dict[Path, Any] = field(default_factory=dict)

    def workers(
        self,
        wanted: str | Slice,
        selection: str,
        patience: float,
        *,
        for_others: bool = False,
        until: Deadline | None = None,
        on_failure: slice_workers.OnFailure | None = None,
    ) -> list[RemoteWorker]:
        """Return the selected workers of a slice, or of a list of names such as `demo,demo2`.

        The name of a multislice stands for all of its slices. A command that names its slices, such
        as `ssh` and `run`, claims them; one that hands over a slice, such as `smoke`, does not.

        Addresses of named slices may come from a few minutes ago; the host keys prove them when a
        connection is made. `patience` is in seconds, for the API and for each connection. For
        `for_others`, `until` and `on_failure` see `slice_workers.workers`.
        """
        chosen: list[Slice | Hint] = []
        deadline = Deadline.after(self.cloud.clock, patience)
        if isinstance(wanted, str):
            for name in dict.fromkeys(wanted.split(",")):
                hint = self.slices.hints.recall(name, self.slices.zone)
                if hint:
                    self.slices.about(name, hint.slice.zone, hint.slice.state)
                chosen += [hint] if hint else self.slices.find_named(name, deadline)
            unique = {_place(slice_): slice_ for slice_ in chosen}  # a pattern may repeat a name
            chosen = list(unique.values())
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
            on_wait=self.say,
            everywhere=isinstance(wanted, str) and not self.slices.zone,
            for_others=for_others,
            claims=isinstance(wanted, str),
            until=until,
            on_failure=on_failure,
        )

    def worker(self, wanted: str, index: int, patience: float) -> RemoteWorker:
        """Return one worker; raise `BadInput` if the name stands for several slices."""
        workers = self.workers(wanted, str(index), patience)
        if len(workers) > 1:
            names = ", ".join(worker.slice for worker in workers)
            raise BadInput(
                f"{one_line(wanted)} stands for several slices: {names}", fix=Fix(note="name one")
            )
        return workers[0]

    def context(self, source_ranges: tuple[str, ...] = ()) -> Context:
        """Return the context for access to workers and for the main job."""
        cloud = self.cloud
        return Context(
            provider=cast("SliceProvider", _Deferred(lambda: cloud.provider)),
            firewall=cast("FirewallProvider", _Deferred(lambda: cloud.firewall)),
            connector=self.connector,
            key=self.key,
            user=cloud.settings.get("user"),
            source_ranges=source_ranges or cloud.settings.source_ranges,
            source_address=self.dialer.source_address,
            clock=cloud.clock,
            journal=cloud.journal,
            capacity=cast("CapacityMemory", _Deferred(lambda: cloud.capacity)),
            own_addresses=cloud.paths.own_addresses,
            route=self.route.words,
            internal=self.route.inside,
            proxied=self.route.proxied,
            hints=self.slices.hints,
            pinned=PinnedKeys(cloud.paths.pinned_keys),
            os_logins=self._os_logins,
            others=lambda: cloud.others,
            accept_new=self.route.accept_new_host_keys,
        )

    def surroundings(self, name: str) -> Surroundings:
        """Return the other slices and firewall rules that steps on a slice may need."""
        from tpukit.provision.surroundings import Surroundings

        return Surroundings(
            context=self.context(),
            slice=self.slices.find(name),
            find=self.slices.look_up,
            server=lambda server: self.workers(server, "0", CONNECT_SECONDS),
            say=self.say,
        )

    @cached_property
    def key(self) -> KeyPair:
        """The SSH key for workers: tpukit's, or the user's if the setting `ssh_key` names one."""
        own = self.cloud.settings.get("ssh_key")
        if own:
            return own_key_pair(Path(own))
        return ensure_key_pair(self.cloud.paths.key_directory)

    @property
    def existing_key(self) -> Path | None:
        """The file of the checked private key; None if tpukit has not made its own yet."""
        own = self.cloud.settings.get("ssh_key")
        made = has_key_pair(self.cloud.paths.key_directory)
        return self.key.private_path if own or made else None

    def login_user(self) -> str:
        """Return our user on workers if the project's metadata turns OS Login on, or "".

        Raises `NotAllowed` if our login profile has none of our keys.
        """
        login = self._os_logins.of("the project", {}, project=True)
        return login.user if login else ""

    def unlock_key(self) -> None:
        """Ask for the passphrase of the user's key now, if connections will need it."""
        self.connector.unlock(self.questions.passphrase)

    @cached_property
    def connector(self) -> Connector:
        silence = float(self.cloud.settings.get("silence"))
        return Connector(
            self.key,
            self.cloud.clock,
            silence_seconds=silence,
            dial=self.dialer.dial,
            private_keys=self.private_keys,
        )

    @cached_property
    def openssh(self) -> OpenSsh:
        """The options for the system's OpenSSH."""
        silence, persist = (
            int(self.cloud.settings.get(setting) or 0) for setting in ("silence", "persist")
        )
        return OpenSsh(self.key, private_directory(self.cloud.paths.ssh), silence, persist)

    @cached_property
    def dialer(self) -> Dialer:
        """Opens connections to workers by this route."""
        unreported = replace(self.slices, seen=Sightings())  # Ctrl-C does not report the jump
        direct = replace(self, route=self.route.direct, slices=unreported)
        return Dialer(
            flags=self.route,
            project=lambda: self.cloud.project,
            openssh=lambda: self.openssh,
            find=unreported.find,
            workers=direct.workers,
            say=self.say,
        )

    @property
    def _os_logins(self) -> OsLogins:
        # A service may have no HOME; gcloud then uses the password database too.
        home = self.cloud.environ.get("HOME") or os.path.expanduser("~")
        return OsLogins(
            provider=cast("OsLogin", _Deferred(lambda: self.cloud.login_provider)),
            account=lambda: self.cloud.identity.account,
            key=self.key,
            gcloud_key=Path(home, ".ssh", "google_compute_engine"),
        )
