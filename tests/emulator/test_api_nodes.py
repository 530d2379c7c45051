from __future__ import annotations

import re

import pytest

from emulator.conftest import EmulatedCloud
from tpukit.emulator.core.api_errors import ApiError, Status
from tpukit.emulator.core.service_context import Views, page
from tpukit.emulator.tpu_service.operations import KEPT
from tpukit.errors import TpukitError


def refusal(cloud, name="n1", **given):
    with pytest.raises(ApiError) as caught:
        cloud.create(name, **given)
    return caught.value.status


def test_a_node_is_creating_until_its_time_has_come_and_then_ready(cloud):
    cloud.create("n1")
    cloud.pass_time(1.9)
    before = cloud.get("n1")
    cloud.pass_time(0.2)
    after = cloud.get("n1")
    assert (before["state"], after["state"]) == ("CREATING", "READY")
    assert "networkEndpoints" not in before
    assert "health" not in before
    assert after["health"] == "HEALTHY"
    assert len(after["networkEndpoints"]) == 1


def test_workers_boot_when_the_node_becomes_ready_and_not_before(cloud):
    cloud.create("n1")
    assert cloud.host.booted == set()
    cloud.pass_time(2)
    assert cloud.host.booted == {"projects/p/locations/us-central1-a/nodes/n1"}


def test_an_operation_ends_with_the_node_and_its_due_time(cloud):
    started = cloud.create("n1")
    assert started["done"] is False
    assert "endTime" not in started["metadata"]
    cloud.pass_time(60)
    ended = cloud.operation(started)
    assert ended["done"] is True
    assert ended["response"]["@type"] == "type.googleapis.com/google.cloud.tpu.v2.Node"
    assert ended["response"]["state"] == "READY"
    assert ended["metadata"]["createTime"] == "2023-11-14T22:13:20.000000Z"
    assert ended["metadata"]["endTime"] == "2023-11-14T22:13:22.000000Z"


@pytest.mark.parametrize("asked", ["v2", "v2alpha1"])
def test_an_operation_is_answered_in_the_version_that_asks(cloud, asked):
    started = cloud.create("n1", version="v2alpha1")
    cloud.pass_time(2)
    seen = cloud.operation(started, version=asked)
    assert seen["metadata"]["apiVersion"] == asked
    assert seen["response"]["@type"].endswith(f"google.cloud.tpu.{asked}.Node")


@pytest.mark.parametrize("asked", ["v2", "v2alpha1"])
def test_metadata_for_google_s_client_is_of_the_version_that_asks(asked):
    cloud = EmulatedCloud(operation_metadata="tpu")
    seen = cloud.operation(cloud.create("n1", version="v2alpha1"), version=asked)
    assert seen["metadata"]["@type"].endswith(f"google.cloud.tpu.{asked}.OperationMetadata")


def test_a_name_that_exists_is_refused_in_every_state(cloud):
    cloud.create("n1")
    assert refusal(cloud).status == "ALREADY_EXISTS"
    cloud.pass_time(2)
    cloud.service.nodes.delete(cloud.call(path_node="n1"))
    assert refusal(cloud).status == "ALREADY_EXISTS"


@pytest.mark.parametrize("name", ["Bad", "1a", "a_b", "a b", "../x", "a-", "a" * 64, "x;rm"])
def test_a_name_that_is_no_rfc_1035_label_is_refused(cloud, name):
    assert refusal(cloud, name).status == "INVALID_ARGUMENT"
    assert cloud.state.nodes == {}


def test_a_type_that_the_zone_has_not_is_refused_in_the_real_words(cloud):
    status = refusal(cloud, body={"acceleratorType": "v4-128"})
    assert status.status == "INVALID_ARGUMENT"
    assert status.message.startswith("Cloud TPU received a bad request. ")
    assert "the accelerator v4-128 was not found in zone us-central1-a [EID: 0x" in status.message


