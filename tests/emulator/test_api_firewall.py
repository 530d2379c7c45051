from __future__ import annotations

import pytest

from emulator.conftest import read_body
from tpukit.emulator.core.api_errors import ApiError

SSH = {"allowed": [{"IPProtocol": "tcp", "ports": ["22"]}], "sourceRanges": ["203.0.113.7/32"]}
NETWORK = "http://127.0.0.1:9/compute/v1/projects/p/global/networks/default"


def insert(cloud, name="r1", **body):
    given = read_body("compute firewalls", {"name": name, **SSH, **body})
    cloud.service.firewalls.insert(cloud.global_call(body=given))


def get(cloud, name="r1"):
    return cloud.service.firewalls.get(cloud.global_call(path_name=name))


def names(cloud, **query):
    answer = cloud.service.firewalls.list(cloud.global_call(**query))
    return [rule["name"] for rule in answer.get("items", [])]


@pytest.fixture
def node(cloud):
    return cloud.ready("n1", body={"tags": ["tpu"]})


def test_nothing_is_admitted_without_a_rule(cloud, node):
    assert not cloud.service.admits(node, "203.0.113.7", 22)


def test_nothing_is_admitted_to_a_node_that_does_not_exist(cloud, node):
    insert(cloud)
    assert not cloud.service.admits(node + "x", "203.0.113.7", 22)


@pytest.mark.parametrize(
    ("rule", "source", "port", "admitted"),
    [
        ({}, "203.0.113.7", 22, True),
        ({}, "203.0.113.8", 22, False),
        ({}, "203.0.113.7", 23, False),
        ({}, "2001:db8::1", 22, False),
        ({"sourceRanges": ["::/0"]}, "2001:db8::1", 22, True),
        ({"sourceRanges": []}, "198.51.100.1", 22, True),
        ({"sourceRanges": [], "sourceTags": ["bastion"]}, "203.0.113.7", 22, False),
        ({"targetTags": ["tpu"]}, "203.0.113.7", 22, True),
        ({"targetTags": ["other", "tpu"]}, "203.0.113.7", 22, True),
        ({"targetTags": ["other"]}, "203.0.113.7", 22, False),
        ({"targetServiceAccounts": ["a@b.cd"]}, "203.0.113.7", 22, False),
        ({"disabled": True}, "203.0.113.7", 22, False),
        ({"direction": "EGRESS", "sourceRanges": []}, "203.0.113.7", 22, False),
        ({"network": NETWORK}, "203.0.113.7", 22, True),
        ({"allowed": [{"IPProtocol": "all"}]}, "203.0.113.7", 22, True),
        ({"allowed": [{"IPProtocol": "6"}]}, "203.0.113.7", 22, True),
        ({"allowed": [{"IPProtocol": "udp", "ports": ["22"]}]}, "203.0.113.7", 22, False),
        ({"allowed": [{"IPProtocol": "icmp"}]}, "203.0.113.7", 22, False),
        ({"allowed": [{"IPProtocol": "TCP", "ports": ["20-30"]}]}, "203.0.113.7", 22, True),
        ({"allowed": [{"IPProtocol": "tcp", "ports": ["80", "23-99"]}]}, "203.0.113.7", 22, False),
    ],
)
def test_a_rule_admits_what_it_covers(cloud, node, rule, source, port, admitted):
    insert(cloud, **rule)
    assert cloud.service.admits(node, source, port) is admitted


@pytest.mark.parametrize(
    ("allow", "deny", "admitted"), [(1000, 999, False), (1000, 1000, False), (999, 1000, True)]
)
def test_the_lowest_priority_number_decides_and_deny_wins_a_tie(cloud, node, allow, deny, admitted):
    insert(cloud, "allow", priority=allow)
    insert(cloud, "deny", priority=deny, allowed=None, denied=[{"IPProtocol": "all"}])
    assert cloud.service.admits(node, "203.0.113.7", 22) is admitted


