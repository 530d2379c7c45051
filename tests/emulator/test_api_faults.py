from __future__ import annotations

import pytest

from tpukit.emulator.api.control_plane import MOST_FAULTS
from tpukit.emulator.core.api_errors import ApiError
from tpukit.emulator.faults.api_faults import ApiFaults, parse_rule
from tpukit.emulator.faults.presets import PRESETS


@pytest.mark.parametrize(
    "document",
    [
        "reset",
        {"kind": "explode"},
        {"phase": "during"},
        {"unheard": 1},
        {"preset": "none"},
        {"status": "TEAPOT"},
        {"details": "x"},
        {"kind": "stall"},
        {"kind": "stall", "seconds": -1},
        {"kind": "truncate", "phase": "before"},
        {"kind": "operation", "method": "nodes.stop"},
        {"kind": "wait", "method": "queuedResources.create"},
        {"kind": "wait", "method": "nodes.create", "seconds": 1},
        {"kind": "operation", "method": "nodes.create", "phase": "after"},
        {"kind": "unreachable", "method": "nodes.list"},
        {"kind": "unreachable", "method": "nodes.get", "zone": "us-central1-a"},
        {"kind": "roles"},
        {"kind": "roles", "permissions": " "},
        {"kind": "reset", "permissions": "tpu.nodes.get"},
        {"kind": "roles", "permissions": "tpu.nodes.get", "phase": "after"},
        {"times": 0},
        {"times": "many"},
        {"times": 1.5},
        {"probability": 1.1},
        {"seed": True},
        {"preset": ["stockout"]},
        {"method": ["nodes.get"]},
        {"name": 5},
        {"zone": {}},
        {"accelerator_type": True},
        {"message": "\ud800"},
        {"details": ["x"]},
        {"http": 5},
        {"http": 200},
        {"kind": "stall", "seconds": 1e300},
    ],
)
def test_a_rule_that_could_never_be_served_is_refused(document):
    with pytest.raises(ApiError) as caught:
        parse_rule(document)
    assert caught.value.status.status == "INVALID_ARGUMENT"


def test_a_list_with_one_bad_rule_adds_none():
    faults = ApiFaults()
    with pytest.raises(ApiError):
        faults.add([{"kind": "reset"}, {"kind": "explode"}])
    assert faults.documents() == []


@pytest.mark.parametrize(
    ("rule", "call", "served"),
    [
        ({}, ("nodes.get", "n1", "before"), True),
        ({"method": "nodes.*"}, ("nodes.get", "n1", "before"), True),
        ({"method": "nodes.*"}, ("operations.get", "o1", "before"), False),
        ({"name": "n*"}, ("nodes.get", "n1", "before"), True),
        ({"name": "m*"}, ("nodes.get", "n1", "before"), False),
        ({"phase": "after"}, ("nodes.get", "n1", "before"), False),
        ({"phase": "after"}, ("nodes.get", "n1", "after"), True),
    ],
)
def test_a_rule_is_chosen_by_method_name_and_phase(rule, call, served):
    assert parse_rule({"kind": "reset", **rule}).serve(*call) is served


def test_a_rule_strikes_as_often_as_it_says_and_counts():
    faults = ApiFaults()
    faults.add([{"kind": "reset", "times": 2}])
    served = [faults.take("nodes.get", "n", "before") is not None for _ in range(5)]
    assert served == [True, True, False, False, False]
    assert faults.documents()[0]["served"] == 2


def test_an_account_that_is_full_is_kept_until_it_is_cleared(api):
    """Rules that are spent stay in it; so do those of workers, and events."""
    control, rule, worker = "/_emulator/v1", {"kind": "status"}, {"fault": "dead"}
    event = {"do": "preempt", "node": "n"}
    story = {"events": [event]}
    assert api.call("POST", f"{control}/faults", {"faults": [rule] * (MOST_FAULTS - 2)})[0] == 200
    assert api.call("POST", f"{control}/workers", worker)[0] == 200
    assert api.call("POST", f"{control}/scenario", story)[0] == 200
    assert api.create("n")[0] == 503
    _, account = api.call("GET", f"{control}/faults")
    assert account["faults"][0]["served"] == 1
    for path, body in (("faults", rule), ("workers", worker), ("scenario", story)):
        status, answer = api.call("POST", f"{control}/{path}", body)
        assert status == 400
        assert "`tpukit emulator fault clear` prints their counts" in answer["error"]["message"]
    assert api.call("GET", f"{control}/faults")[1] == account
    assert api.call("DELETE", f"{control}/faults")[1] == account
    assert api.call("POST", f"{control}/workers", worker)[0] == 200


def test_a_probability_with_a_seed_spoils_the_same_calls_each_time():
    def run(seed):
        rule = parse_rule({"kind": "reset", "probability": 0.3, "seed": seed})
        return [rule.serve("nodes.get", "n", "before") for _ in range(1000)]

    first, again, other = run(7), run(7), run(8)
    assert first == again != other
    assert 250 < sum(first) < 350


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_rule_by_its_name_alone(name):
    rule = parse_rule({"preset": name})
    assert rule.status is PRESETS[name].status
    assert rule.document()["message"]