@pytest.mark.parametrize("api_type", ["V3", 4])
def test_a_type_and_topology_name_a_type_as_text_and_as_enum_number(cloud, api_type):
    config = {"type": api_type, "topology": "2x2"}
    cloud.ready("n1", body={"acceleratorType": "", "acceleratorConfig": config})
    assert cloud.get("n1")["acceleratorType"] == "v3-8"
    assert cloud.get("n1")["acceleratorConfig"] == {"type": "V3", "topology": "2x2"}


def test_neither_type_nor_config_means_v2_8(cloud):
    cloud.ready("n1", body={"acceleratorType": None})
    assert cloud.get("n1")["acceleratorType"] == "v2-8"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"acceleratorConfig": {"type": "V3", "topology": "2x2"}}, "only one of"),
        ({"runtimeVersion": "tpu-vm-tf-9.9"}, 'Runtime version "tpu-vm-tf-9.9" was not found'),
        ({"networkConfig": {"network": "other"}}, "networks/other' was not found"),
        ({"networkConfig": {}, "networkConfigs": [{"network": "default"}]}, None),
        ({"networkConfig": {"queueCount": 1}, "networkConfigs": [{}]}, "only one of"),
        ({"networkConfigs": ["default"]}, "Invalid value at 'node.network_configs[0]'"),
        ({"labels": {"Owner": "x"}}, "Invalid label"),
        ({"labels": {"owner": "a b"}}, "Invalid label"),
        ({"labels": {"owner": 1}}, "Invalid value at 'node.labels[0].value' (TYPE_STRING), 1"),
        ({"labels": {f"k{i}": "" for i in range(65)}}, "at most 64 are allowed"),
        ({"tags": ["Tag"]}, "Invalid network tag"),
        ({"tags": "tag"}, "Invalid value at 'node.tags'"),
        ({"metadata": ["a"]}, "Invalid value at 'node.metadata'"),
        ({"acceleratorTipe": "v3-8"}, "Unknown name \"acceleratorTipe\" at 'node'"),
    ],
)
def test_a_body_is_checked_as_the_service_checks_it(cloud, body, words):
    if words is None:
        cloud.create("n1", body=body)
        return
    status = refusal(cloud, body=body)
    assert status.status == "INVALID_ARGUMENT"
    assert words in status.message


def test_fields_that_only_the_alpha_service_knows_pass_there(cloud):
    body = {"autocheckpointEnabled": False, "schedulingConfig": {"provisioningModel": "STANDARD"}}
    cloud.ready("n1", version="v2alpha1", body=body)
    assert cloud.get("n1")["apiVersion"] == "V2_ALPHA1"
    assert refusal(cloud, "n2", body=body).status == "INVALID_ARGUMENT"


def test_snake_case_fields_are_read_as_protobuf_json_reads_them(cloud):
    cloud.ready("n1", body={"runtime_version": "v2-alpha-tpuv6e", "network_config": {}})
    assert cloud.get("n1")["runtimeVersion"] == "v2-alpha-tpuv6e"


def test_an_unknown_zone_is_a_permission_error_in_the_words_that_clients_know(cloud):
    status = refusal(cloud, zone="us-nowhere1-a")
    assert status.status == "PERMISSION_DENIED"
    assert status.message == "Location us-nowhere1-a is not found or access is unauthorized."


@pytest.mark.parametrize("external", [True, False])
def test_a_worker_has_an_external_address_only_where_one_was_asked_for(cloud, external):
    cloud.ready("n1", body={"networkConfig": {"enableExternalIps": external}})
    endpoint = cloud.get("n1")["networkEndpoints"][0]
    assert bool(endpoint["accessConfig"]) is external
    assert endpoint["port"] == 8470


def test_a_slice_has_as_many_endpoints_as_its_type_has_workers(cloud):
    cloud.ready("n1", zone="us-central1-a", body={"acceleratorType": "v2-32"})
    addresses = [endpoint["ipAddress"] for endpoint in cloud.get("n1")["networkEndpoints"]]
    assert len(set(addresses)) == 4


