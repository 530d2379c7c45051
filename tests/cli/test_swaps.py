"""The name of a slice is given to a stranger before any one call: his slice stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from support.local_cloud import ZONE, Cloud, FakeClock, running_cloud
from support.slices import labelled
from support.swapper import swapping

from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.requirement_flags import NO_REQUIREMENTS
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs import delete, queue, reap, stop, up, update, watch
from tpukit.cli.verbs.run import VariableFlags
from tpukit.emulator.workers.paper_host import PaperHost
from tpukit.emulator.workers.worker_host import WorkerRecord
from tpukit.errors import TpukitError
from tpukit.models import QueueRequest
from tpukit.slices import lifetime

Verb = Callable[[Toolkit], object]


class RefusingHost(PaperHost):
    """Workers on paper at addresses of this machine: it refuses a connection at once."""

    def _record(self, index: int, number: int) -> WorkerRecord:
        return replace(super()._record(index, number), address=f"127.88.0.{number % 250 + 1}")


def make_one(cloud: Cloud) -> None:
    cloud.tpu.create(labelled(cloud))
    cloud.clock.sleep(60.0)
    assert cloud.tpu.get(ZONE, "demo").ready


def make_expired(cloud: Cloud) -> None:
    cloud.tpu.create(labelled(cloud, labels={lifetime.EXPIRES: "2020-01-01t00-00-00z"}))
    cloud.clock.sleep(60.0)


def make_lost(cloud: Cloud) -> None:
    make_one(cloud)
    cloud.change("demo", state="PREEMPTED")


def make_queued(cloud: Cloud) -> None:
    cloud.tpu.create_queued(QueueRequest(labelled(cloud)))
    cloud.clock.sleep(200.0)
    assert cloud.tpu.get(ZONE, "demo").ready


def refused_once(method: str) -> Callable[[Cloud], None]:
    """Return what makes a slice, of which a call is answered 503 at first."""

    def make(cloud: Cloud) -> None:
        make_one(cloud)
        cloud.fault(method=method, kind="status", status="UNAVAILABLE", times=1)

    return make


def watched(toolkit: Toolkit) -> object:
    how = watch.WatchFlags(max_wait="2m", recoveries=2)
    variables = VariableFlags(with_="jax")
    attendance = watch.AttendanceFlags()
    return watch.watch(toolkit, how, variables, NO_REQUIREMENTS, attendance, "demo", ["true"])


VERBS: Mapping[str, tuple[Callable[[Cloud], None], Verb]] = {
    "delete": (make_one, lambda toolkit: delete.delete(toolkit, ["demo"])),
    "stop": (make_one, lambda toolkit: stop.stop(toolkit, "demo")),
    "update": (
        make_one,
        lambda toolkit: update.update(
            toolkit, "demo", update.EditFlags(update_labels="a=b", add_tags="web")
        ),
    ),
    "reap": (make_expired, lambda toolkit: reap.reap(toolkit)),
    "queue delete": (make_queued, lambda toolkit: queue.delete(toolkit, ["demo"])),
    "delete that is refused once": (
        refused_once("nodes.delete"),
        lambda toolkit: delete.delete(toolkit, ["demo"]),
    ),
    "stop that is refused once": (
        refused_once("nodes.stop"),
        lambda toolkit: stop.stop(toolkit, "demo"),
    ),
    "update that is refused once": (
        refused_once("nodes.patch"),
        lambda toolkit: update.update(toolkit, "demo", update.EditFlags(update_labels="a=b")),
    ),
    "up": (make_one, lambda toolkit: up.up(toolkit, "v3-8", "demo", timeout="20s")),
    "watch": (make_one, watched),
    "watch of a lost slice": (make_lost, watched),
}


def one_run(directory: Path, verb: str, at: int) -> tuple[int, bool, str]:
    """Return the calls of a run with a swap before one of them, if that was a write, and the harm.

    A run before whose last call nothing is swapped has no harm.
    """
    make, act = VERBS[verb]
    clock = FakeClock()
    directory.mkdir()
    with (
        running_cloud(directory, clock=clock, host=RefusingHost) as cloud,
        swapping(cloud, at) as swapper,
    ):
        make(cloud)
        variables = {
            **cloud.environment(),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{swapper.url}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{swapper.url}/compute/v1/",
        }
        flags = GlobalFlags(yes=True, quiet=True)
        toolkit = Toolkit(flags, environ=variables, clock=clock)
        with toolkit.closing, suppress(TpukitError):
            act(toolkit)
        return len(swapper.calls), swapper.wrote_at_once, swapper.harmed()


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_no_command_changes_a_stranger_s_slice_that_has_the_name_of_ours_meanwhile(
    verb: str, tmp_path: Path
) -> None:
    """The API writes by name: only a swap between a write and the look before it goes unseen."""
    harmed: list[str] = []
    at, unseen, most = 0, 0, 26  # then the same two calls go on, as no worker answers
    while at < most:
        calls, wrote, harm = one_run(tmp_path / f"{at}", verb, at)
        if calls <= at:
            break
        unseen += wrote
        if harm and not wrote:
            harmed.append(f"before call {at}: {harm}")
        at += 1
    assert at > 2
    assert harmed == []
