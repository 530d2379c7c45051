"""What is left over ends, if it is still what was shown."""

from __future__ import annotations

from collections.abc import Sequence

from tpukit.access.cleanup import Cleanup, Deleted
from tpukit.clock import Deadline
from tpukit.errors import Fix, Interrupted, Terminated
from tpukit.slices.survey import Leftover, still_due


def reap(due: Sequence[Leftover], cleanup: Cleanup, deadline: Deadline) -> Deleted:
    """End what is left over, by its labels, with all that was made for it.

    Its end may have been put off since it was shown, or its name be another's now: then it stays.
    """
    provider = cleanup.provider.within(deadline)
    things = {each.label: each.found for each in due}
    try:
        return cleanup.end_all(things, deadline, lambda thing: still_due(provider, thing))
    except (Interrupted, Terminated) as error:
        error.fix = Fix.command("tpukit", "reap")
        raise
