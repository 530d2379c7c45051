"""--dry-run: the calls that would be made, which make the very same thing when they are sent."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from support.local_cloud import OTHER_ZONE, TOKEN, ZONE, Cloud

from cli.conftest import Result, Run

#: Every flag that a slice can be asked for with.
FLAGS = (
    *("--spot", "--labels", "team=vision", "--tags", "web", "--internal-ips"),
    *("--metadata", "a=1,b=x y", "--service-account", "a@b.c", "--subnetwork", "default"),
    *("--data-disk", f"projects/demo-project/zones/{ZONE}/disks/d,mode=read-only"),
    *("--source-range", "192.0.2.7/32"),
)


def send(cloud: Cloud, call: dict[str, Any]) -> None:
    """Send a call as it was shown, as curl would."""
    place = urlsplit(call["url"])
    connection = HTTPConnection(place.netloc, timeout=10)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    path = f"{place.path}?{place.query}" if place.query else place.path
    body = None if call["body"] is None else json.dumps(call["body"])
    connection.request(call["method"], path, body, headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status == 200, text


def test_the_calls_that_a_dry_run_shows_make_the_slice_that_create_asks_for(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    words = ("create", "v3-8", "demo", *FLAGS)
    result = run(*words, "--dry-run", "--json", environment=environment)
    assert result.status == 0, result.err
    calls = result.document["dry_run"]
    assert methods(result) == ["POST firewalls", "POST nodes"]
    assert prompt_cloud.nodes() == []
    assert prompt_cloud.firewall.list() == ()
    for call in calls:
        send(prompt_cloud, call)
    assert run(*words, "--json", environment=environment).document["created"] is False
    again = run(*words, "--dry-run", environment=environment)
    assert again.out == ""
    assert "nothing to do" in again.err
    prompt_cloud.tpu.stop(ZONE, "demo")
    assert "nodes/demo:start" in run(*words, "--dry-run", environment=environment).out


def test_a_dry_run_of_up_shows_the_calls(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    words = ("up", "v3-8", "demo", "--source-range", "192.0.2.7/32", "--dry-run")
    lines = run(*words, environment=environment).out.splitlines()
    (node,) = [line for line in lines if line.startswith("POST") and "/v2/" in line]
    assert node.startswith(f"POST {prompt_cloud.url}/v2/projects/demo-project/locations/{ZONE}/")
    assert prompt_cloud.nodes() == []


def test_a_dry_run_is_refused_for_what_the_command_itself_would_be(
    run: Run, prompt_cloud: Cloud
) -> None:
    refused = run("create", "v4-8", "--dry-run", environment=prompt_cloud.environment())
    assert "is not offered in" in refused.says(2).err


def test_a_dry_run_of_what_changes_a_slice_shows_its_calls_and_changes_nothing(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    run("create", "v3-8", "demo", environment=environment)
    changes = len(prompt_cloud.control("GET", "log")["requests"])
    update = ("update", "demo", "--update-labels", "a=1", "--add-tags", "web")
    disk = f"projects/demo-project/zones/{ZONE}/disks/d"
    shown = {
        ("delete", "de*"): ["DELETE", "DELETE"],
        ("stop", "demo"): ["POST"],
        ("start", "demo"): [],
        update: ["PATCH"],
        ("update", "demo", "--attach-disk", disk): ["PATCH"],
        ("update", "demo", "--remove-labels", "none"): [],
    }
    for words, methods in shown.items():
        result = run(*words, "--dry-run", "--json", environment=environment)
        assert [call["method"] for call in result.document["dry_run"]] == methods, words
        if words == update:
            (call,) = result.document["dry_run"]
    log = prompt_cloud.control("GET", "log")["requests"][changes:]
    assert {call["verb"] for call in log} == {"GET"}
    send(prompt_cloud, call)
    assert prompt_cloud.tpu.get(ZONE, "demo").labels["a"] == "1"
    assert run(*update, "--json", environment=environment).document["changed"] == []
    run("delete", "none-*", "--dry-run", environment=environment).says(3)


def methods(result: Result) -> list[str]:
    assert result.status == 0, result.err
    return [
        f"{call['method']} {call['url'].rpartition('/')[2].partition('?')[0]}"
        for call in result.document["dry_run"]
    ]


def test_a_dry_run_of_recreate_shows_that_the_lost_slice_is_deleted_before_it_is_made(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    run("create", "v3-8", "demo", "--source-range", "192.0.2.7/32", environment=environment)
    prompt_cloud.change("demo", state="PREEMPTED")
    rule = prompt_cloud.firewall.list()[0].name
    words = ("up", "v3-8", "demo", "--source-range", "192.0.2.7/32", "--dry-run", "--json")
    shown = run(*words, "--recreate", environment=environment)
    assert methods(shown) == ["DELETE demo", f"DELETE {rule}", "POST firewalls", "POST nodes"]
    assert run(*words, environment=environment).status == 7  # as `up` itself ends
    assert prompt_cloud.tpu.get(ZONE, "demo").state == "PREEMPTED"


def test_a_dry_run_shows_the_end_that_a_slice_without_one_would_get(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    run("create", "v3-8", "demo", environment=environment)
    words = ("create", "v3-8", "demo", "--ttl", "3h", "--dry-run", "--json")
    shown = run(*words, environment=environment)
    assert methods(shown) == ["PATCH demo"]
    assert "tpukit-expires" in shown.document["dry_run"][0]["body"]["labels"]
    assert "tpukit-expires" not in prompt_cloud.tpu.get(ZONE, "demo").labels


def test_a_dry_run_of_a_search_shows_every_place_and_what_is_removed_of_those_without_room(
    run: Run, prompt_cloud: Cloud
) -> None:
    words = ("create", "v3-8", "demo", "--zones", f"{ZONE},{OTHER_ZONE}", "--dry-run", "--json")
    shown = run(*words, environment=prompt_cloud.environment())
    calls = [call.partition(" ")[0] for call in methods(shown)]
    assert calls == ["POST", "POST", "POST", "POST", "PATCH", "DELETE"]
    assert prompt_cloud.firewall.list() == ()
