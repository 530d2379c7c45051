"""How an emulated TPU VM describes its slice: environment variables and metadata attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpukit.accelerators import AcceleratorType, runtime_fits
from tpukit.emulator.workers.addresses import SHARED
from tpukit.emulator.workers.worker_host import WorkerRecord

#: jax-ml/jax:jax/_src/clusters/cloud_tpu_cluster.py since 0.8.1; 8476 before, which
#: JAX_COORDINATOR_PORT overrides.
COORDINATOR_PORT = 8482
#: Present in every command on an emulated worker: the devices it stands in for.
DEVICES = "TPUKIT_EMULATED_DEVICES"
#: Threads that XLA has for each device that stands in for one.
_THREADS = 8
#: How the chips of one worker are laid out: pytorch/xla:torch_xla/_internal/tpu.py for 4 chips,
#: tpu-env of a ct6e-standard-1t for 1.
_CHIP_BOUNDS = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}


@dataclass(frozen=True)
class SliceFacts:
    """One node, as its workers know it."""

    node: str  #: full resource name
    node_id: str
    accelerator: AcceleratorType
    runtime_version: str
    preemptible: bool
    workers: tuple[WorkerRecord, ...]
    service_account: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)  #: the node's own
    data_disks: tuple[tuple[str, str], ...] = ()  #: source and mode of each, as the API has them
    project_number: str = ""  #: by which the APIs know its project

    @classmethod
    def of(
        cls, node: dict[str, Any], workers: Sequence[WorkerRecord], project_number: str = ""
    ) -> SliceFacts:
        """Return the facts of a node's JSON object."""
        scheduling = node.get("schedulingConfig", {})
        return cls(
            node=node["name"],
            node_id=str(node.get("id", "0")),
            accelerator=AcceleratorType.parse(node["acceleratorType"]),
            runtime_version=node.get("runtimeVersion", ""),
            preemptible=bool(scheduling.get("preemptible") or scheduling.get("spot")),
            workers=tuple(sorted(workers, key=lambda worker: worker.index)),
            service_account=str(node.get("serviceAccount", {}).get("email", "")),
            metadata=node.get("metadata", {}),
            data_disks=tuple(
                (each["sourceDisk"], each.get("mode", "READ_WRITE"))
                for each in node.get("dataDisks", [])
            ),
            project_number=project_number,
        )

    @property
    def project(self) -> str:
        return self.node.split("/")[1]

    @property
    def coordinator_port(self) -> int:
        """JAX's own; where all workers share an address, one that no other slice has.

        The ports of SSH servers are different there, and of 16,384 in a row (macOS: 49152 to
        65535), from which these are far away.
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
        """Whether the runtime version has a driver for the chips: `accelerators.runtime_fits`."""
        return runtime_fits(self.accelerator, self.runtime_version) is None

    @property
    def devices(self) -> int:
        """The devices of one worker; none where the worker is READY and its chips are not."""
        return self.accelerator.devices_per_worker if self.chips_usable else 0

    @property
    def chip_bounds(self) -> str:
        return _joined(_CHIP_BOUNDS[self.accelerator.chips_per_worker])

    @property
    def worker_bounds(self) -> str:
        """The workers along each axis: topology over the chips of one worker."""
        chips = _CHIP_BOUNDS[self.accelerator.chips_per_worker]
        axes = [int(axis) for axis in self.accelerator.topology.split("x")]
        padded = [*axes, 1, 1][:3]
        return _joined([-(-axis // own) for axis, own in zip(padded, chips, strict=True)])

    def full_hostname(self, index: int) -> str:
        return f"{self.workers[index].hostname}.{self.zone}.c.{self.project}.internal"

    def environment(self, index: int, metadata_address: str) -> dict[str, str]:
        """Return the variables by which frameworks find the slice without a TPU in the machine.

        `metadata_address` is host:port of the worker's own metadata server. JAX takes these with
        JAX_FORCE_TPU_INIT (jax-ml/jax:jax/_src/cloud_tpu_init.py), torch_xla with
        TPU_SKIP_MDS_QUERY (pytorch/xla:torch_xla/_internal/tpu.py).
        """
        return {
            DEVICES: str(self.devices),
            "TPU_NAME": self.name,
            "TPU_WORKER_ID": str(index),
            "TPU_WORKER_HOSTNAMES": ",".join(self.addresses),
            "TPU_ACCELERATOR_TYPE": self.accelerator.name,
            "TPU_TOPOLOGY": self.accelerator.topology,
            "TPU_HOST_BOUNDS": self.worker_bounds,
            "TPU_CHIPS_PER_HOST_BOUNDS": self.chip_bounds,
            "TPU_SKIP_MDS_QUERY": "1",
            "GCE_METADATA_IP": metadata_address,
            "GCE_METADATA_HOST": metadata_address,
            "JAX_FORCE_TPU_INIT": "1",
            "JAX_COORDINATOR_PORT": str(self.coordinator_port),
            # The default is every interface of this machine, where two slices would meet.
            "JAX_COORDINATOR_BIND_ADDRESS": f"{self.addresses[index]}:{self.coordinator_port}",
            # Without these JAX asks the metadata server, with the requests package, which jax[tpu]
            # brings and jax for CPUs does not (jax/_src/clusters/cloud_tpu_cluster.py).
            "MEGASCALE_COORDINATOR_ADDRESS": self.addresses[0],
            "MEGASCALE_NUM_SLICES": "1",
            "MEGASCALE_SLICE_ID": "0",
            **(self._stand_ins() if self.devices else {}),
        }

    def _stand_ins(self) -> dict[str, str]:
        """Return the variables that make CPU devices of XLA stand in for the TPU's.

        XLA has a thread for each of them, and steps that are under way together, as JAX begins
        them, hold these while they wait for each other's sums: on a machine at work that ended by
        XLA's timeout. PJRT_NPROC gives it more (openxla/xla:xla/pjrt/utils.cc).
        """
        return {
            "JAX_PLATFORMS": "cpu",  # JAX_FORCE_TPU_INIT makes JAX ask for a TPU that is not there
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={self.devices}",
            "PJRT_NPROC": str(_THREADS * self.devices),
        }

    def attributes(self, index: int) -> dict[str, str]:
        """Return `/computeMetadata/v1/instance/attributes/` of one worker."""
        return {
            **self.metadata,
            "accelerator-type": self.accelerator.name,
            "agent-worker-number": str(index),
            "instance-id": self.name,
            "tpu-env": "\n".join(f"{key}: '{value}'" for key, value in self._tpu_env(index)),
            # The Cloud TPU API's form; Compute Engine gives bare names instead.
            "worker-network-endpoints": ",".join(f"unknown:unknown:{a}" for a in self.addresses),
        }

    def _tpu_env(self, index: int) -> list[tuple[str, str]]:
        """Keys and order of a tpu-env that the Cloud TPU API made for a v4-256."""
        wrap = ",".join(["true" if self.accelerator.workers > 1 else "false"] * 3)
        ports = ",".join(str(8431 + chip) for chip in range(self.accelerator.chips_per_worker))
        return [
            ("ACCELERATOR_TYPE", self.accelerator.name),
            ("ALT", "false"),
            ("CHIPS_PER_HOST_BOUNDS", self.chip_bounds),
            ("CONSUMER_PROJECT_ID", self.project),
            ("CONSUMER_PROJECT_NUMBER", self.project_number),
            ("ENABLE_ICI_RESILIENCY", "true"),
            ("ENABLE_IMPROVED_REROUTE_ALLREDUCE_STRATEGY", "false"),
            ("HOST_BOUNDS", self.worker_bounds),
            ("INJECT_SLICE_BUILDER_FAULT", ""),
            ("NODE_ID", self.name),
            ("PREEMPTIBLE", str(self.preemptible).lower()),
            ("RUNTIME_VERSION", self.runtime_version),
            ("TOPOLOGY", self.accelerator.topology),
            ("TPU_CHIPS_PER_PROCESS_BOUNDS", self.chip_bounds),
            ("TPU_PROCESS_BOUNDS", self.worker_bounds),
            ("TPU_RUNTIME_METRICS_PORTS", ports),
            ("TYPE", self.accelerator.facts.api_type),
            ("UID", self.node_id),
            ("WORKER_ID", str(index)),
            ("WRAP", wrap),
            ("ZONE", self.zone),
        ]


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(str(number) for number in numbers)
