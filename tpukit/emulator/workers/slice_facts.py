"""An emulated TPU VM's description of its slice: environment variables and metadata."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpukit.accelerators import AcceleratorType, runtime_fits
from tpukit.emulator.workers.addresses import SHARED
from tpukit.emulator.workers.worker_host import WorkerRecord, accelerator_of, bounds_of

#: jax-ml/jax:jax/_src/clusters/cloud_tpu_cluster.py since 0.8.1. Earlier versions use 8476, unless
#: JAX_COORDINATOR_PORT says otherwise.
COORDINATOR_PORT = 8482
#: This variable holds a worker's number of devices, in every command.
DEVICES = "TPUKIT_EMULATED_DEVICES"
#: XLA's threads for each emulated device.
_THREADS = 8
_SHARED = tomllib.loads(Path(__file__).with_name("tpu_vm.toml").read_text(encoding="utf-8"))
LOGIN: Mapping[str, str] = _SHARED["login"]
#: WandLZhang/ai-infra-demo-proteins:scripts/boltz2_node_setup.sh (2026-06), for a v6e.
_CONTROL_AGENT = (
    "gcr.io/cloud-tpu-v2-images/vbar_control_agent:cloud_tpu.vbarcontrolagent_20250823_RC00"
)


@dataclass(frozen=True)
class SliceFacts:
    """The facts about a node that its workers know."""

    node: str  #: full resource name
    node_id: str
    accelerator: AcceleratorType
    runtime_version: str
    preemptible: bool
    workers: tuple[WorkerRecord, ...]
    service_account: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)  #: without the project's
    data_disks: tuple[tuple[str, str], ...] = ()  #: source and mode of each, in the API's form
    project_number: str = ""

    @classmethod
    def of(
        cls, node: dict[str, Any], workers: Sequence[WorkerRecord], project_number: str = ""
    ) -> SliceFacts:
        """Return the facts of a node's JSON object."""
        scheduling = node.get("schedulingConfig", {})
        return cls(
            node=node["name"],
            node_id=str(node.get("id", "0")),
            accelerator=accelerator_of(node["acceleratorType"]),
            runtime_version=node.get("runtimeVersion", ""),
            preemptible=bool(scheduling.get("preemptible") or scheduling.get("spot")),
            workers=tuple(sorted(workers, key=lambda worker: worker.index)),
            service_account=str(node.get("serviceAccount", {}).get("email", "")),
            metadata=node.get("metadata", {}),
            data_disks=tuple(
                (disk["sourceDisk"], disk.get("mode", "READ_WRITE"))
                for disk in node.get("dataDisks", [])
            ),
            project_number=project_number,
        )

    @property
    def project(self) -> str:
        return self.node.split("/")[1]

    @property
    def coordinator_port(self) -> int:
        """JAX's default port or, if all workers share one address, a different port per slice.

        It is derived from the SSH port, which is different for every worker there. SSH ports come
        from a range of 16,384 (macOS: 49152 to 65535), which these ports do not overlap.
        """
        first = self.workers[0]
        return COORDINATOR_PORT if first.address != SHARED else 10_000 + first.port % 16_384

    @property
    def zone(self) -> str:
        return self.node.split("/")[3]

    @property
    def name(self) -> str:
        return self.node.split("/")[5]

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(worker.address for worker in self.workers)

    @property
    def chips_usable(self) -> bool:
        """True if the runtime version has a driver for the chips: `accelerators.runtime_fits`."""
        return runtime_fits(self.accelerator, self.runtime_version) is None

    @property
    def devices(self) -> int:
        """The number of devices of one worker, or 0 if its chips are not usable."""
        return self.accelerator.devices_per_worker if self.chips_usable else 0

    def full_hostname(self, index: int) -> str:
        return f"{self.workers[index].hostname}.{self.zone}.c.{self.project}.internal"

    def environment(self, index: int, metadata_address: str) -> dict[str, str]:
        """Return the variables that let frameworks find the slice on a machine without a TPU.

        `metadata_address` is host:port of the worker's metadata server, which describes the slice.
        As on a TPU VM, no variable does that (docs/reference/real-workers.md).
        """
        return {
            **LOGIN,
            DEVICES: str(self.devices),
            "GCE_METADATA_IP": metadata_address,
            "GCE_METADATA_HOST": metadata_address,
            "JAX_FORCE_TPU_INIT": "1",
            "JAX_COORDINATOR_PORT": str(self.coordinator_port),
            # The default is every interface of this machine: two slices would collide.
            "JAX_COORDINATOR_BIND_ADDRESS": f"{self.addresses[index]}:{self.coordinator_port}",
            **(self._stand_ins() if self.devices else {}),
        }

    def _stand_ins(self) -> dict[str, str]:
        """Return the variables that make XLA's CPU devices stand in for TPU devices.

        By default XLA has one thread per device. JAX starts several steps at once; each occupies
        threads while it waits for sums of the others, and on a busy machine that ran into XLA's
        timeout. PJRT_NPROC adds threads (openxla/xla:xla/pjrt/utils.cc).
        """
        return {
            "JAX_PLATFORMS": "cpu",  # otherwise JAX_FORCE_TPU_INIT makes JAX look for a TPU
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={self.devices}",
            "PJRT_NPROC": str(_THREADS * self.devices),
        }

    def attributes(self, index: int) -> dict[str, str]:
        """Return the content of `/computeMetadata/v1/instance/attributes/` of one worker."""
        return {
            **self.metadata,
            "accelerator-type": self.accelerator.name,
            "agent-worker-number": str(index),
            "instance-id": self.name,
            "tpu-env": "\n".join(f"{key}: '{value}'" for key, value in self.tpu_env(index)),
            # The Cloud TPU API's form; Compute Engine gives bare names instead.
            "worker-network-endpoints": ",".join(f"unknown:unknown:{a}" for a in self.addresses),
        }

    def tpu_env(self, index: int) -> list[tuple[str, str]]:
        """Return keys and values of a worker's tpu-env, sorted by key like the real one.

        The keys are those of a recorded one: tpu_vm.toml.
        """
        chips, workers = bounds_of(self.accelerator)
        wrap = ",".join(["true" if self.accelerator.workers > 1 else "false"] * 3)
        ports = ",".join(str(8431 + chip) for chip in range(self.accelerator.chips_per_worker))
        agent = self.accelerator.facts.control_agent and self.chips_usable
        return sorted(
            {
                **_SHARED["tpu_env"],
                "ACCELERATOR_TYPE": self.accelerator.name,
                "CHIPS_PER_HOST_BOUNDS": chips,
                "CONSUMER_PROJECT_ID": self.project,
                "CONSUMER_PROJECT_NUMBER": self.project_number,
                "HOST_BOUNDS": workers,
                "NODE_ID": self.name,
                "PREEMPTIBLE": str(self.preemptible).lower(),
                "TOPOLOGY": self.accelerator.topology,
                "TPU_CHIPS_PER_PROCESS_BOUNDS": chips,
                "TPU_PROCESS_BOUNDS": workers,
                "TPU_RUNTIME_METRICS_PORTS": ports,
                "TPU_TOPOLOGY_WRAP": wrap,
                "TYPE": self.accelerator.facts.api_type,
                "UID": self.node_id,
                "VBARCONTROL_AGENT_DOCKER_URL": _CONTROL_AGENT if agent else "",
                "WORKER_ID": str(index),
                "WRAP": wrap,
                "ZONE": self.zone,
            }.items()
        )
