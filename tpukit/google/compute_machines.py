"""The machine types of Compute Engine with TPUs, for slices with a single worker.

Sources: docs.cloud.google.com/compute/docs/tpus/tpu-machines, and public reports of real creates;
`docs/how-to/use-compute-engine.md` says which. None of it was proven on hardware by tpukit.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def machine_of(accelerator_type: str) -> HostMachine:
    """Return the machine type of an accelerator type; raise `BadInput` if it has none."""
    for machine in MACHINES:
        if machine.accelerator_type == accelerator_type:
            return machine
    raise BadInput(
        f"tpukit cannot create {accelerator_type} through Compute Engine",
        why=f"there it makes only {', '.join(m.accelerator_type for m in MACHINES)}, of one worker",
        fix=Fix(note="leave out --api compute"),
    )


def type_of(machine_type: str) -> str:
    """Return the accelerator type of a machine type, or "" if it is none of `MACHINES`."""
    kinds = (machine.accelerator_type for machine in MACHINES if machine.name == machine_type)
    return next(kinds, "")


def has_tpu(machine_type: str) -> bool:
    """Return True if a machine type has TPUs: ct6e-standard-1t, tpu7x-standard-4t."""
    return machine_type.startswith(("ct", "tpu"))
