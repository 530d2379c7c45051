"""The firewall rules and shared folders that some steps need outside their workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tpukit.access import rule_opening
from tpukit.access.context import Context
from tpukit.clock import Deadline
from tpukit.errors import BadInput, Fix, NotFound, TpukitError
from tpukit.models import Slice
from tpukit.provision import system_steps
from tpukit.provision.apply import require_provisioned
from tpukit.provision.provisioning import provision_all
from tpukit.provision.system_apply import read_plan
from tpukit.provision.system_steps import SHARED, SHARING, WantedStep
from tpukit.provision.undo import require_undone, undo_all
from tpukit.provision.wanted import Wanted
from tpukit.provision.worker_jobs import OnEvent
from tpukit.ssh.worker import RemoteWorker

#: NFS version 4 needs only this port: nfs(5).
_NFS_PORTS = "tcp:2049"


@dataclass(frozen=True)
class Surroundings:
    """A slice, and the functions that find other slices and reach their workers.

    `server` returns a list with worker 0 of a slice.
    """

    context: Context
    slice: Slice
    find: Callable[[str], Slice]
    server: Callable[[Slice], Sequence[RemoteWorker]]
    say: Callable[[str], None]

    def resolved(self, wanted: Wanted) -> Wanted:
        """Return the same steps, with the server's address in place of its name in nfs steps.

        Raises:
            NotFound: there is no such slice.
            BadInput: the slice is in another zone, or on another network.
        """
        return replace(wanted, steps=tuple(map(self._resolved, wanted.steps)))

    def prepare(self, wanted: Wanted, deadline: Deadline, on_event: OnEvent) -> None:
        """Share every folder that the slice will mount, and open the firewall for it.

        Raises `TpukitError` if the sharing slice fails.
        """
        for step in wanted.steps:
            if step.step.name == SHARED:
                self._share(step, deadline, on_event)

    def open(self, wanted: Wanted) -> None:
        """Open the ports that steps need to the addresses of this machine."""
        opening = [step for step in wanted.steps if step.step.opening]
        if opening and self.context.proxied:
            self.say(f"no firewall rule for {opening[0].word}: this route carries only SSH")
            return
        for step in opening:
            ranges = rule_opening.sources(self.context, self.slice.workers[0].address)
            if rule_opening.open_ports(
                self.context, self.slice, step.step.name, step.step.opening, ranges
            ):
                self.say(f"opened {step.step.opening} from {', '.join(ranges)} for {step.word}")

    def undone(self, words: Iterable[str], deadline: Deadline, on_event: OnEvent) -> None:
        """Remove the firewall rules and the shares that the undone steps needed."""
        for word in dict.fromkeys(words):
            if not system_steps.is_step(word):
                continue
            step = system_steps.parse(word)
            if step.step.opening:
                rule_opening.close_ports(self.context, self.slice, step.step.name)
            elif step.step.name == SHARED:
                self._unshare(step, deadline, on_event)

    def _resolved(self, step: WantedStep) -> WantedStep:
        if step.step.name != SHARED:
            return step
        other, _, path = step.value.partition(":")
        sharing = self._sharing(other)
        return replace(step, value=f"{sharing.workers[0].internal_address}:{path}")

    def _sharing(self, name: str) -> Slice:
        """Return the slice that shares a folder with this one."""
        try:
            sharing = self.slice if name == self.slice.name else self.find(name)
        except NotFound as error:
            error.fix = Fix(note="nfs=SLICE:/FOLDER names a slice of yours: tpukit list")
            raise
        own = self.slice
        for what, one, other in (
            ("in zone", sharing.zone, own.zone),
            ("on network", sharing.network, own.network),
        ):
            if one != other:
                raise BadInput(
                    f"slice {name} is {what} {one}, {own.name} {what} {other}",
                    why="NFS works only between slices of one zone and one network",
                    fix=Fix(note="share a folder of a slice beside it, or use a bucket: gcsfuse"),
                )
        if not sharing.workers:
            raise TpukitError(
                f"slice {name} has no workers yet",
                fix=Fix.command("tpukit", "wait", name, "--zone", sharing.zone),
            )
        return sharing

    def _share(self, step: WantedStep, deadline: Deadline, on_event: OnEvent) -> None:
        server, addresses = self._sharing(_server(step)), self._addresses()
        path = step.value.partition(":")[2]
        shared = system_steps.parse(self._sharing_word(step))
        sharing = replace(shared, value=f"{path}:{','.join(addresses)}")
        self.say(f"worker 0 of {server.name} shares {path} with {self.slice.name}")
        require_provisioned(
            provision_all(
                self.server(server), Wanted((sharing,), ()), deadline=deadline, on_event=on_event
            )
        )
        ranges = [f"{address}/32" for address in addresses]
        if rule_opening.open_ports(self.context, server, SHARED, _NFS_PORTS, ranges):
            self.say(f"opened {_NFS_PORTS} of {server.name} to {', '.join(addresses)}")

    def _unshare(self, step: WantedStep, deadline: Deadline, on_event: OnEvent) -> None:
        try:
            sharing = self._sharing(_server(step))
        except NotFound:
            return  # the slice is gone, and its shares with it
        server, word = self.server(sharing), self._sharing_word(step)
        try:
            require_undone(undo_all(server, (word,), deadline=deadline, on_event=on_event))
        except TpukitError as error:
            error.exists = (*error.exists, f"the folder that {sharing.name} shares with this slice")
            error.fix = Fix.command("tpukit", "provision", "undo", sharing.name, word)
            raise
        (facts,) = read_plan(server, (), deadline).facts.values()
        if not any(word.endswith(f":{self.slice.name}") for word in facts.ledgers):
            ranges = [f"{address}/32" for address in self._addresses()]
            rule_opening.close_ports(self.context, sharing, SHARED, ranges)

    def _addresses(self) -> list[str]:
        return [worker.internal_address for worker in self.slice.workers]

    def _sharing_word(self, step: WantedStep) -> str:
        path = step.word.partition(":")[2]
        return f"{SHARING}={path}:{self.slice.name}"


def _server(step: WantedStep) -> str:
    """Return the name of the slice in `nfs=SLICE:/FOLDER`."""
    return step.word.partition("=")[2].partition(":")[0]
