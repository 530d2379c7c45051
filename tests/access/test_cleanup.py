"""What goes with a slice on a network that another project shares: a Shared VPC."""

from __future__ import annotations

import pytest
from support.local_cloud import PROJECT, ZONE, Cloud
from support.slices import labelled

from tpukit.access import cleanup, ssh_rule
from tpukit.access.ssh_config import SshConfig
from tpukit.models import ApiCall, FirewallRule, QueueRequest, Slice

TAG = ssh_rule.tag(PROJECT, ZONE, "demo")
RULE = FirewallRule(TAG, "default", ("192.0.2.7/32",), (TAG,))
NETWORK = "projects/host/global/networks/default"


@pytest.fixture
def shared(prompt_cloud: Cloud) -> Cloud:
    """A cloud whose network is another project's, which has the rule of slice `demo`."""
    prompt_cloud.control("POST", f"projects/{PROJECT}:attach", {"host": "host"})
    prompt_cloud.close_network("host")
    prompt_cloud.firewall.of("host").insert(RULE)()
    return prompt_cloud


def deleter(cloud: Cloud) -> cleanup.Cleanup:
    return cleanup.Cleanup(
        cloud.tpu,
        cloud.firewall,
        SshConfig(cloud.directory / "ssh"),
        cloud.journal,
        on_state=lambda name: cloud.states.append,
        on_warning=cloud.states.append,
    )


def slice_of(cloud: Cloud) -> Slice:
    cloud.tpu.create(labelled(cloud, tags=(TAG,), network=NETWORK))
    return cloud.tpu.get(ZONE, "demo")


def test_the_rule_of_a_slice_goes_from_the_project_that_shares_its_network(shared: Cloud) -> None:
    assert deleter(shared).delete(slice_of(shared), shared.deadline()) == ()
    assert shared.firewall.of("host").list() == ()


def test_a_plan_removes_the_rule_from_the_project_that_shares_the_network(shared: Cloud) -> None:
    calls: list[ApiCall] = []
    note = calls.append
    found = slice_of(shared)
    cleanup.plan([found], shared.tpu.planning(note), shared.firewall.planning(note))
    assert f"/projects/host/global/firewalls/{TAG}" in calls[-1].url


def test_the_rules_of_a_queued_resource_s_slices_go_from_that_project_too(shared: Cloud) -> None:
    request = QueueRequest(labelled(shared, tags=(TAG,), network=NETWORK))
    shared.tpu.create_queued(request)
    queued = shared.tpu.get_queued(ZONE, "demo")
    assert deleter(shared).delete_queued(queued, shared.deadline()) == ()
    assert shared.firewall.of("host").list() == ()
