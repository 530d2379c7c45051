"""One end for a slice: its node, its queued resource, and the rules that were made for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.local_cloud import PROJECT, ZONE, Cloud
from support.processes import eventually
from support.slices import labelled

from tpukit.access import ssh_rule
from tpukit.access.cleanup import Cleanup
from tpukit.google.rehearsal import rehearsed
from tpukit.models import ApiCall, FirewallRule, QueuedResource, QueueRequest, Slice
from tpukit.slices import naming

pytestmark = pytest.mark.process
TAG = ssh_rule.tag(PROJECT, ZONE, "demo")


def cleanup(cloud: Cloud) -> Cleanup:
    return Cleanup(
        cloud.tpu,
        cloud.firewall,
        PROJECT,
        cloud.journal,
        on_state=lambda name: cloud.states.append,
        on_warning=pytest.fail,
    )


def end(cloud: Cloud, thing: Slice | QueuedResource) -> Sequence[str]:
    return cleanup(cloud).end(thing, cloud.deadline(60.0))


def queued(cloud: Cloud, count: int = 1) -> QueuedResource:
    """Return a queued resource whose slices are READY."""
    cloud.tpu.create_queued(QueueRequest(labelled(cloud, tags=(TAG,)), count))
    eventually(lambda: cloud.tpu.get_queued(ZONE, "demo").state == "ACTIVE")
    return cloud.tpu.get_queued(ZONE, "demo")


def rule(cloud: Cloud, name: str = TAG, tag: str = TAG) -> None:
    cloud.firewall.insert(FirewallRule(name, "default", ("192.0.2.7/32",), (tag,)))()


def rules(cloud: Cloud) -> list[str]:
    return [each.name for each in cloud.firewall.list()]


def test_a_slice_takes_the_queued_resource_that_it_came_from_with_it(prompt_cloud: Cloud) -> None:
    queued(prompt_cloud)
    rule(prompt_cloud)
    end(prompt_cloud, prompt_cloud.tpu.get(ZONE, "demo"))
    assert prompt_cloud.tpu.list_queued("-").requests == ()
    assert (prompt_cloud.nodes(), rules(prompt_cloud)) == ([], [])


def test_the_slices_of_one_queued_resource_end_side_by_side_and_take_it_with_them(
    prompt_cloud: Cloud,
) -> None:
    queued(prompt_cloud, 2)
    both = {slice_.name: slice_ for slice_ in prompt_cloud.tpu.list(ZONE).slices}
    done = cleanup(prompt_cloud).end_all(both, prompt_cloud.deadline(60.0))
    assert (done.names, done.failed) == (["demo-0", "demo-1"], {})
    assert prompt_cloud.tpu.list_queued("-").requests == ()


def test_the_rule_of_a_slice_that_was_made_without_the_request_stays_when_that_ends(
    prompt_cloud: Cloud,
) -> None:
    request = queued(prompt_cloud)
    rule(prompt_cloud)
    prompt_cloud.vanish("demo")
    eventually(lambda: prompt_cloud.tpu.get_queued(ZONE, "demo").state == "SUSPENDED")
    prompt_cloud.tpu.create(labelled(prompt_cloud, nonce="n2", tags=(TAG,)))
    ended: list[Slice] = []
    replace(cleanup(prompt_cloud), after=ended.append).end(request, prompt_cloud.deadline(60.0))
    assert ended == []
    assert prompt_cloud.tpu.list_queued("-").requests == ()
    assert prompt_cloud.tpu.get(ZONE, "demo").labels[naming.NONCE] == "n2"
    assert rules(prompt_cloud) == [TAG]


def test_another_queued_resource_of_the_same_name_is_left_alone(prompt_cloud: Cloud) -> None:
    request = queued(prompt_cloud)
    stale = QueuedResource(**{**request.__dict__, "created": "2020-01-01T00:00:00Z"})
    end(prompt_cloud, stale)
    assert prompt_cloud.tpu.get_queued(ZONE, "demo").state == "ACTIVE"


@pytest.mark.parametrize("is_age_known", [True, False])
def test_a_queued_resource_that_was_made_after_the_slice_is_not_the_slice_s(
    prompt_cloud: Cloud, is_age_known: bool
) -> None:
    """Its age tells it, or its state: a watch that was restarted does not know the slice's age."""
    queued(prompt_cloud)
    ours = prompt_cloud.tpu.get(ZONE, "demo")
    ours = ours if is_age_known else replace(ours, created="")
    end(prompt_cloud, prompt_cloud.tpu.get_queued(ZONE, "demo"))
    prompt_cloud.fault(method="queuedResources.create", kind="wait", seconds=7200.0, times=1)
    prompt_cloud.tpu.create_queued(QueueRequest(labelled(prompt_cloud, nonce="n2")))
    end(prompt_cloud, ours)
    (left,) = prompt_cloud.tpu.list_queued("-").requests
    assert (left.labels[naming.NONCE], left.slices) == ("n2", ("demo",))


def test_a_rule_whose_name_ends_as_that_of_the_slice_stays(prompt_cloud: Cloud) -> None:
    """Names end with 24 bits of a digest: two slices of a large project may share them."""
    prompt_cloud.tpu.create(labelled(prompt_cloud, tags=(TAG,)))
    others = f"tpukit-other-{TAG[-6:]}"
    rule(prompt_cloud)
    rule(prompt_cloud, others, others)
    rule(prompt_cloud, f"tpukit-demo-nfs-{TAG[-6:]}")
    end(prompt_cloud, prompt_cloud.tpu.get(ZONE, "demo"))
    assert rules(prompt_cloud) == [others]