def test_a_rule_of_another_project_admits_nobody(cloud, node):
    cloud.service.firewalls.insert(cloud.global_call(path_project="q", body={"name": "r1", **SSH}))
    assert not cloud.service.admits(node, "203.0.113.7", 22)


def test_a_rule_is_answered_with_the_service_s_defaults(cloud):
    insert(cloud, sourceRanges=None)
    rule = get(cloud)
    assert rule["kind"] == "compute#firewall"
    assert rule["sourceRanges"] == ["0.0.0.0/0"]
    assert (rule["priority"], rule["direction"], rule["disabled"]) == (1000, "INGRESS", False)
    assert rule["network"].endswith("projects/p/global/networks/default")


@pytest.mark.parametrize(
    "body",
    [
        {"name": "Bad"},
        {"allowed": []},
        {"denied": [{"IPProtocol": "all"}]},
        {"allowed": ["tcp"]},
        {"allowed": [{"IPProtocol": "ssh"}]},
        {"allowed": [{"IPProtocol": "tcp", "ports": ["ssh"]}]},
        {"allowed": [{"IPProtocol": "tcp", "ports": ["30-20"]}]},
        {"allowed": [{"IPProtocol": "tcp", "ports": ["70000"]}]},
        {"sourceRanges": ["10.0.0.1/8"]},
        {"sourceRanges": ["everywhere"]},
        {"sourceRanges": "0.0.0.0/0"},
        {"sourceRanges": ["10.0.0.0/8", "::/0"]},
        {"sourceRanges": ["10.0.0.0/8"], "destinationRanges": ["2001:db8::/32"]},
        {"destinationRanges": ["somewhere"]},
        {"targetTags": ["Tag"]},
        {"priority": 70000},
        {"priority": "high"},
        {"unheard": 1},
        {"direction": "EGRESS"},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(cloud, body):
    with pytest.raises(ApiError) as caught:
        insert(cloud, **body)
    assert caught.value.status.status == "INVALID_ARGUMENT"
    assert names(cloud) == []


def test_a_rule_that_exists_or_a_network_that_does_not_is_refused(cloud):
    insert(cloud)
    for body, status in (({}, "ALREADY_EXISTS"), ({"network": "x", "name": "r2"}, "NOT_FOUND")):
        with pytest.raises(ApiError) as caught:
            insert(cloud, **body)
        assert caught.value.status.status == status


def test_a_patch_changes_what_it_names_and_an_update_replaces_the_rest(cloud):
    insert(cloud, targetTags=["tpu"], description="d")
    before = get(cloud)
    change = {"sourceRanges": ["198.51.100.0/24"]}
    cloud.service.firewalls.patch(cloud.global_call(path_name="r1", body=change))
    assert get(cloud) == {**before, **change}
    cloud.service.firewalls.update(cloud.global_call(path_name="r1", body=SSH))
    after = get(cloud)
    assert after["sourceRanges"] == SSH["sourceRanges"]
    assert "targetTags" not in after
    assert after["id"] == before["id"]


def test_a_rule_cannot_change_its_direction(cloud):
    insert(cloud)
    with pytest.raises(ApiError) as caught:
        cloud.service.firewalls.patch(
            cloud.global_call(path_name="r1", body={"direction": "EGRESS"})
        )
    assert caught.value.status.status == "INVALID_ARGUMENT"


def test_a_deleted_rule_is_not_found_and_no_longer_admits(cloud, node):
    insert(cloud)
    cloud.service.firewalls.delete(cloud.global_call(path_name="r1"))
    assert not cloud.service.admits(node, "203.0.113.7", 22)
    with pytest.raises(ApiError) as caught:
        get(cloud)
    assert str(caught.value) == "The resource 'projects/p/global/firewalls/r1' was not found"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("name=web", ["web"]),
        ('name = "web"', ["web"]),
        ("name!=web", ["ssh", "ssh-old"]),
        ("name:ssh", ["ssh", "ssh-old"]),
        ('name eq "ssh.*"', ["ssh", "ssh-old"]),
        ("name ne ssh", ["ssh-old", "web"]),
        ("(name:ssh) (disabled=true)", ["ssh-old"]),
        ("name:ssh AND disabled=false", ["ssh"]),
        ("targetTags:tpu", ["web"]),
        ("name=web OR disabled=true", ["ssh-old", "web"]),
        ("NOT (name:ssh OR name=x)", ["web"]),
        ("-name:ssh", ["web"]),
        ("logConfig.enable=false AND name>=ssh-old", ["ssh-old", "web"]),
        ("priority<1000", []),
        ("targetTags:*", ["web"]),
    ],
)
def test_a_filter_selects_as_the_api_does(cloud, text, found):
    insert(cloud, "ssh")
    insert(cloud, "ssh-old", disabled=True)
    insert(cloud, "web", targetTags=["tpu"])
    assert names(cloud, query_filter=text) == found


