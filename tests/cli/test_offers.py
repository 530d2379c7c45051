"""What the API offers, and what our own table says of it."""

from __future__ import annotations

import pytest
from support.local_cloud import ZONE, Cloud, json_reply, scripted

from cli.conftest import Run

HIDDEN = "us-central1-b"


@pytest.mark.process
def test_zones_types_and_versions_are_the_api_s_with_our_table_beside_them(
    run: Run, standing: Cloud
) -> None:
    environment = standing.environment()

    def rows(*words: str) -> dict[str, list[str]]:
        result = run(*words, environment=environment)
        assert result.status == 0, result.err
        found = [line.split("\t") for line in result.out.splitlines()]
        return {row[0]: row[1:] for row in found}

    zones = rows("zones")
    assert zones[ZONE] == ["v2 v3 v5litepod v5p v6e", "same"]
    assert zones["emulator-local1-a"][1] == "not in it"
    assert {*rows("zones", "V5e-16")} < {*zones}
    assert rows("zones", "--zone", ZONE).keys() == {ZONE}
    (document,) = run("zones", "v3-8", "--zone", ZONE, "--json", environment=environment).document[
        "zones"
    ]
    assert document["types"] == ["v3-8"]
    assert "v3" in document["table_generations"]

    types = rows("types", "v3", "--live", "--zone", ZONE)
    assert types["v3-8"] == ["4", "1", "2x2", "tpu-ubuntu2204-base", ZONE, "same"]
    everywhere = rows("types", "v3-8", "--live")["v3-8"]
    assert everywhere[-1] == "-emulator-local1-a"

    versions = rows("versions", "--zone", ZONE)
    assert versions["tpu-ubuntu2204-base"] == ["v2 v3 v4", "v5p v6e"]
    assert versions["v2-alpha-tpuv6e"] == ["v6e", ""]
    assert "tpu-ubuntu2204-base" not in rows("versions", "v6e-8")


def test_what_the_api_and_our_table_do_not_share_is_told(run: Run, standing: Cloud) -> None:
    offered = {"acceleratorTypes": [{"type": "v3-8"}, {"type": "v9-8"}, {"type": "\x1b[31mv2"}]}
    with scripted(json_reply(200, offered)) as server:
        given = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{server.url}/"}
        environment = {**standing.environment(), **given}
        result = run("types", "--live", "--zone", ZONE, environment=environment)
        zones = run("zones", "--zone", ZONE, environment=environment).out
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in result.out.splitlines()}
    assert rows["v3-8"][-2:] == [ZONE, "same"]
    assert rows["v2-8"][-2:] == ["", f"+{ZONE}"]
    assert rows["v9-8"] == ["", "", "", "", ZONE, "not in it"]
    assert "\x1b" not in result.out + zones
    assert "+v2" in zones
    assert "-v9" in zones


def test_a_zone_that_does_not_answer_is_named_and_the_others_are_shown(
    run: Run, prompt_cloud: Cloud
) -> None:
    prompt_cloud.fault(
        method="acceleratorTypes.list", zone=HIDDEN, status="PERMISSION_DENIED", probability=1.0
    )
    result = run("zones", "--json", environment=prompt_cloud.environment())
    assert result.document["unreachable"] == [HIDDEN]
    assert HIDDEN not in [zone["name"] for zone in result.document["zones"]]
    assert f"{HIDDEN} answered 403: cannot list accelerator types" in result.err
    alone = run("zones", "--zone", HIDDEN, environment=prompt_cloud.environment())
    assert alone.says(4).out == ""


def test_many_zones_that_answer_403_are_one_line(run: Run, prompt_cloud: Cloud) -> None:
    method = "acceleratorTypes.list"
    zones = prompt_cloud.tpu.zones()
    for zone in set(zones) - {ZONE}:
        prompt_cloud.fault(method=method, zone=zone, status="PERMISSION_DENIED", probability=1.0)
    result = run("types", "--live", environment=prompt_cloud.environment())
    (line,) = [line for line in result.err.splitlines() if "warning" in line]
    assert f"and {len(zones) - 2} more zones answered 403" in line


def test_what_nobody_offers_and_what_does_not_exist_is_refused(run: Run, standing: Cloud) -> None:
    environment = standing.environment()
    assert '"v9" is not an accelerator type' in run("zones", "v9", environment=environment).err
    nowhere = run("zones", "v2-8", "--zone", "us-east5-a", environment=environment).says(2).err
    assert "no zone offers v2-8" in nowhere
    assert "v9" in run("versions", "v9-8", environment=environment).says(2).err
    bare = {**environment, "CLOUDSDK_COMPUTE_ZONE": ""}
    assert "zone" in run("versions", environment=bare).says(2).err
