"""Maintenance, reservations, accounts, cancelled operations: what is small and has to be right."""

from __future__ import annotations

import pytest

from emulator.conftest import PLACE
from tpukit.emulator.core.api_errors import ApiError

RESERVATION = {"name": "projects/p/locations/us-central1-a/reservations/r", "size": 32}
KEY = "ssh-rsa AAAA ada"


def nodes(cloud, verb, **given):
    handler = getattr(cloud.service.nodes, verb)
    return handler(cloud.call(path_node="n", version="v2alpha1", **given))


def test_maintenance_makes_a_node_unhealthy_for_a_while(cloud):
    cloud.ready("n")
    nodes(cloud, "simulate_maintenance_event")
    cloud.pass_time(0.2)
    assert cloud.get("n")["health"] == "UNHEALTHY_MAINTENANCE"
    cloud.pass_time(10)
    assert cloud.get("n")["health"] == "HEALTHY"


def test_performing_maintenance_restarts_the_workers_and_ends_it(cloud):
    cloud.ready("n")
    nodes(cloud, "simulate_maintenance_event")
    cloud.pass_time(0.2)
    nodes(cloud, "perform_maintenance")
    assert (cloud.get("n")["state"], cloud.host.booted) == ("RESTARTING", set())
    cloud.pass_time(1)
    row = cloud.get("n")
    assert (row["state"], row["health"], len(cloud.host.booted)) == ("READY", "HEALTHY", 1)


@pytest.mark.parametrize("worker", ["1", "x", "-1", 7])
def test_maintenance_of_a_worker_that_there_is_not_is_refused(cloud, worker):
    cloud.ready("n")
    with pytest.raises(ApiError, match="Invalid worker id"):
        nodes(cloud, "simulate_maintenance_event", body={"workerIds": [worker]})


@pytest.mark.parametrize("verb", ["simulate_maintenance_event", "perform_maintenance"])
def test_maintenance_needs_a_node_that_is_ready(cloud, verb):
    cloud.create("n")
    with pytest.raises(ApiError, match="not supported while in state CREATING"):
        nodes(cloud, verb)


def test_the_methods_of_v2alpha1_are_not_in_v2(api):
    place = "projects/p/locations/us-central1-a"
    assert api.raw("GET", f"/v2/{place}/reservations")[0] == 404
    assert api.call("GET", f"/v2alpha1/{place}/reservations") == (200, {})


def test_a_create_that_is_cancelled_leaves_nothing(cloud):
    started = cloud.create("n")
    call = cloud.call(path_operation=started["name"].rsplit("/", 1)[1])
    assert cloud.service.cancel_operation(call) == {}
    ended = cloud.operation(started)
    assert (ended["error"]["code"], ended["metadata"]["cancelRequested"]) == (1, True)
    cloud.pass_time(10)
    assert cloud.state.nodes == {}
    assert cloud.service.cancel_operation(call) == {}


def test_another_operation_goes_on_although_its_end_is_asked_for(cloud):
    cloud.ready("n")
    started = nodes(cloud, "delete")
    cloud.service.cancel_operation(cloud.call(path_operation=started["name"].rsplit("/", 1)[1]))
    cloud.pass_time(1)
    assert cloud.state.nodes == {}
    assert "response" in cloud.operation(started)


def test_reservations_are_made_by_the_control_plane_and_listed(cloud):
    reservations = cloud.service.reservations
    reservations.add(cloud.call(body=RESERVATION))
    for zone, count in (("us-central1-a", 1), ("-", 1), ("us-central1-b", 0)):
        assert len(reservations.list(cloud.call(zone=zone))["reservations"]) == count


@pytest.mark.parametrize(
    "change", [{"name": "r"}, {"name": 1}, {"size": "x"}, {"size": True}, {"resourceType": 1}]
)
def test_a_reservation_that_is_none_is_refused(cloud, change):
    with pytest.raises(ApiError):
        cloud.service.reservations.add(cloud.call(body={**RESERVATION, **change}))


def test_keys_of_os_login_count_where_it_is_on_and_no_others_do(cloud):
    accounts = cloud.service.accounts
    user = {"path_user": "Ada.Lovelace@example.com"}
    profile = accounts.get_login_profile(cloud.call(**user))
    assert profile["posixAccounts"][0]["username"] == "ada_lovelace_example_com"
    answer = accounts.import_ssh_public_key(cloud.call(**user, body={"key": KEY}))
    assert [entry["key"] for entry in answer["loginProfile"]["sshPublicKeys"].values()] == [KEY]
    metadata = {"enable-oslogin": "TRUE", "ssh-keys": "bob:ssh-rsa BBBB"}
    with_it = cloud.ready("n", body={"metadata": metadata})
    without = cloud.ready("m", body={"metadata": {"ssh-keys": "bob:ssh-rsa BBBB"}})
    assert list(cloud.service.authorized_keys(with_it)) == [("ada_lovelace_example_com", KEY)]
    assert list(cloud.service.authorized_keys(without)) == [("bob", "ssh-rsa BBBB")]


@pytest.mark.parametrize("key", ["", "ssh-rsa", "ssh-rsa A\nssh-rsa B"])
def test_a_key_that_is_none_is_refused(cloud, key):
    with pytest.raises(ApiError):
        cloud.service.accounts.import_ssh_public_key(cloud.call(path_user="u", body={"key": key}))


def test_false_zero_and_empty_fields_are_left_out_as_proto3_prints_them(api):
    body = {
        "acceleratorType": "v3-8",
        "runtimeVersion": "tpu-vm-base",
        "description": "",
        "tags": [],
        "labels": {},
        "metadata": {},
        "schedulingConfig": {"spot": False},
        "networkConfig": {"enableExternalIps": False, "queueCount": 0},
    }
    assert api.call("POST", f"/v2/{PLACE}/nodes?nodeId=n", body)[0] == 200
    node = api.call("GET", f"/v2/{PLACE}/nodes/n")[1]
    assert node["schedulingConfig"] == node["shieldedInstanceConfig"] == {}
    assert node["networkConfig"].keys() == {"network", "subnetwork"}
    assert not {"description", "tags", "labels", "metadata"} & node.keys()
    begun = api.call("GET", f"/v2/{PLACE}/operations")[1]["operations"][0]
    assert (begun["done"], begun["metadata"]["cancelRequested"]) == (False, False)
    # Compute Engine prints them.
    rule = api.call("GET", "/compute/v1/projects/p/global/firewalls/default-allow-ssh")[1]
    assert (rule["disabled"], rule["logConfig"]) == (False, {"enable": False})
