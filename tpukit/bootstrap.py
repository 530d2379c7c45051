"""The whole main job: create, firewall, connect, provision, smoke.

Each stage looks before it acts, so the job typed again does only what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tpukit import access, existence, firewall, lifecycle
from tpukit.accelerators import AcceleratorType
from tpukit.clock import Deadline
from tpukit.errors import ProvisionFailed, SmokeFailed
from tpukit.means import Means
from tpukit.models import FirewallRule, ProvisionReport, Slice, SliceRequest, SmokeReport
from tpukit.provision.apply import ProvisionEvent, RemoteWorker, provision
from tpukit.provision.recipes import Recipe, venv_python
from tpukit.remote.fanout import fan_out
from tpukit.remote.ssh import Connection, Target
from tpukit.smoke.run import smoke
from tpukit.smoke.turn import turn

#: Seconds that each stage may take at most; the whole job's deadline cuts them shorter.
CONNECT_SECONDS = 300.0
PROVISION_SECONDS = 1800.0
SMOKE_SECONDS = 600.0

OnStage = Callable[[str, str], None]


@dataclass(frozen=True)
class Progress:
    """Who wants to hear what: (stage, line) for the job, events for each worker's steps."""

    on_stage: OnStage
    on_provision: Callable[[ProvisionEvent], None]


@dataclass(frozen=True)
class UpReport:
    """What `up` made sure of, and what of it it had to change."""

    slice: Slice
    created: bool
    rule: FirewallRule
    rule_changed: bool
    provision: ProvisionReport
    smoke: SmokeReport

    @property
    def changes(self) -> int:
        return int(self.created) + int(self.rule_changed) + self.provision.changes

    def document(self) -> dict[str, Any]:
        return {
            "slice": self.slice.document(),
            "created": self.created,
            "changes": self.changes,
            "firewall": {**self.rule.document(), "changed": self.rule_changed},
            "provision": self.provision.document(),
            "smoke": self.smoke.document(),
        }


def up(
    means: Means,
    request: SliceRequest,
    accelerator: AcceleratorType,
    recipe: Recipe,
    *,
    requirements: bytes | None,
    deadline: Deadline,
    progress: Progress,
) -> UpReport:
    """Make sure that the slice exists, can be reached, is provisioned, and computes.

    Raises:
        ProvisionFailed, SmokeFailed: with every worker's report in `details`.
        TpukitError: whatever a stage raises; the slice stays, and the error says so.
    """
    say = progress.on_stage
    firewall.check_ranges(means.source_ranges)  # before anything bills
    wanted = with_access(request, means)
    ensured = lifecycle.create(
        means.provider,
        wanted,
        deadline=deadline,
        journal=means.journal,
        on_state=lambda state: say("create", state),
    )
    found = ensured.slice
    seen = existence.Sighting(found.name, found.zone, found.state, means.provider.bills)
    with existence.naming_what_exists(seen):
        say("create", "created" if ensured.created else "already there")
        found, rule, changed = open_firewall(means, found)
        say("firewall", "opened" if changed else "already open")
        workers = reach(means, found, deadline.within(CONNECT_SECONDS))
        say("connect", f"{len(workers)} of {len(found.workers)} workers, host keys verified")
        report = provisioned(means, workers, recipe, requirements, deadline, progress.on_provision)
        say("provision", f"{report.changes} changes")
        result = smoked(means, workers, accelerator, recipe, deadline)
        say("smoke", "passed")
    return UpReport(found, ensured.created, rule, changed, report, result)


def with_access(request: SliceRequest, means: Means) -> SliceRequest:
    """Return the request with our key in the slice's own metadata, and the tag of its rule."""
    given = request.metadata.get("ssh-keys", "").splitlines()
    keys = "\n".join([*given, access.key_line(means.user, means.key)])
    tag = firewall.tag(request.project, request.zone, request.name)
    return replace(
        request, metadata={**request.metadata, "ssh-keys": keys}, tags=(*request.tags, tag)
    )


