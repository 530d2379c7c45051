"""What the emulator offers can be changed, stays changed, and is refused in Google's words."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from support import warm_tpukit

from emulator.conftest import Api, Emulators
from tpukit.accelerators import AcceleratorType
from tpukit.emulator import Emulator, EmulatorClient
from tpukit.emulator.tpu_service.quotas import limit_name
from tpukit.errors import BadInput, NotFound

ZONE = "us-central1-a"


def control(api: Api) -> EmulatorClient:
    """Return a client, given what `emulator env` names: a URL with a slash, a file with a line."""
    return EmulatorClient(f"{api.server.url}/", f"{api.token}\n")


def create(api: Api, name: str, zone: str = ZONE, **fields: Any) -> tuple[int, Any]:
    body = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base", **fields}
    return api.call("POST", f"/v2/projects/p/locations/{zone}/nodes?nodeId={name}", body)


def queue(api: Api, name: str, kind: str) -> tuple[int, Any]:
    parent = f"projects/p/locations/{ZONE}"
    node = {"acceleratorType": kind, "runtimeVersion": "tpu-ubuntu2204-base"}
    spec = {"parent": parent, "nodeId": f"{name}-node", "node": node}
    path = f"/v2/{parent}/queuedResources?queuedResourceId={name}"
    return api.call("POST", path, {"tpu": {"nodeSpec": [spec]}, "spot": {}})


def listed(api: Api, what: str, zone: str = ZONE) -> list[str]:
    found = api.call("GET", f"/v2/projects/p/locations/{zone}/{what}")[1]
    return [row["name"].rsplit("/", 1)[1] for row in found[what]]


def test_networks_are_made_and_deleted_and_zones_listed_as_gcloud_does(
    emulators: Emulators,
) -> None:
    api, base = emulators.start(), "/compute/v1/projects/p"
    networks, firewalls = f"{base}/global/networks", f"{base}/global/firewalls"
    body = {"name": "own", "autoCreateSubnetworks": False, "description": "mine"}
    once = f"{networks}?requestId=7f3c9a52-5f0f-4c7f-9f2e-2f6a8d9b1c30"
    begun = api.call("POST", once, body)[1]
    assert api.call("POST", once, body)[1]["name"] == begun["name"]
    assert (begun["operationType"], begun["status"]) == ("insert", "RUNNING")
    emulators.stop()
    api = emulators.start()
    shown = api.call("GET", f"{networks}/own")[1]
    assert shown.items() >= {**body, "kind": "compute#network"}.items()
    assert shown["routingConfig"] == {"routingMode": "REGIONAL"}
    assert [item["name"] for item in api.call("GET", networks)[1]["items"]] == ["default", "own"]
    region = f"{base}/regions/{ZONE.rpartition('-')[0]}"
    block = {"name": "s", "network": f"{networks}/own", "ipCidrRange": "10.0.0.0/24"}
    assert api.call("POST", f"{region}/subnetworks", block)[0] == 200
    placed = {"network": "own", "subnetwork": "s"}
    assert create(api, "a", networkConfig=placed)[0] == 200
    rule = {"name": "r", "network": "global/networks/own", "allowed": [{"IPProtocol": "tcp"}]}
    assert api.call("POST", firewalls, rule)[0] == 200
    for verb, path, given, status, reason in (
        ("POST", networks, body, 409, "alreadyExists"),
        ("POST", networks, {"name": "Own"}, 400, "invalid"),
        ("POST", networks, {}, 400, "invalid"),
        ("DELETE", f"{networks}/own", None, 400, "resourceInUseByAnotherResource"),
        ("DELETE", f"{networks}/none", None, 404, "notFound"),
        ("GET", f"{base}/zones/nowhere", None, 404, "notFound"),
    ):
        found, answer = api.call(verb, path, given)
        assert (found, answer["error"]["errors"][0]["reason"]) == (status, reason), path
    for user in ("/firewalls/r'", "/nodes/a'"):
        refused = api.call("DELETE", f"{networks}/own")[1]["error"]["message"]
        assert refused.endswith(user)
        api.call("DELETE", f"{firewalls}/r")
    api.call("DELETE", f"/v2/projects/p/locations/{ZONE}/nodes/a")
    api.advance(1000)
    refused = api.call("DELETE", f"{networks}/own")[1]["error"]["message"]
    assert refused.endswith("/subnetworks/s'")
    assert api.call("DELETE", f"{region}/subnetworks/s")[0] == 200
    assert api.call("DELETE", f"{networks}/own")[1]["operationType"] == "delete"
    assert api.call("GET", f"{networks}/own")[0] == 404
    assert api.call("POST", "/_emulator/v1/projects/p:attach", {"host": "h"})[0] == 200
    assert api.call("POST", networks, {"name": "own"})[0] == 400
    zones = api.call("GET", f"{base}/zones?filter=name={ZONE}")[1]["items"]
    assert [(zone["name"], zone["status"]) for zone in zones] == [(ZONE, "UP")]
    assert api.call("GET", f"{base}/zones/{ZONE}")[1] == zones[0]
    assert zones[0]["region"].endswith("/regions/us-central1")


def test_what_is_added_is_offered_and_outlives_a_restart(emulators: Emulators) -> None:
    api = emulators.start()
    assert create(api, "a", runtimeVersion="tpu-vm-v5-base")[0] == 400
    assert create(api, "a", zone="moon-north1-a")[0] == 403
    assert create(api, "a", acceleratorType="v4-8")[0] == 400
    assert create(api, "a", networkConfig={"network": "training"})[0] == 400
    emulator = control(api)
    for _ in range(2):  # what is there already stays
        emulator.add_runtime_version("tpu-vm-v5-base")
        emulator.add_zone("moon-north1-a")
        emulator.add_accelerator_type("v4-8", ZONE)
        emulator.add_network("training", "p")
        emulator.add_reservation("r1", ZONE, "v4", 64, "p")
    changed = emulator.catalogue()
    emulators.stop()
    api = emulators.start()
    assert control(api).catalogue() == changed
    assert create(api, "a", runtimeVersion="tpu-vm-v5-base")[0] == 200
    assert create(api, "b", zone="moon-north1-a", acceleratorType="v6e-8")[0] == 200
    assert create(api, "c", acceleratorType="v4-8")[0] == 200
    assert create(api, "d", networkConfig={"network": "training"})[0] == 200
    assert "tpu-vm-v5-base" in listed(api, "runtimeVersions")
    assert "v4-8" in listed(api, "acceleratorTypes")
    assert "v4-8" not in listed(api, "acceleratorTypes", "us-central1-b")
    networks = api.call("GET", "/compute/v1/projects/p/global/networks")[1]["items"]
    assert [network["name"] for network in networks] == ["default", "training"]
    alpha = f"/v2alpha1/projects/p/locations/{ZONE}/reservations"
    assert len(api.call("GET", alpha)[1]["reservations"]) == 1
    control(api).reset()
    assert control(api).catalogue() == {"changes": [], "reservations": [], "quotas": []}
    assert create(api, "a", runtimeVersion="tpu-vm-v5-base")[0] == 400


def test_what_is_removed_is_refused_and_what_is_used_stays(api: Api) -> None:
    emulator = control(api)
    emulator.remove_accelerator_type("v3-8")
    emulator.add_accelerator_type("v3-8", "us-central1-b")
    emulator.remove_runtime_version("tpu-vm-base")
    emulator.add_reservation("held", "us-central1-f", "v2", 8)
    with pytest.raises(BadInput, match=r"us-central1-f still contains .*/reservations/held"):
        emulator.remove_zone("us-central1-f")
    emulator.remove_reservation("held", "us-central1-f")
    emulator.remove_zone("us-central1-f")
    assert "could not be found in the zonal" in create(api, "a")[1]["error"]["message"]
    assert create(api, "a", zone="us-central1-b")[0] == 200
    assert create(api, "b", zone="us-central1-b", runtimeVersion="tpu-vm-base")[0] == 400
    assert create(api, "c", zone="us-central1-f")[0] == 400
    emulator.add_accelerator_type("v3-8")
    assert create(api, "d")[0] == 200
    emulator.add_network("training", "p")
    assert create(api, "e", networkConfig={"network": "training"})[0] == 200
    for remove in (
        lambda: emulator.remove_zone(ZONE),
        lambda: emulator.remove_network("training", "p"),
    ):
        with pytest.raises(BadInput, match=" still contains projects/p/"):
            remove()
    emulator.remove_network("default", "q")
    assert api.call("GET", "/compute/v1/projects/q/global/networks/default")[0] == 404


def test_what_cannot_be_is_named(api: Api) -> None:
    emulator = control(api)
    for wrong, error, said in (
        (lambda: emulator.add_zone("xx"), BadInput, "name must match"),
        (lambda: emulator.remove_zone("moon-north1-a"), NotFound, "moon-north1-a"),
        (lambda: emulator.add_accelerator_type("v9-8"), BadInput, "v9-8"),
        (lambda: emulator.add_accelerator_type("v4-8", "moon-north1-a"), NotFound, "moon"),
        (lambda: emulator.add_runtime_version("a/b"), BadInput, "name must match"),
        (lambda: emulator.remove_runtime_version("never"), NotFound, "never"),
        (lambda: emulator.add_network("UPPER"), BadInput, "name must match"),
        (lambda: emulator.remove_network("never"), NotFound, "never"),
        (lambda: emulator.remove_reservation("never", ZONE), NotFound, "never"),
        (lambda: emulator.add_reservation("none", ZONE, "v4", 0), BadInput, "number of chips"),
        (lambda: emulator.set_state("", "READY"), NotFound, "refuses"),
        (lambda: emulator.add_fault({"name": {"a set"}}), BadInput, "not a JSON object"),
        (lambda: emulator.set_quota("v3-8", ZONE, -1), BadInput, "limit must be"),
        (lambda: emulator.remove_quota("v3-8", ZONE), NotFound, "quota of v3-8"),
        (lambda: emulator.set_quota("v3-8", ZONE, 8, "yes"), BadInput, "spot must be"),  # type: ignore[arg-type]
        (lambda: emulator.set_quota("v3-8", ZONE, 8, ["x"]), BadInput, "spot must be"),  # type: ignore[arg-type]
        (lambda: emulator.call("POST", "catalogue/chairs", {"name": "c"}), BadInput, "are zones"),
        (lambda: emulator.call("POST", "catalogue/zones", {"nam": "c"}), BadInput, "are limit"),
    ):
        with pytest.raises(error, match=said):
            wrong()
    assert emulator.catalogue()["changes"] == []


def test_workers_run_again_after_a_restart_in_every_state_in_which_they_ran(
    emulators: Emulators,
) -> None:
    api = emulators.start()
    for name, state in (("a", "HIDDEN"), ("b", "UNKNOWN"), ("c", "REPAIRING")):
        assert create(api, name)[0] == 200
        api.advance(2000)
        assert control(api).set_state(name, state)["state"] == state
    emulators.stop()
    api = emulators.start()
    assert {name.rsplit("/", 1)[1] for name in api.host.booted} == {"a", "b"}
    found = [api.call("GET", f"/v2/projects/p/locations/{ZONE}/nodes/{n}")[1] for n in "abc"]
    assert [row["state"] for row in found] == ["HIDDEN", "UNKNOWN", "REPAIRING"]


def test_a_quota_counts_all_that_books_it_and_refuses_in_google_s_words(api: Api) -> None:
    emulator = control(api)
    emulator.set_quota("v3-8", ZONE, 16)
    emulator.set_quota("v3-32", ZONE, 32, spot=True)
    assert create(api, "a")[0] == 200
    api.advance(2000)
    emulator.preempt("a")
    assert create(api, "b")[0] == 200
    status, answer = create(api, "c")
    name = "TPUV3sPerProjectPerZoneForTPUAPI"
    said = f"Quota limit '{name}' has been exceeded. Limit: 16 in zone {ZONE}."
    assert (status, answer["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
    assert answer["error"]["message"] == said
    assert [detail["@type"].rsplit(".", 1)[1] for detail in answer["error"]["details"]] == [
        "QuotaFailure"
    ]
    # Spot, reserved, pods, zones and projects are counted apart.
    assert create(api, "d", schedulingConfig={"spot": True})[0] == 200
    assert create(api, "e", schedulingConfig={"reserved": True})[0] == 200
    assert create(api, "f", acceleratorType="v3-32")[0] == 200
    assert create(api, "g", zone="us-central1-b")[0] == 200
    body = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    other = f"/v2/projects/q/locations/{ZONE}/nodes"
    assert [api.call("POST", f"{other}?nodeId={n}", body)[0] for n in "ab"] == [200, 200]
    assert queue(api, "waits", "v3-32")[0] == 200
    assert queue(api, "late", "v3-32")[1]["error"]["status"] == "RESOURCE_EXHAUSTED"
    used = {quota["name"]: quota["used"] for quota in emulator.catalogue()["quotas"]}
    assert used == {
        name: {"p": 16, "q": 16},
        "TPUV3sPreemptiblePodPerProjectPerZoneForTPUAPI": {"p": 32},
    }
    assert api.call("DELETE", f"/v2/projects/p/locations/{ZONE}/nodes/a")[0] == 200
    api.advance(2000)
    assert create(api, "c")[0] == 200
    emulator.remove_quota("v3-8", ZONE)
    assert create(api, "h")[0] == 200


def test_a_limit_has_the_name_that_google_s_errors_have() -> None:
    for kind, spot, name in (
        ("v2-8", False, "TPUV2s"),
        ("v2-32", False, "TPUV2sPod"),
        ("v2-32", True, "TPUV2sPreemptiblePod"),
        ("v5litepod-8", False, "TPUV5sLitepodServing"),
        ("v5litepod-16", False, "TPUV5sLitepod"),
        ("v5litepod-16", True, "TPUV5sPreemptibleLitepod"),
        ("v5p-8", True, "TPUV5PPreemptible"),
        ("v6e-8", False, "TPUV6E"),
    ):
        found = limit_name(AcceleratorType.parse(kind), spot)
        assert found == f"{name}PerProjectPerZoneForTPUAPI", kind


@pytest.mark.slow
def test_the_commands_say_what_is_missing_and_show_what_is_left() -> None:
    with Emulator() as cloud:
        for words, status, said in (
            ("add runtime-version tpu-vm-v5-base", 0, "runtimeVersions\ttpu-vm-v5-base\tadded"),
            ("add quota v3-8 --limit 8 --zone us-central1-a", 0, "limit 8, used: nothing"),
            ("add quota v3-8 --limit 8", 2, "a quota needs --zone"),
            ("add chair c", 2, "no kind chair"),
            ("remove zone moon-north1-a", 3, "moon-north1-a"),
            ("remove quota v3-8 --zone us-central1-a", 0, "tpu-vm-v5-base"),
            ("remove accelerator-type v3-8", 0, "acceleratorTypes\t-/v3-8\tremoved"),
        ):
            done = tpukit(cloud, "emulator", *words.split())
            assert (done.returncode, said in done.stdout + done.stderr) == (status, True), done
        done = tpukit(cloud, "create", "v3-8", "demo")
        assert done.returncode == 2
        assert "is not offered" in done.stderr


def tpukit(cloud: Emulator, *words: str) -> subprocess.CompletedProcess[str]:
    return warm_tpukit.run(words, env=cloud.env)
