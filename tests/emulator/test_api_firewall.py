from __future__ import annotations

import pytest

from tpukit.emulator.errors import ApiError

SSH = {"allowed": [{"IPProtocol": "tcp", "ports": ["22"]}], "sourceRanges": ["203.0.113.7/32"]}
NETWORK = "http://127.0.0.1:9/compute/v1/projects/p/global/networks/default"


def insert(world, name="r1", **body):
    world.service.firewalls.insert(world.call(body={"name": name, **SSH, **body}))


def get(world, name="r1"):
    return world.service.firewalls.get(world.call(path_firewall=name))


def names(world, **query):
    answer = world.service.firewalls.list(world.call(**query))
    return [rule["name"] for rule in answer.get("items", [])]


@pytest.fixture
def node(world):
    return world.ready("n1", body={"tags": ["tpu"]})


def test_nothing_is_admitted_without_a_rule(world, node):
    assert not world.service.admits(node, "203.0.113.7", 22)


def test_nothing_is_admitted_to_a_node_that_does_not_exist(world, node):
    insert(world)
    assert not world.service.admits(node + "x", "203.0.113.7", 22)


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
        ({"targetServiceAccounts": ["a@b"]}, "203.0.113.7", 22, False),
        ({"disabled": True}, "203.0.113.7", 22, False),
        ({"direction": "EGRESS"}, "203.0.113.7", 22, False),
        ({"network": NETWORK}, "203.0.113.7", 22, True),
        ({"allowed": [{"IPProtocol": "all"}]}, "203.0.113.7", 22, True),
        ({"allowed": [{"IPProtocol": "6"}]}, "203.0.113.7", 22, True),
        ({"allowed": [{"IPProtocol": "udp", "ports": ["22"]}]}, "203.0.113.7", 22, False),
        ({"allowed": [{"IPProtocol": "icmp"}]}, "203.0.113.7", 22, False),
        ({"allowed": [{"IPProtocol": "TCP", "ports": ["20-30"]}]}, "203.0.113.7", 22, True),
        ({"allowed": [{"IPProtocol": "tcp", "ports": ["80", "23-99"]}]}, "203.0.113.7", 22, False),
    ],
)
def test_a_rule_admits_what_it_covers(world, node, rule, source, port, admitted):
    insert(world, **rule)
    assert world.service.admits(node, source, port) is admitted


@pytest.mark.parametrize(
    ("allow", "deny", "admitted"), [(1000, 999, False), (1000, 1000, False), (999, 1000, True)]
)
def test_the_lowest_priority_number_decides_and_deny_wins_a_tie(world, node, allow, deny, admitted):
    insert(world, "allow", priority=allow)
    insert(world, "deny", priority=deny, allowed=None, denied=[{"IPProtocol": "all"}])
    assert world.service.admits(node, "203.0.113.7", 22) is admitted


def test_a_rule_of_another_project_admits_nobody(world, node):
    world.service.firewalls.insert(world.call(path_project="q", body={"name": "r1", **SSH}))
    assert not world.service.admits(node, "203.0.113.7", 22)


def test_a_rule_is_answered_with_the_service_s_defaults(world):
    insert(world, sourceRanges=None)
    rule = get(world)
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
        {"targetTags": ["Tag"]},
        {"priority": 70000},
        {"priority": "high"},
        {"unheard": 1},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(world, body):
    with pytest.raises(ApiError) as caught:
        insert(world, **body)
    assert caught.value.status.status == "INVALID_ARGUMENT"
    assert names(world) == []


def test_a_rule_that_exists_or_a_network_that_does_not_is_refused(world):
    insert(world)
    for body, status in (({}, "ALREADY_EXISTS"), ({"network": "x", "name": "r2"}, "NOT_FOUND")):
        with pytest.raises(ApiError) as caught:
            insert(world, **body)
        assert caught.value.status.status == status


def test_a_patch_changes_what_it_names_and_an_update_replaces_the_rest(world):
    insert(world, targetTags=["tpu"], description="d")
    before = get(world)
    change = {"sourceRanges": ["198.51.100.0/24"]}
    world.service.firewalls.patch(world.call(path_firewall="r1", body=change))
    assert get(world) == {**before, **change}
    world.service.firewalls.update(world.call(path_firewall="r1", body=SSH))
    after = get(world)
    assert after["sourceRanges"] == SSH["sourceRanges"]
    assert "targetTags" not in after
    assert after["id"] == before["id"]


def test_a_rule_cannot_change_its_direction(world):
    insert(world)
    with pytest.raises(ApiError) as caught:
        world.service.firewalls.patch(world.call(path_firewall="r1", body={"direction": "EGRESS"}))
    assert caught.value.status.status == "INVALID_ARGUMENT"


def test_a_deleted_rule_is_not_found_and_no_longer_admits(world, node):
    insert(world)
    world.service.firewalls.delete(world.call(path_firewall="r1"))
    assert not world.service.admits(node, "203.0.113.7", 22)
    with pytest.raises(ApiError) as caught:
        get(world)
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
    ],
)
def test_a_filter_selects_as_the_api_does(world, text, found):
    insert(world, "ssh")
    insert(world, "ssh-old", disabled=True)
    insert(world, "web", targetTags=["tpu"])
    assert names(world, query_filter=text) == found


@pytest.mark.parametrize("text", ["name", "name OR", "name eq '['", "a=b OR c=d"])
def test_a_filter_that_is_not_understood_is_refused(world, text):
    insert(world)
    with pytest.raises(ApiError) as caught:
        names(world, query_filter=text)
    assert caught.value.status.status == "INVALID_ARGUMENT"


def test_rules_are_paged(world):
    for number in range(5):
        insert(world, f"r{number}")
    first = world.service.firewalls.list(world.call(query_maxResults="3"))
    rest = names(world, query_pageToken=first["nextPageToken"])
    assert [rule["name"] for rule in first["items"]] == ["r0", "r1", "r2"]
    assert rest == ["r3", "r4"]


def test_an_operation_runs_first_and_is_done_later(world):
    started = world.service.firewalls.insert(world.call(body={"name": "r1", **SSH}))
    assert (started["status"], started["operationType"]) == ("RUNNING", "insert")
    world.pass_time(1)
    call = world.call(path_operation=started["name"])
    ended = world.service.compute_operations.get(call)
    assert (ended["status"], ended["progress"]) == ("DONE", 100)
    assert world.service.compute_operations.list(world.call())["items"] == [ended]


def test_common_metadata_changes_only_for_who_saw_its_latest_fingerprint(world):
    projects = world.service.projects
    before = projects.get(world.call())["commonInstanceMetadata"]["fingerprint"]
    items = [{"key": "ssh-keys", "value": "a:b"}]
    body = {"items": items, "fingerprint": before}
    projects.set_common_instance_metadata(world.call(body=body))
    metadata = projects.get(world.call())["commonInstanceMetadata"]
    assert metadata["items"] == items
    assert metadata["fingerprint"] != before
    with pytest.raises(ApiError) as caught:
        projects.set_common_instance_metadata(world.call(body=body))
    assert caught.value.status.http_code == 412
    error = caught.value.status.compute_body()["error"]
    assert error["errors"][0]["reason"] == "conditionNotMet"
    assert "status" not in error


def test_the_default_network_exists_and_no_other(world):
    networks = world.service.networks
    assert [item["name"] for item in networks.list(world.call())["items"]] == ["default"]
    assert networks.get(world.call(path_network="default"))["name"] == "default"
    with pytest.raises(ApiError) as caught:
        networks.get(world.call(path_network="other"))
    assert caught.value.status.status == "NOT_FOUND"
