"""What is left over goes, with its firewall rules and its hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpukit.access.cleanup import Cleanup
from tpukit.clock import Deadline
from tpukit.errors import Fix, TpukitError, interruption
from tpukit.remote.command.fan_out import fan_out
from tpukit.slices.survey import Leftover, still_due


@dataclass(frozen=True)
class Reaped:
    """What came of what was left over; `changed` is what was another thing when its turn came."""

    deleted: Sequence[Leftover]
    changed: Sequence[Leftover]
    failed: Mapping[Leftover, TpukitError]
    rules: Sequence[str]


def reap(due: Sequence[Leftover], cleanup: Cleanup, deadline: Deadline) -> Reaped:
    """Delete what is left over, side by side, each with its firewall rules and its hosts.

    Each is looked at once more before: its end may have been put off, or its name be another's now.
    """
    rules: list[str] = []
    left = dict.fromkeys(due)

    def one(each: Leftover) -> bool:
        label = f"{each.name} ({each.zone})"
        if not still_due(cleanup.provider.within(deadline), each):
            return False
        if each.found:
            rules.extend(cleanup.end(each.found, deadline, label=label))
        left.pop(each)
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
