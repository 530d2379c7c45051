"""One search over both of Google's APIs, all zones, and several ways to buy."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.local_cloud import Cloud
from support.searches import Hunter

from cli.conftest import Run
from tpukit.google.roads import Roads

pytestmark = pytest.mark.slow

EAST, WEST = "us-east5-b", "us-east5-a"
BOTH = {"TPUKIT_APIS": "tpu,compute"}
HERE = ("--source-range", "192.0.2.7/32")


@pytest.fixture
def environment(prompt_cloud: Cloud) -> dict[str, str]:
    return {**prompt_cloud.environment(), **BOTH}


def full(cloud: Cloud, method: str, zone: str = "") -> None:
    where = {"zone": zone} if zone else {}
    cloud.fault(preset="stockout", method=method, probability=1.0, **where)


def places(text: str) -> list[str]:
    """Return the places that a search asked, in their order."""
    return [
        line.partition(": ")[2].partition(": asking")[0]
        for line in text.splitlines()
        if line.endswith(": asking")
    ]


def there(cloud: Cloud) -> list[str]:
    state = cloud.server.service.context.state
    return sorted(
        path.partition("/projects/")[2] or path for path in (*state.nodes, *state.instances)
    )


def create(run: Run, environment: dict[str, str], *words: str) -> Sequence[str]:
    done = run("create", "v6e-4", "demo", *words, *HERE, environment=environment)
    assert (done.status, done.out) == (0, "demo\n"), done.err
    return places(done.err)


def test_each_zone_is_asked_in_both_apis_until_one_has_room(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str]
) -> None:
    full(prompt_cloud, "nodes.create")
    full(prompt_cloud, "instances.insert", EAST)
    assert create(run, environment, "--zones", f"{EAST},{WEST}") == [
        f"{EAST} v6e-4",
        f"{EAST} v6e-4 on Compute Engine",
        f"{WEST} v6e-4",
        f"{WEST} v6e-4 on Compute Engine",
    ]
    (left,) = there(prompt_cloud)
    assert left.endswith(f"zones/{WEST}/instances/demo")
    # The same command finds its slice again, in the API that has it.
    again = run(
        "create",
        "v6e-4",
        "demo",
        "--zones",
        f"{EAST},{WEST}",
        *HERE,
        "--json",
        environment=environment,
    )
    assert json.loads(again.out)["created"] is False
    assert len(there(prompt_cloud)) == 1


def test_the_ways_to_buy_are_tried_in_the_given_order(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str]
) -> None:
    full(prompt_cloud, "nodes.create")
    full(prompt_cloud, "instances.insert", EAST)
    asked = create(
        run, environment, "--zones", f"{EAST},{WEST}", "--purchase", "reserved,spot,on-demand"
    )
    assert asked == [
        f"{EAST} v6e-4 reserved",  # Compute Engine has reservations of another kind
        f"{WEST} v6e-4 reserved",
        f"{EAST} v6e-4 spot",
        f"{EAST} v6e-4 spot on Compute Engine",
        f"{WEST} v6e-4 spot",
        f"{WEST} v6e-4 spot on Compute Engine",
    ]
    described = run("describe", "demo", "--json", environment=environment).document["slice"]
    assert (described["provisioning"], described["api"]) == ("spot", "compute")


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("--api", "tpu", "--zones", EAST), [f"{EAST} v6e-4"]),
        (("--runtime-version", "v2-alpha-tpuv6e", "--zones", EAST), [f"{EAST} v6e-4"]),
        (("--zone", EAST, "--purchase", "spot,on-demand"), [f"{EAST} v6e-4 spot"]),
    ],
)
def test_an_api_an_image_or_a_single_zone_keeps_to_one_api(
    run: Run,
    prompt_cloud: Cloud,
    environment: dict[str, str],
    words: tuple[str, ...],
    asked: list[str],
) -> None:
    assert create(run, environment, *words) == asked


def test_without_the_setting_a_search_asks_the_cloud_tpu_api_alone(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str]
) -> None:
    full(prompt_cloud, "nodes.create", EAST)
    del environment["TPUKIT_APIS"]
    assert create(run, environment, "--zones", f"{EAST},{WEST}") == [
        f"{EAST} v6e-4",
        f"{WEST} v6e-4",
    ]


@pytest.mark.parametrize("api", ["tpu", "compute"])
def test_a_name_in_both_apis_is_refused_with_commands_that_can_be_pasted(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str], api: str
) -> None:
    for request in Hunter(prompt_cloud, apis=("tpu", "compute"), types=("v6e-4",)).requests(EAST):
        Roads(prompt_cloud.tpu, prompt_cloud.instances).create(request)
    for words in (("describe",), ("ssh",), ("delete", "--yes"), ("create", "v6e-4", *HERE)):
        zone = () if words[0] == "ssh" else ("--zone", EAST)
        refused = run(*words, "demo", *zone, environment=environment).says(2)
        assert f"slice demo exists in {EAST} in both APIs" in refused.err
    lines = [line.partition(": ")[2] for line in refused.err.splitlines()]
    (typed,) = [line for line in lines if line.startswith(f"env TPUKIT_APIS={api} ")]
    _, variable, program, *words = shlex.split(typed)
    environment |= {"TPUKIT_APIS": variable.partition("=")[2]}
    assert (program, run(*words, "--yes", environment=environment).status) == ("tpukit", 0)
    assert [("nodes" in path, "instances" in path) for path in there(prompt_cloud)] == [
        (api == "compute", api == "tpu")
    ]


def test_if_nobody_has_room_each_place_says_why_and_nothing_is_left(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str]
) -> None:
    full(prompt_cloud, "nodes.create")
    full(prompt_cloud, "instances.insert")
    words = ("--zones", EAST, "--purchase", "spot,on-demand", "--json")
    done = run("create", "v6e-4", "demo", *words, *HERE, environment=environment)
    assert done.status == 6, done.err
    refusals = done.document["error"]["details"]["refusals"]
    bought = [(one["provisioning"], one["api"]) for one in refusals]
    assert bought == [(tier, api) for tier in ("spot", "on-demand") for api in ("tpu", "compute")]
    assert there(prompt_cloud) == []


FLEX = ("--max-run-duration", "2h", "--api", "tpu", "--zones", f"{EAST},{WEST}")


def test_flex_start_as_the_last_way_to_buy_waits_in_a_queue(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str]
) -> None:
    full(prompt_cloud, "nodes.create")
    words = ("create", "v6e-4", "demo", "--purchase", "spot,flex-start", *FLEX, *HERE)
    done = run(*words, environment=environment)
    assert (done.status, done.out) == (0, "demo\n"), done.err
    assert places(done.err)[:2] == [f"{EAST} v6e-4 spot", f"{WEST} v6e-4 spot"]
    (request,) = prompt_cloud.tpu.list_queued("-").requests
    assert (request.state, request.provisioning) == ("ACTIVE", "flex-start")
    assert f"--zone {request.zone} --max-run-duration 2h --api tpu --flex-start" in done.err
    assert run(*words, environment=environment).out == "demo\n"
    assert len(prompt_cloud.tpu.list_queued("-").requests) == 1


def test_a_request_that_waits_is_deleted_when_another_way_to_buy_has_room(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str]
) -> None:
    for zone in (EAST, WEST):
        waits = {"method": "queuedResources.create", "kind": "wait", "seconds": 1e6}
        prompt_cloud.fault(zone=zone, **waits)
    words = ("--purchase", "flex-start,spot", "--keep-trying", *FLEX)
    done = run("create", "v6e-4", "demo", *words, *HERE, environment=environment)
    assert done.status == 0, done.err
    assert "keeps its place in the queue" in done.err
    assert f"next: tpukit up v6e-4 demo --zone {EAST} --api tpu --spot" in done.err
    assert prompt_cloud.tpu.list_queued("-").requests == ()
    assert len(there(prompt_cloud)) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--purchase", "cheap"), "--purchase cannot be cheap"),
        (("--purchase", "spot,flex-start"), "need each other"),
        (("--purchase", "spot", "--max-run-duration", "2h"), "need each other"),
        (("--purchase", "best-effort,spot"), "nothing is asked after best-effort"),
        (
            ("--purchase", "best-effort,flex-start", "--max-run-duration", "2h", "--keep-trying"),
            "a search keeps one place in a zone's queue",
        ),
        (
            ("--purchase", "best-effort", "--count", "2", "--all-or-none"),
            "--all-or-none cannot wait in the queue",
        ),
        (("--purchase", "spot", "--spot"), "--purchase and --spot exclude each other"),
    ],
)
def test_a_way_to_buy_that_is_none_is_refused(
    run: Run, environment: dict[str, str], words: tuple[str, ...], said: str
) -> None:
    place = ("--zone", EAST)
    assert said in run("create", "v6e-4", *words, *place, environment=environment).says(2).err


def test_a_search_with_a_memory_of_a_hundred_attempts_makes_fewer_requests(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str], tmp_path: Path
) -> None:
    """Only the zone that is the last by distance has room, and only in one API."""
    environment["CLOUDSDK_COMPUTE_ZONE"] = EAST
    listed = run("types", "v6e-4", "--live", "--json", environment=environment).document
    zones = listed["types"][0]["zones"]
    free = next(zone for zone in zones if zone.startswith("asia"))
    for zone in zones:
        full(prompt_cloud, "instances.insert", zone)
        if zone != free:
            full(prompt_cloud, "nodes.create", zone)
    without = create(run, environment, "--anywhere")
    assert len(without) > 10
    assert without[-1] == f"{free} v6e-4"
    assert run("delete", "demo", "--yes", environment=environment).status == 0

    shown = run("zones", "--capacity", "v6e-4", "--json", environment=environment)
    learnt = shown.document["attempts"]
    assert len(learnt) == len(without)
    assert learnt[-1]["outcome"] == "made"
    # Somebody else gets them as a file, with older ones.
    older = [{**learnt[0], "time": learnt[0]["time"] - number} for number in range(1, 101)]
    export = tmp_path / "ada.json"
    export.write_text(json.dumps({"attempts": [*older, *learnt]}))
    environment["TPUKIT_HOME"] = str(tmp_path / "colleague")
    words = ("zones", "--capacity", "v6e-4", "--from", str(export))
    first = run(*words, environment=environment)
    assert f"{len(learnt) + 100} new attempts" in first.err
    assert first.out.splitlines()[0].split("\t")[:7] == [
        *(free, "v6e-4", "on-demand", "tpu", "1", "1", "made")
    ]
    assert "0 new attempts" in run(*words, environment=environment).err
    assert create(run, environment, "--anywhere") == [f"{free} v6e-4"]


def test_a_plain_create_is_remembered_and_a_dry_run_is_not(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str]
) -> None:
    def attempts() -> list[tuple[str, str]]:
        shown = run("zones", "--capacity", "v6e-4", "--json", environment=environment)
        return [(one["zone"], one["outcome"]) for one in shown.document["attempts"]]

    words = ("create", "v6e-4", "demo", *HERE)
    for place in (("--zone", EAST), ("--zones", f"{EAST},{WEST}")):
        assert run(*words, *place, "--dry-run", environment=environment).status == 0
    assert attempts() == []
    full(prompt_cloud, "nodes.create", EAST)
    assert run(*words, "--zone", EAST, environment=environment).status == 6
    assert run(*words, "--zone", WEST, environment=environment).status == 0
    assert run(*words, "--zone", WEST, environment=environment).status == 0  # it exists already
    assert attempts() == [(EAST, "no capacity"), (WEST, "made")]
    environment["CLOUDSDK_CORE_PROJECT"] = "another"
    assert attempts() == []


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", '{"attempts": 3}'])
def test_a_file_that_is_no_memory_is_refused_or_adds_nothing(
    run: Run, environment: dict[str, str], tmp_path: Path, text: str
) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    done = run("zones", "--capacity", "v6e-4", "--from", str(file), environment=environment)
    assert done.status in (0, 2)
    assert "0 new attempts" in done.err or "is not a JSON document" in done.err
    run("zones", "--from", str(file), environment=environment).says(2)


@pytest.mark.parametrize("command", ["delete", "search"])
def test_the_rule_of_a_slice_stays_that_the_settings_of_a_command_leave_out(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str], command: str
) -> None:
    """One name and one rule, in both APIs; the command asks the Cloud TPU API alone."""
    create(run, environment, "--zone", EAST, "--api", "compute")
    (rule,) = prompt_cloud.firewall.list()
    alone = {**environment, "TPUKIT_APIS": "tpu"}
    if command == "delete":
        create(run, alone, "--zone", EAST)
        assert run("delete", "demo", "--yes", environment=alone).status == 0
    else:
        full(prompt_cloud, "nodes.create")
        words = ("create", "v6e-4", "demo", "--zones", f"{EAST},{WEST}", *HERE)
        assert run(*words, environment=alone).status == 6
    assert prompt_cloud.firewall.list() == (rule,)
    assert run("delete", "demo", "--yes", environment=environment).status == 0
    assert prompt_cloud.firewall.list() == ()
