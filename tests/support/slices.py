"""Creates and deletes as the tests of slices ask for them."""

from __future__ import annotations

from collections.abc import Callable

from support.local_cloud import Cloud, FakeClock
from tpukit.models import Slice, SliceRequest
from tpukit.slices import change, naming
from tpukit.slices.ensure import Ensured, ensure

OWNER = "ada"


def labelled(cloud: Cloud, name: str = "demo", nonce: str = "n1", **given: object) -> SliceRequest:
    return naming.labelled(cloud.request(name, **given), OWNER, nonce)


def create(cloud: Cloud, request: SliceRequest | None = None, seconds: float = 600.0) -> Ensured:
    return ensure(
        cloud.tpu,
        request or labelled(cloud),
        deadline=cloud.deadline(seconds),
        journal=cloud.journal,
        on_state=cloud.states.append,
    )


def delete(cloud: Cloud, slice_: Slice, seconds: float = 600.0) -> None:
    change.delete(
        cloud.tpu,
        slice_,
        deadline=cloud.deadline(seconds),
        journal=cloud.journal,
        on_state=cloud.states.append,
    )


def at_sleep(clock: FakeClock, number: int, act: Callable[[], None]) -> None:
    """Let something happen in the middle of the wait with that number, from 1."""
    count = 0

    def on_sleep() -> None:
        nonlocal count
        count += 1
        if count == number:
            act()

    clock.on_sleep = on_sleep