@pytest.mark.parametrize(
    "text", ["name", "name OR", "name eq '['", "a=b OR", "(a=b", "a=b)", "!" + "a" * 99]
)
def test_a_filter_that_is_not_understood_is_refused(cloud, text):
    insert(cloud)
    with pytest.raises(ApiError) as caught:
        names(cloud, query_filter=text)
    assert caught.value.status.status == "INVALID_ARGUMENT"


def test_rules_are_paged(cloud):
    for number in range(5):
        insert(cloud, f"r{number}")
    first = cloud.service.firewalls.list(cloud.global_call(query_maxResults="3"))
    rest = names(cloud, query_pageToken=first["nextPageToken"])
    assert [rule["name"] for rule in first["items"]] == ["r0", "r1", "r2"]
    assert rest == ["r3", "r4"]


def test_an_operation_runs_first_and_is_done_later(cloud):
    started = cloud.service.firewalls.insert(cloud.global_call(body={"name": "r1", **SSH}))
    assert (started["status"], started["operationType"]) == ("RUNNING", "insert")
    cloud.pass_time(1)
    call = cloud.global_call(path_operation=started["name"])
    ended = cloud.service.compute_operations.get(call)
    assert (ended["status"], ended["progress"]) == ("DONE", 100)
    assert cloud.service.compute_operations.list(cloud.global_call())["items"] == [ended]


def test_common_metadata_changes_only_for_who_saw_its_latest_fingerprint(cloud):
    projects = cloud.service.projects
    before = projects.get(cloud.global_call())["commonInstanceMetadata"]["fingerprint"]
    items = [{"key": "ssh-keys", "value": "a:b"}]
    body = {"items": items, "fingerprint": before}
    projects.set_common_instance_metadata(cloud.global_call(body=body))
    metadata = projects.get(cloud.global_call())["commonInstanceMetadata"]
    assert metadata["items"] == items
    assert metadata["fingerprint"] != before
    with pytest.raises(ApiError) as caught:
        projects.set_common_instance_metadata(cloud.global_call(body=body))
    assert caught.value.status.http_code == 412
    error = caught.value.status.compute_body()["error"]
    assert error["errors"][0]["reason"] == "conditionNotMet"
    assert "status" not in error


def test_the_default_network_exists_and_no_other(cloud):
    networks = cloud.service.networks
    assert [item["name"] for item in networks.list(cloud.global_call())["items"]] == ["default"]
    assert networks.get(cloud.global_call(path_name="default"))["name"] == "default"
    with pytest.raises(ApiError) as caught:
        networks.get(cloud.global_call(path_name="other"))
    assert caught.value.status.status == "NOT_FOUND"


HOST_NETWORK = "projects/host/global/networks/default"


def attach(cloud, host="host"):
    cloud.service.projects.attach(cloud.global_call(body={"host": host}))


