"""How long slices live and what they cost, as a user sees and changes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.clocks import AwayClock
from support.local_cloud import OTHER_ZONE as FAR
from support.local_cloud import PROJECT, ZONE, Cloud, running_cloud
from support.processes import eventually

from cli.conftest import Run
from tpukit.cli.parameters import life
from tpukit.errors import BadInput
from tpukit.paths import Paths
from tpukit.slices import lifetime, naming
from tpukit.slices.lifetime import EXPIRES, PURPOSE

pytestmark = pytest.mark.process


def test_an_end_is_set_shown_put_off_and_taken_away(run: Run, prompt_cloud: Cloud) -> None:
    environment = {**prompt_cloud.environment(), "TPUKIT_RATES": "v3=1.5"}
    words = ("create", "v3-8", "demo", "--ttl", "90m", "--purpose", "Try It")
    made = run(*words, "--json", environment=environment)
    assert made.document["slice"]["labels"][PURPOSE] == "try-it"
    assert "demo ends by itself only under a guard" in made.err
    row = run("list", environment=environment).out.splitlines()[0].split("\t")
    assert (row[9], row[11], row[12]) == ("0.00", "0.00", "try-it")
    assert 5300 < float(row[10]) <= 5400
    shown = dict(
        line.split("\t")
        for line in run("describe", "demo", environment=environment).out.splitlines()
    )
    assert shown["expires"].endswith("(90 min left)")
    extended = run("extend", "demo", "--ttl", "3d", environment=environment)
    assert "demo ends by itself only under a guard" in extended.err
    later = extended.out.strip()
    listed = run("list", "--json", environment=environment).document["slices"][0]["lifetime"]
    assert listed["expires"] == later
    assert 259_000 < listed["seconds_left"] <= 259_200
    assert run("extend", "demo", "--ttl", "never", environment=environment).out == "never\n"
    (slice_,) = prompt_cloud.tpu.list("-").slices
    assert EXPIRES not in slice_.labels
    assert slice_.labels[naming.OWNER] == "ada"


def test_what_cannot_be_an_end_or_a_purpose_is_refused_before_anything_is_made(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    for words in (("--ttl", "soon"), ("--ttl", "0s"), ("--purpose", "x" * 64)):
        run("create", "v3-8", "demo", *words, environment=environment).says(2)
    run("extend", "demo", "--ttl", "2 fortnights", environment=environment).says(2)
    run("extend", "demo", "--ttl", "2h", environment=environment).says(3)
    assert not prompt_cloud.nodes()


@pytest.mark.parametrize(
    "words",
    [
        ("up", "v3-8", "demo", "--ttl"),
        ("up", "v3-8", "demo", "--idle"),
        ("create", "v3-8", "demo", "--ttl"),
        ("create", "v3-8", "demo", "--claim-within"),
        ("create", "v6e-4", "demo", "--flex-start", "--max-run-duration"),
        ("adopt", "demo", "--ttl"),
        ("extend", "demo", "--ttl"),
        ("queue", "create", "v3-8", "demo", "--valid-until"),
        ("notebook", "demo", "--lease"),
    ],
    ids=" ".join,
)
def test_a_life_without_a_unit_is_refused_with_the_likely_ones(
    run: Run, prompt_cloud: Cloud, words: tuple[str, ...]
) -> None:
    flag = words[-1]
    told = run(*words, "8", environment=prompt_cloud.environment()).says(2).err
    assert told.endswith(f"error: {flag} 8 has no unit\nfix: {flag} 8h or {flag} 8m\n")
    assert not prompt_cloud.nodes()


@pytest.mark.parametrize(
    ("given", "likely"), [("0.5", "hm"), ("90", "hm"), ("480", "ms"), ("28800", "ms")]
)
def test_the_likely_units_depend_on_the_number(given: str, likely: str) -> None:
    with pytest.raises(BadInput) as refused:
        life(given, "--ttl")
    assert str(refused.value.fix) == " or ".join(f"--ttl {given}{unit}" for unit in likely)


def test_another_s_end_is_not_changed_without_force(run: Run, prompt_cloud: Cloud) -> None:
    prompt_cloud.tpu.create(naming.labelled(prompt_cloud.request("pod"), "alice", "nonce"))
    environment = prompt_cloud.environment()
    told = run("extend", "pod", "--ttl", "2h", environment=environment).says(4).err
    assert "fix: tpukit extend pod --ttl 2h --force" in told
    assert run("extend", "pod", "--ttl", "2h", "--force", environment=environment).status == 0


def test_reap_shows_asks_and_says_what_it_did_not_see(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    for name, owner, zone in (("mine", "ada", ZONE), ("pod", "bob", ZONE), ("far", "ada", FAR)):
        labels = {**lifetime.labels(0.0, 1.0, "")}
        request = prompt_cloud.request(name, zone=zone, labels=labels)
        prompt_cloud.tpu.create(naming.labelled(request, owner, "nonce"))
    prompt_cloud.fault(kind="unreachable", method="*.list", zone=FAR, times=1000)
    told = run("reap", environment=environment).says(2).err
    assert 'delete it?" needs an answer' in told
    dry = run("reap", "--dry-run", environment=environment)
    assert f"DELETE {prompt_cloud.url}/v2/{prompt_cloud.full_name('mine')}" in dry.out
    assert len(prompt_cloud.nodes()) == 3
    done = run("reap", "--yes", "--json", environment=environment)
    assert done.status == 1
    assert [row["name"] for row in done.document["deleted"]] == ["mine"]
    assert done.document["unreachable"] == [FAR]
    for words in (("list",), ("queue", "list")):
        shown = run(*words, "--json", environment=environment).document
        assert shown["unreachable"] == [FAR], words
    assert done.document["spared"][0]["spared"] == "it belongs to bob"
    assert f"warning: {FAR} did not answer: its slices were not checked" in done.err
    prompt_cloud.control("DELETE", "faults")
    done = run("reap", "--yes", "--force", environment=environment)
    assert (done.status, done.out.split("\t")[0]) == (0, "slice")
    assert prompt_cloud.nodes() == []
    assert "nothing to delete" in run("reap", environment=environment).err


def test_what_reap_cannot_delete_is_named(run: Run, prompt_cloud: Cloud) -> None:
    labels = {**lifetime.labels(0.0, 1.0, "")}
    for name in ("one", "two"):
        request = prompt_cloud.request(name, labels=labels)
        prompt_cloud.tpu.create(naming.labelled(request, "ada", "nonce"))
    prompt_cloud.fault(preset="permission-denied", method="nodes.delete", name="one", times=9)
    told = run("reap", "--yes", environment=prompt_cloud.environment()).says(4).err
    assert "error: 1 of 2 things were not deleted (slice one (" in told
    assert prompt_cloud.nodes() == [prompt_cloud.full_name("one")]


def test_a_delete_typed_again_takes_the_rule_that_the_first_has_left(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    for name in ("gone", "here"):
        run("create", "v3-8", name, "--source-range", "192.0.2.7/32", environment=environment)
    prompt_cloud.vanish("gone")
    told = run("delete", "gone", "--missing-ok", "--yes", environment=environment)
    assert (told.status, told.out) == (0, "")
    assert "deleted" in told.err
    (left,) = prompt_cloud.firewall.list()
    assert left.name.startswith("tpukit-here-")


@pytest.mark.parametrize("hours", [50, -50])
def test_ages_and_ends_are_by_the_clock_of_the_api_where_this_machine_s_is_wrong(
    run: Run, tmp_path: Path, hours: int
) -> None:
    with running_cloud(tmp_path, 0.0, AwayClock(hours * 3600.0)) as cloud:
        now, environment = cloud.clock.time(), cloud.environment()
        create = ("create", "v3-8", "made", "--ttl", "90m", "--json")
        (call,) = (
            each
            for each in run(*create, "--dry-run", environment=environment).document["dry_run"]
            if "/nodes" in each["url"]
        )
        shown = lifetime.seconds_of(call["body"]["labels"][EXPIRES]) or 0
        assert now + 5398 <= shown < now + 5700
        made = run(*create, environment=environment)
        labels = made.document["slice"]["labels"]
        assert now - 2 <= (lifetime.seconds_of(labels[lifetime.CREATED]) or 0) < now + 300
        assert now + 5398 <= (lifetime.seconds_of(labels[EXPIRES]) or 0) < now + 5700
        words = ("queue", "create", "v3-8", "asked", "--ttl", "90m")
        run(*words, environment=environment)
        (asked,) = cloud.tpu.list_queued("-").requests
        assert now + 5398 <= (lifetime.seconds_of(asked.labels[EXPIRES]) or 0) < now + 5700
        for name, end in (("over", -3600.0), ("live", 3600.0)):
            until = {EXPIRES: lifetime.moment(now + end)}
            request = cloud.request(name, labels=until)
            cloud.tpu.create(naming.labelled(request, "ada", "nonce"))
        listed = run("list", "--json", environment=environment)
        lives = {slice_["name"]: slice_["lifetime"] for slice_ in listed.document["slices"]}
        assert {live["hours"] < 0.1 for live in lives.values()} == {True}
        assert 3300 < lives["live"]["seconds_left"] <= 3600
        assert listed.err == ""
        done = run("reap", "--yes", "--json", environment=environment)
        assert [row["name"] for row in done.document["deleted"]] == ["over"]
        assert "it expired 6" in done.err
        run("extend", "made", "--ttl", "1h", environment=environment)
        end = lifetime.seconds_of(cloud.tpu.get(ZONE, "made").labels[EXPIRES])
        assert now + 3598 <= (end or 0) < now + 3900


def test_reap_lists_the_data_disks_that_slices_had_and_nothing_uses(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    place = f"projects/{PROJECT}/zones/{ZONE}/disks"
    for name in ("one", "two", "kept", "never"):
        url = f"{prompt_cloud.url}/compute/v1/{place}"
        prompt_cloud.session.rest("make a disk", "POST", url, body={"name": name, "sizeGb": "10"})
    create = ("create", "v3-8")
    for name, disks in (("first", ("one", "gone")), ("second", ("kept",)), ("third", ("kept",))):
        words = [
            word for disk in disks for word in ("--data-disk", f"{place}/{disk},mode=read-only")
        ]
        run(*create, name, *words, environment=environment)
    run("queue", *create, "asked", "--data-disk", f"{place}/two", environment=environment)
    assert run("reap", "--json", environment=environment).document["disks_left_over"] == []
    for name in ("first", "second"):
        prompt_cloud.tpu.delete(ZONE, name)  # not from here
    prompt_cloud.tpu.delete_queued(ZONE, "asked", force=True)
    done = run("reap", "--dry-run", "--json", environment=environment)
    assert done.document["disks_left_over"] == [
        {"source": f"{place}/one", "size_gb": 10, "slice": "first"},
        {"source": f"{place}/two", "size_gb": 10, "slice": "asked"},
    ]
    assert f"data disk one ({ZONE}, 10 GB) of former slice first is unused" in done.err
    line = f"next: gcloud compute disks delete two --zone {ZONE} --project {PROJECT}"
    assert line in run("reap", environment=environment).err
    prompt_cloud.fault(preset="permission-denied", method="disks.get")
    denied = run("reap", "--json", environment=environment)
    assert (denied.status, denied.document["disks_left_over"]) == (0, [])
    assert "data disks were not checked" in denied.err
    Path(environment["TPUKIT_HOME"], "state", "journal.jsonl").unlink()
    assert run("reap", "--json", environment=environment).document["disks_left_over"] == []


def test_a_rule_is_left_over_only_where_every_slice_was_seen_or_where_it_could_not_be_removed(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    create = ("create", "v3-8", "far", "--zone", FAR, "--source-range", "192.0.2.7/32")
    run(*create, environment=environment)
    (rule,) = prompt_cloud.firewall.list()
    near = run("reap", "--zone", ZONE, "--json", environment=environment)
    assert (near.status, near.document["rules_left_over"]) == (0, [])
    prompt_cloud.fault(kind="unreachable", method="*.list", zone=FAR, times=1000)
    silent = run("reap", "--json", environment=environment)
    assert (silent.status, silent.document["rules_left_over"]) == (1, [])
    prompt_cloud.control("DELETE", "faults")
    prompt_cloud.control("POST", f"nodes/{prompt_cloud.full_name('far', FAR)}:preempt")
    prompt_cloud.fault(method="firewalls.delete", status="FAILED_PRECONDITION", message="busy")
    names = Paths.from_environment(environment).name_hints
    assert "far" in names.read_text()
    done = run("reap", "--yes", "--json", environment=environment)
    assert (prompt_cloud.nodes(), done.document["rules_left_over"]) == ([], [rule.name])
    assert "far" not in names.read_text()


@pytest.mark.parametrize("status", ["PERMISSION_DENIED", "INVALID_ARGUMENT"])
def test_a_reap_that_cannot_list_says_that_it_does_not_know_what_exists(
    run: Run, prompt_cloud: Cloud, status: str
) -> None:
    prompt_cloud.fault(method="nodes.list", status=status, message="no", probability=1.0)
    told = run("reap", "--yes", environment=prompt_cloud.environment()).err
    assert "exists: unknown, because the slices could not be listed" in told
    assert "fix: tpukit list --zone -" in told


def test_reap_names_no_rule_that_it_has_removed(run: Run, prompt_cloud: Cloud) -> None:
    """The slices of a dead queued resource are gone before it, and their rules are not."""
    environment = prompt_cloud.environment()
    run("queue", "create", "v3-8", "pair", "--count", "2", environment=environment)
    run("queue", "wait", "pair", environment=environment)
    run("firewall", "apply", "pair", "--source-range", "192.0.2.7/32", environment=environment)
    assert len(prompt_cloud.firewall.list()) == 2
    prompt_cloud.control("POST", f"nodes/{prompt_cloud.full_name('pair-0')}:preempt")
    eventually(lambda: prompt_cloud.nodes() == [])
    done = run("reap", "--yes", "--json", environment=environment)
    assert prompt_cloud.firewall.list() == ()
    assert (done.status, done.document["rules_left_over"]) == (0, [])
    assert "firewall remove" not in done.err
