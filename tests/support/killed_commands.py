"""Commands that are ended at each call of an API, or at random, and what is left of them."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from support.local_cloud import OTHER_ZONE, PROJECT, ZONE, Cloud
from support.warm_tpukit import WarmTpukit
from tpukit.access import ssh_rule

ACTIONS = ("kill", "term", "full")
COMPUTE_ZONE = "us-east5-b"  #: one with machines for v6e
_STATUSES = {"kill": {-9}, "term": {143}}
_MADE = ("--source-range", "192.0.2.7/32", "--ttl", "1h")


@dataclass(frozen=True)
class Scenario:
    """A command on a slice of some name; `first` is what is done before it, undisturbed.

    `ends` are the statuses of one that nobody ends.
    """

    name: str
    words: Callable[[str], list[str]]
    again: Callable[[str], list[str]]
    left: int  #: slices in the end
    first: Callable[[str], list[str]] | None = None
    ends: tuple[int, ...] = (0,)
    zone: str = ZONE
    apis: str = "tpu"
    stems: tuple[str, ...] = ("",)  #: what follows the name in those of its slices


def _create(name: str) -> list[str]:
    return ["create", "v2-8", name, *_MADE]


def _up(name: str) -> list[str]:
    return ["up", "v2-8", name, *_MADE, "--timeout", "5s"]


def _keep_trying(name: str) -> list[str]:
    zones = ("--zones", f"{OTHER_ZONE},{ZONE}", "--keep-trying")
    return ["create", "v2-8", name, *zones, *_MADE]


def _create_instance(name: str) -> list[str]:
    return ["create", "v6e-1", name, "--api", "compute", "--zone", COMPUTE_ZONE, *_MADE]


def _search_both(name: str) -> list[str]:
    zones = ("--zones", f"{COMPUTE_ZONE},us-east5-a", "--purchase", "spot,on-demand")
    return ["create", "v6e-1", name, *zones, *_MADE]


def _create_group(name: str) -> list[str]:
    return ["create", "v6e-16", name, "--api", "compute", "--zone", COMPUTE_ZONE, *_MADE]


def _gang(count: int) -> Callable[[str], list[str]]:
    words = ("--count", str(count), "--all-or-none", "--zone", ZONE)
    return lambda name: ["create", "v2-8", name, *words, *_MADE]


def _delete(name: str) -> list[str]:
    return ["delete", name, "--yes"]


def _delete_again(name: str) -> list[str]:
    return [*_delete(name), "--missing-ok"]


#: Where and through which APIs commands find slices on Compute Engine.
_COMPUTE: Any = {"zone": COMPUTE_ZONE, "apis": "tpu,compute"}
SCENARIOS = (
    Scenario("create", _create, _create, 1),
    Scenario("create --keep-trying", _keep_trying, _keep_trying, 1),
    Scenario("delete", _delete, _delete_again, 0, _create),
    Scenario("a search over both APIs", _search_both, _search_both, 1, **_COMPUTE),
    Scenario("create --api compute", _create_instance, _create_instance, 1, **_COMPUTE),
    Scenario("delete on Compute Engine", _delete, _delete_again, 0, _create_instance, **_COMPUTE),
    Scenario("create of several workers", _create_group, _create_group, 1, **_COMPUTE),
    Scenario("delete of several workers", _delete, _delete_again, 0, _create_group, **_COMPUTE),
    Scenario("create --all-or-none", _gang(2), _gang(2), 2, stems=("-0", "-1")),
    Scenario(
        *("create --all-or-none without room", _gang(3), _gang(3), 0),
        ends=(6,),
        stems=("-0", "-1", "-2"),
    ),
)
#: On a cloud without machines it ends where it connects: all that it asks an API for comes before.
UP = Scenario("up", _up, _up, 1, ends=(8, 255))


@dataclass
class Tally:
    """How many were struck, and what was wrong afterwards, one line each."""

    struck: int = 0
    orphans: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass
class KilledCommands:
    """Runs commands as processes against a cloud in this one; several at once."""

    cloud: Cloud
    numbers: Iterator[int] = field(default_factory=count)
    at_once: int = 2

    def prepare(self) -> None:
        """Let the first zone of `create --keep-trying`, and a third slice, have no room, ever."""
        self.cloud.fault(preset="stockout", name="*-2", probability=1.0)
        self.cloud.fault(preset="stockout", zone=OTHER_ZONE, probability=1.0)
        full = {"preset": "stockout", "method": "nodes.create", "probability": 1.0}
        self.cloud.fault(**full, zone=COMPUTE_ZONE)

    def points(self, scenario: Scenario) -> list[str]:
        """Return the moments of an undisturbed run, in their order."""
        file = self.cloud.directory / f"points-{next(self.numbers)}"
        name = f"whole{next(self.numbers)}"
        if scenario.first:
            assert self._run(scenario, scenario.first(name))[0] == 0
        status, told = self._run(scenario, scenario.words(name), f"0:none:{file}")
        assert status in scenario.ends, told
        return file.read_text().splitlines()

    def at_each_point(self, scenario: Scenario, action: str, numbers: Sequence[int]) -> Tally:
        """End a run of its own at each of the moments."""
        tally = Tally()
        with ThreadPoolExecutor(self.at_once) as pool:
            list(pool.map(lambda number: self._strike(scenario, action, number, tally), numbers))
        return tally

    def at_random(self, scenario: Scenario, times: int, seed: int) -> Tally:
        """End so many runs outright after a time that the seed decides."""
        began = time.monotonic()
        self.points(scenario)
        longest = time.monotonic() - began
        chance, tally = random.Random(seed), Tally()
        moments = [chance.uniform(0.0, longest) for _ in range(times)]
        with ThreadPoolExecutor(self.at_once) as pool:
            list(pool.map(lambda moment: self._kill_after(scenario, moment, tally), moments))
        return tally

    def gcloud_deletes_one(self) -> list[str]:
        """Let gcloud list all slices and delete one; return how it differs from tpukit."""
        if shutil.which("gcloud") is None:
            return []
        ours = self._listed()
        columns = "value[separator=' '](name.segment(3),name.basename())"
        seen = self._gcloud("list", "--zone=-", f"--format={columns}").splitlines()
        if sorted(seen) != ours:
            return [f"gcloud lists {seen}, tpukit {ours}"]
        if ours:
            zone, name = ours[0].split()
            self._gcloud("delete", name, f"--zone={zone}", "--quiet")
        left = self._listed()
        return [] if left == ours[1:] else [f"after gcloud's delete of {ours[:1]}: {left}"]

    def _listed(self) -> list[str]:
        return sorted(f"{slice_.zone} {slice_.name}" for slice_ in self.cloud.tpu.list("-").slices)

    def _gcloud(self, *words: str) -> str:
        line = ["gcloud", "compute", "tpus", "tpu-vm", *words]
        given = {
            **self.cloud.environment(),
            "CLOUDSDK_CONFIG": str(self.cloud.directory / "gcloud"),
        }
        return subprocess.run(line, env=given, capture_output=True, text=True, check=True).stdout

    def _strike(self, scenario: Scenario, action: str, number: int, tally: Tally) -> None:
        name = self._begun(scenario)
        status, told = self._run(scenario, scenario.words(name), f"{number}:{action}:")
        what = f"{scenario.name}, {action} at {number}"
        # A run that has fewer moments than another ends well before it comes to this one.
        expected = {*scenario.ends, *_STATUSES.get(action, {status})}
        if status not in expected or "Traceback" in told or "a defect in" in told:
            tally.wrong.append(f"{what}: status {status}: {told[-500:]}")
        there = self._nodes(scenario, name)
        if action == "term" and status == 143 and there and name not in told:
            tally.wrong.append(f"{what}: a slice exists, and it did not say so: {told}")
        tally.struck += 1
        self._judge(scenario, name, what, tally)

    def _kill_after(self, scenario: Scenario, seconds: float, tally: Tally) -> None:
        name = self._begun(scenario)
        with self._start(scenario, scenario.words(name)) as process:
            try:
                process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                tally.struck += 1
        self._judge(scenario, name, f"{scenario.name}, killed after {seconds:.3f} s", tally)

    def _begun(self, scenario: Scenario) -> str:
        name = f"s{next(self.numbers)}"
        if scenario.first:
            status, told = self._run(scenario, scenario.first(name))
            assert status == 0, told
        return name

    def _judge(self, scenario: Scenario, name: str, what: str, tally: Tally) -> None:
        """Compare what is there with what a list shows, type it again, and count once more."""
        apis = (self.cloud.tpu, self.cloud.instances)
        listed = {slice_.name for api in apis for slice_ in api.list("-").slices}
        names = {f"{name}{stem}" for stem in scenario.stems}
        tally.orphans += sum(bool(self._of(one)) for one in names - listed)
        status, told = self._run(scenario, scenario.again(name))
        if status not in scenario.ends:
            tally.wrong.append(f"{what}: typed again it ends with {status}: {told[-500:]}")
        elif len(left := self._nodes(scenario, name)) != scenario.left:
            tally.wrong.append(f"{what}: {left} are there in the end")
        rules = {each.name for each in self.cloud.firewall.list()}
        for stem in scenario.stems:
            rule = ssh_rule.tag(PROJECT, scenario.zone, f"{name}{stem}")
            if (rule in rules) != bool(scenario.left):
                tally.wrong.append(f"{what}: rule {rule} is {'' if rule in rules else 'not '}there")

    def _nodes(self, scenario: Scenario, name: str) -> list[str]:
        """Return the paths of what exists of a scenario's slices; see `_of`."""
        return [path for stem in scenario.stems for path in self._of(f"{name}{stem}")]

    def _of(self, name: str) -> list[str]:
        """Return the paths of nodes and instances of this name, and of parts without theirs.

        The parts are disks, and what a group of instances is made of.
        """
        state = self.cloud.server.service.context.state
        instances = {path.replace("/instances/", "/disks/") for path in state.instances}
        single = (*state.nodes, *state.instances, *state.groups)
        paths = (*single, *(state.disks.keys() - instances))
        whole = [path for path in paths if path.endswith(f"/{name}")]
        parts = [
            path
            for path in (*state.templates, *state.policies)
            if path.rpartition("/")[2].rpartition("-")[0] == name
        ]
        return whole or parts

    def _run(
        self, scenario: Scenario, words: Sequence[str], failpoint: str = ""
    ) -> tuple[int, str]:
        with self._start(scenario, words, failpoint) as process:
            out, err = process.communicate(timeout=120)
        return process.returncode, out + err

    def _start(
        self, scenario: Scenario, words: Sequence[str], failpoint: str = ""
    ) -> subprocess.Popen[str]:
        home = Path(self.cloud.environment()["TPUKIT_HOME"])
        home.mkdir(exist_ok=True)
        return WarmTpukit(
            words,
            env={
                **self.cloud.environment(),
                "TPUKIT_APIS": scenario.apis,
                "FAILPOINT": failpoint,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
