"""A slice tied to its rule, and the rule opened to us."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.local_cloud import PROJECT, ZONE, Cloud, Reply, json_reply, scripted

from tpukit.access import rule_opening
from tpukit.access.context import Context
from tpukit.access.key import with_access
from tpukit.errors import (
    NameTaken,
    SecurityRefusal,
    TpukitError,
)
from tpukit.google.firewall_rules import ComputeFirewall
from tpukit.models import FirewallRule


def test_opening_ties_a_slice_that_has_no_tag_to_its_rule(
    prompt_cloud: Cloud, context: Context
) -> None:
    prompt_cloud.tpu.create(prompt_cloud.request(tags=("mine",)))
    found = prompt_cloud.tpu.get(ZONE, "demo")
    tied, opening = rule_opening.open_for(context, found)
    assert opening.changed
    assert tied.tags == ("mine", opening.rule.name)
    assert prompt_cloud.tpu.get(ZONE, "demo").tags == tied.tags
    assert not rule_opening.open_for(context, tied)[1].changed


def test_without_ranges_the_caller_s_own_address_is_admitted(
    prompt_cloud: Cloud, context: Context
) -> None:
    prompt_cloud.tpu.create(prompt_cloud.request())
    found = prompt_cloud.tpu.get(ZONE, "demo")
    _, opening = rule_opening.open_for(replace(context, source_ranges=()), found)
    assert opening.rule.source_ranges == ("198.51.100.9/32",)


def test_a_world_wide_range_of_the_settings_is_refused_before_anything_is_made(
    prompt_cloud: Cloud, context: Context
) -> None:
    prompt_cloud.tpu.create(with_access(prompt_cloud.request(), context))
    found = prompt_cloud.tpu.get(ZONE, "demo")
    with pytest.raises(SecurityRefusal):
        rule_opening.open_for(replace(context, source_ranges=("0.0.0.0/0",)), found)
    assert prompt_cloud.firewall.list() == ()


def test_a_slice_without_workers_has_no_address_to_find_out(
    prompt_cloud: Cloud, context: Context
) -> None:
    prompt_cloud.tpu.create(with_access(prompt_cloud.request(), context))
    found = replace(prompt_cloud.tpu.get(ZONE, "demo"), workers=())
    with pytest.raises(TpukitError, match="no workers yet"):
        rule_opening.open_for(replace(context, source_ranges=()), found)


def test_a_tag_that_the_api_refuses_is_an_error_and_no_rule_is_made(
    prompt_cloud: Cloud, context: Context
) -> None:
    """The update of a slice is an operation: that it was accepted says nothing."""
    prompt_cloud.tpu.create(prompt_cloud.request())
    found = prompt_cloud.tpu.get(ZONE, "demo")

    class Failing(type(prompt_cloud.tpu)):  # type: ignore[misc]
        def update(self, zone: str, name: str, change: object) -> str:
            return "projects/p/locations/z/operations/o"

        def failure(self, operation: str, doing: str) -> TpukitError:
            return TpukitError(f"cannot {doing}: no")

    refusing = Failing(prompt_cloud.session, PROJECT, prompt_cloud.url)
    with pytest.raises(TpukitError, match="cannot update slice demo: no"):
        rule_opening.open_for(replace(context, provider=refusing), found)
    assert prompt_cloud.firewall.list() == ()


def test_an_address_that_was_found_out_gives_way_to_the_next_one(
    prompt_cloud: Cloud, context: Context
) -> None:
    prompt_cloud.tpu.create(with_access(prompt_cloud.request(), context))
    found = prompt_cloud.tpu.get(ZONE, "demo")
    given = replace(context, source_ranges=("192.0.2.0/24",))
    rule_opening.open_for(given, found)

    def at(address: str) -> rule_opening.Opening:
        here = replace(context, source_ranges=(), source_address=lambda worker: address)
        return rule_opening.open_for(here, found)[1]

    assert at("198.51.100.1").replaced == ()
    moved = at("203.0.113.5")
    assert moved.replaced == ("198.51.100.1/32",)
    assert moved.summary.endswith("; 198.51.100.1/32, your earlier address, was removed")
    (rule,) = prompt_cloud.firewall.list()
    assert rule.source_ranges == ("192.0.2.0/24", "203.0.113.5/32")
    assert not at("203.0.113.5").changed
    context.own_addresses.unlink()  # a hint: without it rules widen
    assert at("198.51.100.7").replaced == ()


def test_an_address_that_somebody_gave_stays(prompt_cloud: Cloud, context: Context) -> None:
    prompt_cloud.tpu.create(with_access(prompt_cloud.request(), context))
    found = prompt_cloud.tpu.get(ZONE, "demo")
    rule_opening.open_for(replace(context, source_ranges=("198.51.100.1/32",)), found)
    here = replace(context, source_ranges=(), source_address=lambda worker: "203.0.113.5")
    assert rule_opening.open_for(here, found)[1].replaced == ()
    assert len(prompt_cloud.firewall.list()[0].source_ranges) == 2


def test_no_rule_is_made_where_one_of_others_lets_us_in_but_not_everybody(
    prompt_cloud: Cloud, context: Context
) -> None:
    prompt_cloud.tpu.create(prompt_cloud.request())
    found = prompt_cloud.tpu.get(ZONE, "demo")
    office = FirewallRule("allow-office", "default", ("198.51.100.0/24",), ())
    prompt_cloud.firewall.insert(office)()
    context = replace(context, source_ranges=("198.51.100.9/32",))
    _, opening = rule_opening.open_for(context, found)
    assert (opening.rule.name, opening.changed) == ("allow-office", False)
    assert opening.summary == "already open: tcp:22 from 198.51.100.0/24"
    _, opening = rule_opening.open_for(replace(context, source_ranges=("192.0.2.1/32",)), found)
    assert opening.changed
    assert len(prompt_cloud.firewall.list()) == 2


@pytest.mark.parametrize("odd", [json_reply(200, {}), Reply(200, b"<html>Log in</html>")])
def test_one_unreadable_answer_to_a_request_for_a_rule_is_asked_for_again(
    prompt_cloud: Cloud, context: Context, odd: Reply
) -> None:
    prompt_cloud.tpu.create(with_access(prompt_cloud.request(), context))
    found = prompt_cloud.tpu.get(ZONE, "demo")
    rule = rule_opening.ask(context, found, ["192.0.2.7/32"], ()).rule
    url = f"{prompt_cloud.url}/compute/v1/projects/{PROJECT}/global/firewalls/{rule.name}"
    document = prompt_cloud.session.rest("read the rule", "GET", url)
    taken = json_reply(409, {"error": {"status": "ALREADY_EXISTS", "message": "it exists"}})
    with scripted(odd, taken, json_reply(200, document)) as server:
        firewall = ComputeFirewall(prompt_cloud.session, PROJECT, server.url)
        opening = rule_opening.ask(replace(context, firewall=firewall), found, ["192.0.2.7/32"], ())
        opening.wait()
    assert opening.rule == rule


def test_a_rule_beside_one_that_lets_everybody_in_says_what_it_is_for(
    prompt_cloud: Cloud, context: Context
) -> None:
    prompt_cloud.tpu.create(prompt_cloud.request())
    found = prompt_cloud.tpu.get(ZONE, "demo")
    world = FirewallRule("default-allow-ssh", "default", ("0.0.0.0/0",), (), priority=65534)
    prompt_cloud.firewall.insert(world)()
    _, opening = rule_opening.open_for(context, found)
    assert opening.changed
    assert "it lets you in when default-allow-ssh, open to everybody, is closed" in opening.summary


def test_ports_are_opened_for_each_range_once_and_closed_with_the_last(
    prompt_cloud: Cloud, context: Context
) -> None:
    prompt_cloud.tpu.create(prompt_cloud.request())
    found, ports = prompt_cloud.tpu.get(ZONE, "demo"), ("nfs", "tcp:2049")
    one, two = ["192.0.2.1/32"], ["192.0.2.2/32"]
    opened = [rule_opening.open_ports(context, found, *ports, ranges) for ranges in (one, one, two)]
    assert opened == [True, False, True]
    (rule,) = prompt_cloud.firewall.list()
    assert (rule.allowed, list(rule.source_ranges)) == (("tcp:2049",), [*one, *two])
    with pytest.raises(NameTaken, match="admits nobody"):
        rule_opening.open_ports(context, found, "nfs", "udp:2049", one)
    closed = [rule_opening.close_ports(context, found, "nfs", ranges) for ranges in (one, one, two)]
    assert closed == [True, False, True]
    assert prompt_cloud.firewall.list() == ()
