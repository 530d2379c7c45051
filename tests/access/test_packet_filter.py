"""What the firewall rules of a network let through to port 22: read from all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tpukit.access import packet_filter
from tpukit.models import FirewallRule, Slice

TAG, HERE, WORLD = "tpukit-demo-1a2b3c", "192.0.2.7/32", "0.0.0.0/0"
SLICE = Slice("demo", "p", "z", "v3-8", "image", "READY", network="default")
TAGGED = replace(SLICE, tags=(TAG,), service_account="me@p.iam.gserviceaccount.com")
#: As Google makes it in every new project, for every machine of the network.
DEFAULT_SSH = FirewallRule("default-allow-ssh", "default", (WORLD,), (), priority=65534)


def rule(**given: object) -> FirewallRule:
    values = {"source_ranges": (HERE,), "target_tags": (TAG,), **given}
    return FirewallRule(TAG, "default", **values)  # type: ignore[arg-type]


def deny(**given: object) -> FirewallRule:
    values = {"source_ranges": (WORLD,), "target_tags": (), "denied": ("all",), **given}
    return FirewallRule("deny", "default", allowed=(), **values)  # type: ignore[arg-type]


def admits(*rules: FirewallRule, slice_: Slice = TAGGED, source: str = "192.0.2.7") -> bool:
    deciding = packet_filter.deciding(rules, slice_, source)
    return bool(deciding and deciding.allowed)


@pytest.mark.parametrize(
    ("given", "admitted"),
    [
        ({}, True),
        ({"target_tags": ()}, True),
        ({"target_tags": ("other",)}, False),
        ({"source_ranges": ("0.0.0.0/0",)}, True),
        ({"source_ranges": ("198.51.100.0/24",)}, False),
        ({"source_ranges": ("2001:db8::/32",)}, False),
        ({"source_ranges": ()}, False),
        ({"allowed": ("all",)}, True),
        ({"allowed": ("tcp",)}, True),
        ({"allowed": ("6:22",)}, True),
        ({"allowed": ("tcp:20-30",)}, True),
        ({"allowed": ("tcp:23-30",)}, False),
        ({"allowed": ("udp:22",)}, False),
        ({"allowed": ("icmp", "tcp:22")}, True),
        ({"allowed": ()}, False),
        ({"disabled": True}, False),
    ],
)
def test_whether_a_rule_admits_us_is_read_from_all_of_it(
    given: dict[str, object], admitted: bool
) -> None:
    assert admits(rule(**given)) is admitted


@pytest.mark.parametrize(
    "given",
    [
        {"allowed": ("tcp:ssh",)},
        {"allowed": ("tcp:22-",)},
        {"allowed": ("tcp:-",)},
        {"source_ranges": ("anywhere",)},
        {"source_ranges": ("192.0.2.7/99",)},
    ],
)
def test_a_rule_that_cannot_be_read_admits_nobody(given: dict[str, object]) -> None:
    assert not admits(rule(**given))


def test_a_rule_of_another_network_admits_nobody() -> None:
    assert not admits(rule(), slice_=replace(TAGGED, network="other"))


@pytest.mark.parametrize(
    ("rules", "admitted"),
    [
        ((rule(), deny()), False),  # of equal priorities the one that denies
        ((rule(), deny(priority=1001)), True),
        ((rule(priority=900), deny()), True),
        ((rule(), deny(priority=900)), False),
        ((rule(), deny(priority=900, denied=("udp",))), True),
        ((rule(), deny(priority=900, denied=("tcp:1-21",))), True),
        ((rule(), deny(priority=900, source_ranges=("198.51.100.0/24",))), True),
        ((rule(), deny(priority=900, target_tags=("other",))), True),
        ((rule(), deny(priority=900, disabled=True)), True),
    ],
)
def test_the_lowest_priority_decides_and_denies_before_it_allows(
    rules: tuple[FirewallRule, ...], admitted: bool
) -> None:
    assert admits(*rules) is admitted
    assert admits(*reversed(rules)) is admitted


@pytest.mark.parametrize(("account", "admitted"), [(TAGGED.service_account, True), ("x@y", False)])
def test_a_rule_for_service_accounts_is_for_workers_that_have_one(
    account: str, admitted: bool
) -> None:
    assert admits(rule(target_tags=(), target_service_accounts=(account,))) is admitted


@pytest.mark.parametrize(
    ("rules", "open_ones"),
    [
        ((DEFAULT_SSH,), ["default-allow-ssh"]),
        ((replace(DEFAULT_SSH, allowed=("all",)),), ["default-allow-ssh"]),
        ((replace(DEFAULT_SSH, allowed=("icmp", "tcp:0-65535")),), ["default-allow-ssh"]),
        ((replace(DEFAULT_SSH, allowed=("tcp:3389",)),), []),
        ((replace(DEFAULT_SSH, allowed=("icmp",)),), []),
        ((replace(DEFAULT_SSH, disabled=True),), []),
        ((replace(DEFAULT_SSH, network="other"),), []),
        ((replace(DEFAULT_SSH, target_tags=("web",)),), []),
        ((replace(DEFAULT_SSH, target_service_accounts=("x@y",)),), []),
        ((replace(DEFAULT_SSH, source_ranges=("0.0.0.0/1", "128.0.0.0/1")),), [DEFAULT_SSH.name]),
        ((replace(DEFAULT_SSH, source_ranges=("::/0",)),), ["default-allow-ssh"]),
        ((replace(DEFAULT_SSH, source_ranges=("10.0.0.0/8",)),), []),
        ((replace(DEFAULT_SSH, source_ranges=()),), []),
        ((DEFAULT_SSH, deny()), []),
        ((DEFAULT_SSH, deny(priority=65534)), []),
        ((DEFAULT_SSH, deny(priority=65535)), ["default-allow-ssh"]),
        ((DEFAULT_SSH, deny(denied=("udp",))), ["default-allow-ssh"]),
        ((DEFAULT_SSH, deny(source_ranges=("0.0.0.0/1", "128.0.0.0/2", "192.0.0.0/2"))), []),
        ((DEFAULT_SSH, deny(source_ranges=("198.51.100.0/24",))), ["default-allow-ssh"]),
        ((rule(), deny()), []),
    ],
)
def test_what_leaves_a_slice_open_to_the_world(
    rules: tuple[FirewallRule, ...], open_ones: list[str]
) -> None:
    assert [each.name for each in packet_filter.open_to_world(rules, TAGGED)] == open_ones


@pytest.mark.parametrize(
    ("rules", "open_ones"),
    [
        ((replace(DEFAULT_SSH, target_tags=("web",)),), ["default-allow-ssh"]),
        ((DEFAULT_SSH, deny(target_tags=("web",))), ["default-allow-ssh"]),
        ((replace(DEFAULT_SSH, target_tags=("web",)), deny(target_tags=("web", "x"))), []),
        (
            (replace(DEFAULT_SSH, target_tags=("web", "y")), deny(target_tags=("web",))),
            [DEFAULT_SSH.name],
        ),
        ((DEFAULT_SSH, replace(deny(), network="other")), ["default-allow-ssh"]),
        ((DEFAULT_SSH, deny()), []),
    ],
)
def test_of_a_project_every_rule_counts_that_some_machine_may_have(
    rules: tuple[FirewallRule, ...], open_ones: list[str]
) -> None:
    assert [each.name for each in packet_filter.open_to_world(rules)] == open_ones
