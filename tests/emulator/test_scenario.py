"""Scenarios: read from files, refused where they cannot be played, and played to the end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from emulator.conftest import Api, EmulatedCloud
from tpukit.emulator.core.api_errors import ApiError
from tpukit.emulator.faults.scenario import HEALTHS, parse_scenario, read_scenario
from tpukit.errors import BadInput

STORY = """
title = "a stockout, then a preemption"
create_seconds = 1.5

[[faults]]
preset = "stockout"
name = "demo"

[[events]]
node = "demo"
do = "preempt"
after = 30

[[workers]]
node = "demo"
fault = "late-key"
seconds = 25
"""


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    return path


def test_a_story_is_the_same_in_toml_and_in_json(tmp_path: Path) -> None:
    scenario = read_scenario(write(tmp_path, "story.toml", STORY))
    assert scenario["create_seconds"] == 1.5
    assert read_scenario(write(tmp_path, "story.json", json.dumps(scenario))) == scenario


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("story.toml", "[[faults", "cannot read the scenario"),
        ("story.json", "{", "cannot read the scenario"),
        ("story.json", "[" * 100_000, "cannot read the scenario"),
        ("story.json", "[]", "cannot be played"),
        ("story.toml", "unheard = 1", "cannot be played"),
        ("story.toml", "faults = 1", "cannot be played"),
        ("story.toml", "create_seconds = -1", "cannot be played"),
        ("story.toml", '[[faults]]\npreset = "none"', "cannot be played"),
        ("story.toml", '[[workers]]\nfault = "none"', "cannot be played"),
        ("story.toml", '[[events]]\ndo = "explode"', "cannot be played"),
        ("story.toml", '[[events]]\ndo = "preempt"\nafter = nan', "cannot be played"),
        ("story.toml", '[[events]]\ndo = "preempt"\ntimes = 0', "cannot be played"),
        ("story.toml", '[[events]]\ndo = "preempt"\nnode = 5', "cannot be played"),
        ("story.toml", '[[events]]\ndo = "preempt"\nwhen = 0', "cannot be played"),
        ("story.txt", STORY, "ends in .toml or .json"),
    ],
)
def test_a_file_that_cannot_be_played_is_refused_and_named(
    tmp_path: Path, name: str, text: str, why: str
) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(BadInput) as caught:
        read_scenario(path)
    assert why in caught.value.what
    assert str(path) in caught.value.what


def test_a_file_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read the scenario"):
        read_scenario(tmp_path / "none.toml")


def test_bytes_that_are_no_text_are_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "story.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="cannot read the scenario"):
        read_scenario(path)


def test_yaml_is_read_where_there_is_a_reader_and_refused_with_a_fix_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "story.yaml", "faults:\n- preset: stockout\n")
    monkeypatch.setitem(sys.modules, "yaml", None)  # as where PyYAML is not installed
    with pytest.raises(BadInput) as caught:
        read_scenario(path)
    assert "PyYAML" in caught.value.why
    reader = tmp_path / "yaml.py"
    reader.write_text(
        "class YAMLError(Exception): pass\n"
        "def safe_load(text): return {'faults': [{'preset': 'stockout'}]}\n"
    )
    monkeypatch.delitem(sys.modules, "yaml")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert read_scenario(path) == {"faults": [{"preset": "stockout"}]}


def test_a_story_with_one_mistake_is_not_begun(api: Api) -> None:
    story = {"faults": [{"preset": "stockout"}], "events": [{"do": "explode"}]}
    assert api.call("POST", "/_emulator/v1/scenario", story)[0] == 400
    assert api.call("GET", "/_emulator/v1/faults")[1]["faults"] == []


def test_a_stockout_then_a_preemption_are_played_and_accounted_for(api: Api) -> None:
    story = {
        "create_seconds": 50,
        "faults": [{"preset": "stockout", "name": "demo"}],
        "events": [{"node": "demo", "do": "preempt", "after": 30}],
    }
    assert api.call("POST", "/_emulator/v1/scenario", story)[0] == 200
    api.create("demo")
    api.advance(50)
    assert api.state_of("demo") == "GONE"
    api.create("demo")
    api.advance(50)
    assert api.state_of("demo") == "READY"
    api.advance(29)
    assert api.state_of("demo") == "READY"
    api.advance(1)
    assert api.state_of("demo") == "PREEMPTED"
    account = api.call("DELETE", "/_emulator/v1/faults")[1]
    assert [rule["served"] for rule in account["faults"]] == [1]
    assert [rule["served"] for rule in account["events"]] == [1]
    assert api.call("GET", "/_emulator/v1/faults")[1]["events"] == []


def play(cloud: EmulatedCloud, *events: dict[str, Any]) -> None:
    cloud.service.events.extend(parse_scenario({"events": list(events)}).events)


def test_an_event_befalls_the_first_nodes_that_fit_and_no_more(cloud: EmulatedCloud) -> None:
    play(cloud, {"node": "n*", "do": "preempt", "times": 2})
    for name in ("m1", "n1", "n2", "n3"):
        cloud.ready(name)
    cloud.service.advance()
    states = [cloud.get(name)["state"] for name in ("m1", "n1", "n2", "n3")]
    assert states == ["READY", "PREEMPTED", "PREEMPTED", "READY"]


def test_a_node_of_the_same_name_is_another_node(cloud: EmulatedCloud) -> None:
    play(cloud, {"node": "n1", "do": "vanish", "times": 2})
    for _ in range(2):
        name = cloud.ready("n1")
        cloud.service.advance()
        assert name not in cloud.state.nodes
    cloud.ready("n1")
    cloud.service.advance()
    assert cloud.get("n1")["state"] == "READY"


def test_a_node_that_vanished_leaves_no_workers_and_no_pending_operation(
    cloud: EmulatedCloud,
) -> None:
    name = cloud.ready("n1")
    cloud.service.nodes.patch(
        cloud.call(path_node="n1", query_updateMask="labels", body={"labels": {"a": "b"}})
    )
    cloud.service.apply_event(name, "vanish")
    cloud.pass_time(100)
    with pytest.raises(ApiError) as caught:
        cloud.get("n1")
    assert caught.value.status.status == "NOT_FOUND"
    assert not cloud.host.booted


@pytest.mark.parametrize("health", HEALTHS)
def test_a_health_shows_while_the_state_stays_ready(cloud: EmulatedCloud, health: str) -> None:
    name = cloud.ready("n1")
    cloud.service.apply_event(name, health)
    row = cloud.get("n1")
    assert (row["state"], row["health"]) == ("READY", health)


def test_nodes_are_called_in_short_where_only_one_has_the_name(api: Api) -> None:
    api.create("demo")
    api.advance(1000)
    status, node = api.call("POST", "/_emulator/v1/nodes/demo:setHealth", {"health": "TIMEOUT"})
    assert (status, node["health"]) == (200, "TIMEOUT")
    assert api.call("POST", "/_emulator/v1/nodes/demo:setHealth", {"health": "WELL"})[0] == 400
    assert api.call("POST", "/_emulator/v1/nodes/nobody:preempt", {})[0] == 404
    body = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    other = "/v2/projects/p/locations/us-central1-b/nodes?nodeId=demo"
    assert api.call("POST", other, body)[0] == 200
    assert api.call("POST", "/_emulator/v1/nodes/demo:preempt", {})[0] == 400
    full = "projects/p/locations/us-central1-a/nodes/demo"
    assert api.call("POST", f"/_emulator/v1/nodes/{full}:preempt", {"vanish": True})[0] == 200
    assert api.state_of("demo") == "GONE"


def test_workers_faults_come_and_go_through_the_control_plane(api: Api) -> None:
    rule = {"node": "demo", "worker": 1, "fault": "frozen", "seconds": 5}
    status, account = api.call("POST", "/_emulator/v1/workers", rule)
    assert (status, len(account["workers"])) == (200, 1)
    assert account["workers"][0].items() >= rule.items()
    assert api.call("POST", "/_emulator/v1/workers", {"fault": "asleep"})[0] == 400
    assert api.call("DELETE", "/_emulator/v1/workers?node=demo&worker=x")[0] == 400
    for query, left in (("?node=demo&worker=0", 1), ("?node=demo&worker=1", 0)):
        assert api.call("DELETE", f"/_emulator/v1/workers{query}")[0] == 200
        assert len(api.call("GET", "/_emulator/v1/faults")[1]["workers"]) == left
