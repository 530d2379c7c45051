"""The commands against a cloud: what each shows to people, to pipes and as JSON."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.local_cloud import (
    OTHER_ZONE,
    PROJECT,
    ZONE,
    Cloud,
    bare_environment,
    json_reply,
    scripted,
)

from cli.conftest import Run
from tpukit.access import ssh_rule
from tpukit.cli.main import application
from tpukit.slices import naming

pytestmark = pytest.mark.process

#: Names that scripts rely on.
CONTRACT = {
    *("up", "create", "list", "describe", "delete", "start", "stop", "wait", "ssh", "run"),
    *("provision apply", "smoke", "types", "firewall apply", "firewall list", "firewall remove"),
    *("emulator start", "emulator stop", "emulator status", "emulator env", "config explain"),
}


@cache
def commands() -> list[str]:
    """Return every command of the tree, those of groups with their group's name."""
    app = application()
    nested = [
        f"{group.name} {command.name}"
        for group in app.registered_groups
        for command in (group.typer_instance.registered_commands if group.typer_instance else [])
    ]
    return [*(str(command.name) for command in app.registered_commands), *nested]


SLICE_KEYS = {
    "name",
    "project",
    "zone",
    "accelerator_type",
    "topology",
    "runtime_version",
    "state",
    "id",
    "health",
    "health_description",
    "provisioning",
    "reservation",
    "network",
    "workers",
    "labels",
    "tags",
    "created",
    "queued_resource",
    "subnetwork",
    "service_account",
    "external_addresses",
    "data_disks",
    "api",
    "unreadable",
}
DISK = "projects/demo-project/zones/us-central1-a/disks/d"
RULE_KEYS = {
    "name",
    "network",
    "source_ranges",
    "target_tags",
    "allowed",
    "denied",
    "target_service_accounts",
    "priority",
    "disabled",
}


def make(cloud: Cloud, name: str = "demo", **given: Any) -> None:
    cloud.tpu.create(naming.labelled(cloud.request(name, **given), "ada", "nonce"))


# Help


