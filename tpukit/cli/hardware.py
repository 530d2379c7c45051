"""What a chip and a worker are made of, in words, with where each figure is published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tpukit import accelerators
from tpukit.accelerators import AcceleratorType, Generation
from tpukit.text import counted


@dataclass(frozen=True)
class HardwareFact:
    """One figure, and the citations of it; an empty value where nobody has published one."""

    name: str
    value: str
    sources: tuple[str, ...] = ()


def of_type(found: AcceleratorType) -> tuple[HardwareFact, ...]:
    """Return what is known of one accelerator type, of the whole slice first."""
    own, facts = tuple(map(accelerators.citation, found.sources)), found.facts
    per_device = f"{found.devices_per_worker} a worker, each a {facts.device_unit}"
    workers = f"{found.workers}, each with {counted(found.chips_per_worker, 'chip')}"
    memory = f"{found.chips * facts.hbm_gib_per_chip} GiB"
    return (
        HardwareFact("chips", f"{found.chips}, {found.topology}", own),
        HardwareFact("cores", str(found.cores), own),
        HardwareFact("workers", workers, own),
        HardwareFact(
            "devices", f"{found.devices}, {per_device}", _cited(facts, "devices_per_chip")
        ),
        HardwareFact("HBM of the slice", memory, _cited(facts, "hbm_gib_per_chip")),
        *of_generation(facts),
        _machine(found),
        HardwareFact("runtime version", found.runtime_version, _cited(facts, "runtime_version")),
    )


def of_generation(facts: Generation) -> tuple[HardwareFact, ...]:
    """Return what is known of every chip of a generation."""
    return tuple(_chip_facts(facts))


def _chip_facts(facts: Generation) -> Iterator[HardwareFact]:
    bandwidth = " or ".join(f"{each:,}" for each in facts.hbm_gbytes_per_second_per_chip)
    units = f"{facts.mxus_per_core} a core, each {facts.mxu_side} x {facts.mxu_side}"
    link, links = facts.ici_gbytes_per_second_per_link, facts.ici_gbytes_per_second_per_chip
    values = {
        "cores a chip": (str(facts.cores_per_chip), "cores_per_chip"),
        "devices a chip": (str(facts.devices_per_chip), "devices_per_chip"),
        "HBM a chip": (f"{facts.hbm_gib_per_chip} GiB", "hbm_gib_per_chip"),
        "HBM bandwidth a chip": (f"{bandwidth} GB/s", "hbm_gbytes_per_second_per_chip"),
        "MXUs": (units, "mxus_per_core"),
        "bfloat16 peak a chip": (
            f"{facts.peak_bf16_tflops_per_chip} TFLOP/s",
            "peak_bf16_tflops_per_chip",
        ),
        "ICI topology": (f"{facts.topology_axes} axes", "topology_axes"),
        "ICI a link, one way": (f"{link} GB/s" if link else "", "ici_gbytes_per_second_per_link"),
        "ICI a chip, both ways": (
            f"{links} GB/s" if links else "",
            "ici_gbytes_per_second_per_chip",
        ),
    }
    for name, (value, fact) in values.items():
        yield HardwareFact(name, value, _cited(facts, fact) if value else ())


def machines(facts: Generation) -> HardwareFact:
    """Return what the TPU VMs of a generation have besides their chips."""
    found = [f"{counted(m.chips, 'chip')}: {m.vcpus} vCPUs, {m.memory}" for m in facts.machines]
    return HardwareFact("a worker's VM", "; ".join(found), _cited(facts, "machines"))


def _machine(found: AcceleratorType) -> HardwareFact:
    own = found.machine
    value = f"{own.vcpus} vCPUs, {own.memory}" if own else ""
    return HardwareFact("a worker's VM", value, _cited(found.facts, "machines") if own else ())


def _cited(facts: Generation, fact: str) -> tuple[str, ...]:
    return tuple(map(accelerators.citation, facts.sources.get(fact, ())))