def test_a_service_project_has_the_networks_of_its_host_and_none_of_its_own(cloud):
    assert "name" not in cloud.service.projects.get_host(cloud.global_call())
    with pytest.raises(ApiError):
        cloud.create("n1", body={"networkConfig": {"network": HOST_NETWORK}})
    attach(cloud)
    assert cloud.service.projects.get_host(cloud.global_call())["name"] == "host"
    assert "items" not in cloud.service.networks.list(cloud.global_call())
    with pytest.raises(ApiError):
        cloud.service.networks.get(cloud.global_call(path_name="default"))
    with pytest.raises(ApiError):
        cloud.create("n1")
    cloud.ready("n1", body={"networkConfig": {"network": HOST_NETWORK}})
    network = cloud.get("n1")["networkConfig"]
    assert network["network"] == HOST_NETWORK
    assert network["subnetwork"].startswith("projects/host/regions/")
    attach(cloud, "")
    cloud.ready("n2")


def test_the_rule_of_a_shared_network_belongs_to_the_host_project(cloud):
    attach(cloud)
    node = cloud.ready("n1", body={"networkConfig": {"network": HOST_NETWORK}})
    with pytest.raises(ApiError):
        insert(cloud, network=HOST_NETWORK)
    cloud.service.firewalls.insert(
        cloud.global_call(path_project="host", body={"name": "r1", **SSH})
    )
    assert cloud.service.admits(node, "203.0.113.7", 22)


def test_a_project_s_metadata_leaves_its_host_as_it_is(cloud):
    attach(cloud)
    found = cloud.service.projects.get(cloud.global_call())["commonInstanceMetadata"]
    body = {"items": [{"key": "a", "value": "b"}], "fingerprint": found["fingerprint"]}
    cloud.service.projects.set_common_instance_metadata(cloud.global_call(body=body))
    assert cloud.service.projects.get_host(cloud.global_call())["name"] == "host"


def test_the_effective_rules_of_a_network_are_its_own(cloud):
    insert(cloud)
    effective = cloud.service.firewalls.effective(cloud.global_call(path_network="default"))
    assert [rule["name"] for rule in effective["firewalls"]] == ["r1"]
    with pytest.raises(ApiError):
        cloud.service.firewalls.effective(cloud.global_call(path_network="x"))


def test_a_new_project_has_google_s_rules_once(emulators):
    """VPC documentation, "Pre-populated rules in the default network"."""
    api = emulators.start()
    path = "/compute/v1/projects/new/global/firewalls"
    items = api.call("GET", path)[1]["items"]
    shown = {
        item["name"]: (
            item["priority"],
            item["sourceRanges"],
            [(entry["IPProtocol"], entry.get("ports")) for entry in item["allowed"]],
        )
        for item in items
    }
    every = [("tcp", ["0-65535"]), ("udp", ["0-65535"]), ("icmp", None)]
    assert shown == {
        "default-allow-icmp": (65534, ["0.0.0.0/0"], [("icmp", None)]),
        "default-allow-internal": (65534, ["10.128.0.0/9"], every),
        "default-allow-rdp": (65534, ["0.0.0.0/0"], [("tcp", ["3389"])]),
        "default-allow-ssh": (65534, ["0.0.0.0/0"], [("tcp", ["22"])]),
    }
    assert {item["network"].partition("/projects/")[2] for item in items} == {
        "new/global/networks/default"
    }
    network = "projects/new/global/networks/default"
    admits = api.server.service.firewalls.admits
    assert (admits(network, (), "8.8.8.8", 22), admits(network, (), "8.8.8.8", 80)) == (True, False)
    assert api.call("DELETE", f"{path}/default-allow-ssh")[0] == 200
    emulators.stop()
    api = emulators.start()
    assert len(api.call("GET", path)[1]["items"]) == 3
    assert api.call("POST", "/_emulator/v1/reset", {})[0] == 200
    assert len(api.call("GET", path)[1]["items"]) == 4


def test_a_network_that_is_taken_away_and_added_again_has_no_rules(api):
    path = "/_emulator/v1/catalogue/networks"
    assert api.call("DELETE", f"{path}?name=default&project=p")[0] == 200
    assert api.call("POST", path, {"name": "default", "project": "p"})[0] == 200
    assert "items" not in api.call("GET", "/compute/v1/projects/p/global/firewalls")[1]
