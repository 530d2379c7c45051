"""The slices that a command works on: found by name, remembered, and deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from tpukit.cli.toolkit.cloud import Cloud
from tpukit.cli.toolkit.display import Display
from tpukit.cli.toolkit.sightings import Sightings
from tpukit.clock import Deadline
from tpukit.errors import BadInput, Fix, NotFound, TpukitError

if TYPE_CHECKING:
    from tpukit.access.cleanup import Cleanup
    from tpukit.access.hints import Hints
    from tpukit.models import Slice
    from tpukit.slices.last_seen import LastSeen
    from tpukit.slices.name_hints import NameHints


@dataclass(eq=False)
class KnownSlices:
    """Finds slices, lets Ctrl-C report them, and keeps this machine's hints about them."""

    cloud: Cloud
    #: The flag --zone.
    zone_flag: str
    seen: Sightings
    display: Display
    warn: Callable[[str], None]

    @property
    def zone(self) -> str:
        """The zone to search for slices; empty for all zones, which `--zone -` also means."""
        return self.zone_flag.removeprefix("-")

    def find(self, name: str, deadline: Deadline | None = None) -> Slice:
        """Return the slice that the command works on, from --zone or else from any zone."""
        with self._looking_for(name):
            slice_ = self.look_up(name, deadline)
        self.about(name, slice_.zone, slice_.state)
        return slice_

    def look_up(self, name: str, deadline: Deadline | None = None) -> Slice:
        """Return a slice as `find` does, but without reporting it on Ctrl-C."""
        from tpukit.slices import find, naming

        provider = self.cloud.provider.within(deadline) if deadline else self.cloud.provider
        slice_ = find.find(provider, naming.check_name(name), self.zone)
        self.name_hints.saw([name])
        return slice_

    def find_named(self, name: str, deadline: Deadline | None = None) -> Sequence[Slice]:
        """Return the slice of that name, or all slices of the multislice of that name.

        If the name is a pattern, return the user's slices that match it.
        """
        from tpukit.slices import find, naming

        if find.is_pattern(name):
            slices = self.matching([name], deadline=deadline)
            if not slices:
                fix = Fix.command("tpukit", "list", note="shows the slices")
                raise NotFound(f"no slice of yours matches {name}", fix=fix)
            return slices
        with self._looking_for(name):
            provider = self.cloud.provider.within(deadline) if deadline else self.cloud.provider
            slices = find.find_named(provider, naming.check_name(name), self.zone)
        self.name_hints.saw([name])
        self.seen.remove(name)  # it may be a multislice's
        for slice_ in slices:
            self.about(slice_.name, slice_.zone, slice_.state)
        return slices

    def matching(
        self,
        patterns: Sequence[str],
        *,
        foreign: bool = False,
        deadline: Deadline | None = None,
    ) -> Sequence[Slice]:
        """Return the user's slices, or all slices if `foreign`, with names that match a pattern.

        Raises `TpukitError` if a zone did not answer, so some matching slices may be unknown.
        """
        from tpukit.cli.views import slice_views
        from tpukit.slices import find

        listed = self._listed("some matching slices may be unknown", deadline)
        for line in slice_views.unread(listed):
            self.warn(line)
        slices = listed if foreign else self._own(listed)
        selected = find.chosen(find.matching(slices, patterns), (), (), "name")
        for slice_ in selected:
            self.about(slice_.name, slice_.zone, slice_.state)
        return selected

    def only(self) -> Slice:
        """Return the user's only slice in all zones, or in --zone.

        Raises:
            NotFound: the user has none.
            BadInput: the user has several, or may have: a slice has unreadable fields.
            TpukitError: a zone did not answer, so there may be another one.
        """
        listed = self._listed("you may have several slices")
        own, unread = self._own(listed), [slice_ for slice_ in listed if slice_.unreadable]
        if len(own) == 1 and not unread:
            return own[0]
        names = ", ".join(sorted({slice_.name for slice_ in (*own, *unread)}))
        fix = Fix.command("tpukit", "list", note="shows the slices; give a NAME")
        if not names:
            raise NotFound("you have no slice, and no NAME was given", fix=fix)
        raise BadInput("no NAME was given, and it could be several slices", reason=names, fix=fix)

    def _listed(self, unsure: str, deadline: Deadline | None = None) -> Sequence[Slice]:
        """Return the slices of all zones, or of --zone.

        Raises `TpukitError`, with `unsure` as its text, if a zone did not answer.
        """
        provider = self.cloud.provider.within(deadline) if deadline else self.cloud.provider
        listed = provider.list(self.zone_flag or "-")
        if listed.unreachable:
            why = f"no answer from {', '.join(listed.unreachable)}"
            raise TpukitError(unsure, why=why, fix=Fix(note="name the slices, or add --zone"))
        return listed.slices

    def _own(self, slices: Sequence[Slice]) -> Sequence[Slice]:
        from tpukit.slices import naming

        owner = self.cloud.owner
        return [slice_ for slice_ in slices if naming.is_owner(owner, slice_.labels)]

    def about(self, name: str, zone: str = "", state: str = "") -> None:
        """Let Ctrl-C report whether a slice exists, and how to delete it.

        An unknown `state` is empty, and so is a `zone` that could be any.
        """
        self.seen.add(name, partial(self._last_seen, name, zone, state))

    def _last_seen(self, name: str, zone: str, state: str) -> LastSeen:
        from tpukit.slices.last_seen import LastSeen

        return LastSeen(name, zone, state, self.cloud.provider.bills)

    @contextmanager
    def _looking_for(self, name: str) -> Iterator[None]:
        """Let Ctrl-C report an unknown state during the search; nothing if there is no slice."""
        self.about(name, self.zone)
        try:
            yield
        except NotFound:
            self.seen.remove(name)
            raise

    @cached_property
    def name_hints(self) -> NameHints:
        from tpukit.slices.name_hints import NameHints

        return NameHints(self.cloud.paths.name_hints, self.cloud.clock)

    @cached_property
    def hints(self) -> Hints:
        from tpukit.access.hints import Hints

        cloud, settings = self.cloud, self.cloud.settings
        place = f"{settings.get('tpu_endpoint')}\n{cloud.project}"
        return Hints(cloud.paths.hints, place, cloud.clock, settings.is_on("keep_hints"))

    @property
    def cleanup(self) -> Cleanup:
        """Deletes slices with their firewall rules and queued resources."""
        from tpukit.access.cleanup import Cleanup

        return Cleanup(
            self.cloud.provider,
            self.cloud.firewall,
            self.cloud.settings.get("project"),
            self.cloud.journal,
            on_state=self.display.say_state,
            on_warning=self.warn,
            after=self._forget,
            others=self.cloud.others,
        )

    def _forget(self, slice_: Slice) -> None:
        from tpukit.access.ssh_config import SshConfig

        if self.cloud.rehearsing:
            return
        SshConfig(self.cloud.paths.ssh).forget(slice_)
        self.hints.forget(slice_.name)
        self.name_hints.forget([slice_.name])
