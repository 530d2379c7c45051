"""Parse the selection of workers of a slice: `all`, `0` or `0,2-5`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tpukit.errors import BadInput, Fix


def parse_workers(words: str, present: Sequence[int]) -> list[int]:
    """Return the numbers that `words` selects from those `present`.

    Raises `BadInput` if the words select nothing, or a worker that does not exist.
    """
    if words == "all":
        return list(present)
    chosen: set[int] = set()
    for part in words.split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip(), re.ASCII)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise BadInput(
                f"{words!r} does not select workers", fix=Fix(note="--worker all, 0 or 0,2-5")
            )
        chosen |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    absent = sorted(chosen - set(present))
    if absent:
        last = max(present, default=-1)
        there = (
            f"workers 0 to {last}" if last > 0 else "only worker 0" if last == 0 else "no worker"
        )
        raise BadInput(f"there is no worker {absent[0]}", why=f"the slice has {there}")
    return sorted(chosen)
