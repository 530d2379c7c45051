"""What steps need beside the workers themselves: firewall rules, and who shares a folder."""

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
from tpukit.remote.connection.worker import RemoteWorker

#: NFS version 4 needs this port alone: nfs(5).
_NFS_PORTS = "tcp:2049"


@dataclass(frozen=True)
class Surroundings:
    """A slice, and how others are found and reached; `server` returns a slice's worker 0."""

    context: Context
    slice: Slice
    find: Callable[[str], Slice]
    server: Callable[[Slice], Sequence[RemoteWorker]]
    say: Callable[[str], None]

    def resolved(self, wanted: Wanted) -> Wanted:
        """Return the same with the address of who shares in the values of nfs.

        Raises:
            NotFound: there is no such slice.
            BadInput: it is in another zone, or on another network.
        """
        return replace(wanted, steps=tuple(map(self._resolved, wanted.steps)))

    def prepare(self, wanted: Wanted, deadline: Deadline, on_event: OnEvent) -> None:
        """Have every folder shared that the slice is to mount, and its rule opened.

        Raises `TpukitError` where the slice that shares it fails.
        """
        for step in wanted.steps:
            if step.step.name == SHARED:
                self._share(step, deadline, on_event)

    def open(self, wanted: Wanted) -> None:
        """Open the rules of steps that answer on ports of their own to our address."""
        opening = [step for step in wanted.steps if step.step.opening]
        if opening and self.context.proxied:
            self.say(f"no rule for {opening[0].word}: only SSH comes by this route")
            return
        for step in opening:
            ranges = rule_opening.sources(self.context, self.slice.workers[0].address)
            if rule_opening.open_ports(
                self.context, self.slice, step.step.name, step.step.opening, ranges
            ):
                self.say(f"opened {step.step.opening} from {', '.join(ranges)} for {step.word}")

    def undone(self, words: Iterable[str], deadline: Deadline, on_event: OnEvent) -> None:
        """Take back what undone steps had brought elsewhere: rules, and shares for this slice."""
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
        found = self._sharing(other)
        return replace(step, value=f"{found.workers[0].internal_address}:{path}")

    def _sharing(self, name: str) -> Slice:
        """Return the slice that shares a folder with this one."""
        try:
            found = self.slice if name == self.slice.name else self.find(name)
        except NotFound as error:
            error.fix = Fix(note="nfs=SLICE:/FOLDER names a slice of yours: tpukit list")
            raise
        own = self.slice
        for what, one, other in (
            ("in zone", found.zone, own.zone),
            ("on network", found.network, own.network),
        ):
            if one != other:
                raise BadInput(
                    f"slice {name} is {what} {one}, {own.name} {what} {other}",
                    why="a folder is shared over internal addresses of one zone",
                    fix=Fix(note="share a folder of a slice beside it, or use a bucket: gcsfuse"),
                )
        if not found.workers:
            raise TpukitError(
                f"slice {name} has no workers yet",
                fix=Fix.command("tpukit", "wait", name, "--zone", found.zone),
            )
        return found

    def _share(self, step: WantedStep, deadline: Deadline, on_event: OnEvent) -> None:
        found, addresses = self._sharing(_server(step)), self._addresses()
        path = step.value.partition(":")[2]
        shared = system_steps.parse(self._sharing_word(step))
        sharing = replace(shared, value=f"{path}:{','.join(addresses)}")
        self.say(f"worker 0 of {found.name} shares {path} with {self.slice.name}")
        require_provisioned(
            provision_all(
                self.server(found), Wanted((sharing,), ()), deadline=deadline, on_event=on_event
            )
        )
        ranges = [f"{address}/32" for address in addresses]
        if rule_opening.open_ports(self.context, found, SHARED, _NFS_PORTS, ranges):
            self.say(f"opened {_NFS_PORTS} of {found.name} to {', '.join(addresses)}")

    def _unshare(self, step: WantedStep, deadline: Deadline, on_event: OnEvent) -> None:
        try:
            found = self._sharing(_server(step))
        except NotFound:
            return  # with all that it shared
        server, word = self.server(found), self._sharing_word(step)
        try:
            require_undone(undo_all(server, (word,), deadline=deadline, on_event=on_event))
        except TpukitError as error:
            error.exists = (*error.exists, f"the folder that {found.name} shares with this slice")
            error.fix = Fix.command("tpukit", "provision", "undo", found.name, word)
            raise
        (facts,) = read_plan(server, (), deadline).facts.values()
        if not any(word.endswith(f":{self.slice.name}") for word in facts.ledgers):
            ranges = [f"{address}/32" for address in self._addresses()]
            rule_opening.close_ports(self.context, found, SHARED, ranges)

    def _addresses(self) -> list[str]:
        return [worker.internal_address for worker in self.slice.workers]

    def _sharing_word(self, step: WantedStep) -> str:
        path = step.word.partition(":")[2]
        return f"{SHARING}={path}:{self.slice.name}"


def _server(step: WantedStep) -> str:
    """Return the name of the slice in `nfs=SLICE:/FOLDER`."""
    return step.word.partition("=")[2].partition(":")[0]
