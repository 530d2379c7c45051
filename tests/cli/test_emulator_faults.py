"""`tpukit emulator …` as a process against a real emulator, as testers of scripts use it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import Tpukit

from tpukit.emulator.faults.api_faults import KINDS

pytestmark = pytest.mark.process

STORY = """
create_seconds = 0.2

[[faults]]
preset = "stockout"
name = "scarce"

[[workers]]
node = "late"
fault = "late-key"
times = 1

[[events]]
node = "scarce"
do = "preempt"
"""


@pytest.fixture(scope="module")
def tpukit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tpukit]:
    found = Tpukit(tmp_path_factory.mktemp("faults"), {"TPUKIT_LOCAL": "1"})
    found.succeeds("emulator", "start", "--create-seconds", "0.2")
    yield found
    found("emulator", "stop")


@pytest.fixture(autouse=True)
def _healed(tpukit: Tpukit) -> Iterator[None]:
    yield
    tpukit.succeeds("emulator", "fault", "clear")


def account(tpukit: Tpukit, kind: str) -> list[int]:
    return [rule["served"] for rule in tpukit.document("emulator", "fault", "list")[kind]]


def test_a_fault_is_added_met_listed_and_cleared(tpukit: Tpukit) -> None:
    added = tpukit.document(
        "emulator", "fault", "add", "stockout", "--name", "scarce", "--times", "2"
    )
    (rule,) = added["faults"]
    method = "nodes.create instances.insert instanceGroupManagers.insert"
    assert (rule["method"], rule["name"], rule["times"]) == (method, "scarce", 2)
    refused = tpukit.ends_with(6, "create", "v3-8", "scarce")
    assert "no more capacity" in refused.stderr
    row = tpukit.succeeds("emulator", "fault", "list").stdout.strip().split("\t")
    assert row == ["api", method, "scarce", "operation", "2", "1", "*", "*"]
    last = tpukit.document("emulator", "fault", "clear")
    assert [fault["served"] for fault in last["faults"]] == [1]
    assert account(tpukit, "faults") == []


def test_every_flag_of_a_fault_reaches_the_rule(tpukit: Tpukit) -> None:
    words = "--method nodes.get --name d* --accelerator-type v3-* --kind status --phase after"
    more = "--status INTERNAL --message no --times 3 --probability 0.5 --seed 7 --zone us-*"
    added = tpukit.document("emulator", "fault", "add", *words.split(), *more.split())
    (rule,) = added["faults"]
    wanted = {
        "method": "nodes.get",
        "name": "d*",
        "accelerator_type": "v3-*",
        "zone": "us-*",
        "kind": "status",
        "phase": "after",
        "code": 13,
        "message": "no",
        "times": 3,
        "probability": 0.5,
        "seed": 7,
        "served": 0,
    }
    assert rule.items() >= wanted.items()
    stalled = tpukit.document("emulator", "fault", "add", "--kind", "stall", "--seconds", "1.5")
    assert stalled["faults"][-1]["seconds"] == 1.5


def test_every_kind_of_fault_stands_in_the_help_and_on_the_page(tpukit: Tpukit) -> None:
    shown = re.findall(r"[a-z]+", tpukit.succeeds("emulator", "fault", "add", "--help").stdout)
    assert set(KINDS) - set(shown) == set()
    page = (Path(__file__).parents[2] / "docs/reference/emulator.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| `--kind` |")]
    assert [kind for kind in KINDS if f"`{kind}`: " not in row] == []
    add = ("emulator", "fault", "add")
    refused = tpukit.ends_with(2, *add, "--kind", "operation", "--method", "nodes.stop").stderr
    methods = re.findall(r"[a-zA-Z]+\.[a-z]+\b", refused)
    assert len(methods) == 10
    assert [method for method in methods if f"`{method}`" not in row] == []


def test_a_clock_that_stands_still_says_what_that_does(tpukit: Tpukit) -> None:
    still = "creates and other operations do not end"
    for words in (("speed", "0"), ("show",)):
        done = tpukit.succeeds("emulator", "clock", *words)
        assert still in done.stderr
        assert "next: tpukit emulator clock speed 1" in done.stderr
    assert still not in tpukit.succeeds("emulator", "clock", "speed", "1").stderr


def test_a_fault_that_could_never_be_served_is_a_usage_error(tpukit: Tpukit) -> None:
    done = tpukit.ends_with(2, "emulator", "fault", "add", "none")
    assert "The presets are stockout" in done.stderr


def test_the_presets_are_listed_with_their_texts(tpukit: Tpukit) -> None:
    presets = tpukit.document("emulator", "fault", "presets")["presets"]
    assert {"stockout", "quota", "rate-limit"} <= {preset["name"] for preset in presets}
    assert all(preset["message"] for preset in presets)


@pytest.mark.journey
def test_a_worker_is_refusing_until_it_is_cleared(tpukit: Tpukit) -> None:
    tpukit.succeeds("create", "v4-16", "pair")
    tpukit.succeeds("firewall", "apply", "pair")
    added = tpukit.document("emulator", "worker", "pair", "1", "--fault", "swapped-host-key")
    assert added["workers"][0].items() >= {"node": "pair", "worker": 1}.items()
    tpukit.succeeds("ssh", "pair", "--worker", "0", "--", "true")
    refused = tpukit.ends_with(9, "ssh", "pair", "--worker", "1", "--", "true")
    assert "host key" in refused.stderr
    assert account(tpukit, "workers")[0] >= 1
    tpukit.succeeds("emulator", "worker", "pair", "1", "--clear")
    tpukit.succeeds("ssh", "pair", "--worker", "1", "--", "true")
    tpukit.succeeds("delete", "pair", "--yes")


@pytest.mark.parametrize(
    "words",
    [
        ("demo", "0"),
        ("demo", "0", "--fault", "dead", "--clear"),
        ("demo", "first", "--fault", "dead"),
        ("demo", "0", "--fault", "asleep"),
    ],
)
def test_a_worker_s_fault_that_says_nothing_is_a_usage_error(
    tpukit: Tpukit, words: tuple[str, ...]
) -> None:
    tpukit.ends_with(2, "emulator", "worker", *words)


def test_the_parameters_of_a_worker_s_fault_reach_the_rule(tpukit: Tpukit) -> None:
    for words in (
        ("cut", "--bytes", "77", "--times", "2"),
        ("slow", "--rate", "88", "--seconds", "5"),
    ):
        document = tpukit.document("emulator", "worker", "*", "all", "--fault", *words)
    cut, slow = document["workers"]
    assert (cut["bytes"], cut["times"], cut["worker"]) == (77, 2, None)
    assert (slow["rate"], slow["seconds"]) == (88, 5.0)


@pytest.mark.journey
def test_a_slice_is_preempted_gets_a_health_and_vanishes(tpukit: Tpukit) -> None:
    tpukit.succeeds("create", "v3-8", "spot")
    tpukit.succeeds("emulator", "health", "spot", "UNHEALTHY_MAINTENANCE")
    tpukit.ends_with(2, "emulator", "health", "spot", "WELL")
    (slice_,) = tpukit.slices("spot")
    assert (slice_["state"], slice_["health"]) == ("READY", "UNHEALTHY_MAINTENANCE")
    tpukit.succeeds("emulator", "preempt", "spot")
    assert tpukit.slices("spot")[0]["state"] == "PREEMPTED"
    assert tpukit.document("emulator", "preempt", "spot", "--vanish")["vanished"] is True
    assert tpukit.slices("spot") == []
    tpukit.ends_with(3, "emulator", "preempt", "spot")


def test_the_clock_is_shown_advanced_and_sped_up(tpukit: Tpukit) -> None:
    before = tpukit.document("emulator", "clock", "show")["clock"]["time"]
    after = tpukit.document("emulator", "clock", "advance", "2h")["clock"]["time"]
    assert after > before
    assert tpukit.document("emulator", "clock", "speed", "60")["clock"]["speed"] == 60
    assert tpukit.document("emulator", "clock", "speed", "1")["clock"]["speed"] == 1
    tpukit.ends_with(2, "emulator", "clock", "advance", "soon")


def test_the_log_tells_what_was_asked_and_answered(tpukit: Tpukit) -> None:
    tpukit("describe", "nobody")
    requests = tpukit.document("emulator", "log", "--method", "nodes.*")["requests"]
    assert requests
    assert all(request["method"].startswith("nodes.") for request in requests)
    assert {"time", "verb", "path", "status"} <= requests[-1].keys()
    rows = tpukit.succeeds("emulator", "log").stdout.splitlines()
    assert rows
    assert all(len(row.split("\t")) == 6 for row in rows)


@pytest.mark.full_size
def test_a_scenario_is_begun_with_the_emulator_and_replayed_by_another(tmp_path: Path) -> None:
    (tmp_path / "story.toml").write_text(STORY)
    outcomes = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        tpukit = Tpukit(tmp_path / name, {"TPUKIT_LOCAL": "1"})
        tpukit.succeeds("emulator", "start", "--scenario", str(tmp_path / "story.toml"))
        try:
            tpukit.ends_with(6, "create", "v3-8", "scarce")
            # A slice that is preempted while somebody waits for it may never be seen READY.
            tpukit("create", "v3-8", "scarce")
            (slice_,) = tpukit.slices("scarce")
            played = tpukit.document("emulator", "fault", "list")
            outcomes.append(
                (slice_["state"], [len(played[kind]) for kind in played if kind != "v"])
            )
            assert [rule["served"] for rule in played["faults"] + played["events"]] == [1, 1]
        finally:
            tpukit.succeeds("emulator", "stop")
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == "PREEMPTED"


def test_a_scenario_that_cannot_be_played_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "story.toml").write_text('[[faults]]\npreset = "none"\n')
    tpukit = Tpukit(tmp_path)
    done = tpukit.ends_with(2, "emulator", "start", "--scenario", "story.toml")
    assert "The presets are" in done.stderr
    assert tpukit("emulator", "status").returncode == 3


def test_env_starts_an_emulator_where_it_is_asked_to(tmp_path: Path) -> None:
    tpukit = Tpukit(tmp_path)
    assert tpukit("emulator", "env").returncode == 3
    try:
        lines = tpukit.succeeds("emulator", "env", "--start").stdout.splitlines()
        assert all(line.startswith("export CLOUDSDK_") for line in lines)
        assert tpukit.succeeds("emulator", "env", "--start").stdout.splitlines() == lines
        assert tpukit.succeeds("emulator", "env").stdout.splitlines() == lines
    finally:
        tpukit.succeeds("emulator", "stop")


@pytest.mark.full_size
def test_a_state_file_cut_anywhere_keeps_the_emulator_from_starting_and_is_kept(
    tmp_path: Path,
) -> None:
    tpukit = Tpukit(tmp_path, {"TPUKIT_LOCAL": "1"})
    tpukit.succeeds("create", "v3-8", "demo")
    tpukit.succeeds("emulator", "stop")
    (state,) = tmp_path.rglob("state.db")
    whole = state.read_bytes()
    state.write_bytes(whole[: len(whole) // 2])
    done = tpukit("list", "--json")
    assert done.returncode != 0
    assert "state file" in json.loads(done.stdout)["error"]["message"]
    assert state.read_bytes() == whole[: len(whole) // 2]
    state.write_bytes(whole)
    assert [slice_["name"] for slice_ in tpukit.document("list")["slices"]] == ["demo"]
    tpukit.succeeds("emulator", "stop")


@pytest.mark.parametrize(
    "words",
    [
        ("fault", "list"),
        ("fault", "clear"),
        ("fault", "add", "stockout"),
        ("worker", "demo", "0", "--clear"),
        ("preempt", "demo"),
        ("clock", "show"),
        ("log",),
    ],
)
def test_without_an_emulator_the_way_to_one_is_named(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = Tpukit(tmp_path).ends_with(3, "emulator", *words)
    assert "fix: tpukit emulator start" in done.stderr
