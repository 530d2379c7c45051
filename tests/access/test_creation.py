"""A slice and, beside it, its rule: what is looked for before, and what is waited for after."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.contexts import context_on
from support.local_cloud import PROJECT, ZONE, Cloud, FakeClock, json_reply, scripted
from support.slices import create, labelled

from tpukit.access import creation, ssh_rule
from tpukit.access.cleanup import Cleanup
from tpukit.access.context import Context
from tpukit.access.creation import Reachable, ensure_somewhere
from tpukit.errors import Fix, Interrupted, NoCapacity, QuotaExceeded, TpukitError
from tpukit.google.firewall_rules import ComputeFirewall
from tpukit.google.tpu import CloudTpu
from tpukit.models import QueueRequest, SliceRequest
from tpukit.slices import naming
from tpukit.slices.capacity import Search
from tpukit.ssh.keys import KeyPair


def made(cloud: Cloud, context: Context, request: SliceRequest) -> Reachable:
    unrestricted = replace(context, source_ranges=())
    asked = creation.ensure_somewhere(
        unrestricted,
        Search([request]),
        firewall=True,
        deadline=cloud.deadline(),
        on_state=cloud.states.append,
    )
    return creation.wait_reachable(unrestricted, asked)


def test_an_own_address_that_nobody_knows_is_told_before_anything_is_made(
    prompt_cloud: Cloud, context: Context
) -> None:
    def unknown(worker_address: str) -> str:
        raise TpukitError("cannot find out your public address", fix=Fix(note="--source-range"))

    blind = replace(context, source_address=unknown)
    with pytest.raises(TpukitError, match="public address") as caught:
        made(prompt_cloud, blind, labelled(prompt_cloud))
    assert caught.value.also == ()
    with pytest.raises(TpukitError, match="is not offered in") as caught:
        made(prompt_cloud, blind, labelled(prompt_cloud, accelerator_type="v4-8"))
    assert [error.what for error in caught.value.also] == ["cannot find out your public address"]
    assert prompt_cloud.nodes() == []
    assert prompt_cloud.firewall.list() == ()


@pytest.mark.parametrize(
    ("endpoint", "external", "seen"),
    [
        ("https://tpu.googleapis.com/", True, "216.239.32.10"),
        ("https://tpu.googleapis.com/", False, "10.128.0.2"),
        ("http://127.0.0.1:8080/", True, "127.0.0.1"),
    ],
)
def test_such_workers_are_where_the_api_leads(
    prompt_cloud: Cloud, endpoint: str, external: bool, seen: str
) -> None:
    assert CloudTpu(prompt_cloud.session, PROJECT, endpoint).worker_address(external) == seen


def test_our_address_is_that_on_the_way_to_such_workers(
    prompt_cloud: Cloud, context: Context
) -> None:
    asked: list[str] = []

    def source(worker_address: str) -> str:
        asked.append(worker_address)
        return "198.51.100.1"

    here = replace(context, source_address=source)
    assert made(prompt_cloud, here, labelled(prompt_cloud)).opening
    assert asked[0] == context.provider.worker_address(external=True)


def test_where_workers_see_us_elsewhere_than_was_thought_that_address_is_admitted(
    prompt_cloud: Cloud, context: Context
) -> None:
    here = replace(
        context,
        source_address=lambda worker: "198.51.100.1" if worker == "127.0.0.1" else "198.51.100.2",
    )
    found = made(prompt_cloud, here, labelled(prompt_cloud))
    assert found.opening
    assert found.opening.changed
    (rule,) = prompt_cloud.firewall.list()
    assert rule == found.opening.rule
    assert rule.source_ranges == ("198.51.100.2/32",)
    again = made(prompt_cloud, here, labelled(prompt_cloud)).opening
    assert again
    assert not again.changed


def test_the_rule_is_waited_for_once_the_slice_is_there(
    cloud: Cloud, clock: FakeClock, key: KeyPair
) -> None:
    """Its operation goes on beside the create, which takes longer."""
    context = context_on(cloud, key, clock)
    request = labelled(cloud)
    slice_ = made(cloud, context, request)
    assert slice_.created
    assert slice_.slice.tags == (ssh_rule.rule_name(slice_.slice),)
    methods = [request["method"] for request in cloud.control("GET", "log")["requests"]]
    wanted = ["firewalls.insert", "nodes.create", "globalOperations.wait"]
    assert [method for method in methods if method in wanted] == wanted


def test_a_slice_that_is_lost_gets_no_rule(prompt_cloud: Cloud, context: Context) -> None:
    request = labelled(prompt_cloud)
    prompt_cloud.tpu.create(request)
    assert prompt_cloud.tpu.get(ZONE, "demo").ready
    prompt_cloud.change("demo", state="PREEMPTED")
    with pytest.raises(TpukitError, match="PREEMPTED"):
        made(prompt_cloud, context, request)
    assert prompt_cloud.firewall.list() == ()


def test_a_create_in_one_zone_takes_the_slice_of_an_interrupted_search(
    prompt_cloud: Cloud, context: Context
) -> None:
    """From now on somebody has it, so that no search deletes it."""
    searched = labelled(prompt_cloud, nonce="n0", labels={naming.SEARCH: naming.LOOKING})
    prompt_cloud.tpu.create(searched)
    taken = made(prompt_cloud, context, labelled(prompt_cloud))
    assert not taken.created
    labels = prompt_cloud.tpu.get(ZONE, "demo").labels
    assert labels[naming.SEARCH] == naming.FOUND == taken.slice.labels[naming.SEARCH]


def test_a_slice_that_cannot_be_marked_as_found_is_made_all_the_same(
    prompt_cloud: Cloud, context: Context
) -> None:
    searched = labelled(prompt_cloud, nonce="n0", labels={naming.SEARCH: naming.LOOKING})
    prompt_cloud.tpu.create(searched)
    prompt_cloud.fault(method="nodes.patch", kind="status", status="PERMISSION_DENIED", times=1)
    taken = made(prompt_cloud, context, labelled(prompt_cloud))
    assert taken.slice.ready
    assert any("another search may delete it" in state for state in prompt_cloud.states)


@pytest.mark.parametrize("room", [True, False])
def test_a_search_removes_no_rule_of_somebody_else_s_slice_of_its_name(
    prompt_cloud: Cloud, context: Context, room: bool
) -> None:
    full, free = "europe-west4-a", "us-east1-d"
    eves = made(
        prompt_cloud, context, naming.labelled(prompt_cloud.request(zone=ZONE), "eve", "n0")
    )
    assert eves.opening
    prompt_cloud.fault(preset="stockout", zone=full, probability=1.0)
    if not room:
        prompt_cloud.fault(preset="stockout", zone=free, probability=1.0)
    requests = [
        labelled(prompt_cloud, zone=zone, labels={naming.SEARCH: naming.LOOKING})
        for zone in (ZONE, full, free)
    ]
    given = {
        "firewall": True,
        "deadline": prompt_cloud.deadline(),
        "on_state": prompt_cloud.states.append,
    }
    rules = {eves.opening.rule.name}
    if room:
        found = ensure_somewhere(context, Search(requests), **given)  # type: ignore[arg-type]
        rules |= {ssh_rule.rule_name(found.slice)}
    else:
        with pytest.raises(NoCapacity):
            ensure_somewhere(context, Search(requests), **given)  # type: ignore[arg-type]
    assert {rule.name for rule in prompt_cloud.firewall.list()} == rules


@pytest.mark.parametrize(("free", "refused"), [(7, True), (8, False), (None, False)])
def test_addresses_that_a_region_does_not_have_are_told_before_anything_is_made(
    prompt_cloud: Cloud, context: Context, free: int | None, refused: bool
) -> None:
    quota = {"metric": "IN_USE_ADDRESSES", "limit": 8.0, "usage": 8.0 - (free or 0)}
    document = {
        "quotas": [{"metric": "CPUS", "limit": 1.0, "usage": 0.0}, quota][: 1 + (free is not None)]
    }
    wanted = labelled(prompt_cloud, accelerator_type="v3-64")
    with scripted(json_reply(200, document)) as server:
        compute = ComputeFirewall(prompt_cloud.session, PROJECT, server.url)
        given = {"firewall": False, "deadline": prompt_cloud.deadline()}

        def make() -> None:
            creation.ensure_somewhere(
                replace(context, firewall=compute), Search([wanted]), on_state=print, **given
            )

        if refused:
            with pytest.raises(QuotaExceeded, match="needs 8 external addresses") as caught:
                make()
            assert "--internal-ips" in str(caught.value.fix)
        else:
            make()
        assert server.seen == [
            ("GET", f"/compute/v1/projects/{PROJECT}/regions/us-central1?fields=quotas")
        ]
    assert len(prompt_cloud.nodes()) == (0 if refused else 1)


def test_a_search_for_best_effort_asks_anew_once_its_request_has_failed(
    cloud: Cloud, key: KeyPair, clock: FakeClock
) -> None:
    cloud.fault(preset="queued-stockout-internal", times=1)
    request = labelled(cloud, labels={naming.SEARCH: naming.LOOKING}, provisioning="best-effort")
    found = creation.ensure_somewhere(
        context_on(cloud, key, clock),
        Search([request], cloud.deadline(3600.0)),
        firewall=False,
        deadline=cloud.deadline(3600.0),
        on_state=cloud.states.append,
    )
    assert found.slice.queued_resource == "demo"


def test_ctrl_c_between_two_rounds_names_the_rule_that_is_left(
    cloud: Cloud, clock: FakeClock, key: KeyPair
) -> None:
    def interrupt() -> None:
        if any(" again at " in line for line in cloud.states):
            raise KeyboardInterrupt

    cloud.fault(preset="stockout", probability=1.0)
    clock.on_sleep = interrupt
    request = labelled(cloud, labels={naming.SEARCH: naming.LOOKING})
    with pytest.raises(Interrupted) as caught:
        creation.ensure_somewhere(
            context_on(cloud, key, clock, source_ranges=("192.0.2.7/32",)),
            Search([request], cloud.deadline(3600.0)),
            firewall=True,
            deadline=cloud.deadline(3600.0),
            on_state=cloud.states.append,
        )
    (rule,) = [each.name for each in cloud.firewall.list() if each.name.startswith("tpukit-")]
    assert caught.value.exists == (f"firewall rule {rule}, which costs nothing",)
    assert str(caught.value.otherwise) == f"tpukit firewall remove {rule}"


def test_a_lost_slice_that_is_started_while_its_delete_is_asked_for_again_stays(
    cloud: Cloud, clock: FakeClock
) -> None:
    request = labelled(cloud)
    create(cloud, request)
    cloud.change("demo", state="PREEMPTED")

    def start() -> None:
        if cloud.calls("nodes.delete"):
            clock.on_sleep = lambda: None
            cloud.change("demo", state="READY")
            cloud.control("DELETE", "faults")

    cloud.fault(method="nodes.delete", status="UNAVAILABLE", probability=1.0)
    clock.on_sleep = start
    say = cloud.states.append
    place = (cloud.tpu, cloud.firewall, PROJECT, cloud.journal)
    cleanup = Cleanup(*place, on_state=lambda name: say, on_warning=say)
    creation.end_lost(cleanup, [request], cloud.deadline())
    assert cloud.tpu.get(ZONE, "demo").state == "READY"
    cloud.change("demo", state="PREEMPTED")
    creation.end_lost(cleanup, [request], cloud.deadline())
    assert cloud.nodes() == []


@pytest.mark.parametrize("owner", ["ada", "eve"])
def test_a_dead_request_for_a_slice_that_is_gone_is_deleted_unless_somebody_else_made_it(
    cloud: Cloud, owner: str
) -> None:
    cloud.fault(preset="queued-stockout-internal")
    cloud.tpu.create_queued(QueueRequest(naming.labelled(cloud.request(), owner, "n1")))
    cloud.clock.sleep(600.0)
    assert cloud.tpu.get_queued(ZONE, "demo").dead
    say = cloud.states.append
    place = (cloud.tpu, cloud.firewall, PROJECT, cloud.journal)
    cleanup = Cleanup(*place, on_state=lambda name: say, on_warning=say)
    creation.end_lost(cleanup, [labelled(cloud)], cloud.deadline())
    assert len(cloud.tpu.list_queued("-").requests) == (owner == "eve")
