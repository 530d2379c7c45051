"""The machine types of TPU hosts and their images, as Compute Engine offers them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tpukit.accelerators import AcceleratorType, types_of
from tpukit.emulator.compute_service.compute_operations import found_page, not_found
from tpukit.emulator.core.api_errors import Json
from tpukit.emulator.core.emulator_clock import timestamp
from tpukit.emulator.core.places import ZONE
from tpukit.emulator.core.service_context import Call, ServiceContext, Views, resource_id
from tpukit.emulator.tpu_service.catalogue import Catalogue
from tpukit.emulator.workers.worker_host import accelerator_of


@dataclass(frozen=True)
class MachineType:
    """A host with TPU chips. Source: ../shared/reference/compute-engine.md, section 1."""

    name: str
    accelerator_type: str  #: in the instance's metadata
    vcpus: int
    memory_gb: int
    api_type: str  #: `guestAcceleratorType`
    boot_disk: str  #: the default type; a boot disk is of its family, "hyperdisk" or "pd"
    like: str  #: the type of the Cloud TPU API whose zones offer it, or ""

    @property
    def accelerator(self) -> AcceleratorType:
        return accelerator_of(self.accelerator_type)

    def joined(self, topology: str) -> AcceleratorType | None:
        """Return the accelerator type that such hosts make up in a topology, or None."""
        family = self.accelerator_type.rpartition("-")[0]
        for kind in types_of("v5p" if family == "v7x" else family):
            if (kind.topology, kind.chips_per_worker) == (topology, self.accelerator.chips):
                return accelerator_of(f"{family}-{kind.size}")
        return None


_V6E = "hyperdisk-balanced", "v6e-8"
_V5P = "pd-balanced", "v5p-8"
_V7X = "hyperdisk-balanced", ""
MACHINE_TYPES: Mapping[str, MachineType] = {
    machine.name: machine
    for machine in (
        MachineType("ct6e-standard-1t", "v6e-1", 44, 176, "ct6e", *_V6E),
        MachineType("ct6e-standard-4t", "v6e-4", 180, 720, "ct6e", *_V6E),
        MachineType("ct6e-standard-8t", "v6e-8", 180, 1440, "ct6e", *_V6E),
        MachineType("ct5p-hightpu-1t-tpu", "v5p-2", 52, 112, "tpu-v5p", *_V5P),
        MachineType("ct5p-hightpu-4t", "v5p-8", 208, 448, "ct5p", *_V5P),
        MachineType("tpu7x-standard-4t", "v7x-8", 224, 960, "tpu7x", *_V7X),
    )
}
#: Published, but refused to every user: reports of 2026.
REFUSED = ("ct5lp-hightpu-1t", "ct5lp-hightpu-4t", "ct5lp-hightpu-8t")
#: The zone of TPU7x: Google's page of regions and zones.
_TPU7X_ZONES = ("us-central1-c", ZONE)
_ACCELERATOR_IMAGES = "ubuntu-os-accelerator-images"
#: By project and family, the newest image that users have reported. gcloud's default is debian-12.
_IMAGES = {
    (_ACCELERATOR_IMAGES, "ubuntu-accel-2404-amd64-tpu-tpu7x"): "v20260716",
    (_ACCELERATOR_IMAGES, "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"): "v20260826",
    ("debian-cloud", "debian-12"): "v20260817",
}
#: The size of every image in GB.
IMAGE_GB = 10


class MachineTypes:
    """The machine types of a zone, and the images of Google's projects."""

    def __init__(self, context: ServiceContext, catalogue: Catalogue) -> None:
        self._context = context
        self._catalogue = catalogue

    def in_zone(self, name: str, zone: str) -> MachineType | None:
        machine = MACHINE_TYPES.get(name)
        if machine is None:
            return None
        if machine.like:
            offered = self._catalogue.by_name(zone, machine.like) is not None
        else:
            offered = zone in _TPU7X_ZONES
        return machine if offered else None

    def get(self, call: Call) -> Json:
        names = self._names(call)
        if call.path["machine"] not in names:
            place = f"projects/{call.project}/zones/{call.path['zone']}"
            raise not_found(f"{place}/machineTypes/{call.path['machine']}")
        return self._view(call, call.path["machine"])

    def list(self, call: Call) -> Json:
        names = self._names(call)
        page = found_page(call, Views(names, lambda name: self._view(call, name)))
        return {"kind": "compute#machineTypeList", **page}

    def get_image(self, call: Call) -> Json:
        for (project, family), build in _IMAGES.items():
            if (call.project, call.path["image"]) == (project, f"{family}-{build}"):
                return self._image(project, family)
        raise not_found(f"projects/{call.project}/global/images/{call.path['image']}")

    def get_from_family(self, call: Call) -> Json:
        family = call.path["family"]
        if (call.project, family) not in _IMAGES:
            raise not_found(f"projects/{call.project}/global/images/family/{family}")
        return self._image(call.project, family)

    def get_family_view(self, call: Call) -> Json:
        return {"image": self.get_from_family(call)}

    def family_of(self, source: str, project: str) -> str:
        """Return the family of a boot disk's `sourceImage`; raise `ApiError` for unknown images."""
        path = source[source.find("projects/") :] if "projects/" in source else ""
        owner, name = (path.split("/")[1], path.rsplit("/", 1)[1]) if path else (project, source)
        for (known, family), build in _IMAGES.items():
            if owner == known and name in (family, f"{family}-{build}"):
                return family
        raise not_found(path or f"projects/{project}/global/images/{source}")

    def _names(self, call: Call) -> tuple[str, ...]:
        zone = call.path["zone"]
        if zone not in self._catalogue.zones:
            raise not_found(f"projects/{call.project}/zones/{zone}")
        offered = (name for name in MACHINE_TYPES if self.in_zone(name, zone))
        return (*offered, *(REFUSED if self._catalogue.by_name(zone, "v5litepod-8") else ()))

    def _view(self, call: Call, name: str) -> Json:
        base, machine = self._context.compute_base, MACHINE_TYPES.get(name)
        place = f"projects/{call.project}/zones/{call.path['zone']}"
        known: Json = {}
        if machine:
            chips = machine.accelerator.chips
            known = {
                "guestCpus": machine.vcpus,
                "memoryMb": machine.memory_gb * 1024,
                "accelerators": [
                    {"guestAcceleratorType": machine.api_type, "guestAcceleratorCount": chips}
                ],
            }
        return {
            "kind": "compute#machineType",
            "id": resource_id(name),
            "creationTimestamp": timestamp(0),
            "name": name,
            **known,
            "architecture": "X86_64",
            "isSharedCpu": False,
            "zone": call.path["zone"],
            "selfLink": f"{base}{place}/machineTypes/{name}",
        }

    def _image(self, project: str, family: str) -> Json:
        full = f"projects/{project}/global/images/{family}-{_IMAGES[project, family]}"
        return {
            "kind": "compute#image",
            "id": resource_id(full),
            "creationTimestamp": timestamp(0),
            "name": full.rsplit("/", 1)[1],
            "family": family,
            "status": "READY",
            "architecture": "X86_64",
            "diskSizeGb": str(IMAGE_GB),
            "selfLink": self._context.compute_base + full,
        }