@pytest.mark.parametrize("command", ["firewall", "emulator", *commands()])
def test_every_command_has_a_help_page(run: Run, command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.status == 0
    assert result.out.startswith(f"Usage: tpukit {command}")
    assert result.err == ""


@pytest.mark.parametrize("command", commands())
def test_every_command_takes_the_global_flags_and_shows_an_example(run: Run, command: str) -> None:
    flags = ("--json", "--project", "p", "--zone", "z", "--local", "--quiet")
    page = run(*command.split(), *flags, "--help").out  # an unknown flag would be refused first
    assert "Global flags, --zone and --json among them: tpukit help flags" in page
    assert "tpukit" in page.partition("Example")[2]


def test_no_command_that_scripts_rely_on_is_gone() -> None:
    assert set(commands()) >= CONTRACT


def test_the_version_is_printed_alone(run: Run) -> None:
    from tpukit import __version__

    result = run("--version")
    assert (result.status, result.out, result.err) == (0, f"{__version__}\n", "")


# The global flags


@pytest.mark.parametrize(
    "words",
    [("--json", "--zone", ZONE, "list"), ("list", "--json", "--zone", ZONE)],
    ids=["before the verb", "after the verb"],
)
def test_a_global_flag_means_the_same_before_and_after_the_verb(
    run: Run, prompt_cloud: Cloud, words: tuple[str, ...]
) -> None:
    make(prompt_cloud)
    make(prompt_cloud, "other", zone=OTHER_ZONE)
    document = run(*words, environment=prompt_cloud.environment()).document
    assert [slice_["name"] for slice_ in document["slices"]] == ["demo"]


def test_the_flag_after_the_verb_wins(run: Run, prompt_cloud: Cloud) -> None:
    make(prompt_cloud)
    words = ("--zone", OTHER_ZONE, "list", "--zone", ZONE)
    assert run(*words, environment=prompt_cloud.environment()).out.startswith("demo\t")


def test_quiet_leaves_the_data_alone(run: Run, prompt_cloud: Cloud) -> None:
    result = run("create", "v3-8", "demo", "--quiet", environment=prompt_cloud.environment())
    assert (result.status, result.out, result.err) == (0, "demo\n", "")


def test_words_after_the_double_hyphen_are_not_ours(run: Run, prompt_cloud: Cloud) -> None:
    """`--json` there belongs to the remote command, so the error stays one for people."""
    environment = prompt_cloud.environment()
    run("run", "none", "--", "ls", "--json", environment=environment).says(3)


# Each command's documents


def test_create_says_what_it_did_and_is_its_own_repetition(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    first = run("create", "v3-8", "demo", "--json", environment=environment)
    assert first.status == 0
    assert set(first.document) == {"v", "slice", "created", "next"}
    assert set(first.document["slice"]) == SLICE_KEYS
    assert first.document["v"] == 1
    assert first.document["created"] is True
    again = run("create", "v3-8", "demo", "--json", environment=environment)
    assert again.document["created"] is False
    assert again.document["slice"]["name"] == "demo"
    assert len(prompt_cloud.nodes()) == 1


def test_create_sends_every_flag(run: Run, prompt_cloud: Cloud) -> None:
    result = run(
        "create",
        "v3-8",
        "demo",
        "--spot",
        "--labels=team=vision,cost=a",
        "--tags=one,two",
        "--metadata=a=1,b=x=y",
        "--internal-ips",
        "--runtime-version=tpu-vm-base",
        environment=prompt_cloud.environment(),
    )
    assert result.status == 0, result.err
    slice_ = prompt_cloud.tpu.get(ZONE, "demo")
    assert slice_.provisioning == "spot"
    assert slice_.runtime_version == "tpu-vm-base"
    assert slice_.labels["team"] == "vision"
    assert slice_.labels["tpukit-owner"] == "ada"
    assert slice_.tags[:2] == ("one", "two")
    assert slice_.tags[2] == ssh_rule.rule_name(slice_)
    assert slice_.metadata["b"] == "x=y"
    assert slice_.metadata["ssh-keys"].startswith("ada:ssh-ed25519 ")
    assert not slice_.workers[0].external_address


def test_a_name_not_given_is_said_before_the_first_call(run: Run, prompt_cloud: Cloud) -> None:
    result = run("create", "v3-8", environment=prompt_cloud.environment())
    assert result.out == "ada-v3-8\n"
    assert result.err.splitlines()[0] == f"slice ada-v3-8: v3-8 in {ZONE} of project {PROJECT}"


def test_list_is_tab_separated_and_uncut_in_a_pipe(run: Run, prompt_cloud: Cloud) -> None:
    name = "a-name-that-is-as-long-as-a-name-can-be-and-must-not-be-cut-xyz"
    make(prompt_cloud, name)
    result = run("list", environment=prompt_cloud.environment())
    row = result.out.splitlines()[0].split("\t")
    assert row[:8] == [name, ZONE, "v3-8", "READY", "HEALTHY", "1", "on-demand", "ada"]
    assert result.err == ""


def test_list_in_another_form_or_with_other_columns(run: Run, prompt_cloud: Cloud) -> None:
    make(prompt_cloud)
    environment = prompt_cloud.environment()
    assert run("-o", "name", "list", environment=environment).out == "demo\n"
    assert run("list", "--columns", "state,name", environment=environment).out == "READY\tdemo\n"
    assert run("describe", "demo", "-o", "name", environment=environment).out == "demo\n"
    assert run("extend", "demo", "--ttl", "2h", environment=environment).status == 0
    expires = run("list", "--columns", "name,expires", environment=environment).out
    end = run("describe", "demo", "--json", environment=environment).document["slice"]["lifetime"]
    assert expires == f"demo\t{end['expires']}\n"
    table = run("list", "--output=table", environment=environment).out.splitlines()
    assert table[0].split()[:4] == ["NAME", "ZONE", "TYPE", "STATE"]
    document = run("list", "-o", "json", environment=environment).document
    assert document["slices"][0]["name"] == "demo"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("-o", "xml"),
            "'xml' is not a value of --output\nfix: --output table or tsv or json or name",
        ),
        (
            ("--color", "red"),
            "'red' is not a value of --color\nfix: --color auto or always or never",
        ),
        (("--columns", "name,age"), "list has no column AGE\nfix: --columns name,zone,type,state"),
    ],
)
def test_an_unknown_form_is_refused(run: Run, words: tuple[str, ...], told: str) -> None:
    assert told in run("list", *words).says(2).err


