"""Maintenance, reservations, accounts, cancelled operations: what is small and has to be right."""

from __future__ import annotations

import pytest

from tpukit.emulator.errors import ApiError
from tpukit.emulator.state import StateFile

RESERVATION = {"name": "projects/p/locations/us-central1-a/reservations/r", "size": 32}
KEY = "ssh-rsa AAAA ada"


def nodes(world, verb, **given):
    handler = getattr(world.service.nodes, verb)
    return handler(world.call(path_node="n", version="v2alpha1", **given))


def test_maintenance_makes_a_node_unhealthy_for_a_while(world):
    world.ready("n")
    nodes(world, "simulate_maintenance_event")
    world.pass_time(0.2)
    assert world.get("n")["health"] == "UNHEALTHY_MAINTENANCE"
    world.pass_time(10)
    assert world.get("n")["health"] == "HEALTHY"


def test_performing_maintenance_restarts_the_workers_and_ends_it(world):
    world.ready("n")
    nodes(world, "simulate_maintenance_event")
    world.pass_time(0.2)
    nodes(world, "perform_maintenance")
    assert (world.get("n")["state"], world.host.booted) == ("RESTARTING", set())
    world.pass_time(1)
    found = world.get("n")
    assert (found["state"], found["health"], len(world.host.booted)) == ("READY", "HEALTHY", 1)


@pytest.mark.parametrize("worker", ["1", "x", "-1", 7])
def test_maintenance_of_a_worker_that_there_is_not_is_refused(world, worker):
    world.ready("n")
    with pytest.raises(ApiError, match="Invalid worker id"):
        nodes(world, "simulate_maintenance_event", body={"workerIds": [worker]})


@pytest.mark.parametrize("verb", ["simulate_maintenance_event", "perform_maintenance"])
def test_maintenance_needs_a_node_that_is_ready(world, verb):
    world.create("n")
    with pytest.raises(ApiError, match="not supported while in state CREATING"):
        nodes(world, verb)


def test_the_methods_of_v2alpha1_are_not_in_v2(api):
    place = "projects/p/locations/us-central1-a"
    assert api.raw("GET", f"/v2/{place}/reservations")[0] == 404
    assert api.call("GET", f"/v2alpha1/{place}/reservations") == (200, {"reservations": []})


def test_a_create_that_is_cancelled_leaves_nothing(world):
    started = world.create("n")
    call = world.call(path_operation=started["name"].rsplit("/", 1)[1])
    assert world.service.cancel_operation(call) == {}
    ended = world.operation(started)
    assert (ended["error"]["code"], ended["metadata"]["cancelRequested"]) == (1, True)
    world.pass_time(10)
    assert world.state.nodes == {}
    assert world.service.cancel_operation(call) == {}


def test_another_operation_goes_on_although_its_end_is_asked_for(world):
    world.ready("n")
    started = nodes(world, "delete")
    world.service.cancel_operation(world.call(path_operation=started["name"].rsplit("/", 1)[1]))
    world.pass_time(1)
    assert world.state.nodes == {}
    assert "response" in world.operation(started)


def test_reservations_are_made_by_the_control_plane_and_listed(world):
    reservations = world.service.reservations
    reservations.add(world.call(body=RESERVATION))
    for zone, count in (("us-central1-a", 1), ("-", 1), ("us-central1-b", 0)):
        assert len(reservations.list(world.call(zone=zone))["reservations"]) == count


@pytest.mark.parametrize(
    "change", [{"name": "r"}, {"name": 1}, {"size": "x"}, {"size": True}, {"resourceType": 1}]
)
def test_a_reservation_that_is_none_is_refused(world, change):
    with pytest.raises(ApiError):
        world.service.reservations.add(world.call(body={**RESERVATION, **change}))


def test_keys_of_os_login_count_where_it_is_on_and_no_others_do(world):
    accounts = world.service.accounts
    user = {"path_user": "Ada.Lovelace@example.com"}
    profile = accounts.get_login_profile(world.call(**user))
    assert profile["posixAccounts"][0]["username"] == "ada_lovelace_example_com"
    answer = accounts.import_ssh_public_key(world.call(**user, body={"key": KEY}))
    assert [entry["key"] for entry in answer["loginProfile"]["sshPublicKeys"].values()] == [KEY]
    metadata = {"enable-oslogin": "TRUE", "ssh-keys": "bob:ssh-rsa BBBB"}
    with_it = world.ready("n", body={"metadata": metadata})
    without = world.ready("m", body={"metadata": {"ssh-keys": "bob:ssh-rsa BBBB"}})
    assert list(world.service.authorized_keys(with_it)) == [("ada_lovelace_example_com", KEY)]
    assert list(world.service.authorized_keys(without)) == [("bob", "ssh-rsa BBBB")]


@pytest.mark.parametrize("key", [None, "", "ssh-rsa", "ssh-rsa A\nssh-rsa B", 7])
def test_a_key_that_is_none_is_refused(world, key):
    with pytest.raises(ApiError):
        world.service.accounts.import_ssh_public_key(world.call(path_user="u", body={"key": key}))


def test_a_state_file_from_before_queued_resources_is_read(world, tmp_path):
    file = StateFile(tmp_path / "state.json")
    world.ready("n")
    file.save(world.state)
    text = file.path.read_text()
    for name in ("queued_resources", "reservations", "logins"):
        text = text.replace(f',"{name}":{{}}', "")
    assert "logins" not in text
    file.path.write_text(text)
    assert file.load() == world.state


def test_every_collection_of_an_empty_state_is_its_own(tmp_path):
    path = tmp_path / "state.json"
    path.write_text(
        '{"version":1,"clock_offset":0,"nodes":{},"operations":{},"firewalls":{},'
        '"compute_operations":{},"projects":{}}'
    )
    state = StateFile(path).load()
    state.logins["x"] = {"keys": {}}
    assert state.reservations == {}
