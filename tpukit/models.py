"""The nouns, as frozen values. They know nothing of Google's names nor of how they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: States from which a slice does not come back: it has to be deleted and made again.
LOST_STATES = frozenset({"PREEMPTED", "TERMINATED", "HIDDEN", "HIDING"})


@dataclass(frozen=True)
class Worker:
    """One TPU VM of a slice; `index` counts from 0 in the order of `networkEndpoints`."""

    index: int
    internal_address: str
    external_address: str = ""

    @property
    def address(self) -> str:
        """The address to connect to: external where there is one."""
        return self.external_address or self.internal_address


@dataclass(frozen=True)
class Slice:
    """A slice as the cloud describes it. `state` and `health` are the API's own words."""

    name: str
    project: str
    zone: str
    accelerator_type: str
    runtime_version: str
    state: str
    health: str = ""
    health_description: str = ""
    topology: str = ""
    network: str = ""
    subnetwork: str = ""
    workers: tuple[Worker, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    provisioning: str = "on-demand"  #: "on-demand", "spot", "preemptible" or "reserved"
    created: str = ""  #: RFC 3339, as the API gives it
    queued_resource: str = ""
    service_account: str = ""

    @property
    def ready(self) -> bool:
        return self.state == "READY"

    @property
    def lost(self) -> bool:
        return self.state in LOST_STATES

    def document(self) -> dict[str, Any]:
        """Return the public JSON value; metadata stays out, it can carry secrets."""
        return {
            "name": self.name,
            "project": self.project,
            "zone": self.zone,
            "accelerator_type": self.accelerator_type,
            "topology": self.topology,
            "runtime_version": self.runtime_version,
            "state": self.state,
            "health": self.health,
            "health_description": self.health_description,
            "provisioning": self.provisioning,
            "network": self.network,
            "workers": [
                {
                    "index": worker.index,
                    "internal_address": worker.internal_address,
                    "external_address": worker.external_address,
                }
                for worker in self.workers
            ],
            "labels": dict(self.labels),
            "tags": list(self.tags),
            "created": self.created,
            "queued_resource": self.queued_resource,
        }


@dataclass(frozen=True)
class SliceRequest:
    """Everything that a create asks for; nothing is left to a default of the API."""

    name: str
    project: str
    zone: str
    accelerator_type: str
    runtime_version: str
    provisioning: str = "on-demand"
    network: str = "default"
    subnetwork: str = ""
    external_addresses: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    data_disks: tuple[str, ...] = ()
    service_account: str = ""


@dataclass(frozen=True)
class SliceList:
    """The slices that were seen, and the locations that did not answer."""

    slices: tuple[Slice, ...]
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True)
class FirewallRule:
    """An ingress allow rule for TCP ports of the workers that carry one of `target_tags`.

    `allowed` keeps every protocol and port the rule opens, as `tcp:22`, `icmp` or `all`.
    """

    name: str
    network: str
    source_ranges: tuple[str, ...]
    target_tags: tuple[str, ...]
    allowed: tuple[str, ...] = ("tcp:22",)
    description: str = ""
    priority: int = 1000
    disabled: bool = False

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "network": self.network,
            "source_ranges": list(self.source_ranges),
            "target_tags": list(self.target_tags),
            "allowed": list(self.allowed),
            "priority": self.priority,
            "disabled": self.disabled,
        }


@dataclass(frozen=True)
class WorkerIdentity:
    """What a worker says of itself through its guest attributes.

    `host_keys` are OpenSSH public keys (`ssh-ed25519 AAAA…`), all that the worker published.
    """

    index: int
    host_keys: tuple[str, ...]
    hostname: str = ""
    ssh_port: int = 22


@dataclass(frozen=True)
class StepReport:
    """What became of one provisioning step: `changed`, `unchanged` or `failed`."""

    name: str
    outcome: str
    detail: str = ""
    seconds: float = 0.0

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "outcome": self.outcome,
            "detail": self.detail,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class WorkerProvisionReport:
    """One worker's steps. `error` is empty unless the worker failed."""

    worker: int
    steps: tuple[StepReport, ...]
    python: str = ""  #: path of the provisioned interpreter on the worker
    emulated: bool = False
    error: str = ""
    log_tail: tuple[str, ...] = ()
    log_path: str = ""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def changes(self) -> int:
        return sum(step.outcome == "changed" for step in self.steps)

    def document(self) -> dict[str, Any]:
        return {
            "worker": self.worker,
            "ok": self.ok,
            "changes": self.changes,
            "python": self.python,
            "emulated": self.emulated,
            "steps": [step.document() for step in self.steps],
            "error": self.error,
            "log_tail": list(self.log_tail),
            "log_path": self.log_path,
        }


@dataclass(frozen=True)
class ProvisionReport:
    recipe: str
    workers: tuple[WorkerProvisionReport, ...]

    @property
    def ok(self) -> bool:
        return all(worker.ok for worker in self.workers)

    @property
    def changes(self) -> int:
        return sum(worker.changes for worker in self.workers)

    def document(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "ok": self.ok,
            "changes": self.changes,
            "workers": [worker.document() for worker in self.workers],
        }


@dataclass(frozen=True)
class WorkerSmokeReport:
    """What one worker's smoke program saw, or why there is nothing to show.

    `devices` are this worker's own, `global_devices` those of the whole slice as the framework's
    distributed runtime counts them.
    """

    worker: int
    framework: str = ""
    version: str = ""
    platform: str = ""
    device_kind: str = ""
    devices: int = 0
    devices_expected: int = 0
    global_devices: int = 0
    global_devices_expected: int = 0
    processes: int = 0
    matmul: float | None = None
    matmul_expected: float | None = None
    global_sum: float | None = None
    global_sum_expected: float | None = None
    seconds: float = 0.0
    emulated: bool = False
    error: str = ""
    log_tail: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.error

    def document(self) -> dict[str, Any]:
        return {
            "worker": self.worker,
            "ok": self.ok,
            "framework": self.framework,
            "version": self.version,
            "platform": self.platform,
            "device_kind": self.device_kind,
            "devices": self.devices,
            "devices_expected": self.devices_expected,
            "global_devices": self.global_devices,
            "global_devices_expected": self.global_devices_expected,
            "processes": self.processes,
            "matmul": self.matmul,
            "matmul_expected": self.matmul_expected,
            "global_sum": self.global_sum,
            "global_sum_expected": self.global_sum_expected,
            "seconds": round(self.seconds, 3),
            "emulated": self.emulated,
            "error": self.error,
            "log_tail": list(self.log_tail),
        }


@dataclass(frozen=True)
class SmokeReport:
    """Every worker's smoke test; `stand_in` says what an emulated slice computed on.

    `notes` hold what contradicts the table of accelerator types without being a failure.
    """

    framework: str
    workers: tuple[WorkerSmokeReport, ...]
    stand_in: str = ""
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return bool(self.workers) and all(worker.ok for worker in self.workers)

    def document(self) -> dict[str, Any]:
        return {
            "framework": self.framework,
            "ok": self.ok,
            "stand_in": self.stand_in,
            "notes": list(self.notes),
            "workers": [worker.document() for worker in self.workers],
        }
