from __future__ import annotations

import pytest

from tpukit.emulator.errors import ApiError, Status
from tpukit.errors import TpukitError


def refusal(world, name="n1", **given):
    with pytest.raises(ApiError) as caught:
        world.create(name, **given)
    return caught.value.status


def test_a_node_is_creating_until_its_time_has_come_and_then_ready(world):
    world.create("n1")
    world.pass_time(1.9)
    before = world.get("n1")
    world.pass_time(0.2)
    after = world.get("n1")
    assert (before["state"], after["state"]) == ("CREATING", "READY")
    assert "networkEndpoints" not in before
    assert "health" not in before
    assert after["health"] == "HEALTHY"
    assert len(after["networkEndpoints"]) == 1


def test_workers_boot_when_the_node_becomes_ready_and_not_before(world):
    world.create("n1")
    assert world.host.booted == set()
    world.pass_time(2)
    assert world.host.booted == {"projects/p/locations/us-central1-a/nodes/n1"}


def test_an_operation_ends_with_the_node_and_its_due_time(world):
    started = world.create("n1")
    assert started["done"] is False
    assert "endTime" not in started["metadata"]
    world.pass_time(60)
    ended = world.operation(started)
    assert ended["done"] is True
    assert ended["response"]["@type"] == "type.googleapis.com/google.cloud.tpu.v2.Node"
    assert ended["response"]["state"] == "READY"
    assert ended["metadata"]["createTime"] == "2023-11-14T22:13:20.000000Z"
    assert ended["metadata"]["endTime"] == "2023-11-14T22:13:22.000000Z"


def test_an_operation_remembers_its_api_version_whoever_asks(world):
    started = world.create("n1", version="v2alpha1")
    world.pass_time(2)
    seen = world.operation(started, version="v2")
    assert seen["metadata"]["@type"].endswith("google.cloud.tpu.v2alpha1.OperationMetadata")
    assert seen["response"]["@type"].endswith("google.cloud.tpu.v2alpha1.Node")


def test_a_name_that_exists_is_refused_in_every_state(world):
    world.create("n1")
    assert refusal(world).status == "ALREADY_EXISTS"
    world.pass_time(2)
    world.service.nodes.delete(world.call(path_node="n1"))
    assert refusal(world).status == "ALREADY_EXISTS"


@pytest.mark.parametrize("name", ["Bad", "1a", "a_b", "a b", "../x", "a-", "a" * 64, "x;rm"])
def test_a_name_that_is_no_rfc_1035_label_is_refused(world, name):
    assert refusal(world, name).status == "INVALID_ARGUMENT"
    assert world.state.nodes == {}


def test_a_type_that_the_zone_has_not_is_refused_in_the_real_words(world):
    status = refusal(world, body={"acceleratorType": "v4-128"})
    assert status.status == "INVALID_ARGUMENT"
    assert status.message.startswith("Cloud TPU received a bad request. ")
    assert "the accelerator v4-128 was not found in zone us-central1-a [EID: 0x" in status.message


@pytest.mark.parametrize("api_type", ["V3", 4])
def test_a_type_and_topology_name_a_type_as_text_and_as_enum_number(world, api_type):
    config = {"type": api_type, "topology": "2x2"}
    world.ready("n1", body={"acceleratorType": "", "acceleratorConfig": config})
    assert world.get("n1")["acceleratorType"] == "v3-8"
    assert world.get("n1")["acceleratorConfig"] == {"type": "V3", "topology": "2x2"}


