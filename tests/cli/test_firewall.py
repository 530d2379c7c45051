"""`tpukit firewall`: rules whose slice was deleted by another tool."""

from __future__ import annotations

from typing import Any

import pytest
from support.local_cloud import OTHER_ZONE, PROJECT, ZONE, Cloud

from cli.conftest import Run
from tpukit.access import ssh_rule

pytestmark = pytest.mark.process


def leave_a_rule(cloud: Cloud, zone: str = ZONE, name: str = "demo") -> str:
    """Make the rule of a slice that does not exist, and return its name."""
    run_rule = ssh_rule.tag(PROJECT, zone, name)
    cloud.firewall.insert(
        ssh_rule.FirewallRule(run_rule, "default", ("192.0.2.1/32",), (run_rule,))
    )
    return run_rule


def left(run: Run, cloud: Cloud) -> Any:
    result = run("firewall", "list", "--json", environment=cloud.environment())
    assert result.status == 0, result.err
    return result.document["left_over"]


def test_a_rule_whose_slice_is_gone_is_shown_with_what_to_type(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    for name in ("demo", "other"):
        assert run("create", "v3-8", name, environment=environment).status == 0
        run("firewall", "apply", name, "--source-range=192.0.2.1", environment=environment)
    assert left(run, prompt_cloud) == []
    prompt_cloud.vanish("demo")
    rule = ssh_rule.tag(PROJECT, ZONE, "demo")
    assert left(run, prompt_cloud) == [rule]
    shown = run("firewall", "list", environment=environment)
    assert shown.err.splitlines() == [
        f"warning: the slice of rule {rule} is gone",
        f"next: tpukit firewall remove {rule}",
    ]
    assert len(shown.out.splitlines()) == 2


def test_the_rule_of_a_slice_that_is_gone_is_removed_by_the_slice_s_name(
    run: Run, prompt_cloud: Cloud
) -> None:
    rule = leave_a_rule(prompt_cloud)
    leave_a_rule(prompt_cloud, name="demo-2")
    result = run("firewall", "remove", "demo", "--json", environment=prompt_cloud.environment())
    assert result.document == {"v": 1, "removed": True, "rule": rule}
    assert [each.name for each in prompt_cloud.firewall.list()] == [
        ssh_rule.tag(PROJECT, ZONE, "demo-2")
    ]


def test_where_several_slices_are_gone_the_zone_or_the_rule_says_which(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    rules = sorted(leave_a_rule(prompt_cloud, zone) for zone in (ZONE, OTHER_ZONE))
    refused = run("firewall", "remove", "demo", environment=environment).says(2)
    assert all(rule in refused.err for rule in rules)
    assert len(prompt_cloud.firewall.list()) == 2
    words = ("firewall", "remove", "demo", "--zone", OTHER_ZONE)
    assert run(*words, environment=environment).status == 0
    (kept,) = prompt_cloud.firewall.list()
    assert kept.name == ssh_rule.tag(PROJECT, ZONE, "demo")
    run(*words, environment=environment).says(3)
    assert prompt_cloud.firewall.list() == (kept,)


def test_a_rule_whose_slice_may_be_in_a_silent_zone_is_not_missing(
    run: Run, prompt_cloud: Cloud
) -> None:
    leave_a_rule(prompt_cloud)
    silent = {"kind": "unreachable", "zone": OTHER_ZONE, "probability": 1.0}
    prompt_cloud.fault(method="nodes.list", **silent)
    words = ("firewall", "remove", "demo", "--zone", ZONE)
    told = run(*words, environment=prompt_cloud.environment()).says(1).err
    assert f"error: no answer from {OTHER_ZONE}" in told
    assert len(prompt_cloud.firewall.list()) == 1


def test_the_rule_of_a_slice_that_lives_elsewhere_is_never_removed(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    assert run("create", "v3-8", "demo", environment=environment).status == 0
    run("firewall", "apply", "demo", "--source-range=192.0.2.1", environment=environment)
    words = ("firewall", "remove", "demo", "--zone", OTHER_ZONE)
    run(*words, environment=environment).says(3)
    assert len(prompt_cloud.firewall.list()) == 1


def test_a_rule_of_somebody_else_s_with_the_slice_s_name_is_left_alone(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    prompt_cloud.firewall.insert(
        ssh_rule.FirewallRule("demo", "default", ("192.0.2.1/32",), ("elsewhere",))
    )
    assert run("create", "v3-8", "demo", environment=environment).status == 0
    run("firewall", "apply", "demo", "--source-range=192.0.2.1", environment=environment)
    assert run("firewall", "remove", "demo", environment=environment).status == 0
    assert [each.name for each in prompt_cloud.firewall.list()] == ["demo"]


def test_a_name_that_no_rule_and_no_slice_has_is_not_found(run: Run, prompt_cloud: Cloud) -> None:
    leave_a_rule(prompt_cloud)
    run("firewall", "remove", "dem", environment=prompt_cloud.environment()).says(3)
    assert len(prompt_cloud.firewall.list()) == 1


def test_who_may_not_list_slices_still_lists_rules(run: Run, prompt_cloud: Cloud) -> None:
    leave_a_rule(prompt_cloud)
    prompt_cloud.fault(
        method="nodes.list", status="PERMISSION_DENIED", message="no", probability=1.0
    )
    result = run("firewall", "list", "--json", environment=prompt_cloud.environment())
    assert result.status == 0
    assert len(result.document["rules"]) == 1
    assert result.document["left_over"] == []


def insert(cloud: Cloud, name: str, **given: object) -> None:
    """Make a rule as others make them."""
    path = f"projects/{PROJECT}/global"
    rule = {"name": name, "network": f"{path}/networks/default", "direction": "INGRESS", **given}
    cloud.session.rest("insert", "POST", f"{cloud.url}/compute/v1/{path}/firewalls", body=rule)


def default_ssh(cloud: Cloud, **given: object) -> None:
    """Make the rule that Google makes in every new project."""
    ssh = [{"IPProtocol": "tcp", "ports": ["22"]}]
    values = {"allowed": ssh, "sourceRanges": ["0.0.0.0/0"], "priority": 65534, **given}
    insert(cloud, "default-allow-ssh", **values)


CLOSE = f"gcloud compute firewall-rules update default-allow-ssh --disabled --project {PROJECT}"


def test_a_list_says_aloud_which_rule_lets_the_world_in_and_what_closes_it(
    run: Run, prompt_cloud: Cloud
) -> None:
    default_ssh(prompt_cloud)
    shown = run("firewall", "list", environment=prompt_cloud.environment())
    assert (shown.status, shown.out) == (0, "")
    assert shown.err.splitlines() == [
        "warning: rule default-allow-ssh lets the whole world reach port 22 of every machine on "
        "default",
        f"next: {CLOSE}",
        "note: --no-disabled opens it again",
    ]


def test_an_audit_lists_every_rule_that_lets_the_world_in_and_fails(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    assert run("firewall", "audit", environment=environment).status == 0
    default_ssh(prompt_cloud)
    everything = [{"IPProtocol": "all"}]
    halves = ["0.0.0.0/1", "128.0.0.0/1"]
    insert(prompt_cloud, "allow-all", allowed=everything, sourceRanges=halves, targetTags=["a"])
    insert(prompt_cloud, "internal", allowed=everything, sourceRanges=["10.0.0.0/8"])
    audit = run("firewall", "audit", environment=environment)
    assert audit.status == 9
    assert [row.split("\t")[0] for row in audit.out.splitlines()] == [
        "allow-all",
        "default-allow-ssh",
    ]
    assert f"next: {CLOSE}" in audit.err
    document = run("firewall", "audit", "--json", environment=environment).document
    assert document["open_to_world"] == ["allow-all", "default-allow-ssh"]
    assert [rule["name"] for rule in document["rules"]] == document["open_to_world"]
    insert(prompt_cloud, "shut", denied=everything, sourceRanges=["0.0.0.0/0"], priority=10)
    assert run("firewall", "audit", environment=environment).status == 0


def test_a_rule_that_is_removed_meanwhile_is_no_missing_slice(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    words = ("create", "v3-8", "demo", "--zone", ZONE, "--source-range")
    assert run(*words, "192.0.2.7/32", environment=environment).status == 0
    prompt_cloud.fault(method="firewalls.patch", status="NOT_FOUND")
    told = run(*words, "192.0.2.8/32", environment=environment).says(2)
    assert "cannot update firewall rule tpukit-demo-" in told.err
