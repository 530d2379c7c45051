"""`create` and `up` where something stands in the way: nothing is made, one cause, one fix."""

from __future__ import annotations

import json
import shlex

import pytest
from support.local_cloud import PROJECT, ZONE, Cloud

from cli.conftest import Result, Run
from tpukit.access import ssh_rule

pytestmark = pytest.mark.process

RULE = ssh_rule.tag(PROJECT, ZONE, "demo")
SHARED = "projects/host/global/networks/default"
#: Both verbs end before the create; what follows it needs workers.
VERBS = ("create", "up")


def refused(run: Run, cloud: Cloud, code: int, *words: str) -> Result:
    """Hold a command to have made nothing, neither slice nor rule, and return how it ended."""
    result = run(*words, environment=cloud.environment()).says(code)
    assert cloud.calls("nodes.create") == []
    assert cloud.firewall.list() == ()
    return result


def lines(result: Result, label: str) -> list[str]:
    return [line.partition(": ")[2] for line in result.err.splitlines() if line.startswith(label)]


def enable(service: str) -> str:
    return f"gcloud services enable {service} --project {PROJECT}"


@pytest.mark.parametrize("verb", VERBS)
def test_without_the_compute_api_nothing_is_made(run: Run, prompt_cloud: Cloud, verb: str) -> None:
    for _ in range(3):  # the list, the network, once more for good measure
        prompt_cloud.fault(preset="compute-api-disabled")
    result = run(verb, "v3-8", "demo", environment=prompt_cloud.environment()).says(4)
    assert lines(result, "fix") == [enable("compute.googleapis.com")]
    assert prompt_cloud.calls("nodes.create") == prompt_cloud.calls("firewalls.insert") == []


@pytest.mark.parametrize("verb", VERBS)
def test_all_that_stands_in_the_way_is_said_at_once(
    run: Run, prompt_cloud: Cloud, verb: str
) -> None:
    for preset in ("api-disabled", "compute-api-disabled"):
        prompt_cloud.fault(preset=preset, probability=1.0)
    words = (verb, "v3-8", "demo")
    result = run(*words, environment=prompt_cloud.environment()).says(4)
    assert len(lines(result, "also")) == 1
    fixes = [enable("tpu.googleapis.com"), enable("compute.googleapis.com")]
    assert lines(result, "fix") == fixes
    document = json.loads(run(*words, "--json", environment=prompt_cloud.environment()).out)
    error = document["error"]
    assert [error["fix"], *(each["fix"] for each in error["also"])] == fixes
    assert prompt_cloud.calls("nodes.create") == []


@pytest.mark.parametrize("verb", VERBS)
def test_who_may_not_make_rules_learns_it_before_the_create_and_who_can_help(
    run: Run, prompt_cloud: Cloud, verb: str
) -> None:
    environment = prompt_cloud.environment()
    prompt_cloud.fault(preset="firewall-permission-denied", probability=1.0)
    result = refused(run, prompt_cloud, 4, verb, "v3-8", "demo")
    command, otherwise = lines(result, "fix")
    assert command.startswith(f"gcloud compute firewall-rules create {RULE} --project {PROJECT}")
    assert "--no-firewall" in otherwise
    assert "compute.firewalls.create" in result.err

    # Somebody who may types that; then the same command goes on, and changes no rule.
    words = shlex.split(command)
    flags = dict(zip(words[5::2], words[6::2], strict=True))
    rule = ssh_rule.FirewallRule(
        RULE, flags["--network"], (flags["--source-ranges"],), (flags["--target-tags"],)
    )
    prompt_cloud.control("DELETE", "faults")
    prompt_cloud.firewall.insert(rule)
    prompt_cloud.fault(preset="firewall-permission-denied", probability=1.0)
    assert run("create", "v3-8", "demo", environment=environment).status == 0
    assert [each.name for each in prompt_cloud.firewall.list()] == [RULE]