def test_neither_type_nor_config_means_v2_8(world):
    world.ready("n1", body={"acceleratorType": None})
    assert world.get("n1")["acceleratorType"] == "v2-8"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"acceleratorConfig": {"type": "V3", "topology": "2x2"}}, "only one of"),
        ({"runtimeVersion": "tpu-vm-tf-9.9"}, 'Runtime version "tpu-vm-tf-9.9" was not found'),
        ({"networkConfig": {"network": "other"}}, "networks/other' was not found"),
        ({"networkConfig": {}, "networkConfigs": [{"network": "default"}]}, None),
        ({"networkConfig": {"queueCount": 1}, "networkConfigs": [{}]}, "only one of"),
        ({"networkConfigs": ["default"]}, "Invalid value at 'node.networkConfigs'"),
        ({"labels": {"Owner": "x"}}, "Invalid label"),
        ({"labels": {"owner": "a b"}}, "Invalid label"),
        ({"labels": {"owner": 1}}, "Invalid value at 'node.labels.owner'"),
        ({"labels": {f"k{i}": "" for i in range(65)}}, "at most 64 labels"),
        ({"tags": ["Tag"]}, "Invalid network tag"),
        ({"tags": "tag"}, "Invalid value at 'node.tags'"),
        ({"metadata": ["a"]}, "Invalid value at 'node.metadata'"),
        ({"acceleratorTipe": "v3-8"}, "Unknown name \"acceleratorTipe\" at 'node'"),
    ],
)
def test_a_body_is_checked_as_the_service_checks_it(world, body, words):
    if words is None:
        world.create("n1", body=body)
        return
    status = refusal(world, body=body)
    assert status.status == "INVALID_ARGUMENT"
    assert words in status.message


def test_fields_that_only_the_alpha_service_knows_pass_there(world):
    body = {"autocheckpointEnabled": False, "schedulingConfig": {"provisioningModel": "STANDARD"}}
    world.ready("n1", version="v2alpha1", body=body)
    assert world.get("n1")["apiVersion"] == "V2_ALPHA1"
    assert refusal(world, "n2", body=body).status == "INVALID_ARGUMENT"


def test_snake_case_fields_are_read_as_protobuf_json_reads_them(world):
    world.ready("n1", body={"runtime_version": "v2-alpha-tpuv6e", "network_config": {}})
    assert world.get("n1")["runtimeVersion"] == "v2-alpha-tpuv6e"


def test_an_unknown_zone_is_a_permission_error_with_its_reason(world):
    status = refusal(world, zone="us-nowhere1-a")
    assert status.status == "PERMISSION_DENIED"
    assert status.message == "Permission denied on 'locations/us-nowhere1-a' (or it may not exist)."
    assert status.details[0]["reason"] == "LOCATION_POLICY_VIOLATED"


@pytest.mark.parametrize("external", [True, False])
def test_a_worker_has_an_external_address_only_where_one_was_asked_for(world, external):
    world.ready("n1", body={"networkConfig": {"enableExternalIps": external}})
    endpoint = world.get("n1")["networkEndpoints"][0]
    assert ("accessConfig" in endpoint) is external
    assert endpoint["port"] == 8470


def test_a_slice_has_as_many_endpoints_as_its_type_has_workers(world):
    world.ready("n1", zone="us-central1-a", body={"acceleratorType": "v2-32"})
    addresses = [endpoint["ipAddress"] for endpoint in world.get("n1")["networkEndpoints"]]
    assert len(set(addresses)) == 4


def test_a_listing_is_paged_without_loss_or_repetition_while_nodes_go(world):
    for number in range(7):
        world.create(f"n{number}")
    first = world.service.nodes.list(world.call(query_pageSize="3"))
    del world.state.nodes["projects/p/locations/us-central1-a/nodes/n2"]
    token = first["nextPageToken"]
    second = world.service.nodes.list(world.call(query_pageSize="9", query_pageToken=token))
    names = [node["name"].rsplit("/", 1)[1] for node in first["nodes"] + second["nodes"]]
    assert names == [f"n{number}" for number in range(7)]
    assert "nextPageToken" not in second


@pytest.mark.parametrize("query", [{"query_pageToken": "?"}, {"query_pageSize": "-1"}])
def test_a_page_that_makes_no_sense_is_refused(world, query):
    with pytest.raises(ApiError) as caught:
        world.service.nodes.list(world.call(**query))
    assert caught.value.status.status == "INVALID_ARGUMENT"