def test_a_listing_is_paged_without_loss_or_repetition_while_nodes_go(cloud):
    for number in range(7):
        cloud.create(f"n{number}")
    first = cloud.service.nodes.list(cloud.call(query_pageSize="3"))
    del cloud.state.nodes["projects/p/locations/us-central1-a/nodes/n2"]
    token = first["nextPageToken"]
    second = cloud.service.nodes.list(cloud.call(query_pageSize="9", query_pageToken=token))
    names = [node["name"].rsplit("/", 1)[1] for node in first["nodes"] + second["nodes"]]
    assert names == [f"n{number}" for number in range(7)]
    assert "nextPageToken" not in second


def test_a_page_reads_its_own_documents_alone(cloud):
    """A list of 10,000 nodes has 20 pages: each of them would read all 10,000."""
    read: list[str] = []
    names = [f"n{number}" for number in range(9, 0, -1)]
    documents = Views(names, lambda name: read.append(name) or {"name": name})
    shown, token = page(cloud.call(), documents, "2", 500)
    assert read == ["n1", "n2"]
    shown += page(cloud.call(query_pageToken=token), documents, "3", 500)[0]
    assert read == [document["name"] for document in shown] == ["n1", "n2", "n3", "n4", "n5"]


@pytest.mark.parametrize("query", [{"query_pageToken": "?"}, {"query_pageSize": "-1"}])
def test_a_page_that_makes_no_sense_is_refused(cloud, query):
    with pytest.raises(ApiError) as caught:
        cloud.service.nodes.list(cloud.call(**query))
    assert caught.value.status.status == "INVALID_ARGUMENT"


def test_the_zone_dash_lists_every_zone_of_this_project_alone(cloud):
    cloud.create("n1")
    cloud.create("n2", zone="europe-west4-a")
    cloud.create("n3", path_project="other")
    names = [n["name"] for n in cloud.service.nodes.list(cloud.call(zone="-"))["nodes"]]
    assert [name.rsplit("/", 1)[1] for name in names] == ["n2", "n1"]


def test_an_update_shows_once_its_operation_is_done(cloud):
    cloud.ready("n1", body={"labels": {"a": "1"}})
    body = {"name": "ignored", "labels": {"b": "2"}, "metadata": {"k": "v"}, "state": "STOPPED"}
    call = cloud.call(path_node="n1", query_updateMask="labels,metadata", body=body)
    operation = cloud.service.nodes.patch(call)
    assert cloud.get("n1")["labels"] == {"a": "1"}
    cloud.pass_time(1)
    assert cloud.get("n1")["labels"] == {"b": "2"}
    assert cloud.get("n1")["metadata"] == {"k": "v"}
    assert cloud.get("n1")["state"] == "READY"
    assert cloud.operation(operation)["response"]["name"].endswith("/nodes/n1")


def test_the_mask_decides_what_changes_and_an_absent_field_is_cleared(cloud):
    cloud.ready("n1", body={"labels": {"a": "1"}, "tags": ["t"], "description": "d"})
    call = cloud.call(path_node="n1", query_updateMask="tags", body={"labels": {"b": "2"}})
    cloud.service.nodes.patch(call)
    cloud.pass_time(1)
    assert "tags" not in cloud.get("n1")
    assert cloud.get("n1")["labels"] == {"a": "1"}


def test_an_external_address_can_be_given_up(cloud):
    cloud.ready("n1", body={"networkConfig": {"enableExternalIps": True}})
    mask = "network_config.enable_external_ips"
    body = {"networkConfig": {"enableExternalIps": False}}
    cloud.service.nodes.patch(cloud.call(path_node="n1", query_updateMask=mask, body=body))
    cloud.pass_time(1)
    assert cloud.get("n1")["networkEndpoints"][0]["accessConfig"] == {}


@pytest.mark.parametrize("mask", ["", "state", "labels,acceleratorType"])
def test_a_mask_of_fields_that_cannot_change_is_refused(cloud, mask):
    cloud.ready("n1")
    with pytest.raises(ApiError) as caught:
        cloud.service.nodes.patch(cloud.call(path_node="n1", query_updateMask=mask))
    assert caught.value.status.status == "INVALID_ARGUMENT"


