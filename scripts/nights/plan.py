"""Which fault strikes whom and when: all of it follows from the seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WORKERS = range(4)
#: What there is of each in a hundred, beside what comes once or twice.
SHARES = {"reset": 45, "stall": 20, "restart": 20, "client killed": 15}


@dataclass(frozen=True)
class Event:
    """What happens at a moment, in seconds of the night, and for how long.

    `worker` is whom it strikes, or -1.
    """

    at: float
    kind: str
    worker: int = -1
    seconds: float = 0.0

    def __str__(self) -> str:
        lasts = f" for {self.seconds:.0f} s" if self.seconds else ""
        whom = f" worker {self.worker}" if self.worker >= 0 else ""
        return f"{self.at:6.1f} s  {self.kind}{whom}{lasts}"


def night(seed: int, faults: int, seconds: float) -> list[Event]:
    """Return faults and commands in their order.

    No fault begins in the last three tenths, and no command in the last: what has begun can end,
    also on a busy machine. A job cannot write its last line on a full disk. No fault strikes a
    worker that another one holds.
    """
    chance = random.Random(seed)
    lasting = {
        "stall": min(20.0, seconds / 15),
        "full disk": min(30.0, seconds / 8),
        "reboot": min(10.0, seconds / 15),
    }
    moments = sorted(chance.uniform(0.02, 0.7) * seconds for _ in range(faults))
    kinds = _kinds(chance, faults)
    reboot = int(len(kinds) * chance.uniform(0.5, 0.8))  # until then the job has written much
    kinds.insert(reboot, "reboot")
    events = list(_struck(chance, moments, kinds, lasting))
    return sorted([*events, *_commands(chance, seconds)], key=lambda each: each.at)


def _kinds(chance: random.Random, faults: int) -> list[str]:
    """Return the kinds of all faults but the reboot."""
    twice = 2 if faults >= 50 else 1
    kinds = ["moved", "full disk"] * twice
    kinds += chance.choices(list(SHARES), list(SHARES.values()), k=max(0, faults - 1 - len(kinds)))
    chance.shuffle(kinds)
    return kinds


def _struck(
    chance: random.Random, moments: Sequence[float], kinds: Sequence[str], lasting: dict[str, float]
) -> Iterator[Event]:
    free_at = dict.fromkeys(WORKERS, 0.0)
    for at, kind in zip(moments, kinds, strict=True):
        free = [worker for worker in WORKERS if free_at[worker] <= at]
        if kind == "client killed" or not free:
            yield Event(at, "client killed")
            continue
        worker, seconds = chance.choice(free), lasting.get(kind, 0.0)
        free_at[worker] = at + seconds + 1.0
        yield Event(at, kind, worker, seconds)


def _commands(chance: random.Random, seconds: float) -> Iterator[Event]:
    every = max(4.0, seconds / 40)
    for kind, count in (("push", 2), ("cp", 3), ("run", int(0.85 * seconds / every))):
        for _ in range(count):
            yield Event(chance.uniform(0.05, 0.85) * seconds, kind)
