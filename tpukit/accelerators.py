"""Facts about accelerator types such as `v3-8`, as data with sources.

The tables are `data/accelerators/<generation>.toml`, with one line for each accelerator type. They
only predict: the API decides, and a slice's `networkEndpoints` give its number of workers.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from tpukit.errors import BadInput, Fix
from tpukit.text import one_line

#: The generations of the Cloud TPU API, oldest first.
GENERATIONS = ("v2", "v3", "v4", "v5litepod", "v5p", "v6e")

#: Spellings of a generation, and the generations that each may mean.
_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in GENERATIONS},
    **{name.removeprefix("v"): (name,) for name in GENERATIONS},
    **dict.fromkeys(("v5e", "5e", "v5lite", "v5-lite", "5lite"), ("v5litepod",)),
    **dict.fromkeys(("v5", "5"), ("v5litepod", "v5p")),
    **dict.fromkeys(("v6", "6"), ("v6e",)),
}
#: Spellings of TPU7x, TPU 8t and 8i: tpu7x-8, tpu7-8, v7x-8, v8t-8.
_BEYOND = re.compile(r"(?:tpu-?|v|tpu-?v)(?:7[a-z]?(?:-(?P<size7>[0-9]+))?|[78][a-z]?(?:-.*)?)")
#: Real areas that look like misspelled areas with TPUs: https://cloud.google.com/about/locations
_AREAS_WITHOUT_TPU = ("australia-southeast", "europe-southwest", "europe-central")
_SHOWN = 40  #: characters of a refused name that an error shows


@dataclass(frozen=True)
class Machine:
    """The CPUs and memory of a TPU VM with this number of chips; `memory` includes its unit."""

    chips: int
    vcpus: int
    memory: str


@dataclass(frozen=True)
class Generation:
    """Facts that all accelerator types of one generation share."""

    name: str
    size_counts: str  #: the unit of the number in the name: "cores" or "chips"
    cores_per_chip: int
    devices_per_chip: int
    device_kinds: tuple[str, ...]  #: spellings of `jax.Device.device_kind`, the usual one first
    api_type: str  #: `AcceleratorConfig.Type`
    runtime_version: str  #: for JAX and PyTorch
    unfit_runtime_versions: tuple[str, ...]  #: reported to make a slice READY without a usable chip
    zones_documented: tuple[str, ...]
    zones_listed: tuple[str, ...]  #: from answers of `acceleratorTypes.list`
    pci: Mapping[str, str] = field(hash=False)  #: vendor, device and, on v2 and v3, subsystem
    hbm_gib_per_chip: int
    peak_bf16_tflops_per_chip: int
    sources: Mapping[str, tuple[str, ...]] = field(hash=False)  #: keys for `citation`, by fact
    #: All published figures, the lowest first. A GB/s is 10**9 bytes a second here.
    hbm_gbytes_per_second_per_chip: tuple[int, ...] = ()
    mxus_per_core: int = 0
    mxu_side: int = 0  #: rows and columns of a matrix unit
    topology_axes: int = 0
    torus_side: int = 0  #: a slice is a torus if this divides all axes; 0: not published
    ici_gbytes_per_second_per_link: int = 0  #: one way; 0: not published
    ici_gbytes_per_second_per_chip: int = 0  #: of all links, both ways; 0: not published
    control_agent: bool = False  #: libtpu was seen to need Google's vbarcontrolagent on the worker
    machines: tuple[Machine, ...] = ()  #: by chips; empty if no figures are published

    @property
    def device_unit(self) -> str:
        """The part of the TPU that JAX counts as a device: "core" on v2 and v3, else "chip"."""
        return "core" if self.devices_per_chip == self.cores_per_chip > 1 else "chip"

    @property
    def zones(self) -> tuple[str, ...]:
        """All documented and listed zones; they may lack quota or capacity."""
        return tuple(sorted({*self.zones_documented, *self.zones_listed}))


@dataclass(frozen=True)
class AcceleratorType:
    """One accelerator type; make one with `parse`."""

    name: str
    facts: Generation = field(repr=False)
    size: int
    chips: int
    cores: int
    workers: int
    chips_per_worker: int
    topology: str  #: in chips, such as "2x2x1"
    topology_derived: bool  #: computed from the size, because the API's default is unknown
    sources: tuple[str, ...]  #: keys for `citation`

    @classmethod
    def parse(cls, text: str) -> AcceleratorType:
        """Return the accelerator type with exactly this name.

        Raises `BadInput`, with the nearest names, for any other text.
        """
        generation = text.rpartition("-")[0]
        known = types_of(generation) if generation in GENERATIONS else ()
        return next((type_ for type_ in known if type_.name == text), None) or _refuse(text)

    @property
    def devices(self) -> int:
        """The number of devices that JAX counts on the whole slice."""
        return self.chips * self.facts.devices_per_chip

    @property
    def devices_per_worker(self) -> int:
        return self.chips_per_worker * self.facts.devices_per_chip

    @property
    def runtime_version(self) -> str:
        return self.facts.runtime_version

    @property
    def machine(self) -> Machine | None:
        """The CPUs and memory of a worker, if they are published."""
        return next((m for m in self.facts.machines if m.chips == self.chips_per_worker), None)

    @property
    def links_per_chip(self) -> int:
        """The smallest number of links from a chip to others in the slice, such as 2 in a 2x4."""
        axes, side = [int(axis) for axis in self.topology.split("x")], self.facts.torus_side
        torus = side > 0 and all(axis % side == 0 for axis in axes)
        return sum((2 if torus else 1) for axis in axes if axis > 1)


def spelled(prefix: str) -> str:
    """Return a type's name, or the start of one, in the API's spelling (`v5litepod-16`)."""
    head, hyphen, size = prefix.lower().partition("-")
    meant = _SPELLINGS.get(head, ())
    return f"{meant[0] if len(meant) == 1 else head}{hyphen}{size}"


def unlisted(name: str) -> AcceleratorType:
    """Return a type with nothing but its name, for types that our table lacks.

    Some projects may create tpu7x-* this way: vllm-project/ci-infra pull request 570. Raises
    `BadInput` if this cannot be the name of a type.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]{0,19}-[0-9]{1,6}", name):
        raise BadInput(f'"{one_line(name)[:_SHOWN]}" is not an accelerator type')
    nothing = Generation(
        name=name.rpartition("-")[0],
        size_counts="",
        cores_per_chip=0,
        devices_per_chip=0,
        device_kinds=(),
        api_type="",
        runtime_version="",
        unfit_runtime_versions=(),
        zones_documented=(),
        zones_listed=(),
        pci={},
        hbm_gib_per_chip=0,
        peak_bf16_tflops_per_chip=0,
        sources={},
    )
    return AcceleratorType(name, nothing, 0, 0, 0, 0, 0, "", False, ())


