"""Where `create` and `up` look, as they are told by flags."""

from __future__ import annotations

import pytest
from support.local_cloud import OTHER_ZONE, PROJECT, TOKEN, ZONE, Cloud, FakeClock

from cli.conftest import Run
from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.search_flags import CapacityFlags
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.create import create
from tpukit.emulator import EmulatorClient
from tpukit.errors import NoCapacity
from tpukit.slices.lifetime import EXPIRES

pytestmark = pytest.mark.process


def full(cloud: Cloud, zone: str) -> None:
    cloud.fault(preset="stockout", zone=zone, probability=1.0)


def test_a_search_leaves_one_slice_and_no_rule_of_the_places_that_refused(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    full(prompt_cloud, ZONE)
    words = ("create", "v3-8", "demo", "--source-range", "192.0.2.7/32", "--json")
    done = run(*words, "--zones", f"{ZONE},{OTHER_ZONE}", environment=environment)
    assert done.status == 0, done.err
    assert done.document["slice"]["zone"] == OTHER_ZONE
    (refusal,) = done.document["refusals"]
    assert (refusal["zone"], refusal["again"], refusal["times"]) == (ZONE, "later", 1)
    assert f"{ZONE} v3-8: no (later): Google has no free slice" in done.err
    (rule,) = prompt_cloud.firewall.list()
    assert rule.target_tags[0] in done.document["slice"]["tags"]
    again = run(*words, "--anywhere", environment=environment)
    assert (again.document["created"], again.document["slice"]["zone"]) == (False, OTHER_ZONE)
    elsewhere = run(*words[:-1], "--zones", ZONE, environment=environment).says(5)
    assert f"as a v3-8 in {OTHER_ZONE}" in elsewhere.err


def test_a_stockout_offers_the_same_command_that_searches_on(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    full(prompt_cloud, ZONE)
    words = ("create", "v3-8", "demo", "--source-range", "192.0.2.7/32", "--labels", "a=b")
    told = run(*words, environment=environment).says(6).err
    line = f"tpukit {' '.join(words)}"
    fixes = [line for line in told.splitlines() if line.startswith("fix: ")]
    assert fixes == [f"fix: {line} --keep-trying", f"fix: {line} --anywhere"]
    done = run(*fixes[1].split()[2:], environment=environment)
    assert done.status == 0, done.err
    (node,) = prompt_cloud.nodes()
    assert ZONE not in node


def test_refused_everywhere_is_6_with_every_place_and_leaves_nothing(
    run: Run, prompt_cloud: Cloud
) -> None:
    for zone in (ZONE, OTHER_ZONE):
        full(prompt_cloud, zone)
    words = ("create", "v3-8", "demo", "--types", "v4-8,v3-8", "--source-range", "192.0.2.7/32")
    says = run(
        *words, "--zones", f"{ZONE},{OTHER_ZONE}", environment=prompt_cloud.environment()
    ).says(6)
    for line in (
        f"{ZONE} v3-8: later (RESOURCE_EXHAUSTED, stockout): Google has no free slice",
        f"{OTHER_ZONE} v3-8: later",
        f"{ZONE} v4-8: elsewhere: v4-8 is not offered in {ZONE}",
    ):
        assert line in says.err
    assert prompt_cloud.nodes() == []
    assert prompt_cloud.firewall.list() == ()
    assert len(prompt_cloud.calls("nodes.create")) == 2  # what a zone does not offer is not asked


def test_anywhere_begins_at_home(run: Run, prompt_cloud: Cloud) -> None:
    words = ("create", "v3-8", "demo", "--anywhere", "--no-firewall", "--dry-run", "--json")
    calls = run(*words, environment=prompt_cloud.environment()).document["dry_run"]
    zones = [call["url"].split("/locations/")[1].split("/")[0] for call in calls]
    regions = [zone.rpartition("-")[0] for zone in zones]
    assert zones[0] == ZONE
    assert regions[:3] == ["us-central1"] * 3
    assert zones.index("us-east1-d") < zones.index("europe-west4-a")
    assert prompt_cloud.nodes() == []


def test_several_slices_have_numbers_and_an_error_names_those_that_are_there(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    prompt_cloud.fault(preset="stockout", name="pod-2", probability=1.0)
    words = ("create", "v3-8", "pod", "--source-range", "192.0.2.7/32")
    refused = run(*words, "--count", "3", environment=environment).says(6)
    assert all(f"slice pod-{n} in {ZONE}, READY" in refused.err for n in (0, 1))
    prompt_cloud.control("DELETE", "faults")
    done = run(*words, "--count", "3", "--json", environment=environment)
    assert done.status == 0, done.err
    assert [slice_["created"] for slice_ in done.document["slices"]] == [False, False, True]
    assert run(*words, "--count", "2", "-q", environment=environment).out == "pod-0\npod-1\n"


def test_several_slices_are_asked_for_no_longer_than_one(cloud: Cloud, clock: FakeClock) -> None:
    """The second has what the first has left of --max-wait, and is asked for once at least."""

    def pass_time() -> None:
        if clock.now - began > 900.0 and not cloud.nodes():
            cloud.control("DELETE", "faults")
            cloud.fault(preset="stockout", name="pod-1", probability=1.0)

    began, clock.on_sleep = clock.now, pass_time
    full(cloud, ZONE)
    capacity = CapacityFlags(keep_trying=True, max_wait="20m")
    toolkit = Toolkit(GlobalFlags(quiet=True), environ=cloud.environment(), clock=clock)
    with toolkit.closing, pytest.raises(NoCapacity) as caught:
        create(toolkit, "v3-8", "pod", no_firewall=True, count=2, capacity=capacity)
    assert f"slice pod-0 in {ZONE}, READY" in caught.value.exists[0]
    assert clock.now - began < 1260.0


def test_what_may_still_appear_beside_the_slice_is_deleted_by_the_command_that_comes_next(
    cloud: Cloud, clock: FakeClock
) -> None:
    cloud.fault(method="nodes.create", kind="reset", zone=ZONE)
    cloud.fault(preset="quota", zone=ZONE, probability=1.0)
    capacity = CapacityFlags(zones=f"{ZONE},{OTHER_ZONE}")
    toolkit = Toolkit(GlobalFlags(quiet=True), environ=cloud.environment(), clock=clock)
    with toolkit.closing:
        made = create(toolkit, "v3-8", "demo", no_firewall=True, capacity=capacity)
    assert f"tpukit delete demo --missing-ok --zone {ZONE}" in map(str, made.next)


def test_best_effort_goes_through_the_queue_and_is_taken_up_again(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    words = ("create", "v3-8", "demo", "--best-effort", "--source-range", "192.0.2.7/32")
    shown = run(*words, "--dry-run", environment=environment).out
    assert "/v2alpha1/" in shown
    assert "queuedResources?queuedResourceId=demo" in shown
    assert prompt_cloud.tpu.list_queued("-").requests == ()
    done = run(*words, "--json", environment=environment)
    assert done.status == 0, done.err
    assert done.document["slice"]["queued_resource"] == "demo"
    assert run(*words, environment=environment).out == "demo\n"
    assert len(prompt_cloud.tpu.list_queued("-").requests) == 1


def test_a_used_up_quota_names_what_holds_it_and_reap_own_frees_it(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    quota = {"name": "v3-8", "zone": ZONE, "limit": 8}
    prompt_cloud.control("POST", "catalogue/quotas", quota)
    create = ("create", "v3-8")
    assert run(*create, "old", "--no-firewall", environment=environment).status == 0
    end = "2026-01-01t00-00-00z"
    prompt_cloud.change("old", labels={**prompt_cloud.tpu.get(ZONE, "old").labels, EXPIRES: end})
    for flags in (("--reap-own",), ("--yes",)):  # it lives, so only `reap` may delete it
        alive = run(*create, "demo", "--no-firewall", *flags, environment=environment).says(6).err
        assert "uses quota" not in alive
    prompt_cloud.change("old", state="PREEMPTED")
    run(*create, "demo", "--no-firewall", "--yes", environment=environment).says(6)
    told = run(*create, "demo", "--no-firewall", environment=environment).says(6).err
    assert f"slice old ({ZONE}, PREEMPTED, of ada): it is PREEMPTED; it uses quota" in told
    assert "fix: tpukit reap" in told
    assert run("queue", *create, "demo", environment=environment).says(6).err.count("old (") == 1
    done = run(*create, "demo", "--no-firewall", "--reap-own", environment=environment)
    assert done.status == 0, done.err
    assert [name.rpartition("/")[2] for name in prompt_cloud.nodes()] == ["demo"]
    again = run(*create, "more", "--no-firewall", "--reap-own", environment=environment).says(6)
    assert "uses quota" not in again.err


def closed(cloud: Cloud, *zones: str, spot: bool = False) -> None:
    for zone in zones:
        EmulatorClient(cloud.url, TOKEN).set_quota("v3-8", zone, 0, spot)


def test_anywhere_asks_no_zone_whose_quota_is_0_and_says_so_once(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    closed(prompt_cloud, ZONE)
    words = ("create", "v3-8", "demo", "--no-firewall", "--anywhere")
    planned = run(*words, "--dry-run", environment=environment)
    assert f"/{ZONE}/nodes?nodeId" not in planned.out
    done = run(*words, "--json", environment=environment)
    assert done.status == 0, done.err
    assert done.err.count(f"not asked, because the quota is 0: {ZONE} v3-8\n") == 1
    assert not any(f"/{ZONE}/" in call["path"] for call in prompt_cloud.calls("nodes.create"))
    refusals = [one for one in done.document["refusals"] if one["zone"] == ZONE]
    assert [(one["again"], one["times"], one["reason"]) for one in refusals] == [
        ("after a fix", 0, "quota is 0")
    ]
    # A slice that is there already is continued with.
    assert run("delete", "demo", "--yes", environment=environment).status == 0
    spot = run("create", "v3-8", "demo", "--spot", "--no-firewall", environment=environment)
    assert spot.status == 0, spot.err
    closed(prompt_cloud, ZONE, spot=True)
    again = run(*words, "--spot", "--json", environment=environment)
    assert again.document["created"] is False
    assert again.document["slice"]["zone"] == ZONE


def test_anywhere_without_any_quota_is_6_and_without_an_answer_it_asks(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    listed = run("types", "v3-8", "--live", "--json", environment=environment).document
    closed(prompt_cloud, *listed["types"][0]["zones"])
    words = ("create", "v3-8", "demo", "--no-firewall", "--anywhere")
    told = run(*words, environment=environment).says(6).err
    assert "is 0 in us-central1-a" in told
    assert prompt_cloud.calls("nodes.create") == []
    off = f"{prompt_cloud.url}/v1/projects/{PROJECT}/services/cloudquotas.googleapis.com:disable"
    prompt_cloud.session.rest("disable it", "POST", off, body={})
    asked = run(*words, environment=environment).says(6).err
    assert "not asked" not in asked
    assert prompt_cloud.calls("nodes.create")


def test_flex_start_goes_on_to_the_next_zone_and_shows_its_end(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = {**prompt_cloud.environment(), "TPUKIT_RATES": "v6e=2.70,v6e:flex-start=1.35"}
    flex = ("--flex-start", "--max-run-duration", "2h", "--no-firewall", "--json")
    words = ("create", "v6e-4", "demo", *flex, "--zones", "us-east1-d,us-east5-a")
    done = run(*words, environment=environment)
    assert done.status == 0, done.err
    (refusal,) = done.document["refusals"]
    assert (refusal["zone"], refusal["again"]) == ("us-east1-d", "elsewhere")
    slice_ = done.document["slice"]
    assert (slice_["zone"], slice_["provisioning"]) == ("us-east5-a", "flex-start")
    (shown,) = run("list", "--json", environment=environment).document["slices"]
    assert shown["lifetime"]["seconds_left"] == pytest.approx(7200, abs=60)
    assert shown["lifetime"]["cost"] <= 0.01
    again = run(*words, environment=environment)
    assert (again.document["created"], len(prompt_cloud.nodes())) == (False, 1)
    longer = run("extend", "demo", "--ttl", "3h", environment=environment).says(2)
    assert "Google deletes flex-start slice demo at" in longer.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--flex-start",), "need each other"),
        (("--max-run-duration", "2h"), "need each other"),
        (("--flex-start", "--max-run-duration", "8d"), "at most 7d"),
        (("--flex-start", "--max-run-duration", "2h", "--spot"), "exclude each other"),
        (("--zones", ZONE, "--anywhere"), "exclude each other"),
        (("--max-wait", "3h"), "needs --keep-trying"),
        (("--keep-trying", "--max-wait", "long"), "is not a duration"),
        (("--zones", "us-centrl1-a"), "there is no zone"),
        (("--types", "v9-8"), "is not an accelerator type"),
        (("--best-effort", "--spot"), "exclude each other"),
        (("--spot", "--on-demand"), "exclude each other"),
        (("--count", "0"), "not in the range"),
        (("--types", "v6e-8", "--runtime-version", "tpu-ubuntu2204-base"), "without a usable chip"),
        (("--runtime-version", "tpu-vm-pt-1.13"), "uses XRT: no recipe fits it"),
        (("--runtime-version", "2.8"), "of TPU Nodes, which Google no longer creates"),
    ],
)
def test_flags_that_make_no_sense_are_refused_before_anything_is_asked(
    run: Run, standing: Cloud, words: tuple[str, ...], told: str
) -> None:
    result = run("create", "v3-8", "other", *words, environment=standing.environment())
    assert told in result.says(2).err


def test_a_recipe_is_refused_before_a_slice_with_another_runtime_version_is_made(
    run: Run, standing: Cloud
) -> None:
    given = ("--runtime-version", "tpu-vm-tf-2.16.1", "--dry-run")
    words = ("up", "v3-8", "other", "--with", "keras", *given)
    refused = run(*words, environment=standing.environment()).says(2)
    assert "keras is not known to fit runtime version tpu-vm-tf-2.16.1" in refused.err
    done = run(*words, "--allow-unfit-runtime", environment=standing.environment())
    assert done.status == 0, done.err


def test_provision_warns_of_a_runtime_version_and_refuses_a_retired_one(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    for version in ("tpu-vm-pt-1.13", "tpu-vm-tf-2.16.1"):
        words = ("--runtime-version", version, "--allow-unfit-runtime", "--no-firewall")
        done = run("create", "v3-8", f"with-{version[7:9]}", *words, environment=environment)
        assert done.status == 0, done.err
    refused = run("provision", "with-pt", "jax", environment=environment).says(2)
    assert "with-pt cannot have jax: runtime version tpu-vm-pt-1.13 is retired" in refused.err
    planned = run("provision", "plan", "with-tf", "jax", "--timeout", "2s", environment=environment)
    assert "jax is not known to fit runtime version tpu-vm-tf-2.16.1" in planned.err


def test_an_unfit_runtime_version_passes_where_it_is_asked_for(
    run: Run, prompt_cloud: Cloud
) -> None:
    words = ("create", "v6e-8", "odd", "--runtime-version", "tpu-ubuntu2204-base", "--no-firewall")
    environment = prompt_cloud.environment()
    assert "--allow-unfit-runtime" in run(*words, environment=environment).says(2).err
    done = run(*words, "--allow-unfit-runtime", environment=environment)
    assert done.status == 0, done.err