def test_another_rule_that_lets_us_in_will_do_for_who_may_make_none(
    run: Run, prompt_cloud: Cloud
) -> None:
    other = ssh_rule.FirewallRule("office", "default", ("127.0.0.0/8",), ())
    prompt_cloud.firewall.insert(other)
    prompt_cloud.fault(preset="firewall-permission-denied", probability=1.0)
    assert run("create", "v3-8", "demo", environment=prompt_cloud.environment()).status == 0
    assert [each.name for each in prompt_cloud.firewall.list()] == ["office"]


def test_a_rule_that_denies_is_no_way_in_for_who_may_make_none(
    run: Run, prompt_cloud: Cloud
) -> None:
    allow = ssh_rule.FirewallRule("office", "default", ("127.0.0.0/8",), ())
    prompt_cloud.firewall.insert(allow)
    path = f"/compute/v1/projects/{PROJECT}/global/firewalls"
    deny = {
        "name": "closed",
        "network": "global/networks/default",
        "priority": 10,
        "sourceRanges": ["127.0.0.0/8"],
        "denied": [{"IPProtocol": "tcp"}],
    }
    prompt_cloud.session.rest("deny", "POST", prompt_cloud.url + path, body=deny)
    prompt_cloud.fault(preset="firewall-permission-denied", probability=1.0)
    run("create", "v3-8", "demo", environment=prompt_cloud.environment()).says(4)
    assert prompt_cloud.calls("nodes.create") == []


def test_where_the_network_is_open_no_rule_is_asked_for(run: Run, prompt_cloud: Cloud) -> None:
    prompt_cloud.fault(preset="compute-api-disabled", probability=1.0)
    words = ("create", "v3-8", "demo", "--no-firewall")
    assert run(*words, environment=prompt_cloud.environment()).status == 0
    for method in ("firewalls.list", "firewalls.insert", "networks.get"):
        assert prompt_cloud.calls(method) == []


@pytest.mark.parametrize("verb", VERBS)
def test_in_a_service_project_the_network_of_the_host_is_named(
    run: Run, prompt_cloud: Cloud, verb: str
) -> None:
    prompt_cloud.control("POST", f"projects/{PROJECT}:attach", {"host": "host"})
    result = refused(run, prompt_cloud, 2, verb, "v3-8", "demo")
    assert lines(result, "fix") == [f"--network {SHARED}"]
    assert "Shared VPC of project host" in result.err