def test_two_forms_at_once_are_refused(run: Run) -> None:
    told = run("list", "--json", "-o", "tsv")
    assert told.status == 2
    assert told.document["error"]["message"] == "--json and --output tsv exclude each other"
    assert run("types", "--json", "-o", "json").status == 0


def test_an_error_before_the_command_has_the_chosen_form_too(run: Run) -> None:
    for words in (("-o", "json"), ("--output=json",), ("--json",)):
        assert run("list", *words, "--what").document["error"]["code"] == 2


def test_list_as_json_holds_slices_and_the_silent_zones(run: Run, prompt_cloud: Cloud) -> None:
    make(prompt_cloud)
    document = run("list", "--json", environment=prompt_cloud.environment()).document
    assert set(document) == {"v", "slices", "unreachable"}
    assert set(document["slices"][0]) == {*SLICE_KEYS, "lifetime"}


def test_list_warns_of_zones_that_did_not_answer(run: Run, prompt_cloud: Cloud) -> None:
    with scripted(json_reply(200, {"unreachable": ["locations/x\x1b[2J"]})) as server:
        environment = {
            **prompt_cloud.environment(),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{server.url}/",
        }
        result = run("list", environment=environment)
    assert result.status == 0
    assert "warning: x\\x1b[2J did not answer" in result.err