def test_rules_that_slices_have_left_in_the_project_of_the_network_are_found_and_removed(
    prompt_cloud: Cloud,
) -> None:
    prompt_cloud.control("POST", f"projects/{PROJECT}:attach", {"host": "host"})
    host, by = prompt_cloud.firewall.of("host"), cleanup(prompt_cloud)
    host.insert(FirewallRule(TAG, "default", ("192.0.2.7/32",), (TAG,)))()
    assert [rule.name for _, rule in by.left_over()] == [TAG]
    rules, name = by.rule_of("demo", "")
    assert (rules.list(), name) == (host.list(), TAG)
    assert by.remove_left(["other"]) == []
    assert by.remove_left(["demo"]) == [TAG]
    assert TAG not in [rule.name for rule in host.list()]


@pytest.mark.parametrize("queued_resource", [True, False])
@pytest.mark.parametrize("rehearsal", [True, False])
def test_the_rule_in_the_project_of_the_network_goes_too(
    prompt_cloud: Cloud, queued_resource: bool, rehearsal: bool
) -> None:
    cloud = prompt_cloud
    cloud.control("POST", f"projects/{PROJECT}:attach", {"host": "host"})
    host, network = cloud.firewall.of("host"), "projects/host/global/networks/default"
    request = labelled(cloud, tags=(TAG,), network=network)
    if queued_resource:
        cloud.tpu.create_queued(QueueRequest(request))
        eventually(lambda: cloud.tpu.get_queued(ZONE, "demo").state == "ACTIVE")
    else:
        cloud.tpu.create(request)
    host.insert(FirewallRule(TAG, "default", ("192.0.2.7/32",), (TAG,)))()
    thing = (cloud.tpu.get_queued if queued_resource else cloud.tpu.get)(ZONE, "demo")
    calls: list[ApiCall] = []
    by = cleanup(cloud)
    if rehearsal:
        provider, firewall = rehearsed(cloud.tpu, cloud.firewall, PROJECT, calls.append)
        by = replace(by, provider=provider, firewall=firewall)
    by.end(thing, cloud.deadline(60.0))
    planned = any(call.url.endswith(f"/projects/host/global/firewalls/{TAG}") for call in calls)
    assert planned == rehearsal
    assert (TAG in [each.name for each in host.list()]) == rehearsal


def test_a_rule_in_the_project_of_the_network_goes_with_a_request_whose_slice_is_gone(
    prompt_cloud: Cloud,
) -> None:
    cloud = prompt_cloud
    cloud.control("POST", f"projects/{PROJECT}:attach", {"host": "host"})
    host, network = cloud.firewall.of("host"), "projects/host/global/networks/default"
    cloud.tpu.create_queued(QueueRequest(labelled(cloud, tags=(TAG,), network=network)))
    eventually(lambda: cloud.tpu.get_queued(ZONE, "demo").state == "ACTIVE")
    host.insert(FirewallRule(TAG, "default", ("192.0.2.7/32",), (TAG,)))()
    cloud.tpu.delete(ZONE, "demo")
    eventually(lambda: not cloud.nodes())
    end(cloud, cloud.tpu.get_queued(ZONE, "demo"))
    assert TAG not in [each.name for each in host.list()]


@pytest.mark.parametrize("ended", ["tpu", "compute"])
def test_a_rule_stays_while_a_slice_of_an_api_that_settings_leave_out_has_it(
    prompt_cloud: Cloud, ended: str
) -> None:
    cloud, zone = prompt_cloud, "us-east5-b"
    tag, apis = ssh_rule.tag(PROJECT, zone, "demo"), {"tpu": cloud.tpu, "compute": cloud.instances}
    images = {"tpu": "v2-alpha-tpuv6e", "compute": "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"}
    for api, provider in apis.items():
        given = {"accelerator_type": "v6e-4", "runtime_version": images[api], "tags": (tag,)}
        provider.create(labelled(cloud, zone=zone, api=api, **given))
        eventually(lambda provider=provider: provider.get(zone, "demo").ready)
    path = ssh_rule.path_of(apis[ended].get(zone, "demo"))
    made_for = f"SSH to projects/{PROJECT}/{path}"
    cloud.firewall.insert(
        FirewallRule(tag, "default", ("192.0.2.7/32",), (tag,), description=made_for)
    )()

    def by(api: str) -> Cleanup:
        """Return what deletes if the settings name one API."""
        (other,) = [provider for name, provider in apis.items() if name != api]
        alone = replace(cleanup(cloud), provider=apis[api], others=(other,))
        return replace(alone, on_warning=cloud.states.append)

    by(ended).end(apis[ended].get(zone, "demo"), cloud.deadline(60.0))
    assert rules(cloud) == [tag]
    assert any(state.startswith(f"firewall rule {tag} stays") for state in cloud.states)
    assert by(ended).remove_left(["demo"]) == []
    assert rules(cloud) == [tag]
    (kept,) = {*apis} - {ended}
    by(kept).end(apis[kept].get(zone, "demo"), cloud.deadline(60.0))
    assert rules(cloud) == []