def test_a_second_update_during_the_first_is_aborted(cloud):
    cloud.ready("n1")
    call = cloud.call(path_node="n1", query_updateMask="labels", body={"labels": {}})
    cloud.service.nodes.patch(call)
    with pytest.raises(ApiError) as caught:
        cloud.service.nodes.patch(call)
    assert (caught.value.status.status, caught.value.status.http_code) == ("ABORTED", 409)


def test_a_preempted_node_can_be_neither_updated_nor_started(cloud):
    name = cloud.ready("n1")
    cloud.service.apply_event(name, "preempt")
    assert cloud.get("n1")["state"] == "PREEMPTED"
    assert cloud.host.booted == set()
    call = cloud.call(path_node="n1", query_updateMask="labels")
    for verb, method in (("update", "patch"), ("start", "start"), ("stop", "stop")):
        with pytest.raises(ApiError) as caught:
            getattr(cloud.service.nodes, method)(call)
        assert f"{verb} is not supported while in state PREEMPTED" in str(caught.value)


def test_a_deleted_node_is_deleting_and_silent_and_then_not_found(cloud):
    name = cloud.ready("n1")
    operation = cloud.service.nodes.delete(cloud.call(path_node="n1"))
    assert cloud.get("n1")["state"] == "DELETING"
    assert cloud.host.booted == set()
    with pytest.raises(ApiError) as again:
        cloud.service.nodes.delete(cloud.call(path_node="n1"))
    assert again.value.status.status == "ABORTED"
    cloud.pass_time(1)
    with pytest.raises(ApiError) as caught:
        cloud.get("n1")
    assert caught.value.status.message == f"Resource '{name}' was not found"
    ended = cloud.operation(operation)
    assert ended["response"] == {"@type": "type.googleapis.com/google.protobuf.Empty"}


def test_a_delete_during_the_create_ends_the_create_as_cancelled(cloud):
    created = cloud.create("n1")
    cloud.service.nodes.delete(cloud.call(path_node="n1"))
    cloud.pass_time(10)
    assert cloud.operation(created)["error"]["code"] == 1
    assert cloud.state.nodes == {}
    assert cloud.host.booted == set()


def test_a_stopped_node_starts_again_as_the_same_machine(cloud):
    cloud.ready("n1")
    before = cloud.get("n1")
    cloud.service.nodes.stop(cloud.call(path_node="n1"))
    assert (cloud.get("n1")["state"], cloud.host.booted) == ("STOPPING", set())
    cloud.pass_time(1)
    assert cloud.get("n1")["state"] == "STOPPED"
    cloud.service.nodes.start(cloud.call(path_node="n1"))
    assert cloud.get("n1")["state"] == "STARTING"
    cloud.pass_time(2)
    assert cloud.get("n1") == before
    assert len(cloud.host.booted) == 1


def test_a_slice_of_several_workers_cannot_be_stopped(cloud):
    cloud.ready("n1", body={"acceleratorType": "v2-32"})
    with pytest.raises(ApiError) as caught:
        cloud.service.nodes.stop(cloud.call(path_node="n1"))
    assert caught.value.status.status == "INVALID_ARGUMENT"
    assert cloud.get("n1")["state"] == "READY"


def attributes(cloud, **body):
    call = cloud.call(path_node="n1", body=body)
    answer = cloud.service.nodes.get_guest_attributes(call)["guestAttributes"]
    return [
        {
            f"{item['namespace']}/{item['key']}": item["value"]
            for item in entry["queryValue"]["items"]
        }
        for entry in answer
    ]


def test_each_worker_publishes_its_own_host_key_and_name_once_it_has_booted(cloud):
    cloud.create("n1", body={"acceleratorType": "v2-32"})
    assert attributes(cloud) == [{}, {}, {}, {}]
    cloud.pass_time(2)
    found = attributes(cloud, workerIds=[""])
    assert len({entry["hostkeys/ssh-ed25519"] for entry in found}) == 4
    assert all(entry["hostkeys/ssh-ed25519"].startswith("AAAA") for entry in found)
    assert attributes(cloud, workerIds=["2"]) == [found[2]]