def test_list_remembers_slices_made_in_another_project(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    assert run("create", "v3-8", "demo", environment=environment).status == 0
    result = run("list", "--project", "other-project", environment=environment)
    assert f"tpukit list --project {PROJECT}" in result.err
    assert result.out == ""


def test_describe_shows_a_field_a_row(run: Run, prompt_cloud: Cloud) -> None:
    make(prompt_cloud)
    environment = prompt_cloud.environment()
    rows = dict(
        line.split("\t")
        for line in run("describe", "demo", environment=environment).out.splitlines()
    )
    assert rows["name"] == "demo"
    assert rows["accelerator type"] == "v3-8"
    assert "worker 0" in rows
    assert rows["subnetwork"] == "default"
    assert rows["external addresses"] == "yes"
    assert rows["service account"].endswith("-compute@developer.gserviceaccount.com")
    assert rows["owner"]
    assert all(rows.values()), "no row without a value"
    document = run("describe", "demo", "--json", environment=environment).document
    assert set(document) == {"v", "slice", "next"}


@pytest.mark.parametrize(
    ("kind", "given", "shown"),
    [
        ("v3-8", DISK, DISK),
        ("v3-8", f"source={DISK},mode=read-only", f"{DISK} (read-only)"),
        ("v3-32", DISK, f"{DISK} (read-only)"),
    ],
)
def test_a_data_disk_is_for_several_workers_to_read(
    run: Run, prompt_cloud: Cloud, kind: str, given: str, shown: str
) -> None:
    environment = prompt_cloud.environment()
    assert run("create", kind, "demo", "--data-disk", given, environment=environment).status == 0
    rows = run("describe", "demo", environment=environment).out.splitlines()
    assert f"data disks\t{shown}" in rows


def test_a_type_that_is_not_listed_is_for_projects_that_google_has_enabled(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    refused = run("up", "tpu7x-8", "demo", environment=environment).says(2).err
    assert "unless Google has enabled your project" in refused
    assert "fix: tpukit create tpu7x-8 --allow-unlisted-type --runtime-version" in refused
    words = ("create", "tpu7x-8", "demo", "--allow-unlisted-type", "--runtime-version")
    told = run(*words, "tpu-ubuntu2204-base", environment=environment).says(2).err
    assert "could not be found in the zonal accelerator configurations" in told
    assert len(prompt_cloud.calls("nodes.create")) == 1


def test_a_smoke_test_of_a_type_that_is_not_listed_suggests_no_second_slice(
    run: Run, prompt_cloud: Cloud
) -> None:
    prompt_cloud.tpu.create(prompt_cloud.request())
    prompt_cloud.change("demo", acceleratorType="tpu7x-8")
    told = run("smoke", "demo", environment=prompt_cloud.environment()).says(2).err
    assert "how many devices a tpu7x-8 has is unknown" in told
    assert "venvs/jax/bin/python" in told
    assert "create" not in told


def test_a_zone_that_is_misspelled_is_told_before_anything_is_asked(
    run: Run, prompt_cloud: Cloud
) -> None:
    words = ("create", "v3-8", "demo", "--zone", "us-centrl1-a")
    told = run(*words, environment=prompt_cloud.environment()).says(2).err
    assert "did you mean --zone us-central1-a?" in told
    assert prompt_cloud.control("GET", "log")["requests"] == []


@pytest.mark.parametrize(
    "flags", [("--spot", "--internal-ips"), ("--reserved", "--runtime-version=tpu-vm-base"), ()]
)
def test_what_may_be_typed_after_a_create_asks_for_the_same_slice(
    run: Run, prompt_cloud: Cloud, flags: tuple[str, ...]
) -> None:
    held = {"name": "held", "project": PROJECT, "zone": ZONE, "resourceType": "v3", "size": 8}
    prompt_cloud.control("POST", "catalogue/reservations", held)
    environment = prompt_cloud.environment()
    words = ("create", "v3-8", "demo", "--no-firewall", "--json", *flags, "--labels=team=x")
    made = run(*words, environment=environment).document
    program, verb, *rest = made["next"][0]["arguments"]
    assert (program, verb) == ("tpukit", "up")
    again = run("create", *rest, "--no-firewall", "--json", environment=environment)
    assert again.status == 0, again.out
    assert again.document["created"] is False


def test_preemptible_capacity_can_be_asked_for(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    run("create", "v3-8", "demo", "--preemptible", environment=environment)
    assert prompt_cloud.tpu.get(ZONE, "demo").provisioning == "preemptible"


@pytest.mark.parametrize("zone", ["-", ZONE])
def test_describe_looks_where_it_is_told(run: Run, prompt_cloud: Cloud, zone: str) -> None:
    make(prompt_cloud)
    result = run("describe", "demo", "--zone", zone, environment=prompt_cloud.environment())
    assert result.status == 0


def test_stop_start_and_wait_end_with_the_state(run: Run, prompt_cloud: Cloud) -> None:
    make(prompt_cloud)
    environment = prompt_cloud.environment()
    for words, state in [
        (("stop", "demo"), "STOPPED"),
        (("wait", "demo", "--for", "stopped"), "STOPPED"),
        (("start", "demo"), "READY"),
        (("wait", "demo"), "READY"),
    ]:
        result = run(*words, "--json", environment=environment)
        assert result.status == 0, result.err
        assert set(result.document) == {"v", "slice"}
        assert result.document["slice"]["state"] == state


def test_delete_takes_the_rule_along(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    run("create", "v3-8", "demo", environment=environment)
    run("firewall", "apply", "demo", "--source-range=192.0.2.1", environment=environment)
    assert len(prompt_cloud.firewall.list()) == 1
    result = run("delete", "demo", "--yes", "--json", environment=environment)
    assert result.document == {"v": 1, "deleted": ["demo"]}
    assert prompt_cloud.nodes() == []
    assert prompt_cloud.firewall.list() == ()


def test_delete_again_is_not_found_unless_that_is_fine(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    run("delete", "demo", "--yes", environment=environment).says(3)
    result = run("delete", "demo", "--yes", "--missing-ok", "--json", environment=environment)
    assert (result.status, result.document["deleted"]) == (0, [])


def test_a_delete_of_a_missing_slice_names_the_request_that_will_make_it(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    prompt_cloud.fault(method="queuedResources.create", kind="wait", seconds=60.0)
    assert run("queue", "create", "v3-8", "demo", environment=environment).status == 0
    end = f"tpukit queue delete demo --zone {ZONE}"
    assert f"fix: {end}" in run("delete", "demo", "--yes", environment=environment).says(3).err
    done = run("delete", "demo", "--yes", "--missing-ok", environment=environment)
    assert (done.status, f"next: {end}" in done.err) == (0, True)


def test_one_that_is_missing_does_not_stop_the_other_deletes(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    for name in ("a", "b"):
        make(prompt_cloud, name)
    result = run("delete", "a", "gone", "b", "--yes", environment=environment).says(3)
    assert "no slice gone in any zone" in result.err
    assert prompt_cloud.nodes() == []
    make(prompt_cloud, "a")
    words = ("delete", "a", "gone", "--yes", "--json")
    details = run(*words, environment=environment).document["error"]["details"]
    assert (details["deleted"], list(details["failed"])) == (["a"], ["gone"])


def test_delete_without_the_right_to_read_rules_warns_and_succeeds(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    run("create", "v3-8", "demo", environment=environment)
    prompt_cloud.fault(
        method="firewalls.list", status="PERMISSION_DENIED", message="no", probability=1.0
    )
    result = run("delete", "demo", "--yes", environment=environment)
    assert result.status == 0
    assert "warning: the firewall rule of demo may stay" in result.err


def test_a_name_in_several_zones_needs_the_zone(run: Run, prompt_cloud: Cloud) -> None:
    make(prompt_cloud)
    make(prompt_cloud, zone=OTHER_ZONE)
    environment = prompt_cloud.environment()
    assert "--zone" in run("delete", "demo", "--yes", environment=environment).says(2).err
    assert len(prompt_cloud.nodes()) == 2
    run("delete", "demo", "--yes", "--zone", OTHER_ZONE, environment=environment)
    assert prompt_cloud.nodes() == [prompt_cloud.full_name("demo")]


def test_the_rule_of_a_slice_is_shown_widened_and_removed(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    run("create", "v3-8", "demo", "--no-firewall", environment=environment)
    words = ("firewall", "apply", "demo", "--json", "--source-range")
    run(*words, "192.0.2.1", environment=environment)
    document = run(*words, "198.51.100.0/24", environment=environment).document
    assert set(document) == {"v", "rules", "open_to_world"}
    assert set(document["rules"][0]) == RULE_KEYS
    assert document["rules"][0]["source_ranges"] == ["192.0.2.1/32", "198.51.100.0/24"]
    listed = run("firewall", "list", "--json", environment=environment).document
    assert listed["rules"] == document["rules"]
    removed = run("firewall", "remove", "demo", "--json", environment=environment).document
    assert (removed["v"], removed["removed"]) == (1, True)


def test_a_rule_is_removed_by_its_own_name_when_the_slice_is_gone(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    run("create", "v3-8", "demo", environment=environment)
    run("firewall", "apply", "demo", "--source-range=192.0.2.1", environment=environment)
    prompt_cloud.vanish("demo")
    name = prompt_cloud.firewall.list()[0].name
    assert run("firewall", "remove", name, environment=environment).status == 0
    assert prompt_cloud.firewall.list() == ()


def test_the_caller_s_own_address_is_the_range_where_none_is_given(
    run: Run, prompt_cloud: Cloud
) -> None:
    make(prompt_cloud)
    records = prompt_cloud.server.service.context.state.nodes
    record = records[prompt_cloud.full_name("demo")]
    workers = [{**worker, "address": "127.77.0.1"} for worker in record["workers"]]
    records[prompt_cloud.full_name("demo")] = {**record, "workers": workers}
    result = run("firewall", "apply", "demo", "--json", environment=prompt_cloud.environment())
    assert result.status == 0, result.err
    ranges = result.document["rules"][0]["source_ranges"]
    assert [range_.startswith("127.") for range_ in ranges] == [True]


def test_a_slice_that_has_no_workers_yet_has_no_address_to_open(run: Run, cloud: Cloud) -> None:
    """On a clock that stands still the slice stays CREATING."""
    make(cloud)
    result = run("firewall", "apply", "demo", environment=cloud.environment())
    assert result.status in (1, 2)
    result.says(result.status)
    result = run("ssh", "demo", "--", "true", environment=cloud.environment()).says(1)
    assert "tpukit wait demo" in result.err


def test_types_need_no_cloud_and_no_home(run: Run) -> None:
    result = run("types", "v3-8", environment={"PATH": "/usr/bin"})
    assert result.status == 0
    assert result.out.split("\t")[:2] == ["type", "v3-8"]
    rows = [line.split("\t") for line in run("types", "v3", environment={}).out.splitlines()]
    assert rows[0][:5] == ["v3-8", "4", "8", "1", "8"]
    document = run("types", "v6e", "--json", environment={}).document
    assert set(document) == {"v", "types"}
    assert all(type_["generation"] == "v6e" for type_ in document["types"])


def test_no_emulator_is_not_found(run: Run) -> None:
    for command in ("status", "env"):
        assert "tpukit emulator start" in run("emulator", command).says(3).err
    assert run("emulator", "stop").status == 0


@pytest.mark.parametrize("text", ["\x1b[31mred", "[bold]x[/bold]", "[link=https://x]y", "a\tb\nc"])
def test_what_the_api_says_stays_data(run: Run, prompt_cloud: Cloud, text: str) -> None:
    make(prompt_cloud)
    prompt_cloud.change("demo", healthDescription=text, labels={"tpukit-owner": text})
    environment = prompt_cloud.environment()
    for words in (("list",), ("describe", "demo")):
        result = run(*words, environment=environment)
        assert "\x1b" not in result.out
        assert all(line.count("\t") in (1, 12) for line in result.out.splitlines())
        if text.startswith("["):
            assert text in result.out
    document = json.loads(run("list", "--json", environment=environment).out)
    assert document["slices"][0]["labels"]["tpukit-owner"] == " ".join(
        text.replace("\x1b", "\\x1b").split()
    )


def test_config_explain_says_of_every_setting_where_it_comes_from(run: Run, tmp_path: Path) -> None:
    environment = {**bare_environment(tmp_path), "TPUKIT_ZONE": "us-central1-b"}
    done = run("config", "explain", "--project", "proj-1", "--json", environment=environment)
    settings = done.document["settings"]
    assert settings["zone"] == {"value": "us-central1-b", "origin": "TPUKIT_ZONE"}
    assert settings["project"] == {"value": "proj-1", "origin": "flag --project"}
    assert settings["quota_project"] == {"value": "", "origin": "not set"}


def test_types_is_a_line_a_generation_and_a_generation_in_any_spelling_its_types(run: Run) -> None:
    lines = [line.split("\t") for line in run("types", environment={}).out.splitlines()]
    assert [line[0] for line in lines] == ["v2", "v3", "v4", "v5litepod", "v5p", "v6e"]
    assert lines[1][:2] == ["v3", "cores"]
    assert lines[1][3].startswith("8 32 64 ")
    assert len(run("types", "--json", environment={}).document["types"]) > 50
    for spelling in ("v5e", "V5E", "v5litepod", "v5litepod-"):
        (first, *_) = run("types", spelling, environment={}).out.splitlines()
        assert first.startswith("v5litepod-1\t")
    assert run("types", "V5e-16", environment={}).out.startswith("type\tv5litepod-16\t")


@pytest.mark.parametrize("words", [("v9",), ("v4-9",), ("v3", "--zone", "nope-a1-a")])
def test_types_that_do_not_exist_are_no_empty_list(run: Run, words: tuple[str, ...]) -> None:
    told = run("types", *words, environment={}).says(2).err
    assert re.search("there is no|is not an accelerator type", told)


def test_types_and_zones_name_the_type_that_was_meant(run: Run, standing: Cloud) -> None:
    for verb in ("types", "zones"):
        told = run(verb, "v3_8", environment=standing.environment()).says(2).err
        assert "fix: did you mean v3-8?\n" in told


@pytest.mark.parametrize("words", [("demo", "v3-8"), ("V3-8", "demo"), ("demo", "V3-8")])
def test_create_takes_the_type_and_the_name_in_either_order(
    run: Run, standing: Cloud, words: tuple[str, str]
) -> None:
    done = run("create", *words, "--json", environment=standing.environment())
    assert done.document["slice"]["name"] == "demo", done.err
    assert done.document["created"] is False


def test_a_list_is_chosen_from_by_label_and_state(run: Run, standing: Cloud) -> None:
    def listed(*flags: str) -> list[str]:
        done = run("list", *flags, "--json", environment=standing.environment())
        return [slice_["name"] for slice_ in done.document["slices"]]

    assert listed("--state", "ready", "--sort", "created") == ["demo"]
    assert listed("--state", "CREATING") == listed("--label", "none=such") == []
    done = run("list", "--sort", "colour", environment=standing.environment()).says(2)
    assert "fix: --sort name or zone" in done.err
    elsewhere = run("list", "--zone", OTHER_ZONE, environment=standing.environment())
    assert f"no slices in {OTHER_ZONE}, 1 elsewhere" in elsewhere.err


def test_a_folder_that_was_deleted_is_no_defect(run: Run, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    for words in (["list"], ["push", "demo"]):
        assert "the working folder was deleted" in run(*words).says(2).err
