"""What goes with a slice: its firewall rule and its hosts; and the rules that slices have left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tpukit.access import ssh_rule
from tpukit.access.ssh_config import SshConfig
from tpukit.clock import Deadline
from tpukit.cloud.provider import FirewallProvider, SliceProvider
from tpukit.errors import BadInput, Fix, NotAllowed, NotFound, TpukitError, interruption
from tpukit.models import FirewallRule, QueuedResource, Slice
from tpukit.remote.command.fan_out import Outcome, fan_out
from tpukit.slices import change, naming, queued
from tpukit.slices.find import find
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import LastSeen, OnState, interrupted, last_seen

OnWarning = Callable[[str], None]


@dataclass(frozen=True)
class Deleted:
    """What came of several deletes: errors by the name of what is left, and the rules that stay."""

    names: Sequence[str]
    failed: Mapping[str, TpukitError]
    rules: Sequence[str]


@dataclass(frozen=True)
class Cleanup:
    """What deletes slices with all that goes with them: their firewall rules and their hosts.

    `on_state` gives what gets the states of the slice of a name.
    """

    provider: SliceProvider
    firewall: FirewallProvider
    hosts: SshConfig
    journal: Journal
    on_state: Callable[[str], OnState]
    on_warning: OnWarning

    def delete_all(self, slices: Sequence[Slice], deadline: Deadline) -> Deleted:
        """Delete slices side by side; a signal is raised with every slice that is left.

        None holds up another, and a rule that cannot be removed no slice.
        """
        every = {each.name: last_seen(self.provider, each) for each in slices}

        def one(found: Slice) -> Sequence[str]:
            return self.delete(found, deadline, seen=every[found.name])

        try:
            outcomes = fan_out(slices, one, window=len(slices))
        except KeyboardInterrupt as signal:
            raise interrupted(signal, every.values()) from None
        return _came_of(outcomes)

    def delete(
        self, found: Slice, deadline: Deadline, *, label: str = "", seen: LastSeen | None = None
    ) -> Sequence[str]:
        """Delete a slice; return the names of the rules that stay, and warn of its data disks.

        Those are whoever's made them: a slice's end leaves them as they are.
        `seen`, and what it raises, as `change.delete`.
        """
        say = self.on_state(label or found.name)
        change.delete(
            self.provider, found, deadline=deadline, journal=self.journal, on_state=say, seen=seen
        )
        say("deleted")
        self._gone(found)
        rules, host = _rules_of_slice(found), found.network_project
        return self._remove_rules(found.name, rules, deadline, host)

    def delete_all_queued(self, found: Sequence[QueuedResource], deadline: Deadline) -> Deleted:
        """Delete queued resources as `delete_all` does slices."""
        left = {each.name: each for each in found}

        def one(request: QueuedResource) -> Sequence[str]:
            rules = self.delete_queued(request, deadline)
            left.pop(request.name)
            return rules

        try:
            outcomes = fan_out(found, one, window=len(found))
        except KeyboardInterrupt as signal:
            error = interruption(signal)
            error.exists = tuple(
                f"queued resource {each.name} in {each.zone}, {each.state} when last seen"
                for each in left.values()
            )
            error.fix = Fix.command("tpukit", "queue", "delete", *left) if left else None
            raise error from None
        return _came_of(outcomes)

    def delete_queued(
        self, found: QueuedResource, deadline: Deadline, *, label: str = ""
    ) -> Sequence[str]:
        """Delete a queued resource with its slices, as `delete` does a slice.

        Raises as `queued.delete_queued`.
        """
        say = self.on_state(label or found.name)
        slices: list[Slice] = []
        with suppress(TpukitError):  # then what they have is not told
            slices = queued.slices_of(self.provider.within(deadline).once(), found)
        queued.delete_queued(
            self.provider,
            found,
            force=not found.dead,
            deadline=deadline,
            journal=self.journal,
            on_state=say,
        )
        say("deleted")
        for each in slices:
            self._gone(each)
        return self._remove_rules(found.name, _rules_of_request(found), deadline)

    def _gone(self, found: Slice) -> None:
        """Forget the hosts of a slice, and warn of its data disks."""
        stays = "stays, and bills until it is deleted" if self.provider.bills else "stays"
        for disk in found.data_disks:
            self.on_warning(f"data disk {disk.name} of {found.name} {stays}")
        self.hosts.forget(found)

    def _remove_rules(
        self, name: str, rules: Sequence[str], deadline: Deadline, host: str = ""
    ) -> Sequence[str]:
        """Remove the rules of slices, of which `rules` are those for SSH; return what may stay.

        Who may not read firewall rules has made none: that is a warning alone.
        """
        try:
            ssh_rule.remove_all(self.firewall.within(deadline).of(host), rules)
        except TpukitError as error:
            self.on_warning(f"the firewall rule of {name} stays: {error.summary()}")
            return () if isinstance(error, NotAllowed) else rules
        return ()


def _came_of(
    outcomes: Sequence[Outcome[Slice, Sequence[str]]]
    | Sequence[Outcome[QueuedResource, Sequence[str]]],
) -> Deleted:
    failed = {each.item.name: each.error for each in outcomes if each.error}
    rules = [rule for each in outcomes for rule in each.value or ()]
    return Deleted([each.item.name for each in outcomes if not each.error], failed, rules)


def plan(
    due: Iterable[Slice | QueuedResource], provider: SliceProvider, firewall: FirewallProvider
) -> None:
    """Ask for what a `Cleanup` asks for, once each, of clients that are planning."""
    for found in due:
        if isinstance(found, QueuedResource):
            provider.delete_queued(found.zone, found.name, force=not found.dead)
            ssh_rule.remove_all(firewall, _rules_of_request(found))
            continue
        if found.state != "DELETING":
            provider.delete(found.zone, found.name)
        ssh_rule.remove_all(firewall.of(found.network_project), _rules_of_slice(found))


def _rules_of_slice(found: Slice) -> Sequence[str]:
    """Return the name of a slice's rule for SSH, where the slice was made for one."""
    return [each for each in found.tags if each == ssh_rule.rule_name(found)]


