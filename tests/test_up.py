"""The main job on a slice that is lost at any of its stages."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
from support.clocks import HastyClock
from support.contexts import context_on
from support.local_cloud import ZONE, Cloud, running_cloud
from support.local_worker import LocalWorker
from support.slices import labelled
from support.ssh_server import Server

from tpukit.clock import Deadline
from tpukit.errors import Interrupted, SliceLost
from tpukit.provision.recipes import Recipe
from tpukit.slices.capacity import Search
from tpukit.ssh.client import Connector
from tpukit.ssh.keys import KeyPair
from tpukit.ssh.target import Target
from tpukit.up import Progress, UpReport, up

pytestmark = pytest.mark.process

STAGES = ("create", "firewall", "connect", "provision", "smoke")


@dataclass
class Job:
    """The main job against a cloud in this process and one real SSH server, and what strikes it."""

    cloud: Cloud
    server: Server
    key: KeyPair
    clock: HastyClock
    strike: Callable[[], None]
    at: str
    cuts: bool = True  #: whether a strike takes the worker away
    done: list[str] = field(default_factory=list)
    struck: float = 0.0

    def run(self) -> UpReport:
        self.server.on_command = self._on_command
        context = context_on(
            self.cloud,
            self.key,
            self.clock,
            connector=Connector(self.key, self.clock, dial=self._dial),
            source_ranges=("192.0.2.7/32",),
            source_address=lambda address: "192.0.2.7",
        )
        return up(
            context,
            Search([labelled(self.cloud, accelerator_type="v2-8")]),
            Recipe.named("jax"),
            endpoint=self.cloud.url,
            requirements=None,
            deadline=Deadline.after(self.clock, 3600.0),
            progress=Progress(
                self._on_stage, lambda stage, line: None, self._on_done, lambda event: None
            ),
        )

    def _strike(self, stage: str) -> None:
        if stage == self.at and not self.struck:
            self.strike()
            if self.cuts:
                self.server.cut()
            self.struck = self.clock.monotonic()

    def _on_stage(self, stage: str, line: str) -> None:
        if (stage, line) == ("create", "READY"):
            self._publish()
            self._strike("create")

    def _on_done(self, stage: str, line: str) -> None:
        self.done.append(stage)
        if stage == "create":
            self._strike("firewall")

    def _on_command(self) -> None:
        if "connect" in self.done:
            self._strike("smoke" if "provision" in self.done else "provision")

    def _dial(self, target: Target, attempt: Deadline) -> socket.socket:
        self._strike("connect")
        if self.struck and self.cuts:
            raise ConnectionRefusedError(111, "Connection refused")
        return socket.create_connection(("127.0.0.1", self.server.port), 10.0)

    def _publish(self) -> None:
        """Let the worker on paper have the host key of the server."""
        records, name = self.cloud.server.service.context.state.nodes, self.cloud.full_name("demo")
        workers = [
            {**worker, "host_public_key": self.server.public} for worker in records[name]["workers"]
        ]
        records[name] = {**records[name], "workers": workers}


@pytest.fixture
def hasty_cloud(tmp_path: Path) -> Iterator[Cloud]:
    """A cloud where everything is done at once, and clients for which no pause takes time."""
    with running_cloud(tmp_path, create_seconds=0.0) as found:
        yield replace(found, clock=HastyClock())


@pytest.mark.parametrize("how", ["preempted", "vanished", "deleted"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_loss_at_any_stage_is_a_loss_within_seconds(
    hasty_cloud: Cloud,
    key: KeyPair,
    request: pytest.FixtureRequest,
    stage: str,
    how: str,
) -> None:
    """What is said to exist exists: a preempted slice, and of one that is gone at most its rule."""
    cloud = hasty_cloud
    known = "provisioned_home" if stage == "smoke" else "tmp_path"
    home: Path = request.getfixturevalue(known)
    server = Server(home).accept(key)
    server.variables = LocalWorker(home, environment={"TPUKIT_EMULATED_DEVICES": "8"}).environment

    def strike() -> None:
        if how == "preempted":
            cloud.control("POST", f"nodes/{cloud.full_name('demo')}:preempt")
            return
        cloud.vanish("demo")
        for rule in cloud.firewall.list() if how == "deleted" else ():
            cloud.firewall.delete(rule.name)

    assert isinstance(cloud.clock, HastyClock)
    job = Job(cloud, server, key, cloud.clock, strike, stage)
    try:
        with pytest.raises(SliceLost) as caught:
            job.run()
    finally:
        server.close()
    assert job.struck
    assert cloud.clock.monotonic() - job.struck < 20.0
    if stage in ("connect", "provision", "smoke"):
        assert job.done == list(STAGES[: STAGES.index(stage)])
    error = caught.value
    assert error.exit_code == 7
    rules = [f"firewall rule {rule.name}, which costs nothing" for rule in cloud.firewall.list()]
    assert bool(rules) == (how != "deleted")
    assert list(error.exists[-1:]) == rules
    if how != "preempted":
        assert (len(error.exists), error.fix) == (len(rules), None)
    else:
        assert f"slice demo in {ZONE}, PREEMPTED" in error.exists[0]
        assert str(error.fix) == f"tpukit up v2-8 demo --zone {ZONE} --recreate"
        assert cloud.nodes() == [cloud.full_name("demo")]


def test_an_interrupt_says_that_what_was_begun_on_a_worker_goes_on_there(
    hasty_cloud: Cloud, key: KeyPair, tmp_path: Path
) -> None:
    """While it is provisioned; of a stage that leaves nothing behind only the slice is told."""
    assert isinstance(hasty_cloud.clock, HastyClock)
    for stage, exists in (("connect", 1), ("provision", 2)):
        server = Server(tmp_path).accept(key)
        server.variables = LocalWorker(
            tmp_path, environment={"TPUKIT_EMULATED_DEVICES": "8"}
        ).environment
        interrupt = partial(signal.pthread_kill, threading.main_thread().ident, signal.SIGINT)
        job = Job(hasty_cloud, server, key, hasty_cloud.clock, interrupt, stage, cuts=False)
        try:
            with pytest.raises(Interrupted) as caught:
                job.run()
        finally:
            server.close()
        assert f"slice demo in {ZONE}, READY" in caught.value.exists[0]
        assert len(caught.value.exists) == exists, stage
    assert caught.value.exists[1].endswith("continues there: the same command joins it")


@pytest.mark.process
@pytest.mark.parametrize(("stage", "kind"), [("create", "status"), ("firewall", "reset")])
def test_an_outage_of_the_api_ends_no_stage(
    hasty_cloud: Cloud, key: KeyPair, provisioned_home: Path, stage: str, kind: str
) -> None:
    """Nothing of the API is answered for 40 s."""
    cloud, clock = hasty_cloud, hasty_cloud.clock
    assert isinstance(clock, HastyClock)
    server = Server(provisioned_home).accept(key)
    local = LocalWorker(provisioned_home, environment={"TPUKIT_EMULATED_DEVICES": "8"})
    server.variables = local.environment

    def strike() -> None:
        over = clock.monotonic() + 40.0
        cloud.fault(method="*", kind=kind, probability=1.0)
        clock.on_sleep = lambda: (
            cloud.control("DELETE", "faults") if clock.monotonic() > over else None
        )

    job = Job(cloud, server, key, clock, strike, stage, cuts=False)
    try:
        assert job.run().smoke.ok
    finally:
        server.close()
    assert job.struck
