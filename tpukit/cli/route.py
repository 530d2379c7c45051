"""The flags that say how workers without external addresses are reached."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from typer import Option

from tpukit.errors import BadInput
from tpukit.text import one_line


@dataclass(frozen=True)
class Route:
    """How to reach workers; with no flag, at their external addresses where they have one."""

    iap: Annotated[
        bool, Option("--iap", help="Through Identity-Aware Proxy, by gcloud start-iap-tunnel.")
    ] = False
    internal_ips: Annotated[
        bool, Option("--internal-ips", help="At internal addresses, from inside the network.")
    ] = False
    jump: Annotated[
        str,
        Option(
            "--jump", metavar="NAME[:N]", help="At internal addresses, through a slice's worker."
        ),
    ] = ""

    @property
    def proxied(self) -> bool:
        return self.iap or bool(self.jump)

    @property
    def inside(self) -> bool:
        """Whether workers are reached at their internal addresses."""
        return self.proxied or self.internal_ips

    @property
    def jump_worker(self) -> tuple[str, str]:
        """The slice and the number of the worker that others are reached through."""
        name, _, worker = self.jump.partition(":")
        return name, worker or "0"

    def check(self) -> None:
        """Raise `BadInput` for flags that contradict each other or make no sense."""
        if self.iap and self.jump:
            raise BadInput("--iap and --jump are two ways to one worker", fix="choose one")
        if self.jump and not re.fullmatch(r"[^:]+(:\d{1,5})?", self.jump, re.ASCII):
            raise BadInput(f"{one_line(self.jump)!r} is no worker", fix="--jump demo or demo:2")


EXTERNAL = Route()
