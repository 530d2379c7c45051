"""Firewall rules through the Compute Engine API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.local_cloud import PROJECT, Cloud, FakeClock, Reply, json_reply, scripted

from tpukit.errors import BadInput, DeadlinePassed, NameTaken, NotAllowed, NotFound, TpukitError
from tpukit.google.firewall_rules import ComputeFirewall
from tpukit.google.retrying_session import Session
from tpukit.models import FirewallRule

RULE = FirewallRule("tpukit-demo", "default", ("192.0.2.7/32",), ("tag",), description="why")


def test_a_rule_lives_from_insert_to_delete(prompt_cloud: Cloud) -> None:
    firewall = prompt_cloud.firewall
    assert firewall.list() == ()
    firewall.insert(RULE)
    assert firewall.list() == (RULE,)
    firewall.replace_source_ranges(RULE.name, ["192.0.2.0/24"])
    assert firewall.list()[0].source_ranges == ("192.0.2.0/24",)
    firewall.delete(RULE.name)
    assert firewall.list() == ()


@pytest.mark.parametrize("path", ["", "/", "/compute/v1", "/compute/v1/"])
def test_the_endpoint_is_taken_with_its_path_and_without(prompt_cloud: Cloud, path: str) -> None:
    url = prompt_cloud.url + path
    assert ComputeFirewall(prompt_cloud.session, PROJECT, url).list() == ()


def test_a_name_that_exists_is_taken(prompt_cloud: Cloud) -> None:
    prompt_cloud.firewall.insert(RULE)
    with pytest.raises(NameTaken):
        prompt_cloud.firewall.insert(RULE)


def test_a_rule_that_is_not_there_is_not_found(prompt_cloud: Cloud) -> None:
    with pytest.raises(NotFound):
        prompt_cloud.firewall.delete("tpukit-none")
    with pytest.raises(BadInput):  # no status 3, which means a missing slice
        prompt_cloud.firewall.replace_source_ranges("tpukit-none", ["192.0.2.0/24"])


def test_who_may_not_make_rules_is_told_which_role(prompt_cloud: Cloud) -> None:
    prompt_cloud.fault(preset="firewall-permission-denied")
    with pytest.raises(NotAllowed) as caught:
        prompt_cloud.firewall.insert(RULE)
    assert "roles/compute.securityAdmin" in str(caught.value.fix)


def item(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "network": "global/networks/n", **fields}


def listed(cloud: Cloud, *pages: dict[str, Any]) -> tuple[FirewallRule, ...]:
    with scripted(*(json_reply(200, page) for page in pages)) as server:
        found = ComputeFirewall(cloud.session, PROJECT, server.url).list()
        assert len(server.seen) == len(pages)
    return found


SSH = [{"IPProtocol": "tcp", "ports": ["22", "80-90"]}, {"IPProtocol": "icmp"}]


def test_every_page_is_read(cloud: Cloud) -> None:
    first = {"items": [item("a", allowed=SSH)], "nextPageToken": "t/+="}
    second = {"items": [item("b", allowed=SSH)]}
    with scripted(json_reply(200, first), json_reply(200, second)) as server:
        found = ComputeFirewall(cloud.session, PROJECT, server.url).list()
        assert "pageToken=t%2F%2B%3D" in server.seen[1][1]
    assert [rule.name for rule in found] == ["a", "b"]


def test_rules_for_ingress_are_listed_those_that_deny_too(cloud: Cloud) -> None:
    page = {
        "items": [
            item("in", allowed=SSH, targetServiceAccounts=["a@b"]),
            item("deny", denied=SSH, priority=900),
            item("out", allowed=SSH, direction="EGRESS"),
        ]
    }
    allowing, denying = listed(cloud, page)
    traffic = ("tcp:22", "tcp:80-90", "icmp")
    assert (allowing.name, allowing.allowed, allowing.denied) == ("in", traffic, ())
    assert (allowing.network, allowing.target_service_accounts) == ("n", ("a@b",))
    assert (denying.name, denying.allowed, denying.denied) == ("deny", (), traffic)
    assert denying.priority == 900


@pytest.mark.parametrize(
    ("actions", "expected"), [((), False), (("goto_next",), False), (("goto_next", "allow"), True)]
)
def test_policies_decide_unless_they_leave_it_to_the_next_level(
    cloud: Cloud, actions: tuple[str, ...], expected: bool
) -> None:
    rules = [{"action": action} for action in actions]
    answer = {"firewalls": [], **({"firewallPolicys": [{"rules": rules}]} if rules else {})}
    with scripted(json_reply(200, answer)) as server:
        assert ComputeFirewall(cloud.session, PROJECT, server.url).has_policies("n") is expected
        assert server.seen[0][1].endswith("/global/networks/n/getEffectiveFirewalls")


def test_no_field_of_a_rule_carries_an_escape(cloud: Cloud) -> None:
    hostile = "x\x1b[31m\ny"
    page = {
        "items": [
            item(
                hostile,
                network=hostile,
                description=hostile,
                sourceRanges=[hostile],
                targetTags=[hostile],
                allowed=[{"IPProtocol": hostile, "ports": [hostile]}],
            )
        ]
    }
    text = repr(listed(cloud, page))
    assert "\\x1b" not in text.replace("\\\\", "|")
    assert "\\n" not in text


def test_an_operation_is_waited_for_until_it_is_done(cloud: Cloud) -> None:
    running, done = {"name": "o", "status": "RUNNING"}, {"name": "o", "status": "DONE"}
    with scripted(*(json_reply(200, each) for each in (running, running, done))) as server:
        ComputeFirewall(cloud.session, PROJECT, server.url).delete("r")
        assert [verb for verb, _ in server.seen] == ["DELETE", "POST", "POST"]
        assert server.seen[1][1].endswith("/operations/o/wait")


def test_a_wait_that_the_server_holds_back_is_waited_for(cloud: Cloud) -> None:
    """The server answers after 1 s, and any other request is given up after 0.5 s."""
    session = Session(cloud.tokens, cloud.clock, timeout=0.5)
    running, done = {"name": "o", "status": "RUNNING"}, {"name": "o", "status": "DONE"}
    held = Reply(200, json.dumps(done).encode(), seconds=1.0)
    with scripted(json_reply(200, running), held) as server:
        ComputeFirewall(session, PROJECT, server.url).delete("r")
        assert len(server.seen) == 2


def test_an_operation_that_is_not_found_is_neither_a_missing_slice_nor_a_missing_rule(
    cloud: Cloud,
) -> None:
    running = json_reply(200, {"name": "o", "status": "RUNNING"})
    missing = json_reply(404, {"error": {"status": "NOT_FOUND", "message": "no"}})
    with scripted(running, missing) as server, pytest.raises(DeadlinePassed) as caught:
        ComputeFirewall(cloud.session, PROJECT, server.url).delete("r")
    assert caught.value.why == "cannot delete firewall rule r: no"


@pytest.mark.parametrize(
    "odd",
    [
        json_reply(200, {}),
        json_reply(404, {"error": {"status": "NOT_FOUND", "message": "no"}}),
        json_reply(403, {"error": {"status": "PERMISSION_DENIED", "message": "no"}}),
        Reply(200, b"<html>Log in</html>", {"Content-Type": "text/html"}),
    ],
    ids=["empty", "not found", "refusal", "page"],
)
def test_one_odd_answer_does_not_end_the_wait_for_an_operation(cloud: Cloud, odd: Reply) -> None:
    running, done = {"name": "o", "status": "RUNNING"}, {"name": "o", "status": "DONE"}
    with scripted(json_reply(200, running), odd, json_reply(200, done)) as server:
        ComputeFirewall(cloud.session, PROJECT, server.url).delete("r")
        assert len(server.seen) == 3


def test_a_second_refusal_ends_the_wait_for_an_operation(cloud: Cloud, clock: FakeClock) -> None:
    running = json_reply(200, {"name": "o", "status": "RUNNING"})
    refusal = json_reply(403, {"error": {"status": "PERMISSION_DENIED", "message": "no"}})
    with scripted(running, refusal) as server, pytest.raises(NotAllowed):
        ComputeFirewall(cloud.session, PROJECT, server.url).delete("r")
    assert sum(clock.slept) < 5.0


def test_an_operation_that_never_ends_passes_its_deadline(cloud: Cloud, clock: FakeClock) -> None:
    running = json_reply(200, {"name": "o", "status": "RUNNING"})
    with scripted(running) as server, pytest.raises(DeadlinePassed):
        ComputeFirewall(cloud.session, PROJECT, server.url).delete("r")
    assert sum(clock.slept) == 120.0


def test_a_wait_for_an_operation_ends_at_an_earlier_deadline_with_a_last_look(
    cloud: Cloud, clock: FakeClock
) -> None:
    running, done = ({"name": "o", "status": status} for status in ("RUNNING", "DONE"))
    with scripted(json_reply(200, running)) as server, pytest.raises(DeadlinePassed):
        ComputeFirewall(cloud.session, PROJECT, server.url).within(cloud.deadline(30)).delete("r")
    assert sum(clock.slept) == 30.0
    with scripted(json_reply(200, running), json_reply(200, done)) as server:
        ComputeFirewall(cloud.session, PROJECT, server.url).within(cloud.deadline(0)).delete("r")


@pytest.mark.parametrize("name", ["", None, 7, "../../other", "o?x=1", "o" * 1000])
def test_an_operation_without_a_name_is_not_waited_for(cloud: Cloud, name: Any) -> None:
    with scripted(json_reply(200, {"name": name, "status": "RUNNING"})) as server:
        with pytest.raises(TpukitError, match="could not be read"):
            ComputeFirewall(cloud.session, PROJECT, server.url).delete("r")
        assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [("RESOURCE_NOT_FOUND", NotFound), ("QUOTA_EXCEEDED", TpukitError)],
)
def test_an_operation_that_failed_is_an_error(
    cloud: Cloud, code: str, kind: type[TpukitError]
) -> None:
    done = {
        "name": "o",
        "status": "DONE",
        "error": {"errors": [{"code": code, "message": "it failed"}]},
    }
    with scripted(json_reply(200, done)) as server, pytest.raises(TpukitError) as caught:
        ComputeFirewall(cloud.session, PROJECT, server.url).delete("r")
    assert type(caught.value) is kind


def test_what_an_insert_does_not_find_is_never_the_slice(cloud: Cloud) -> None:
    """The network may be gone by then. Exit code 3 would say that there is no such slice."""
    text = "The resource 'projects/p/global/networks/n' was not found"
    error = {"errors": [{"code": "RESOURCE_NOT_FOUND", "message": text}]}
    with scripted(json_reply(200, {"name": "o", "status": "DONE", "error": error})) as server:
        firewall = ComputeFirewall(cloud.session, PROJECT, server.url)
        with pytest.raises(BadInput, match="networks/n"):
            firewall.insert(FirewallRule("r", "n", ("192.0.2.7/32",), ("t",)))()


@pytest.mark.parametrize("error", [7, "x", [7], {"errors": 7}, {"errors": [7]}, {"errors": {}}])
def test_an_operation_that_failed_in_another_shape_is_an_error_too(
    cloud: Cloud, error: Any
) -> None:
    done = {"name": "o", "status": "DONE", "error": error}
    with scripted(json_reply(200, done)) as server:
        firewall = ComputeFirewall(cloud.session, PROJECT, server.url)
        with pytest.raises(TpukitError, match="cannot delete firewall rule r"):
            firewall.delete("r")