def is_listed(name: str) -> bool:
    """Return True if our table has a type of this name."""
    return any(type_.name == name for type_ in all_types())


def region_of(zone: str) -> str:
    """Return the region of a zone: us-central1 for us-central1-a."""
    return zone.rpartition("-")[0]


def meant_zone(zone: str) -> str:
    """Return the right spelling of a misspelled zone (`us-centrl1-a`), or "".

    It compares only the words with the zones of our tables, because Google adds new numbers and
    letters.
    """
    match = re.fullmatch(r"([a-z]+-[a-z]+)([0-9]+-[a-z0-9]+)", zone)
    zones = [known for generation in GENERATIONS for known in _load(generation)[0].zones]
    areas = sorted({re.split("[0-9]", known)[0] for known in zones})
    if not match or match[1] in (*areas, *_AREAS_WITHOUT_TPU):
        return ""
    from difflib import get_close_matches

    near = get_close_matches(match[1], areas, n=1, cutoff=0.9)
    return f"{near[0]}{match[2]}" if near else ""


def types_of(generation: str) -> tuple[AcceleratorType, ...]:
    """Return the accelerator types of one of `GENERATIONS`, smallest first."""
    return _load(generation)[1]


def all_types() -> tuple[AcceleratorType, ...]:
    """Return every known accelerator type, by generation and size."""
    return tuple(type_ for name in GENERATIONS for type_ in types_of(name))


def citation(source: str) -> str:
    """Return the document, file or issue of a source key."""
    return str(_sources()[source])


def runtime_fits(accelerator: AcceleratorType, runtime_version: str) -> str | None:
    """Return the reason why this runtime version is bad for this type, or None if none is known.

    The API accepts every runtime version for every generation. With a wrong one the slice becomes
    READY without a driver for its chips, and only a new slice helps (pytorch/xla issue 9753).
    """
    facts = accelerator.facts
    if runtime_version not in facts.unfit_runtime_versions:
        return None
    reported = "; ".join(citation(key) for key in facts.sources["unfit_runtime_versions"])
    return (
        f"{facts.name} slices with runtime version {runtime_version} become READY without a usable "
        f"chip; {facts.name} needs {facts.runtime_version} ({reported})"
    )


def retired_runtime(runtime_version: str) -> str | None:
    """Return the reason why a runtime version of old texts is of no use today, or None."""
    for row in _read("retired_runtimes.toml")["retired"]:
        if re.fullmatch(row["pattern"], runtime_version):
            return (
                f"runtime version {runtime_version} is retired: {row['reason']} ({row['source']})"
            )
    return None