def test_the_rule_of_a_shared_network_lives_and_ends_in_the_host_project(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment, host = prompt_cloud.environment(), prompt_cloud.firewall.of("host")
    prompt_cloud.control("POST", f"projects/{PROJECT}:attach", {"host": "host"})
    prompt_cloud.close_network("host")
    words = ("create", "v3-8", "demo", "--network", SHARED)
    assert run(*words, environment=environment).status == 0
    assert prompt_cloud.firewall.list() == ()
    assert [rule.name for rule in host.list()] == [RULE]
    applied = run("firewall", "apply", "demo", "--source-range=192.0.2.1", environment=environment)
    assert applied.status == 0
    assert "192.0.2.1/32" in host.list()[0].source_ranges
    assert run("firewall", "remove", "demo", environment=environment).status == 0
    assert host.list() == ()
    for words_of_end in (("delete", "demo"), ("delete", "demo", "--missing-ok")):
        assert run(*words, environment=environment).status == 0
        assert len(host.list()) == 1
        if "--missing-ok" in words_of_end:  # it was deleted by another program
            prompt_cloud.vanish("demo")
        assert run(*words_of_end, "--yes", environment=environment).status == 0
        assert host.list() == ()


@pytest.mark.parametrize("verb", VERBS)
def test_a_network_that_is_not_there_is_told_before_the_create(
    run: Run, prompt_cloud: Cloud, verb: str
) -> None:
    result = refused(run, prompt_cloud, 2, verb, "v3-8", "demo", "--network", "lab")
    assert f"project {PROJECT} has no network lab" in result.err
    create = f"gcloud compute networks create lab --project {PROJECT} --subnet-mode auto"
    assert lines(result, "fix") == [create]


@pytest.mark.parametrize("verb", VERBS)
def test_a_type_and_a_version_that_the_zone_lacks_are_told_together(
    run: Run, prompt_cloud: Cloud, verb: str
) -> None:
    words = (verb, "v4-8", "demo", "--runtime-version", "tpu-ubuntu2204-bass")
    result = refused(run, prompt_cloud, 2, *words)
    assert f"error: v4-8 is not offered in {ZONE}" in result.err
    assert lines(result, "fix")[0] == "tpukit types v4-8"
    assert "us-central2-b" in result.err
    assert "also: there is no runtime version tpu-ubuntu2204-bass" in result.err
    assert "--runtime-version tpu-ubuntu2204-base" in result.err


def test_a_zone_that_is_closed_to_the_project_is_told_once(run: Run, prompt_cloud: Cloud) -> None:
    result = refused(run, prompt_cloud, 4, "create", "v3-8", "demo", "--zone", "us-central1-z")
    assert len(lines(result, "error")) == 1
    assert lines(result, "also") == []


@pytest.mark.parametrize(
    "method", ["nodes.get", "acceleratorTypes.list", "runtimeVersions.list", "networks.get"]
)
@pytest.mark.parametrize("status", ["PERMISSION_DENIED", "UNAVAILABLE", "INTERNAL"])
def test_a_read_that_fails_is_no_reason_to_refuse(
    run: Run, prompt_cloud: Cloud, method: str, status: str
) -> None:
    prompt_cloud.fault(method=method, status=status, message="no", times=1)
    assert run("create", "v3-8", "demo", environment=prompt_cloud.environment()).status == 0
    assert prompt_cloud.served() == 1
    assert [rule.name for rule in prompt_cloud.firewall.list()] == [RULE]


def test_who_may_make_rules_and_not_read_them_gets_one(run: Run, prompt_cloud: Cloud) -> None:
    prompt_cloud.fault(method="firewalls.list", status="PERMISSION_DENIED", message="no", times=1)
    assert run("create", "v3-8", "demo", environment=prompt_cloud.environment()).status == 0
    assert [rule.name for rule in prompt_cloud.firewall.list()] == [RULE]


def test_a_rule_that_exists_and_may_not_be_read_is_not_called_open(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    prompt_cloud.firewall.insert(
        ssh_rule.FirewallRule(RULE, "default", ("192.0.2.7/32",), (RULE,))
    )()
    for method in ("firewalls.list", "firewalls.get"):
        prompt_cloud.fault(method=method, status="PERMISSION_DENIED", message="no", probability=1.0)
    done = run("create", "v3-8", "demo", environment=environment)
    assert done.status == 0
    assert (
        f"rule {RULE}: it exists, but you may not read it; check that it admits tcp:22" in done.err
    )
    assert "already open" not in done.err


def test_the_rule_is_asked_for_before_the_slice_and_named_where_that_fails(
    run: Run, prompt_cloud: Cloud
) -> None:
    prompt_cloud.fault(preset="quota")
    result = run("create", "v3-8", "demo", environment=prompt_cloud.environment()).says(6)
    assert f"exists: firewall rule {RULE}, which costs nothing" in result.err
    methods = [request["method"] for request in prompt_cloud.control("GET", "log")["requests"]]
    assert methods.index("firewalls.insert") < methods.index("nodes.create")
    prompt_cloud.fault(preset="quota")
    again = run("create", "v3-8", "demo", environment=prompt_cloud.environment()).says(6)
    assert "firewall rule" not in again.err  # this one has made none


def test_a_slice_of_somebody_else_gets_no_rule(run: Run, prompt_cloud: Cloud) -> None:
    prompt_cloud.tpu.create(prompt_cloud.request())
    result = run("create", "v3-8", "demo", environment=prompt_cloud.environment()).says(5)
    assert "was not made by tpukit" in result.err
    assert prompt_cloud.firewall.list() == ()


def test_the_world_is_refused_before_anything_is_made(run: Run, prompt_cloud: Cloud) -> None:
    halves = ("--source-range=0.0.0.0/1", "--source-range=128.0.0.0/1")
    refused(run, prompt_cloud, 9, "up", "v3-8", "demo", *halves)
    assert prompt_cloud.calls("nodes.get") == []