def test_the_host_name_is_published_as_a_real_tpu_vm_does_and_says_nothing_of_the_node_id(cloud):
    cloud.ready("n1", body={"acceleratorType": "v2-32"})
    for index, published in enumerate(attributes(cloud)):
        assert sorted(published) == ["deviceInfo/hostname", "hostkeys/ssh-ed25519"]
        assert re.fullmatch(rf"t1v-n-[0-9a-f]{{8}}-w-{index}", published["deviceInfo/hostname"])
        suffix = published["deviceInfo/hostname"].split("-")[2]
        assert suffix not in (cloud.get("n1")["id"], f"{int(cloud.get('n1')['id']):x}"[-8:])


def test_a_query_path_selects_a_namespace_or_a_key(cloud):
    cloud.ready("n1")
    assert list(attributes(cloud, queryPath="hostkeys/")[0]) == ["hostkeys/ssh-ed25519"]
    assert list(attributes(cloud, queryPath="deviceInfo/hostname")[0]) == ["deviceInfo/hostname"]
    assert attributes(cloud, queryPath="nothing") == [{}]


@pytest.mark.parametrize("worker", ["1", "-1", "x"])
def test_a_worker_that_does_not_exist_has_no_attributes(cloud, worker):
    cloud.ready("n1")
    with pytest.raises(ApiError) as caught:
        attributes(cloud, workerIds=[worker])
    assert caught.value.status.status == "INVALID_ARGUMENT"


def test_a_port_is_published_only_where_it_is_not_22(cloud):
    cloud.ready("n1")
    assert "ssh/port" not in attributes(cloud)[0]
    other = type(cloud)(port=40022)
    other.ready("n1")
    assert attributes(other)[0]["ssh/port"] == "40022"


def test_a_create_that_is_to_fail_is_accepted_and_leaves_nothing(cloud):
    failure = Status("RESOURCE_EXHAUSTED", "no more capacity")
    operation = cloud.create("n1", failure=failure)
    assert cloud.get("n1")["state"] == "CREATING"
    cloud.pass_time(2)
    assert cloud.operation(operation)["error"] == {"code": 8, "message": "no more capacity"}
    assert cloud.state.nodes == {}
    assert cloud.host.booted == set()


@pytest.mark.parametrize("kind", [TpukitError, OSError, RuntimeError])
def test_workers_that_cannot_start_fail_the_create(cloud, kind):
    """Python says with a RuntimeError that no thread is left."""

    def refuse(node, workers):
        raise kind("no address is free")

    operation = cloud.create("n1")
    cloud.host.boot = refuse
    cloud.pass_time(2)
    error = cloud.operation(operation)["error"]
    assert (error["code"], "no address is free" in error["message"]) == (13, True)
    assert cloud.get("n1")["state"] == "TERMINATED"


@pytest.mark.parametrize(("free", "state"), [(True, "READY"), (False, "TERMINATED")])
def test_workers_whose_address_was_taken_come_back_at_another_where_there_is_one(
    cloud, caplog, free, state
):
    cloud.ready("n1")
    before, boot = cloud.get("n1")["networkEndpoints"], cloud.host.boot

    def refuse(node, workers):
        if not free or workers[0].address == before[0]["ipAddress"]:
            raise OSError(98, "Address already in use")
        boot(node, workers)

    cloud.host.booted.clear()
    cloud.host.boot = refuse
    cloud.service.resume()
    assert cloud.get("n1")["state"] == state
    assert cloud.get("n1")["networkEndpoints"] != before
    assert bool(cloud.host.booted) == free
    assert "Address already in use" in caplog.text


def test_workers_that_cannot_be_removed_fail_the_delete_which_can_be_repeated(cloud):
    def refuse(node):
        raise OSError("busy")

    cloud.ready("n1")
    obey, cloud.host.discard = cloud.host.discard, refuse
    operation = cloud.service.nodes.delete(cloud.call(path_node="n1"))
    cloud.pass_time(1)
    assert cloud.operation(operation)["error"]["code"] == 13
    assert cloud.get("n1")["state"] == "TERMINATED"
    cloud.host.discard = obey
    cloud.service.nodes.delete(cloud.call(path_node="n1"))
    cloud.pass_time(1)
    assert cloud.state.nodes == {}


