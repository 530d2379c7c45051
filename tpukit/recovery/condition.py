"""What has become of a slice, in the words that a watch acts on.

An API that does not answer says nothing: whoever asks waits for an answer first.
"""

from __future__ import annotations

from tpukit.models import Slice

#: From which a slice does not come back. A slice of a queued resource is suspended where that is.
LOST = frozenset({"preempted", "terminated", "vanished", "suspended"})
#: What somebody has asked for, or a moment that passes by itself.
MAINTENANCE, READY, COMING = "maintenance", "ready", "coming"
STOPPED, DELETING = "stopped", "being deleted"

_WORDS = {
    "PREEMPTED": "preempted",
    "TERMINATED": "terminated",
    "SUSPENDED": "suspended",
    "STOPPED": STOPPED,
    "STOPPING": STOPPED,
    "DELETING": DELETING,
}
#: The states of a queued resource that has lost its slices, or is losing them: Cloud TPU API
#: reference, `QueuedResourceState`.
_SUSPENDED = ("SUSPENDED", "SUSPENDING")


def condition(found: Slice | None, queued_state: str = "") -> str:
    """Return one word: one of `LOST`, or one of this module's constants.

    None is a slice that the API has answered there is not; `queued_state` is the state of the
    queued resource that it came from, where it did.
    """
    word = "vanished" if found is None else _WORDS.get(found.state, "")
    if word and queued_state in _SUSPENDED:
        return "suspended"
    if word or found is None:
        return word
    if not found.ready:
        return COMING
    return MAINTENANCE if found.health == "UNHEALTHY_MAINTENANCE" else READY
