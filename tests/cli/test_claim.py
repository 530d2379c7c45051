"""`--claim-within`: a slice that nobody claims ends, and one that somebody has claimed stays."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from support.local_cloud import ZONE, Cloud, FakeClock
from support.slices import create, labelled

from cli.conftest import Run
from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.toolkit import Toolkit
from tpukit.errors import TpukitError, TransportFailed
from tpukit.jobs.guard import install_guard, wants_guard
from tpukit.models import Slice
from tpukit.slices.claim import claim
from tpukit.slices.lifetime import CLAIM, claim_end, moment, seconds_of
from tpukit.slices.naming import FOUND, LOOKING, SEARCH
from tpukit.slices.survey import survey


def unclaimed(cloud: Cloud, name: str = "demo") -> None:
    """Let the slice wait for a claim that is late by a second."""
    labels = {**cloud.tpu.get(ZONE, name).labels, CLAIM: moment(cloud.clock.time() - 1.0)}
    cloud.change(name, labels=labels)


@pytest.mark.process
def test_a_slice_waits_for_its_claim_and_says_so(run: Run, prompt_cloud: Cloud) -> None:
    environment, now = prompt_cloud.environment(), prompt_cloud.clock.time()
    words = ("create", "v3-8", "demo", "--claim-within", "30m", "--no-firewall")
    made = run(*words, environment=environment)
    assert made.status == 0, made.err
    assert "demo ends by itself only under a guard" in made.err
    assert f"next: tpukit extend demo --zone {ZONE}\n" in made.err
    assert "claims it, as ssh, run and train do; else it is deleted at" in made.err
    end = seconds_of(prompt_cloud.tpu.get(ZONE, "demo").labels[CLAIM])
    assert end
    assert now + 1799 <= end <= prompt_cloud.clock.time() + 1801
    (listed,) = run("list", "--json", environment=environment).document["slices"]
    assert listed["lifetime"]["claim"] == listed["lifetime"]["expires"] != ""
    assert run("list", "--columns", "CLAIM", environment=environment).out.startswith("20")
    told = run("describe", "demo", environment=environment)
    assert "else it is deleted" in told.out
    assert f"next: tpukit extend demo --zone {ZONE}\n" in told.err
    assert run(*words, environment=environment).status == 0
    assert seconds_of(prompt_cloud.tpu.get(ZONE, "demo").labels[CLAIM]) == end


@pytest.mark.slow
@pytest.mark.parametrize("ttl", [(), ("--ttl", "8h")], ids=["alone", "with an end"])
def test_extend_claims_it_and_reap_leaves_it(
    run: Run, prompt_cloud: Cloud, ttl: tuple[str, ...]
) -> None:
    environment = prompt_cloud.environment()
    words = ("create", "v3-8", "demo", "--claim-within", "30m", "--no-firewall")
    run(*words, environment=environment)
    unclaimed(prompt_cloud)
    assert "nobody claimed it in time" in run("reap", "--dry-run", environment=environment).err
    assert run("extend", "demo", *ttl, environment=environment).status == 0
    assert CLAIM not in prompt_cloud.tpu.get(ZONE, "demo").labels
    assert "nothing to delete" in run("reap", "--yes", environment=environment).err
    again = run(*words, environment=environment)
    assert "it was there before and needs no claim" in again.err
    assert CLAIM not in prompt_cloud.tpu.get(ZONE, "demo").labels
    assert "--ttl is missing" in run("extend", "demo", environment=environment).says(2).err


@pytest.mark.process
def test_reap_deletes_what_nobody_has_claimed(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    words = ("create", "v3-8", "demo", "--claim-within", "30m", "--no-firewall")
    run(*words, environment=environment)
    assert "nothing to delete" in run("reap", "--yes", environment=environment).err
    unclaimed(prompt_cloud)
    assert run("reap", "--yes", environment=environment).status == 0
    assert prompt_cloud.nodes() == []


@pytest.mark.process
def test_adopt_claims_it(run: Run, prompt_cloud: Cloud) -> None:
    prompt_cloud.tpu.create(labelled(prompt_cloud, labels={CLAIM: moment(0.0)}))
    words = ("adopt", "demo", "--yes", "--no-firewall", "--ttl", "1h")
    assert run(*words, environment=prompt_cloud.environment()).status == 0
    assert CLAIM not in prompt_cloud.tpu.get(ZONE, "demo").labels


@pytest.mark.process
def test_the_time_for_a_claim_begins_when_the_slice_is_ready(
    cloud: Cloud, clock: FakeClock
) -> None:
    """A command that dies before that leaves a slice that `reap` deletes an hour later."""
    cloud.tpu.create(labelled(cloud, labels={CLAIM: "60"}))
    clock.now += 3600.0
    assert survey(cloud.tpu, "ada").due == ()
    made = create(cloud, labelled(cloud)).slice
    assert clock.now - 60.0 < (claim_end(made) or 0.0) - 60.0 <= clock.now
    cloud.change("demo", labels={**made.labels, CLAIM: "60"})
    clock.now += 61.0
    (due,) = survey(cloud.tpu, "ada").due
    assert due.why == "nobody claimed it in time"


@pytest.mark.process
def test_a_claim_that_comes_while_the_slice_is_deleted_fails(
    cloud: Cloud, clock: FakeClock
) -> None:
    """The guard has read the label just before the claim removed it."""
    slice_ = create(cloud, labelled(cloud, labels={CLAIM: "60"})).slice

    def guard() -> None:
        clock.on_sleep = lambda: None
        cloud.tpu.delete(ZONE, "demo")

    clock.on_sleep = guard
    told: list[str] = []
    with pytest.raises(TpukitError, match=r"demo is (gone|being deleted)"):
        claim(cloud.tpu, slice_, deadline=cloud.deadline(), on_state=told.append)
    assert told == []


@pytest.mark.process
@pytest.mark.parametrize("reads", [1, 3, 4])  # after the 2nd comes the write, which no etag guards
def test_a_claim_while_the_time_for_it_begins_is_not_undone(cloud: Cloud, reads: int) -> None:
    """Somebody logs in as soon as the slice is READY, while its create still writes labels."""
    labels = {CLAIM: "60", SEARCH: LOOKING}
    cloud.tpu.create(labelled(cloud, labels=labels))
    cloud.clock.sleep(60.0)

    @dataclass
    class Beside:
        """The cloud; somebody claims the slice right before a read."""

        provider: Any
        left: list[int]

        def __getattr__(self, name: str) -> Any:
            value = getattr(self.provider, name)
            if name in ("once", "within", "only"):
                return lambda *words, **given: Beside(value(*words, **given), self.left)
            return self.get if name == "get" else value

        def get(self, zone: str, name: str) -> Slice:
            slice_ = self.provider.get(zone, name)
            self.left[0] -= 1
            if self.left == [0]:
                claim(cloud.tpu, slice_, deadline=cloud.deadline(), on_state=print)
            return slice_

    cloud.tpu = Beside(cloud.tpu, [reads])
    create(cloud, labelled(cloud, labels=labels))
    labels = cloud.tpu.get(ZONE, "demo").labels
    assert (CLAIM in labels, labels[SEARCH]) == (False, FOUND)
    assert cloud.tpu.left[0] <= 0


@pytest.mark.process
def test_a_claimed_slice_is_claimed_without_a_call(cloud: Cloud) -> None:
    slice_ = create(cloud).slice
    calls = len(cloud.control("GET", "log")["requests"])
    assert claim(cloud.tpu, slice_, deadline=cloud.deadline(), on_state=print) is slice_
    assert len(cloud.control("GET", "log")["requests"]) == calls


@pytest.mark.process
def test_up_that_keeps_a_slice_takes_no_claim(run: Run, standing: Cloud) -> None:
    words = ("up", "v3-8", "demo", "--keep", "--claim-within", "5m")
    told = run(*words, environment=standing.environment()).says(2).err
    assert "--keep and --claim-within exclude each other" in told


@pytest.mark.journey
def test_a_command_on_its_workers_claims_it_and_a_wait_does_not(
    run: Run, own_emulator: dict[str, str]
) -> None:
    toolkit = Toolkit(GlobalFlags(local=True), environ=own_emulator)
    words = ("create", "v3-8", "demo", "--claim-within", "1h")
    assert run(*words, environment=own_emulator).status == 0
    assert run("firewall", "apply", "demo", environment=own_emulator).status == 0
    assert run("wait", "demo", "--for", "ssh", environment=own_emulator).status == 0
    assert wants_guard(toolkit.slices.find("demo"))
    zone = toolkit.slices.find("demo").zone  # for which `wait` could have left a hint
    done = run("ssh", "demo", "--zone", zone, "--", "true", environment=own_emulator)
    assert done.status == 0, done.err
    assert "slice demo: claimed, so it stays" in done.err
    assert not wants_guard(toolkit.slices.find("demo"))
    assert run("run", "demo", "--", "true", environment=own_emulator).err == ""


@pytest.mark.journey
def test_a_slice_that_nobody_claims_ends_by_itself(run: Run, own_emulator: dict[str, str]) -> None:
    run("create", "v3-8", "demo", "--claim-within", "5s", environment=own_emulator)
    toolkit = Toolkit(GlobalFlags(local=True), environ=own_emulator)
    found = toolkit.slices.find("demo")
    (worker,) = toolkit.reach.workers(found, "0", 60.0)
    endpoint = toolkit.settings.get("tpu_endpoint")
    with suppress(TransportFailed):  # it may be gone already
        install_guard(worker, found, endpoint, deadline=toolkit.deadline(60.0))
    gone = run("wait", "demo", "--for", "gone", "--timeout", "60s", environment=own_emulator)
    assert gone.status == 0, gone.err
