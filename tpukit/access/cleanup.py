"""What goes with a slice: its firewall rule and its hosts; and the rules that slices have left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tpukit.access import ssh_rule
from tpukit.access.ssh_config import SshConfig
from tpukit.clock import Deadline
from tpukit.cloud.provider import FirewallProvider, SliceProvider
from tpukit.errors import BadInput, Fix, NotAllowed, NotFound, TpukitError
from tpukit.models import FirewallRule, Slice
from tpukit.slices import change, naming
from tpukit.slices.find import find
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import OnState

OnWarning = Callable[[str], None]


def delete_all(
    slices: Iterable[Slice],
    provider: SliceProvider,
    firewall: FirewallProvider,
    hosts: SshConfig,
    *,
    deadline: Deadline,
    journal: Journal,
    on_state: Callable[[str], OnState],
    on_warning: OnWarning,
) -> None:
    """Delete slices one after the other, each with its firewall rule and its hosts.

    Who may not read firewall rules has made none: that is a warning. `on_state` gives what gets the
    states of the slice of a name. Raises as `change.delete` does; the slices after that stay.
    """
    for each in slices:
        states = on_state(each.name)
        change.delete(provider, each, deadline=deadline, journal=journal, on_state=states)
        if (rule := ssh_rule.rule_name(each)) in each.tags:
            try:
                ssh_rule.remove(firewall, rule)
            except NotAllowed as error:
                on_warning(f"its firewall rule stays: {error.what}")
        hosts.forget(each)


def rule_of(
    provider: SliceProvider,
    rules: Sequence[FirewallRule],
    name: str,
    project: str,
    zone: str,
    on_warning: OnWarning,
) -> str:
    """Return the name of a slice's rule; of a slice that is gone, that of the rule it has left.

    Raises:
        NotFound: there is no such slice, and it has left no rule.
        BadInput: several slices of that name have left a rule.
    """
    if any(rule.name == name and ssh_rule.is_ours(rule) for rule in rules):
        return name
    try:
        return ssh_rule.rule_name(find(provider, naming.check_name(name), zone))
    except NotFound:
        gone = left_over(provider, rules, on_warning)
        left = [rule.name for rule in gone if ssh_rule.is_for(rule, name)]
        if zone:
            left = [each for each in left if each == ssh_rule.tag(project, zone, name)]
        if not left:
            raise
    if len(left) > 1:
        raise BadInput(
            f"several slices {name} have left a rule: {', '.join(left)}",
            fix=Fix.command("tpukit", "firewall", "remove", left[0]),
        )
    return left[0]


def left_over(
    provider: SliceProvider, rules: Sequence[FirewallRule], on_warning: OnWarning
) -> Sequence[FirewallRule]:
    """Return the rules whose slice is gone; none, and a warning, where that cannot be told."""
    if not rules:
        return ()
    unknown = "whose slice is gone cannot be told"
    try:
        listed = provider.list("-")
    except TpukitError as error:  # the rules are there to be shown all the same
        on_warning(f"{unknown}: {error.summary()}")
        return ()
    if listed.unreachable:
        on_warning(f"{unknown}: no answer from {', '.join(listed.unreachable)}")
        return ()
    return ssh_rule.left_over(rules, listed.slices)
