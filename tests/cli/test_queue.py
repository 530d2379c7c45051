"""`tpukit queue`: what it shows, asks and refuses."""

from __future__ import annotations

import re
import shlex
from urllib.parse import quote

import pytest
from support.local_cloud import PROJECT, ZONE, Cloud, FakeClock
from support.processes import eventually

from cli.conftest import Run
from tpukit.access import ssh_rule
from tpukit.models import FirewallRule, QueueRequest, SliceChange
from tpukit.slices import lifetime, naming


def stand(cloud: Cloud, name: str, owner: str = "ada", count: int = 1) -> None:
    asked = naming.labelled(cloud.request(name), owner, name)
    cloud.tpu.create_queued(QueueRequest(asked, count))


def test_the_queue_is_made_listed_described_and_deleted(
    run: Run, cloud: Cloud, clock: FakeClock
) -> None:
    environment = cloud.environment()
    words = ("queue", "create", "v3-8", "pair", "--count", "2", "--spot", "--valid-until", "12h")
    shown = run(*words, "--dry-run", "--json", environment=environment).document["dry_run"]
    assert shown[0]["body"]["queueingPolicy"] == {"validUntilDuration": "43200s"}
    (node,) = shown[0]["body"]["tpu"]["nodeSpec"]
    assert node["multisliceParams"] == {"nodeCount": 2, "nodeIdPrefix": "pair"}
    assert "spot" in shown[0]["body"]
    assert cloud.tpu.list_queued("-").requests == ()
    stand(cloud, "pair", count=2)
    cloud.fault(preset="queued-stockout-internal")
    stand(cloud, "dead")
    clock.sleep(600.0)
    listed = run("queue", "list", environment=environment)
    rows = {line.split("\t")[0]: line.split("\t") for line in listed.out.splitlines()}
    assert rows["pair"][1:6] == [ZONE, "v3-8", "2", "ACTIVE", "on-demand"]
    assert rows["dead"][-1] == "an internal error has occurred"
    assert "dead is FAILED, and keeps its quota" in listed.err
    assert f"next: tpukit queue delete dead --zone {ZONE}" in listed.err
    described = run("queue", "describe", "dead", environment=environment).out
    assert "what to do\tread why, delete it" in described
    name = run("queue", "describe", "dead", "-o", "name", environment=environment).out
    assert name == "dead\n"
    assert "pair-0 (" not in run("queue", "delete", "pair", environment=environment).says(2).out
    planned = run("queue", "delete", "dead", "--dry-run", environment=environment).out
    assert planned.startswith("DELETE ")
    assert "/queuedResources/dead" in planned
    assert run("queue", "describe", "none", environment=environment).says(3)


@pytest.mark.parametrize("method", ["firewalls.insert", "nodes.get"])
def test_an_error_after_the_queue_has_given_a_slice_names_what_bills(
    run: Run, prompt_cloud: Cloud, method: str
) -> None:
    prompt_cloud.fault(method=method, status="PERMISSION_DENIED", probability=1.0)
    words = ("create", "v3-8", "demo", "--best-effort", "--zone", ZONE)
    told = run(*words, environment=prompt_cloud.environment()).says(4)
    assert prompt_cloud.tpu.get_queued(ZONE, "demo").state == "ACTIVE"
    assert f"exists: queued resource demo in {ZONE}; its slices bill until" in told.err
    assert f"fix: tpukit queue delete demo --zone {ZONE}" in told.err