def test_operations_are_listed_by_zone_and_forgotten_when_deleted(cloud):
    operation = cloud.create("n1")
    name = operation["name"].rsplit("/", 1)[1]
    call = cloud.call(path_operation=name)
    listed = cloud.service.operations.list(cloud.call())["operations"]
    assert [entry["name"] for entry in listed] == [operation["name"]]
    assert cloud.service.operations.list(cloud.call(zone="us-central1-b"))["operations"] == []
    with pytest.raises(ApiError) as running:
        cloud.service.operations.delete(call)
    assert running.value.status.status == "FAILED_PRECONDITION"
    cloud.pass_time(2)
    cloud.service.operations.delete(call)
    with pytest.raises(ApiError) as gone:
        cloud.service.operations.get(call)
    assert gone.value.status.status == "NOT_FOUND"


def test_authorized_keys_come_from_the_node_and_then_from_its_project(cloud):
    keys = "alice:ssh-ed25519 AAAA alice\n\nnonsense\nbob:ssh-rsa BBBB\n"
    name = cloud.ready("n1", body={"metadata": {"ssh-keys": keys}})
    cloud.state.projects["p"] = {"items": [{"key": "ssh-keys", "value": "eve:ssh-rsa CCCC"}]}
    own = [("alice", "ssh-ed25519 AAAA alice"), ("bob", "ssh-rsa BBBB")]
    assert cloud.service.authorized_keys(name) == [*own, ("eve", "ssh-rsa CCCC")]
    assert cloud.service.authorized_keys(name + "x") == []
    blocked = cloud.ready("n2", body={"metadata": {"block-project-ssh-keys": "true"}})
    assert cloud.service.authorized_keys(blocked) == []


def test_zones_types_and_runtime_versions_are_listed_and_described(cloud):
    catalogue = cloud.service.catalogue
    zones = [zone["locationId"] for zone in catalogue.list_locations(cloud.call())["locations"]]
    assert {"us-central1-a", "us-central2-b", "europe-west4-a"} <= set(zones)
    types = catalogue.list_types(cloud.call(zone="us-central2-b"))["acceleratorTypes"]
    generations = {entry["type"].split("-")[0] for entry in types}
    assert "v4" in generations
    assert "v3" not in generations
    v3 = catalogue.get_type(cloud.call(path_type="v3-8"))
    assert v3["acceleratorConfigs"] == [{"type": "V3", "topology": "2x2"}]
    versions = catalogue.list_runtime_versions(cloud.call())["runtimeVersions"]
    assert "tpu-ubuntu2204-base" in [entry["version"] for entry in versions]
    for method, wrong in (("get_type", "path_type"), ("get_runtime_version", "path_runtime")):
        with pytest.raises(ApiError) as caught:
            getattr(catalogue, method)(cloud.call(**{wrong: "none"}))
        assert caught.value.status.status == "NOT_FOUND"


def test_every_default_runtime_version_of_a_generation_is_known(cloud):
    from tpukit.accelerators import all_types

    assert {kind.runtime_version for kind in all_types()} <= set(
        cloud.service.catalogue.runtime_versions
    )


def test_operations_that_ended_are_forgotten_beyond_a_number_the_oldest_first(cloud):
    operations, records = cloud.service.operations, cloud.state.operations
    target = "projects/p/locations/us-central1-a/nodes/n"
    pending = operations.begin(cloud.call(), "update", target, 1e9)["name"]
    names = []
    for _ in range(KEPT + 2):
        names.append(operations.begin(cloud.call(), "update", target, 0)["name"])
        operations.finish(names[-1], None)
    operations.begin(cloud.call(), "update", target, 1e9)
    assert [name for name in names if name in records] == names[2:]
    assert pending in records
