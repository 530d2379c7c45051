"""Connections to workers: direct, through a worker or a host, or through a proxy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tpukit.errors import BadInput, Fix

if TYPE_CHECKING:
    from tpukit.cli.parameters import RouteFlags
    from tpukit.models import Slice
    from tpukit.ssh.dial import Dial
    from tpukit.ssh.openssh import OpenSsh
    from tpukit.ssh.target import Target
    from tpukit.ssh.worker import RemoteWorker

#: Seconds for a connection to the worker of a `--jump`.
_JUMP_SECONDS = 60.0


@dataclass(eq=False)
class Dialer:
    """Connects to workers by one route; `find` and `workers` look up the slice of a `--jump`."""

    flags: RouteFlags
    project: Callable[[], str]
    openssh: Callable[[], OpenSsh]
    find: Callable[[str], Slice]
    workers: Callable[..., list[RemoteWorker]]
    say: Callable[[str], None]

    def proxy(self, target: Target) -> list[str]:
        """Return the command line of the program that connects to a worker; empty if none does."""
        from tpukit.ssh import dial

        if self.flags.iap:
            return dial.iap_command(self.project(), target)
        host, port = self.flags.jump_host
        if host:
            return dial.jump_command(host, port, target)
        if self.flags.jump:
            onward = f"[{target.address}]:{target.port}"
            return replace(self.openssh(), persist=0).command(self._jump_target, "-W", onward)
        return []

    @property
    def dial(self) -> Dial:
        """Opens a connection to a worker."""
        from tpukit.ssh import dial

        name, worker = self.flags.jump_worker
        if name:
            from tpukit.ssh.forwarding import through_worker

            (jump,) = self.workers(name, worker, _JUMP_SECONDS)
            return through_worker(jump.connect)
        if self.flags.proxied:
            return dial.through_program(self.proxy, self.say)
        return dial.direct

    def source_address(self, worker_address: str) -> str:
        """Return the address or range from which connections by this route reach the worker.

        Raises `TpukitError` if it cannot be found out.
        """
        from tpukit.access import caller_address, selection

        if self.flags.iap:
            return caller_address.IAP_RANGE
        host, _ = self.flags.jump_host
        if host:
            raise BadInput(
                f"the address of {host} inside the network is unknown",
                fix=Fix(note="give it: --source-range 10.128.0.7/32"),
            )
        name, worker = self.flags.jump_worker
        if name:
            jump = self.find(name).workers
            (index,) = selection.parse_workers(worker, [jump_worker.index for jump_worker in jump])
            return jump[index].internal_address
        return caller_address.source_address(worker_address, lambda: self._public_address)

    @cached_property
    def _jump_target(self) -> Target:
        name, worker = self.flags.jump_worker
        (jump,) = self.workers(self.find(name), worker, _JUMP_SECONDS, for_others=True)
        return jump.proved()

    @cached_property
    def _public_address(self) -> str:
        from tpukit.access import caller_address

        address, source = caller_address.public_address()
        self.say(f"your address is {address}, as {source} sees it")
        return address