def test_delete_ends_the_request_that_a_slice_has_left(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    for name, owner in (("mine", "ada"), ("hers", "eve")):
        stand(prompt_cloud, name, owner=owner)
        eventually(lambda name=name: prompt_cloud.tpu.get_queued(ZONE, name).state == "ACTIVE")
        prompt_cloud.tpu.delete(ZONE, name)
        eventually(lambda name=name: prompt_cloud.tpu.get_queued(ZONE, name).dead)
    asked = run("delete", "mine", environment=environment).says(2)
    assert "queued resource mine" in asked.err
    done = run("delete", "mine", "--yes", environment=environment)
    assert (done.status, done.out) == (0, "mine\n")
    assert "no slice hers" in run("delete", "hers", "--yes", environment=environment).says(3).err
    assert [request.name for request in prompt_cloud.tpu.list_queued("-").requests] == ["hers"]


def test_a_request_of_another_owner_stays_without_force_and_goes_with_its_rules(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    stand(prompt_cloud, "hers", owner="eve")
    tag = ssh_rule.tag(PROJECT, ZONE, "hers")
    prompt_cloud.firewall.insert(FirewallRule(tag, "default", ("192.0.2.7/32",), (tag,)))()
    planned = run("queue", "delete", "hers", "--dry-run", environment=environment).out
    assert f"/global/firewalls/{tag}" in planned
    refused = run("queue", "delete", "hers", "--yes", environment=environment).says(4)
    assert "belongs to eve" in refused.err
    assert "fix: tpukit queue delete hers --force --yes" in refused.err
    assert len(prompt_cloud.tpu.list_queued("-").requests) == 1
    done = run("queue", "delete", "hers", "--yes", "--force", "--json", environment=environment)
    assert done.document["deleted"] == ["hers"]
    assert prompt_cloud.tpu.list_queued("-").requests == ()
    assert tag not in [rule.name for rule in prompt_cloud.firewall.list()]


def test_a_request_whose_slice_has_another_owner_stays_without_force(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    stand(prompt_cloud, "pair", count=2)
    eventually(lambda: prompt_cloud.tpu.get_queued(ZONE, "pair").state == "ACTIVE")
    labels = {**prompt_cloud.tpu.get(ZONE, "pair-1").labels, naming.OWNER: "eve"}
    prompt_cloud.tpu.update(ZONE, "pair-1", SliceChange(labels=labels))
    eventually(lambda: prompt_cloud.tpu.get(ZONE, "pair-1").labels == labels)
    refused = run("queue", "delete", "pair", "--yes", environment=environment).says(4)
    assert "slice pair-1 belongs to eve" in refused.err
    assert "fix: tpukit queue delete pair --force --yes" in refused.err
    assert len(prompt_cloud.tpu.list_queued("-").requests) == 1
    done = run("queue", "delete", "pair", "--yes", "--force", environment=environment)
    assert (done.status, done.out) == (0, "pair\n")
    assert prompt_cloud.tpu.list_queued("-").requests == ()


def test_of_several_requests_all_are_tried_and_all_that_are_left_are_said(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    for name in ("held", "first", "last"):
        stand(prompt_cloud, name)
    refusal = {"status": "PERMISSION_DENIED", "message": "not yours", "probability": 1.0}
    prompt_cloud.fault(method="queuedResources.delete", name="held", **refusal)
    delete = ("queue", "delete", "none", "held", "first", "last")
    planned = run(*delete, "--dry-run", environment=environment).says(3)
    assert "tpukit queue list" in planned.err
    done = run(*delete, "--yes", environment=environment).says(4)
    assert "2 of 4 queued resources were not deleted (held, none)" in done.err
    assert "none: no queued resource none in any zone" in done.err
    assert "fix: tpukit queue delete held" in done.err
    assert [request.name for request in prompt_cloud.tpu.list_queued("-").requests] == ["held"]
    run("queue", "delete", "none", "b%d", "--yes", environment=environment).says(2)


def test_the_name_of_a_multislice_stands_for_its_slices_in_extend_and_delete(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    stand(prompt_cloud, "pair", count=2)
    eventually(lambda: len(prompt_cloud.nodes()) == 2)
    ends = run("extend", "pair", "--ttl", "3h", environment=environment).out.splitlines()
    labels = [slice_.labels for slice_ in prompt_cloud.tpu.list("-").slices]
    assert [line.split("\t")[0] for line in ends] == ["pair-0", "pair-1"]
    assert [lifetime.EXPIRES in label for label in labels] == [True, True]
    told = run("describe", "pair", environment=environment).says(2).err
    assert "fix: tpukit queue describe pair" in told
    done = run("delete", "pair", "--yes", environment=environment)
    assert (done.out.split(), "gcloud" in done.err) == (["pair-0", "pair-1"], False)
    assert prompt_cloud.nodes() == []
    assert prompt_cloud.tpu.list_queued("-").requests == ()


def test_a_delete_of_one_slice_of_a_multislice_says_before_that_the_others_go_too(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    run("queue", "create", "v3-8", "pair", "--count", "2", environment=environment)
    run("queue", "wait", "pair", environment=environment)
    warning = "queued resource pair loses all its slices with the first one: also pair-1"
    assert warning in run("delete", "pair-0", environment=environment).says(2).err
    assert len(prompt_cloud.nodes()) == 2
    assert "also" not in run("delete", "pair", environment=environment).says(2).err
    done = run("delete", "pair-0", "--yes", environment=environment)
    assert warning in done.err
    eventually(lambda: prompt_cloud.nodes() == [])


def test_recreate_ends_the_queued_resource_that_a_lost_slice_has_left(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    stand(prompt_cloud, "demo")
    eventually(lambda: prompt_cloud.tpu.get(ZONE, "demo").ready)
    prompt_cloud.control("POST", f"nodes/{prompt_cloud.full_name('demo')}:preempt")
    eventually(lambda: prompt_cloud.nodes() == [])
    words = ("up", "v3-8", "demo", "--recreate", "--no-firewall", "--timeout", "2s")
    planned = run(*words, "--dry-run", "--json", environment=environment).document["dry_run"]
    assert [call["method"] for call in planned] == ["DELETE", "POST"]
    run(*words, environment=environment)  # no worker answers on paper
    assert prompt_cloud.tpu.list_queued("-").requests == ()
    assert prompt_cloud.tpu.get(ZONE, "demo").ready


@pytest.mark.process
def test_what_others_called_as_the_api_allows_is_found_and_deleted(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    for name in ("Q_1", "a.b~c+d"):
        asked = prompt_cloud.request("n" + name[-1])
        node = {"acceleratorType": "v3-8", "runtimeVersion": asked.runtime_version}
        place = f"projects/{PROJECT}/locations/{ZONE}"
        spec = {"parent": place, "nodeId": asked.name, "node": node}
        url = f"{prompt_cloud.url}/v2/{place}/queuedResources?queuedResourceId={quote(name)}"
        body = {"tpu": {"nodeSpec": [spec]}}
        prompt_cloud.session.rest("create", "POST", url, body=body, repeat=False)
        for words in ((name,), (name, "--zone", ZONE)):
            assert name in run("queue", "describe", *words, environment=environment).out
        deleted = run("queue", "delete", name, "--yes", "--json", environment=environment)
        assert deleted.document["deleted"] == [name]
    assert prompt_cloud.tpu.list_queued("-").requests == ()
    for name in ("a%41", "..", "a/b", "-x", ""):
        result = run("queue", "delete", "--yes", "--", name, environment=environment).says(2)
        assert "name of a queued resource" in result.err or not name
    assert len(prompt_cloud.calls("queuedResources.delete")) == 2


def test_what_the_queue_does_not_have_is_refused_before_anything_is_asked(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    for words, told in (
        (("--best-effort", "--spot"), "exclude each other"),
        (("--preemptible",), "has no --preemptible"),
        (("--count", "0"), "0 is not in the range"),
        (("--valid-until", "soon"), "is not a duration"),
        (("--valid-until", "0.5s"), "is not a duration"),
        (("--timeout", "0.5s"), "is not a duration"),
    ):
        result = run("queue", "create", "v3-8", "q", *words, environment=environment)
        assert told in result.says(2).err
        assert "slice q:" not in result.err
    long = ("v3-8", "q" * 62, "--count", "2")  # its slices have a number at the end
    assert (
        "is not a slice name" in run("queue", "create", *long, environment=environment).says(2).err
    )
    assert prompt_cloud.calls("queuedResources.create") == []


def test_before_extend_deletes_a_request_it_prints_the_line_that_makes_it_again(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment, cloud = prompt_cloud.environment(), prompt_cloud
    cloud.fault(method="queuedResources.create", kind="wait", seconds=7200.0, probability=1.0)
    life = ("--ttl", "5m", "--valid-until", "12h")
    words = ("v3-8", "late", "--spot", *life, "--labels", "team=a", "--count", "2")
    assert run("queue", "create", *words, environment=environment).status == 0
    broken = {"method": "queuedResources.create", "kind": "status", "status": "PERMISSION_DENIED"}
    cloud.control("DELETE", "faults")
    cloud.fault(**broken, times=1, message="no")
    failed = run("extend", "late", "--ttl", "8h", "--yes", environment=environment)
    assert failed.status == 4, failed.err
    assert cloud.tpu.list_queued("-").requests == ()
    (line,) = re.findall(r"^next: tpukit (.*)$", failed.err, re.MULTILINE)
    assert f"fix: tpukit {line}\n" in failed.err
    assert run(*shlex.split(line), environment=environment).status == 0
    again = cloud.tpu.get_queued(ZONE, "late")
    assert (again.provisioning, again.valid_seconds) == ("spot", 43200.0)
    assert again.slices == ("late-0", "late-1")
    assert lifetime.asked(again.labels)["ttl"] == "28800 s"
    assert again.labels["team"] == "a"


def test_a_request_keeps_its_reservation(run: Run, prompt_cloud: Cloud) -> None:
    environment, cloud = prompt_cloud.environment(), prompt_cloud
    cloud.fault(method="queuedResources.create", kind="wait", seconds=7200.0, probability=1.0)
    words = ("queue", "create", "v3-8", "late")
    assert run(*words, "--reservation", "ours", environment=environment).status == 0
    done = run("extend", "late", "--ttl", "8h", "--yes", environment=environment)
    assert "--reservation ours" in done.err
    again = cloud.tpu.get_queued(ZONE, "late").node
    assert again is not None
    assert (again.provisioning, again.reservation) == ("reserved", "ours")
    other = run(*words, "--reservation", "theirs", environment=environment).says(5)
    assert "reservation is ours, not theirs" in other.err


def test_extend_reaches_a_request_that_waits_and_reap_leaves_it(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment, cloud = prompt_cloud.environment(), prompt_cloud
    cloud.fault(method="queuedResources.create", kind="wait", seconds=7200.0, probability=1.0)
    words = ("queue", "create", "v3-8", "late", "--spot", "--ttl", "5m", "--labels", "team=a")
    assert run(*words, "--valid-until", "12h", environment=environment).status == 0
    before = cloud.tpu.get_queued(ZONE, "late")
    cloud.control("POST", "clock", {"advance": 600.0})
    extend = ("extend", "late", "--ttl", "8h")
    assert "loses its place" in run(*extend, environment=environment).says(2).err
    done = run(*extend, "--yes", "--json", environment=environment)
    assert done.status == 0, done.err
    now = cloud.tpu.get_queued(ZONE, "late")
    assert (now.provisioning, now.valid_seconds) == ("spot", 43200.0)
    assert lifetime.asked(now.labels)["ttl"] == "28800 s"
    assert now.labels["team"] == "a"
    assert now.labels[naming.NONCE] != before.labels[naming.NONCE]
    assert run("reap", "--yes", "--json", environment=environment).document["deleted"] == []
    assert (
        run("extend", "late", "--ttl", "never", "--yes", environment=environment).out == "never\n"
    )
    run("extend", "none", "--ttl", "8h", "--yes", environment=environment).says(3)