def open_firewall(
    means: Means, found: Slice, world: bool = False
) -> tuple[Slice, FirewallRule, bool]:
    """Tie the slice to its rule by its tag and let the rule admit us; say whether it changed."""
    access.check_reachable(found)
    tag = firewall.rule_name(found)
    if tag not in found.tags:
        means.provider.replace_tags(found.zone, found.name, (*found.tags, tag))
        found = replace(found, tags=(*found.tags, tag))
    ranges = means.source_ranges or (means.source_address(found.workers[0].address),)
    rule, changed = firewall.apply(
        means.firewall, found, firewall.check_ranges(ranges, world=world)
    )
    return found, rule, changed


def reach(means: Means, found: Slice, deadline: Deadline) -> list[RemoteWorker]:
    """Return the workers once every one has answered over authenticated SSH.

    Raises:
        TransportFailed, HostKeyMismatch: the first worker that could not be reached.
    """
    workers = remote_workers(means, found, deadline)
    for outcome in fan_out(workers, lambda worker: worker.connect().close()):
        if outcome.error:
            raise outcome.error
    return workers


def remote_workers(
    means: Means, found: Slice, deadline: Deadline, patience: float = CONNECT_SECONDS
) -> list[RemoteWorker]:
    """Return the slice's workers with their pinned host keys and a way to connect to each.

    `patience` is in seconds, for each connection that is made later, when `deadline` may be over.
    """
    access.check_reachable(found)
    access.install_key(means.provider, found, means.user, means.key, deadline)
    entry = access.Access(found, means.connector, means.firewall, means.source_address)

    def connector(target: Target) -> Callable[[], Connection]:
        return lambda: entry.connect(target, Deadline.after(means.clock, patience))

    targets = access.targets(
        means.provider,
        found,
        means.user,
        deadline.within(access.IDENTITY_SECONDS),
        means.internal,
    )
    return [RemoteWorker(target.worker, connector(target)) for target in targets]


def provisioned(
    means: Means,
    workers: Sequence[RemoteWorker],
    recipe: Recipe,
    requirements: bytes | None,
    deadline: Deadline,
    on_event: Callable[[ProvisionEvent], None],
) -> ProvisionReport:
    """Provision every worker and return the report; raise `ProvisionFailed` if one failed."""
    report = provision(
        workers,
        recipe,
        requirements=requirements,
        clock=means.clock,
        deadline=deadline.within(PROVISION_SECONDS),
        on_event=on_event,
    )
    failed = [worker for worker in report.workers if not worker.ok]
    if failed:
        first = failed[0]
        raise ProvisionFailed(
            f"provisioning failed on {_named(worker.worker for worker in failed)}",
            why="\n".join([first.error, *first.log_tail]),
            fix=f"the whole log is on the worker: {first.log_path}" if first.log_path else "",
            details=report.document(),
        )
    return report


def smoked(
    means: Means,
    workers: Sequence[RemoteWorker],
    accelerator: AcceleratorType,
    recipe: Recipe,
    deadline: Deadline,
) -> SmokeReport:
    """Run the smoke test with each worker's own provisioned interpreter; raise `SmokeFailed`."""
    python = venv_python(recipe.name)
    with turn(workers[0], python, deadline):
        result = smoke(
            workers,
            accelerator,
            recipe.name,
            python=python,
            clock=means.clock,
            deadline=deadline.within(SMOKE_SECONDS),
        )
    failed = [worker for worker in result.workers if not worker.ok]
    if failed:
        first = failed[0]
        raise SmokeFailed(
            f"the smoke test failed on {_named(worker.worker for worker in failed)}",
            why="\n".join([first.error, *result.notes, *first.log_tail]),
            details=result.document(),
        )
    return result


def _named(indices: Iterable[int]) -> str:
    numbers = [str(index) for index in indices]
    return f"worker {numbers[0]}" if len(numbers) == 1 else f"workers {', '.join(numbers)}"
