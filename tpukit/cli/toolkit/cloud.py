"""The clients of Google's APIs, with the account and the project of the command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from tpukit.cli.toolkit.identity import Identity
from tpukit.clock import Clock
from tpukit.errors import TpukitError, together
from tpukit.paths import Paths
from tpukit.settings.resolution import Settings

if TYPE_CHECKING:
    from tpukit.google.login_profiles import OsLogin
    from tpukit.google.project import GoogleProject
    from tpukit.google.provider import DiskProvider, FirewallProvider, Note, SliceProvider
    from tpukit.models import Slice
    from tpukit.slices.capacity_memory import CapacityMemory
    from tpukit.slices.journal import Journal


@dataclass(eq=False)
class Cloud:
    """The cloud as the command's settings choose it. Each client is made when it is first used."""

    settings: Settings
    paths: Paths
    environ: Mapping[str, str]
    clock: Clock
    say: Callable[[str], None]
    #: True in a dry run: the journal gets no line.
    rehearsing: bool = False

    def rehearsal(self, clock: Clock, note: Note, full: int) -> Cloud:
        """Return a cloud that passes writes to `note` and sends none; see `rehearsed`."""
        from tpukit.google.rehearsal import rehearsed

        provider, firewall = rehearsed(self.provider, self.firewall, self.project, note, full)
        other = replace(self, clock=clock, rehearsing=True)
        other.__dict__.update(identity=self.identity, provider=provider, firewall=firewall)
        return other

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

    @property
    def project(self) -> str:
        """The project; raises `BadInput` if none is set."""
        return self.settings.require("project")

    @cached_property
    def identity(self) -> Identity:
        """The identity with which this command makes its calls."""
        return Identity(self.settings, self.paths, self.environ, self.clock, self.say)

    @property
    def owner(self) -> str:
        """The value of the owner label on slices that this command makes."""
        from tpukit.slices import naming

        return naming.owner_label(self.identity.account)

    @property
    def rates(self) -> Mapping[str, float]:
        """The user's price of a chip for an hour, by generation."""
        from tpukit.slices.lifetime import rates_of

        return rates_of(self.settings.get("rates"))

    def cost_so_far(self, slice_: Slice) -> Callable[[], str]:
        """Return a function that returns a slice's cost in words, or "" without your rate.

        It makes no call, and rates in an untrusted file do not count.
        """
        from tpukit.slices.lifetime import lifetime, rates_of

        rates = rates_of(self.settings.values["rates"].value)
        ahead = self.provider.now() - self.clock.monotonic()

        def cost() -> str:
            spent = lifetime(slice_, ahead + self.clock.monotonic(), rates).cost
            return "" if spent is None else f"cost so far {spent:.2f}"

        return cost

    @property
    def costs(self) -> str:
        """The verb for messages about a slice: "bills", or in an emulator "stays"."""
        return "bills" if self.provider.bills else "stays"

    @cached_property
    def journal(self) -> Journal:
        from tpukit.slices.journal import Journal

        endpoint = self.settings.get("tpu_endpoint")
        return Journal(self.paths.journal, self.clock, endpoint, enabled=not self.rehearsing)

    @cached_property
    def capacity(self) -> CapacityMemory:
        from tpukit.slices.capacity_memory import CapacityMemory

        place = f"{self.settings.get('tpu_endpoint')}\n{self.settings.get('project')}"
        return CapacityMemory(self.paths.capacity, place, self.clock, not self.rehearsing)

    @cached_property
    def provider(self) -> SliceProvider:
        apis = self.settings.get("apis").split(",")
        self.check_given("project")
        if "compute" not in apis:
            return self._in_api("tpu")
        if "tpu" not in apis:
            return self._in_api("compute")
        from tpukit.google.roads import Roads

        return Roads(self._in_api("tpu"), self._in_api("compute"))

    @cached_property
    def others(self) -> Sequence[SliceProvider]:
        """The providers of the APIs that the setting `apis` leaves out."""
        left = {"tpu", "compute"} - {*self.provider.apis}
        return tuple(map(self._in_api, sorted(left)))

    def _in_api(self, api: str) -> SliceProvider:
        if api == "tpu":
            from tpukit.google.tpu import CloudTpu

            return CloudTpu(self.identity.session, self.project, self.settings.get("tpu_endpoint"))
        from tpukit.google.compute_slices import ComputeSlices

        endpoint = self.settings.get("compute_endpoint")
        return ComputeSlices(self.identity.session, self.project, endpoint)

    @cached_property
    def firewall(self) -> FirewallProvider:
        from tpukit.google.firewall_rules import ComputeFirewall

        endpoint = self.settings.get("compute_endpoint")
        self.check_given("project")
        return ComputeFirewall(self.identity.session, self.project, endpoint)

    @cached_property
    def disks(self) -> DiskProvider:
        from tpukit.google.compute_disks import ComputeDisks

        return ComputeDisks(self.identity.session, self.settings.get("compute_endpoint"))

    @cached_property
    def project_provider(self) -> GoogleProject:
        from tpukit.google.project import GoogleProject

        get = self.settings.get
        self.check_given("project")
        return GoogleProject(
            self.identity.session,
            self.project,
            manager=get("resourcemanager_endpoint"),
            usage=get("serviceusage_endpoint"),
            quotas=get("cloudquotas_endpoint"),
        )

    @cached_property
    def login_provider(self) -> OsLogin:
        from tpukit.google.login_profiles import OsLogin

        get = self.settings.get
        self.check_given("project")
        endpoints = get("compute_endpoint"), get("oslogin_endpoint")
        return OsLogin(self.identity.session, self.project, *endpoints)
