"""The one rule of a slice: what it opens, to whom, and what else may be in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from support.local_cloud import Cloud, FakeClock

from tpukit.access import rule_opening, ssh_rule
from tpukit.access.context import Context
from tpukit.errors import BadInput, NameTaken, SecurityRefusal, TpukitError
from tpukit.google.provider import FirewallProvider
from tpukit.models import FirewallRule, Slice

SLICE = Slice("demo", "p", "z", "v3-8", "image", "READY", network="default")
TAG = ssh_rule.rule_name(SLICE)
TAGGED = replace(SLICE, tags=(TAG,))
HERE = "192.0.2.7/32"


def rule(**given: object) -> FirewallRule:
    values = {"source_ranges": (HERE,), "target_tags": (TAG,), **given}
    return FirewallRule(TAG, "default", **values)  # type: ignore[arg-type]


def apply(context: Context, slice_: Slice, ranges: Sequence[str]) -> tuple[FirewallRule, bool]:
    """Let a rule admit these ranges; return it and whether it changed."""
    context = replace(context, source_ranges=tuple(ranges))
    opening = rule_opening.ask(context, slice_, ranges)
    opening.wait()
    return opening.rule, opening.changed


@pytest.mark.parametrize("name", ["a", "demo", "x" * 63, f"{'x' * 48}-{'y' * 14}"])
def test_a_tag_is_a_name_of_the_api_s_and_differs_in_each_place(name: str) -> None:
    tags = {
        ssh_rule.tag(project, zone, name)
        for project in ("p", "q")
        for zone in ("us-central1-a", "us-central1-b")
    }
    assert len(tags) == 4
    for tag in tags:
        assert tag.startswith("tpukit-")
        assert len(tag) <= 63
        assert tag.replace("-", "").isalnum()
        assert "--" not in tag


def test_a_rule_is_made_for_the_slice_s_tag_alone(prompt_cloud: Cloud, context: Context) -> None:
    made, changed = apply(context, TAGGED, [HERE])
    assert changed
    found = prompt_cloud.firewall.list()
    assert found == (made,)
    assert found[0].target_tags == (TAG,)
    assert found[0].allowed == ("tcp:22",)
    assert found[0].source_ranges == (HERE,)


def test_the_same_rule_again_changes_nothing(prompt_cloud: Cloud, context: Context) -> None:
    apply(context, TAGGED, [HERE])
    again, changed = apply(context, TAGGED, [HERE])
    assert not changed
    assert again.source_ranges == (HERE,)
    assert prompt_cloud.calls("firewalls.patch") == []


def test_another_range_joins_those_that_are_there(prompt_cloud: Cloud, context: Context) -> None:
    apply(context, TAGGED, [HERE])
    wider, changed = apply(context, TAGGED, ["198.51.100.0/24"])
    assert changed
    assert prompt_cloud.firewall.list() == (wider,)
    assert wider.source_ranges == (HERE, "198.51.100.0/24")


def test_two_slices_have_two_rules(prompt_cloud: Cloud, context: Context) -> None:
    apply(context, TAGGED, [HERE])
    apply(context, replace(SLICE, zone="y"), [HERE])
    assert len(prompt_cloud.firewall.list()) == 2


def test_an_insert_whose_answer_was_lost_is_found_again(
    prompt_cloud: Cloud, context: Context
) -> None:
    prompt_cloud.fault(method="firewalls.insert", kind="reset", phase="after")
    apply(context, TAGGED, [HERE])
    assert len(prompt_cloud.firewall.list()) == 1


def test_a_rule_that_is_said_to_exist_but_is_never_shown_is_not_taken_for_open(
    prompt_cloud: Cloud, context: Context
) -> None:
    prompt_cloud.fault(method="firewalls.insert", status="ALREADY_EXISTS", probability=1.0)
    with pytest.raises(NameTaken, match="cannot create firewall rule") as caught:
        apply(replace(context, clock=FakeClock()), TAGGED, [HERE])
    assert "not shown as an ingress rule" in caught.value.why
    assert str(caught.value.fix).startswith(f"gcloud compute firewall-rules describe {TAG}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"disabled": True}, "disabled"),
        ({"targetTags": ["other"]}, "tag"),
        ({"allowed": [{"IPProtocol": "tcp", "ports": ["80"]}]}, "tcp:22"),
    ],
)
def test_a_rule_that_somebody_closed_is_not_taken_for_open(
    prompt_cloud: Cloud, context: Context, change: dict[str, object], reason: str
) -> None:
    apply(context, TAGGED, [HERE])
    records = prompt_cloud.server.service.context.state.firewalls
    for name, record in list(records.items()):
        records[name] = {**record, **change}
    with pytest.raises(NameTaken, match="admits nobody") as caught:
        apply(context, TAGGED, [HERE])
    assert reason in caught.value.why
    assert str(caught.value.fix) == f"tpukit firewall remove {TAG}"


def test_a_rule_of_another_network_is_not_taken_for_open(
    prompt_cloud: Cloud, context: Context
) -> None:
    apply(context, TAGGED, [HERE])
    with pytest.raises(NameTaken, match="admits nobody"):
        apply(context, replace(TAGGED, network="other"), [HERE])


@pytest.mark.parametrize(
    "world",
    [
        "0.0.0.0/0",
        "::/0",
        "0.0.0.0/0 ",
        "203.0.113.7/0",
        "0.0.0.0/1,128.0.0.0/1",
        "0.0.0.0/2,64.0.0.0/2,192.0.0.0/2",
        "2000::/4,3000::/4",
    ],
)
def test_the_whole_world_is_refused_in_however_many_parts(world: str) -> None:
    with pytest.raises(SecurityRefusal, match="whole world") as caught:
        ssh_rule.check_ranges([HERE, *world.split(",")])
    assert caught.value.exit_code == 9
    assert ssh_rule.check_ranges(world.split(","), world=True)


@pytest.mark.parametrize(
    ("given", "checked"),
    [
        ("192.0.2.7", "192.0.2.7/32"),
        ("192.0.2.7/24", "192.0.2.0/24"),
        ("2001:db8::1", "2001:db8::1/128"),
        (" 35.235.240.0/20 ", "35.235.240.0/20"),
    ],
)
def test_ranges_are_brought_into_cidr_form(given: str, checked: str) -> None:
    assert ssh_rule.check_ranges([given]) == (checked,)


@pytest.mark.parametrize("text", ["", "me", "1.2.3", "1.2.3.4/33", "1.2.3.4-5", "::1/129", "a\x1b"])
def test_what_is_no_range_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput, match="is not an address range"):
        ssh_rule.check_ranges([text])


def test_what_is_missing_is_told_in_one_sentence(prompt_cloud: Cloud, context: Context) -> None:
    missing = ssh_rule.missing(prompt_cloud.firewall, TAGGED, "192.0.2.7")
    assert "tcp:22 from 192.0.2.7" in missing
    assert TAG in missing
    apply(context, TAGGED, [HERE])
    assert ssh_rule.missing(prompt_cloud.firewall, TAGGED, "192.0.2.7") == ""
    assert ssh_rule.missing(prompt_cloud.firewall, SLICE, "192.0.2.7").endswith(
        "(the slice has none)"
    )


def test_a_rule_is_removed_once_and_only_ours(prompt_cloud: Cloud, context: Context) -> None:
    apply(context, TAGGED, [HERE])
    assert ssh_rule.remove(prompt_cloud.firewall, TAG)
    assert not ssh_rule.remove(prompt_cloud.firewall, TAG)
    with pytest.raises(BadInput, match="not a rule of tpukit"):
        ssh_rule.remove(prompt_cloud.firewall, "default-allow-ssh")


def test_a_removal_whose_answer_was_lost_is_a_removal(
    prompt_cloud: Cloud, context: Context
) -> None:
    apply(context, TAGGED, [HERE])
    for method in ("firewalls.delete", "globalOperations.wait"):
        prompt_cloud.fault(method=method, kind="reset", phase="after", probability=1.0)
    ssh_rule.remove_all(prompt_cloud.firewall.once(), TAG)
    assert prompt_cloud.firewall.list() == ()


@pytest.mark.parametrize("remove", [ssh_rule.remove, ssh_rule.remove_all])
def test_one_not_found_is_no_proof_of_a_removal(
    prompt_cloud: Cloud, context: Context, remove: Callable[[FirewallProvider, str], object]
) -> None:
    """The removal is repeated, and two in succession end it."""
    apply(context, TAGGED, [HERE])
    stale = {"method": "firewalls.delete", "status": "NOT_FOUND", "message": "no"}
    prompt_cloud.fault(**stale, times=2)
    with pytest.raises(TpukitError, match=f"rule {TAG} is still there") as caught:
        remove(prompt_cloud.firewall, TAG)
    assert caught.value.exit_code == 1
    prompt_cloud.fault(**stale, times=1)
    remove(prompt_cloud.firewall, TAG)
    assert prompt_cloud.firewall.list() == ()


def test_only_rules_of_ours_are_left_over() -> None:
    """What is named here users are advised to remove: never a rule that others made."""
    gone = replace(rule(), name=ssh_rule.tag("p", "z", "gone"))
    others = [replace(rule(), name=name) for name in ("default-allow-ssh", "tpukit-mine")]
    assert ssh_rule.left_over([*others, rule(), gone], [TAGGED], "p", ["tpu"]) == (gone,)


def test_a_rule_of_a_slice_in_an_api_that_was_not_asked_is_not_left_over() -> None:
    path = ssh_rule.path_of(replace(TAGGED, api="compute"))
    other = replace(rule(), description=f"SSH to projects/p/{path}, made by tpukit")
    assert ssh_rule.left_over([other], [], "p", ["tpu"]) == ()
    assert ssh_rule.left_over([other], [], "p", ["tpu", "compute"]) == (other,)


def test_a_rule_of_a_slice_of_another_project_is_not_left_over() -> None:
    """The host project of a Shared VPC has the rules of them all."""
    described = "SSH to projects/q/locations/z/nodes/gone, made by tpukit"
    other = replace(rule(), name=ssh_rule.tag("q", "z", "gone"), description=described)
    assert ssh_rule.left_over([other], [], "p", ["tpu"]) == ()
    assert ssh_rule.left_over([other], [], "q", ["tpu"]) == (other,)
