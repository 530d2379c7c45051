"""The hardware of a chip and of a worker in words, with the source of each figure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tpukit import accelerators
from tpukit.accelerators import AcceleratorType, Generation
from tpukit.text import counted


@dataclass(frozen=True)
class HardwareFact:
    """One figure with its citations; the value is empty if the figure is not published."""

    name: str
    value: str
    sources: tuple[str, ...] = ()


def of_type(accelerator: AcceleratorType) -> tuple[HardwareFact, ...]:
    """Return the facts about one accelerator type, those of the whole slice first."""
    own, facts = tuple(map(accelerators.citation, accelerator.sources)), accelerator.facts
    per_device = f"{accelerator.devices_per_worker} a worker, each a {facts.device_unit}"
    workers = f"{accelerator.workers}, each with {counted(accelerator.chips_per_worker, 'chip')}"
    memory = f"{accelerator.chips * facts.hbm_gib_per_chip} GiB"
    return (
        HardwareFact("chips", f"{accelerator.chips}, {accelerator.topology}", own),
        HardwareFact("cores", str(accelerator.cores), own),
        HardwareFact("workers", workers, own),
        HardwareFact(
            "devices", f"{accelerator.devices}, {per_device}", _cited(facts, "devices_per_chip")
        ),
        HardwareFact("HBM of the slice", memory, _cited(facts, "hbm_gib_per_chip")),
        *of_generation(facts),
        _machine(accelerator),
        HardwareFact(
            "runtime version", accelerator.runtime_version, _cited(facts, "runtime_version")
        ),
    )


def of_generation(facts: Generation) -> Iterator[HardwareFact]:
    """Yield the facts about a chip of a generation."""
    bandwidth = " or ".join(f"{figure:,}" for figure in facts.hbm_gbytes_per_second_per_chip)
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
    """Return the CPUs and memory of a generation's TPU VMs."""
    sizes = [f"{counted(m.chips, 'chip')}: {m.vcpus} vCPUs, {m.memory}" for m in facts.machines]
    return HardwareFact("a worker's VM", "; ".join(sizes), _cited(facts, "machines"))


def _machine(accelerator: AcceleratorType) -> HardwareFact:
    own = accelerator.machine
    value = f"{own.vcpus} vCPUs, {own.memory}" if own else ""
    return HardwareFact(
        "a worker's VM", value, _cited(accelerator.facts, "machines") if own else ()
    )


def _cited(facts: Generation, fact: str) -> tuple[str, ...]:
    return tuple(map(accelerators.citation, facts.sources.get(fact, ())))
