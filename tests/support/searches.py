"""Searches for capacity as the tests of slices ask for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from support.local_cloud import Cloud
from tpukit.google.provider import SliceProvider
from tpukit.models import SliceRequest
from tpukit.slices import capacity, naming
from tpukit.slices.capacity import Search
from tpukit.slices.ensure import Ensured, ensure
from tpukit.slices.refusals import Refusal

HOUR = 3600.0
_IMAGES = {"tpu": "tpu-ubuntu2204-base", "compute": "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"}


@dataclass
class Hunter:
    """One process that searches, on a clock of the test's; it asks each zone in each of `apis`."""

    cloud: Cloud
    owner: str = "ada"
    nonce: str = "n1"
    apis: tuple[str, ...] = ("tpu",)
    types: tuple[str, ...] = ("v3-8",)
    name: str = "demo"
    provider: SliceProvider | None = None  #: the cloud's if None
    states: list[str] = field(default_factory=list)

    def requests(self, *zones: str, types: tuple[str, ...] = ()) -> list[SliceRequest]:
        return [
            naming.labelled(
                self.cloud.request(
                    self.name,
                    zone=zone,
                    accelerator_type=type_,
                    api=api,
                    runtime_version=_IMAGES[api],
                    labels={naming.SEARCH: naming.LOOKING},
                ),
                self.owner,
                self.nonce,
            )
            for type_ in types or self.types
            for zone in zones
            for api in self.apis
        ]

    def search(
        self,
        *zones: str,
        asking: float = 0.0,
        seconds: float = 12 * HOUR,
        before: Callable[[SliceRequest], object] = lambda request: None,
        types: tuple[str, ...] = (),
    ) -> tuple[Ensured, Sequence[Refusal]]:
        cloud, provider = self.cloud, self.provider or self.cloud.tpu

        def say(state: str) -> None:
            self.states.append(state)
            cloud.states.append(state)

        def attempt(request: SliceRequest) -> Ensured:
            before(request)
            return ensure(
                provider,
                request,
                deadline=cloud.deadline(HOUR),
                journal=cloud.journal,
                on_state=say,
            )

        wanted = Search(
            self.requests(*zones, types=types),
            cloud.deadline(asking) if asking else None,
            jitter=lambda least, most: (least + most) / 2,
        )
        return capacity.obtain(
            provider,
            wanted,
            attempt,
            deadline=cloud.deadline(seconds),
            journal=cloud.journal,
            on_state=say,
        )