def test_the_zone_dash_lists_every_zone_of_this_project_alone(world):
    world.create("n1")
    world.create("n2", zone="europe-west4-a")
    world.create("n3", path_project="other")
    names = [n["name"] for n in world.service.nodes.list(world.call(zone="-"))["nodes"]]
    assert [name.rsplit("/", 1)[1] for name in names] == ["n2", "n1"]


def test_an_update_shows_once_its_operation_is_done(world):
    world.ready("n1", body={"labels": {"a": "1"}})
    body = {"name": "ignored", "labels": {"b": "2"}, "metadata": {"k": "v"}, "state": "STOPPED"}
    call = world.call(path_node="n1", query_updateMask="labels,metadata", body=body)
    operation = world.service.nodes.patch(call)
    assert world.get("n1")["labels"] == {"a": "1"}
    world.pass_time(1)
    assert world.get("n1")["labels"] == {"b": "2"}
    assert world.get("n1")["metadata"] == {"k": "v"}
    assert world.get("n1")["state"] == "READY"
    assert world.operation(operation)["response"]["name"].endswith("/nodes/n1")


def test_the_mask_decides_what_changes_and_an_absent_field_is_cleared(world):
    world.ready("n1", body={"labels": {"a": "1"}, "tags": ["t"], "description": "d"})
    call = world.call(path_node="n1", query_updateMask="tags", body={"labels": {"b": "2"}})
    world.service.nodes.patch(call)
    world.pass_time(1)
    assert "tags" not in world.get("n1")
    assert world.get("n1")["labels"] == {"a": "1"}


def test_an_external_address_can_be_given_up(world):
    world.ready("n1", body={"networkConfig": {"enableExternalIps": True}})
    mask = "network_config.enable_external_ips"
    body = {"networkConfig": {"enableExternalIps": False}}
    world.service.nodes.patch(world.call(path_node="n1", query_updateMask=mask, body=body))
    world.pass_time(1)
    assert "accessConfig" not in world.get("n1")["networkEndpoints"][0]


@pytest.mark.parametrize("mask", ["", "state", "labels,acceleratorType"])
def test_a_mask_of_fields_that_cannot_change_is_refused(world, mask):
    world.ready("n1")
    with pytest.raises(ApiError) as caught:
        world.service.nodes.patch(world.call(path_node="n1", query_updateMask=mask))
    assert caught.value.status.status == "INVALID_ARGUMENT"


def test_a_second_update_during_the_first_is_aborted(world):
    world.ready("n1")
    call = world.call(path_node="n1", query_updateMask="labels", body={"labels": {}})
    world.service.nodes.patch(call)
    with pytest.raises(ApiError) as caught:
        world.service.nodes.patch(call)
    assert (caught.value.status.status, caught.value.status.http_code) == ("ABORTED", 409)


def test_a_preempted_node_can_be_neither_updated_nor_started(world):
    name = world.ready("n1")
    world.service.nodes.preempt(name)
    assert world.get("n1")["state"] == "PREEMPTED"
    assert world.host.booted == set()
    call = world.call(path_node="n1", query_updateMask="labels")
    for verb, method in (("update", "patch"), ("start", "start"), ("stop", "stop")):
        with pytest.raises(ApiError) as caught:
            getattr(world.service.nodes, method)(call)
        assert f"{verb} is not supported while in state PREEMPTED" in str(caught.value)


def test_a_deleted_node_is_deleting_and_silent_and_then_not_found(world):
    name = world.ready("n1")
    operation = world.service.nodes.delete(world.call(path_node="n1"))
    assert world.get("n1")["state"] == "DELETING"
    assert world.host.booted == set()
    with pytest.raises(ApiError) as again:
        world.service.nodes.delete(world.call(path_node="n1"))
    assert again.value.status.status == "ABORTED"
    world.pass_time(1)
    with pytest.raises(ApiError) as caught:
        world.get("n1")
    assert caught.value.status.message == f"Resource '{name}' was not found"
    ended = world.operation(operation)
    assert ended["response"] == {"@type": "type.googleapis.com/google.protobuf.Empty"}