# The package's data never changes while a process runs.
@cache
def _load(generation: str) -> tuple[Generation, tuple[AcceleratorType, ...]]:
    table = _read(f"accelerators/{generation}.toml")
    rows = table.pop("types")
    facts = _generation(table)
    return facts, tuple(_accelerator_type(facts, row) for row in rows)


@cache
def _sources() -> dict[str, Any]:
    return _read("accelerators/sources.toml")


def _read(name: str) -> dict[str, Any]:
    path = Path(__file__).parent / "data" / name
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _generation(table: dict[str, Any]) -> Generation:
    values = {fact: entry["value"] for fact, entry in table.items()}
    values = {fact: tuple(v) if isinstance(v, list) else v for fact, v in values.items()}
    sources = {fact: tuple(entry["sources"]) for fact, entry in table.items()}
    name = values.pop("prefix")
    values.setdefault("unfit_runtime_versions", ())
    values["machines"] = tuple(Machine(**machine) for machine in values.get("machines", ()))
    return Generation(name=name, sources=sources, **values)


def _accelerator_type(facts: Generation, row: dict[str, Any]) -> AcceleratorType:
    values = {"topology_derived": False, **row, "sources": tuple(row["sources"])}
    return AcceleratorType(facts=facts, size=values[facts.size_counts], **values)


def _refuse(text: str) -> NoReturn:
    """Raise `BadInput` with the mistake in `text` and the nearest names."""
    plain = "".join(unicodedata.normalize("NFKC", text[: 2 * _SHOWN]).lower().split())
    if beyond := _BEYOND.fullmatch(plain):
        # Cloud TPU documentation, "TPU software versions".
        image = ("--runtime-version", "v2-alpha-tpu7-ubuntu2404")
        size7, page = beyond["size7"], "follow https://docs.cloud.google.com/tpu/docs/tpu7x"
        words = ("tpukit", "create", f"tpu7x-{size7}", "--allow-unlisted-type", *image)
        enabled = Fix(words, f"if Google has enabled your project; else {page}")
        raise _unknown(
            text,
            "the Cloud TPU API ends at v6e, unless Google has enabled your project; TPU7x and "
            "later come through Compute Engine or GKE",
            enabled if size7 else Fix(note=page),
        )
    head, size = _split(plain)
    meant = _SPELLINGS.get(head, ())
    near = [name for generation in meant for name in _nearest(generation, size)]
    nearest = Fix(note=f"did you mean {' or '.join(near)}?")
    fix = nearest if near else Fix.command("tpukit", "types")
    raise _unknown(text, _reason(plain, head, size, meant, near), fix)


def _unknown(text: str, reason: str, fix: Fix) -> BadInput:
    shown = one_line(text[: 2 * _SHOWN])
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return BadInput(f'"{shown}" is not an accelerator type', reason=reason, fix=fix)


def _split(plain: str) -> tuple[str, int | None]:
    """Return the part for the generation, and the size if there is one."""
    by_length = sorted(_SPELLINGS, key=len, reverse=True)
    spelled = next((head for head in by_length if _sized(plain, head) is not None), None)
    if spelled is None:
        return plain.rstrip("-"), None
    return spelled, int(_sized(plain, spelled) or 0)


def _sized(plain: str, head: str) -> str | None:
    match = re.fullmatch(re.escape(head) + r"[-_]*([0-9]+)", plain)
    return match[1] if match else None


def _nearest(generation: str, size: int | None) -> list[str]:
    """Return the name with this size, or the names with the next smaller and larger sizes."""
    known = types_of(generation)
    if size is None:
        return [known[0].name]
    below = [type_.name for type_ in known if type_.size <= size][-1:]
    above = [type_.name for type_ in known if type_.size >= size][:1]
    return list(dict.fromkeys([*below, *above]))


def _reason(
    plain: str, head: str, size: int | None, meant: tuple[str, ...], near: list[str]
) -> str:
    if not plain:
        return "it is empty"
    if not meant:
        return f"the generations are {', '.join(GENERATIONS)}"
    if size is None:
        return "the size is missing"
    if head[0].isdigit():
        return "the generation is missing"
    if head not in GENERATIONS:
        return f"the Cloud TPU API has no {head}, only {' and '.join(meant)}"
    if len(near) == 1 and near[0] == f"{head}-{size}":
        return "a name is a generation, a hyphen and a size, in lower case, without blanks"
    largest = types_of(head)[-1]
    return f"{head} ends at {largest.name}" if size > largest.size else f"{head} has no size {size}"
