"""What is left over goes, with its firewall rules and its hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tpukit.access import ssh_rule
from tpukit.access.cleanup import OnWarning
from tpukit.access.ssh_config import SshConfig
from tpukit.clock import Deadline
from tpukit.cloud.provider import FirewallProvider, SliceProvider
from tpukit.errors import Fix, NotAllowed, TpukitError, interruption
from tpukit.models import QueuedResource
from tpukit.remote.command.fan_out import fan_out
from tpukit.slices import change
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import OnState
from tpukit.slices.queued import delete_queued
from tpukit.slices.survey import Leftover, still_due


@dataclass(frozen=True)
class Reaped:
    """What came of what was left over; `changed` is what was another thing when its turn came."""

    deleted: Sequence[Leftover]
    changed: Sequence[Leftover]
    failed: Mapping[Leftover, TpukitError]
    rules: Sequence[str]


def reap(
    due: Sequence[Leftover],
    provider: SliceProvider,
    firewall: FirewallProvider,
    hosts: SshConfig,
    *,
    deadline: Deadline,
    journal: Journal,
    on_state: Callable[[str], OnState],
    on_warning: OnWarning,
) -> Reaped:
    """Delete what is left over, side by side, each with its firewall rules and its hosts.

    Each is looked at once more before: its end may have been put off, or its name be another's now.
    """
    firewall = firewall.within(deadline)
    rules: list[str] = []
    left = dict.fromkeys(due)

    def one(each: Leftover) -> bool:
        say = on_state(f"{each.name} ({each.zone})")
        if not still_due(provider.within(deadline), each, deadline.clock.time()):
            return False
        if isinstance(each.found, QueuedResource):
            delete_queued(
                provider,
                each.found,
                force=not each.found.dead,
                deadline=deadline,
                journal=journal,
                on_state=say,
            )
            tags = [
                (ssh_rule.tag(each.found.project, each.zone, name), "")
                for name in each.found.slices
            ]
        elif each.found:
            change.delete(provider, each.found, deadline=deadline, journal=journal, on_state=say)
            hosts.forget(each.found)
            tags = [(ssh_rule.rule_name(each.found), each.found.network_project)]
        say("deleted")
        left.pop(each)
        for rule, project in tags:
            try:
                ssh_rule.remove(firewall.of(project), rule)
            except TpukitError as error:
                on_warning(f"the firewall rule of {each.name} stays: {error.summary()}")
                rules.extend([] if isinstance(error, NotAllowed) else [rule])
        return True

    try:
        outcomes = fan_out(due, one)
    except KeyboardInterrupt as signal:
        error = interruption(signal)
        error.exists = tuple(f"{each.label} when last seen" for each in left)
        error.fix = Fix.command("tpukit", "reap")
        raise error from None
    return Reaped(
        [each.item for each in outcomes if each.value],
        [each.item for each in outcomes if each.value is False],
        {each.item: each.error for each in outcomes if each.error},
        rules,
    )


def not_reaped(done: Reaped) -> TpukitError:
    """Return the error for what was left over and is there still."""
    return type(next(iter(done.failed.values())))(
        f"{len(done.failed)} of {len(done.failed) + len(done.deleted)} were not deleted",
        reason=", ".join(each.name for each in done.failed),
        why="\n".join(f"{each.label}: {error.summary()}" for each, error in done.failed.items()),
        exists=[line for error in done.failed.values() for line in error.exists],
        fix=Fix.command("tpukit", "reap"),
        details={
            "deleted": [each.document() for each in done.deleted],
            "failed": [each.document() for each in done.failed],
        },
    )