def test_a_delete_during_the_create_ends_the_create_as_cancelled(world):
    created = world.create("n1")
    world.service.nodes.delete(world.call(path_node="n1"))
    world.pass_time(10)
    assert world.operation(created)["error"]["code"] == 1
    assert world.state.nodes == {}
    assert world.host.booted == set()


def test_a_stopped_node_starts_again_as_the_same_machine(world):
    world.ready("n1")
    before = world.get("n1")
    world.service.nodes.stop(world.call(path_node="n1"))
    assert (world.get("n1")["state"], world.host.booted) == ("STOPPING", set())
    world.pass_time(1)
    assert world.get("n1")["state"] == "STOPPED"
    world.service.nodes.start(world.call(path_node="n1"))
    assert world.get("n1")["state"] == "STARTING"
    world.pass_time(2)
    assert world.get("n1") == before
    assert len(world.host.booted) == 1


def test_a_slice_of_several_workers_cannot_be_stopped(world):
    world.ready("n1", body={"acceleratorType": "v2-32"})
    with pytest.raises(ApiError) as caught:
        world.service.nodes.stop(world.call(path_node="n1"))
    assert caught.value.status.status == "INVALID_ARGUMENT"
    assert world.get("n1")["state"] == "READY"


def attributes(world, **body):
    call = world.call(path_node="n1", body=body)
    answer = world.service.nodes.get_guest_attributes(call)["guestAttributes"]
    return [
        {
            f"{item['namespace']}/{item['key']}": item["value"]
            for item in entry["queryValue"]["items"]
        }
        for entry in answer
    ]


def test_each_worker_publishes_its_own_host_key_and_name_once_it_has_booted(world):
    world.create("n1", body={"acceleratorType": "v2-32"})
    assert attributes(world) == [{}, {}, {}, {}]
    world.pass_time(2)
    found = attributes(world, workerIds=[""])
    assert len({entry["hostkeys/ssh-ed25519"] for entry in found}) == 4
    assert all(entry["hostkeys/ssh-ed25519"].startswith("AAAA") for entry in found)
    assert [entry["guestInventory/Hostname"][-4:] for entry in found] == [
        "-w-0",
        "-w-1",
        "-w-2",
        "-w-3",
    ]
    assert attributes(world, workerIds=["2"]) == [found[2]]


def test_a_query_path_selects_a_namespace_or_a_key(world):
    world.ready("n1")
    assert list(attributes(world, queryPath="hostkeys/")[0]) == ["hostkeys/ssh-ed25519"]
    assert list(attributes(world, queryPath="guestInventory/Hostname")[0]) == [
        "guestInventory/Hostname"
    ]
    assert attributes(world, queryPath="nothing") == [{}]


@pytest.mark.parametrize("worker", ["1", "-1", "x"])
def test_a_worker_that_does_not_exist_has_no_attributes(world, worker):
    world.ready("n1")
    with pytest.raises(ApiError) as caught:
        attributes(world, workerIds=[worker])
    assert caught.value.status.status == "INVALID_ARGUMENT"


def test_a_port_is_published_only_where_it_is_not_22(world):
    world.ready("n1")
    assert "ssh/port" not in attributes(world)[0]
    other = type(world)(port=40022)
    other.ready("n1")
    assert attributes(other)[0]["ssh/port"] == "40022"


def test_a_create_that_is_to_fail_is_accepted_and_leaves_nothing(world):
    failure = Status("RESOURCE_EXHAUSTED", "no more capacity")
    operation = world.create("n1", failure=failure)
    assert world.get("n1")["state"] == "CREATING"
    world.pass_time(2)
    assert world.operation(operation)["error"] == {"code": 8, "message": "no more capacity"}
    assert world.state.nodes == {}
    assert world.host.booted == set()