def _rules_of_request(found: QueuedResource) -> Sequence[str]:
    return [ssh_rule.tag(found.project, found.zone, name) for name in found.slices]


def not_deleted(
    failed: Mapping[str, TpukitError],
    deleted: Sequence[str],
    *,
    things: str = "slices",
    verbs: Sequence[str] = (),
) -> TpukitError:
    """Return the error for deletes of which some failed; not found only where nothing is worse.

    Its details hold the names that were `deleted`, and what `failed` with each of the others.
    `verbs` are the group of commands that the `things` have.
    """
    if len(failed) + len(deleted) == 1:
        return next(iter(failed.values()))
    left = [name for name, error in failed.items() if not isinstance(error, NotFound)]
    fix = Fix.command("tpukit", *verbs, "list", note=f"shows the {things} there are")
    return type(failed[left[0]] if left else next(iter(failed.values())))(
        f"{len(failed)} of {len(failed) + len(deleted)} {things} were not deleted",
        reason=", ".join(failed),
        why="\n".join(f"{name}: {error.summary()}" for name, error in failed.items()),
        exists=[line for error in failed.values() for line in error.exists],
        fix=Fix.command("tpukit", *verbs, "delete", *left) if left else fix,
        details={
            "deleted": list(deleted),
            "failed": {name: error.document() for name, error in failed.items()},
        },
    )


def remove_left(
    provider: SliceProvider,
    firewall: FirewallProvider,
    names: Sequence[str],
    project: str,
    on_warning: OnWarning,
) -> Sequence[str]:
    """Remove the rules that slices of these names have left, and return those; failures are told.

    Who may not read firewall rules has made none.
    """
    if not names:
        return ()
    removed: list[str] = []
    try:
        rules = [each for each in firewall.list() if any(ssh_rule.is_for(each, n) for n in names)]
        for rule in left_over(provider, rules, project, on_warning):
            removed += [rule.name] if ssh_rule.remove(firewall, rule.name) else []
    except TpukitError as error:
        if not isinstance(error, NotAllowed):
            on_warning(f"rules that were left are still there: {error.summary()}")
    return removed


def rule_of(
    provider: SliceProvider,
    rules: Sequence[FirewallRule],
    name: str,
    project: str,
    zone: str,
    on_warning: OnWarning,
) -> tuple[str, str]:
    """Return the name of a slice's rule; of a slice that is gone, that of the rule it has left.

    With it the project of a Shared VPC that has the rule, or "".

    Raises:
        NotFound: there is no such slice, and it has left no rule.
        BadInput: several slices of that name have left a rule.
    """
    if any(rule.name == name and ssh_rule.is_ours(rule) for rule in rules):
        return name, ""
    try:
        found = find(provider, naming.check_name(name), zone)
        return ssh_rule.rule_name(found), found.network_project
    except NotFound:
        gone = left_over(provider, rules, project, on_warning)
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
    return left[0], ""


def left_over(
    provider: SliceProvider, rules: Sequence[FirewallRule], project: str, on_warning: OnWarning
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
    return ssh_rule.left_over(rules, listed.slices, project)
