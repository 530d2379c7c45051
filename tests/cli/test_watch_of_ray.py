"""A watched slice joins its Ray cluster again after it was lost. A stand-in takes Ray's place.

tests/journeys/test_ray.py does the same with the real Ray.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from support import ray_stand_in
from support.clocks import HastyClock
from support.ray_stand_in import lose, starts

from cli.conftest import Local
from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.toolkit import Toolkit
from tpukit.models import Slice
from tpukit.slices.find import find
from tpukit.watch.saved_watches import WatchSpec, request_of
from tpukit.watch.workload import Workload

pytestmark = pytest.mark.slow

NAMES = ("ray-head", "ray-other")


class Membership:
    """Two slices of one worker each, and a watch's work on either."""

    def __init__(self, local: Local, folder: Path) -> None:
        self.local, self.cluster = local, folder / "cluster"
        self.cluster.mkdir()
        self.said: list[str] = []
        self.toolkit = Toolkit(
            GlobalFlags(local=True), environ=local.environment, clock=HastyClock()
        )

    def make(self, name: str) -> None:
        """Make a slice whose worker has the stand-in."""
        before = {*self._homes()}
        assert self.local.run("create", "v3-8", name).status == 0
        assert self.local.run("run", name, "--", "true").status == 0
        (home,) = {*self._homes()} - before
        ray_stand_in.install(home, self.cluster)

    def lose(self, name: str) -> None:
        """Let a slice be preempted and deleted, with its node."""
        lose(self.cluster, f"{name}.0")
        assert self.local.run("emulator", "preempt", name).status == 0
        assert self.local.run("delete", name, "--yes").status == 0

    def slice(self, name: str) -> Slice:
        return find(self.toolkit.cloud.provider, name)

    def begin(self, name: str) -> str:
        """Do a watch's work on its READY slice."""
        slice_ = self.slice(name)
        request = request_of(slice_)
        work = Workload(
            self.toolkit.reach.context(),
            self.toolkit.settings.get("tpu_endpoint"),
            WatchSpec(request, ray=NAMES),
            environment=str,
            setup=lambda: (None, None),
            progress=lambda: nullcontext(),  # type: ignore[arg-type]
            transfer=lambda: nullcontext(),  # type: ignore[arg-type]
            output=lambda workers: lambda worker, data: None,
            say=self.said.append,
        )
        return work.begin(slice_, request)

    def _homes(self) -> Iterator[Path]:
        return self.local.directory.glob("workers/*/home/*")


@pytest.fixture
def ray(local: Local, tmp_path: Path) -> Iterator[Membership]:
    membership = Membership(local, tmp_path)
    with membership.toolkit.closing:
        for name in NAMES:
            membership.make(name)
        yield membership
    assert local.run("delete", *NAMES, "--yes").status == 0


def test_each_slice_joins_again_and_a_new_head_gathers_all(ray: Membership) -> None:
    head, other = NAMES
    assert ray.begin(head) == "ready"
    assert starts(ray.cluster) == [f"{head}.0", f"{other}.0"]
    ray.begin(other)
    assert len(starts(ray.cluster)) == 2  # both are there
    ray.lose(other)
    ray.make(other)
    ray.begin(other)
    assert starts(ray.cluster)[2:] == [f"{other}.0"]
    ray.lose(head)
    ray.make(head)
    ray.begin(head)
    assert starts(ray.cluster)[3:] == [f"{head}.0", f"{other}.0"]
    assert not [line for line in ray.said if "without" in line]


def test_only_the_watch_of_the_head_starts_the_head(ray: Membership) -> None:
    """The other slice waits, and says how it joins if nobody watches the head."""
    head, other = NAMES
    ray.begin(other)
    assert starts(ray.cluster) == []
    assert ray.said == [
        f"Ray waits for its head on {head}",
        f"not in Ray: `tpukit ray up {head},{other}` joins it",
    ]


def test_a_slice_that_is_missing_is_left_out(ray: Membership) -> None:
    head, other = NAMES
    assert ray.local.run("emulator", "preempt", other).status == 0
    ray.begin(head)
    assert starts(ray.cluster) == [f"{head}.0"]
    (line,) = [line for line in ray.said if "without" in line]
    assert line.startswith(f"Ray without {other}: ")
    assert "PREEMPTED" in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--ray", "one,two"), "--ray must also name demo"),
        (("--ray", "demo", "--with", "flax"), "--ray needs the recipe ray"),
    ],
)
def test_a_cluster_that_makes_no_sense_is_refused(
    local: Local, words: tuple[str, ...], told: str
) -> None:
    assert local.run("create", "v3-8", "demo").status == 0
    try:
        assert told in local.run("watch", "demo", *words).says(2).err
    finally:
        assert local.run("delete", "demo", "--yes").status == 0
