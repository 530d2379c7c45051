"""The machine types of Compute Engine with TPUs, and the slices that they make up.

Sources: docs.cloud.google.com/compute/docs/tpus/tpu-machines, and public reports of real creates;
`docs/how-to/use-compute-engine.md` says which. None of it was proven on hardware by tpukit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tpukit.accelerators import AcceleratorType, is_listed, types_of
from tpukit.errors import BadInput, Fix

#: The project with Google's images for TPUs.
IMAGE_PROJECT = "ubuntu-os-accelerator-images"
_TPU7X = "ubuntu-accel-2404-amd64-tpu-tpu7x"
_OLDER = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"


@dataclass(frozen=True)
class HostMachine:
    """A machine type for one accelerator type, with the disk and the image that fit it.

    `threads_per_core` is 0 if the API's default is right.
    """

    accelerator_type: str
    name: str
    disk_type: str
    image_family: str
    threads_per_core: int = 0


#: v5p refuses Hyperdisk Balanced (two users' reports, 2026); v6e and TPU7x boot from it.
MACHINES = (
    HostMachine("v5p-2", "ct5p-hightpu-1t-tpu", "pd-balanced", _OLDER),
    HostMachine("v5p-8", "ct5p-hightpu-4t", "pd-balanced", _OLDER),
    HostMachine("v6e-1", "ct6e-standard-1t", "hyperdisk-balanced", _OLDER),
    HostMachine("v6e-4", "ct6e-standard-4t", "hyperdisk-balanced", _OLDER),
    HostMachine("v6e-8", "ct6e-standard-8t", "hyperdisk-balanced", _OLDER, threads_per_core=1),
    HostMachine("tpu7x-8", "tpu7x-standard-4t", "hyperdisk-balanced", _TPU7X),
)


#: The hosts of slices of several workers, by the start of their accelerator types.
_HOSTS = {"v5p": "v5p-8", "v6e": "v6e-4", "tpu7x": "tpu7x-8"}


@dataclass(frozen=True)
class SliceShape:
    """The machines of a slice; `topology` joins several of them, and is empty for one."""

    machine: HostMachine
    hosts: int = 1
    topology: str = ""


def shape_of(accelerator_type: str) -> SliceShape:
    """Return the machines of an accelerator type; raise `BadInput` if Compute Engine has none."""
    if machine := _single(accelerator_type):
        return SliceShape(machine)
    family, _, size = accelerator_type.rpartition("-")
    # TPU7x has the topologies of v5p, and its types count cores too.
    listed = f"v5p-{size}" if family == "tpu7x" else accelerator_type
    host = _single(_HOSTS.get(family, ""))
    if host and is_listed(listed):
        kind = AcceleratorType.parse(listed)
        return SliceShape(host, kind.workers, kind.topology)
    names = ", ".join(machine.accelerator_type for machine in MACHINES)
    raise BadInput(
        f"tpukit cannot create {accelerator_type} through Compute Engine",
        why=f"there it makes {names}, and larger slices of {', '.join(_HOSTS)}",
        fix=Fix(note="leave out --api compute"),
    )


def machine_of(accelerator_type: str) -> HostMachine:
    """Return the machine type of an accelerator type; raise `BadInput` if it has none."""
    return shape_of(accelerator_type).machine


def type_of(machine_type: str, hosts: int = 1) -> str:
    """Return the accelerator type of so many machines, or "" if they are none of `MACHINES`."""
    kinds = (machine.accelerator_type for machine in MACHINES if machine.name == machine_type)
    family, _, size = next(kinds, "").rpartition("-")
    return f"{family}-{int(size) * hosts}" if family else ""


def types_on(machine_type: str) -> Iterator[str]:
    """Yield the accelerator types that are made of a machine type."""
    if kind := type_of(machine_type):
        yield kind
        family = kind.rpartition("-")[0]
        if _HOSTS[family] == kind:
            for larger in types_of("v5p" if family == "tpu7x" else family):
                if larger.workers > 1:
                    yield f"{family}-{larger.size}"


def _single(accelerator_type: str) -> HostMachine | None:
    kinds = (machine for machine in MACHINES if machine.accelerator_type == accelerator_type)
    return next(kinds, None)


def has_tpu(machine_type: str) -> bool:
    """Return True if a machine type has TPUs: ct6e-standard-1t, tpu7x-standard-4t."""
    return machine_type.startswith(("ct", "tpu"))