def test_workers_that_cannot_start_fail_the_create(world):
    def refuse(node, workers):
        raise TpukitError("no address is free")

    operation = world.create("n1")
    world.host.boot = refuse
    world.pass_time(2)
    error = world.operation(operation)["error"]
    assert (error["code"], "no address is free" in error["message"]) == (13, True)
    assert world.get("n1")["state"] == "TERMINATED"


def test_workers_that_cannot_be_removed_fail_the_delete_which_can_be_repeated(world):
    def refuse(node):
        raise OSError("busy")

    world.ready("n1")
    obey, world.host.discard = world.host.discard, refuse
    operation = world.service.nodes.delete(world.call(path_node="n1"))
    world.pass_time(1)
    assert world.operation(operation)["error"]["code"] == 13
    assert world.get("n1")["state"] == "TERMINATED"
    world.host.discard = obey
    world.service.nodes.delete(world.call(path_node="n1"))
    world.pass_time(1)
    assert world.state.nodes == {}


def test_operations_are_listed_by_zone_and_forgotten_when_deleted(world):
    operation = world.create("n1")
    name = operation["name"].rsplit("/", 1)[1]
    call = world.call(path_operation=name)
    listed = world.service.operations.list(world.call())["operations"]
    assert [entry["name"] for entry in listed] == [operation["name"]]
    assert world.service.operations.list(world.call(zone="us-central1-b"))["operations"] == []
    with pytest.raises(ApiError) as running:
        world.service.operations.delete(call)
    assert running.value.status.status == "FAILED_PRECONDITION"
    world.pass_time(2)
    world.service.operations.delete(call)
    with pytest.raises(ApiError) as gone:
        world.service.operations.get(call)
    assert gone.value.status.status == "NOT_FOUND"


def test_authorized_keys_come_from_the_node_and_then_from_its_project(world):
    keys = "alice:ssh-ed25519 AAAA alice\n\nnonsense\nbob:ssh-rsa BBBB\n"
    name = world.ready("n1", body={"metadata": {"ssh-keys": keys}})
    world.state.projects["p"] = {"items": [{"key": "ssh-keys", "value": "eve:ssh-rsa CCCC"}]}
    own = [("alice", "ssh-ed25519 AAAA alice"), ("bob", "ssh-rsa BBBB")]
    assert world.service.authorized_keys(name) == [*own, ("eve", "ssh-rsa CCCC")]
    assert world.service.authorized_keys(name + "x") == []
    blocked = world.ready("n2", body={"metadata": {"block-project-ssh-keys": "true"}})
    assert world.service.authorized_keys(blocked) == []


def test_zones_types_and_runtime_versions_are_listed_and_described(world):
    catalogue = world.service.catalogue
    zones = [zone["locationId"] for zone in catalogue.list_locations(world.call())["locations"]]
    assert {"us-central1-a", "us-central2-b", "europe-west4-a"} <= set(zones)
    types = catalogue.list_types(world.call(zone="us-central2-b"))["acceleratorTypes"]
    generations = {entry["type"].split("-")[0] for entry in types}
    assert "v4" in generations
    assert "v3" not in generations
    v3 = catalogue.get_type(world.call(path_type="v3-8"))
    assert v3["acceleratorConfigs"] == [{"type": "V3", "topology": "2x2"}]
    versions = catalogue.list_runtime_versions(world.call())["runtimeVersions"]
    assert "tpu-ubuntu2204-base" in [entry["version"] for entry in versions]
    for method, wrong in (("get_type", "path_type"), ("get_runtime_version", "path_runtime")):
        with pytest.raises(ApiError) as caught:
            getattr(catalogue, method)(world.call(**{wrong: "none"}))
        assert caught.value.status.status == "NOT_FOUND"


def test_every_default_runtime_version_of_a_generation_is_known(world):
    from tpukit.accelerators import all_types
    from tpukit.emulator.catalogue import RUNTIME_VERSIONS

    assert {kind.runtime_version for kind in all_types()} <= set(RUNTIME_VERSIONS)
