"""Accelerator types: what `v3-8` stands for, as data with sources.

The tables are `data/accelerators/<generation>.toml`, one line for each accelerator type. They
predict and the API decides: the number of workers is what a slice's `networkEndpoints` say.
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

#: What people write for a generation, and what it may mean.
_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in GENERATIONS},
    **{name.removeprefix("v"): (name,) for name in GENERATIONS},
    **dict.fromkeys(("v5e", "5e", "v5lite", "v5-lite", "5lite"), ("v5litepod",)),
    **dict.fromkeys(("v5", "5"), ("v5litepod", "v5p")),
    **dict.fromkeys(("v6", "6"), ("v6e",)),
}
#: TPU7x, TPU 8t and 8i in the spellings seen: tpu7x-8, tpu7-8, v7x-8, v8t-8.
_BEYOND = re.compile(r"(tpu-?|v|tpu-?v)[78][a-z]?(-.*)?")
#: Regions whose words are near to others': https://cloud.google.com/about/locations
_AREAS_WITHOUT_TPU = ("australia-southeast", "europe-southwest", "europe-central")
_SHOWN = 40  #: characters of a refused name that an error repeats


@dataclass(frozen=True)
class Machine:
    """What a TPU VM with so many chips has besides; `memory` with its unit."""

    chips: int
    vcpus: int
    memory: str


@dataclass(frozen=True)
class Generation:
    """What all accelerator types of one generation share."""

    name: str
    size_counts: str  #: what the number in the name counts: "cores" or "chips"
    cores_per_chip: int
    devices_per_chip: int
    device_kinds: tuple[str, ...]  #: spellings of `jax.Device.device_kind`, the usual one first
    api_type: str  #: `AcceleratorConfig.Type`
    chips_per_worker: tuple[int, ...]
    runtime_version: str  #: for JAX and PyTorch
    unfit_runtime_versions: tuple[str, ...]  #: reported to leave the slice READY without a chip
    zones_documented: tuple[str, ...]
    zones_listed: tuple[str, ...]  #: seen in answers of `acceleratorTypes.list`
    pci: Mapping[str, str] = field(hash=False)  #: vendor, device and, on v2 and v3, subsystem
    hbm_gib_per_chip: int
    peak_bf16_tflops_per_chip: int
    sources: Mapping[str, tuple[str, ...]] = field(hash=False)  #: by fact, keys for `citation`
    #: Every published figure, the lowest first: GB/s are 10**9 bytes a second everywhere.
    hbm_gbytes_per_second_per_chip: tuple[int, ...] = ()
    mxus_per_core: int = 0
    mxu_side: int = 0  #: rows and columns of a matrix unit
    topology_axes: int = 0
    torus_side: int = 0  #: a slice whose every axis is a multiple is a torus; 0: not published
    ici_gbytes_per_second_per_link: int = 0  #: one way; 0: not published
    ici_gbytes_per_second_per_chip: int = 0  #: of all links, both ways; 0: not published
    control_agent: bool = False  #: libtpu was seen to need Google's vbarcontrolagent on the worker
    machines: tuple[Machine, ...] = ()  #: by chips; () where no figure is published

    @property
    def device_unit(self) -> str:
        """What one device of JAX is: a "core" on v2 and v3, else a "chip"."""
        return "core" if self.devices_per_chip == self.cores_per_chip > 1 else "chip"

    @property
    def zones(self) -> tuple[str, ...]:
        """Every zone that is documented or was listed: neither promises quota or capacity."""
        return tuple(sorted({*self.zones_documented, *self.zones_listed}))


@dataclass(frozen=True)
class AcceleratorType:
    """One accelerator type; `parse` is the way to get one."""

    name: str
    facts: Generation = field(repr=False)
    size: int
    chips: int
    cores: int
    workers: int
    chips_per_worker: int
    topology: str  #: in chips, such as "2x2x1"
    topology_derived: bool  #: computed from the size; the API's own default was not seen
    sources: tuple[str, ...]  #: keys for `citation`
    note: str = ""

    @classmethod
    def parse(cls, text: str) -> AcceleratorType:
        """Return the accelerator type of exactly this name; raise `BadInput` with the nearest."""
        generation = text.rpartition("-")[0]
        known = types_of(generation) if generation in GENERATIONS else ()
        return next((found for found in known if found.name == text), None) or _refuse(text)

    @property
    def devices(self) -> int:
        """The number of devices JAX counts on the whole slice."""
        return self.chips * self.facts.devices_per_chip

    @property
    def devices_per_worker(self) -> int:
        return self.chips_per_worker * self.facts.devices_per_chip

    @property
    def runtime_version(self) -> str:
        return self.facts.runtime_version

    @property
    def machine(self) -> Machine | None:
        """What a worker has besides its chips, where that is published."""
        return next((m for m in self.facts.machines if m.chips == self.chips_per_worker), None)

    @property
    def links_per_chip(self) -> int:
        """The links to other chips that every chip of the slice has at least: 2 in a 2x4."""
        axes, side = [int(axis) for axis in self.topology.split("x")], self.facts.torus_side
        torus = side > 0 and all(axis % side == 0 for axis in axes)
        return sum((2 if torus else 1) for axis in axes if axis > 1)


def spelled(prefix: str) -> str:
    """Return the start of a type's name as the API spells it: `v5litepod-16` for `V5e-16`."""
    head, hyphen, size = prefix.lower().partition("-")
    meant = _SPELLINGS.get(head, ())
    return f"{meant[0] if len(meant) == 1 else head}{hyphen}{size}"


def unlisted(name: str) -> AcceleratorType:
    """Return a type that our table lacks, of which nothing is known but its name.

    Projects that Google has enabled create tpu7x-* so: vllm-project/ci-infra pull request 570.
    Raises `BadInput` where it cannot be the name of a type.
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
        chips_per_worker=(),
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
    """Return whether a type of this name is in our table."""
    return any(each.name == name for each in all_types())


def meant_zone(zone: str) -> str:
    """Return the zone that a misspelled one stands for, as `us-centrl1-a`, or "".

    Only the words are judged, against the zones of our tables: Google adds numbers and letters.
    """
    match = re.fullmatch(r"([a-z]+-[a-z]+)([0-9]+-[a-z0-9]+)", zone)
    areas = sorted({re.split("[0-9]", each)[0] for g in GENERATIONS for each in _zones(g)})
    if not match or match[1] in (*areas, *_AREAS_WITHOUT_TPU):
        return ""
    from difflib import get_close_matches

    near = get_close_matches(match[1], areas, n=1, cutoff=0.9)
    return f"{near[0]}{match[2]}" if near else ""


def _zones(generation: str) -> tuple[str, ...]:
    return _load(generation)[0].zones


def types_of(generation: str) -> tuple[AcceleratorType, ...]:
    """Return the accelerator types of one of `GENERATIONS`, smallest first."""
    return _load(generation)[1]


def all_types() -> tuple[AcceleratorType, ...]:
    """Return every known accelerator type, by generation and size."""
    return tuple(found for name in GENERATIONS for found in types_of(name))


def citation(source: str) -> str:
    """Return the document, file or issue that a source key stands for."""
    return str(_sources()[source])


def runtime_fits(accelerator: AcceleratorType, runtime_version: str) -> str | None:
    """Return why this runtime version is known to be bad here, or None when no report is known.

    The API accepts every runtime version for every generation. With a wrong one the slice becomes
    READY, no driver is bound to the chips, and only a new slice helps (pytorch/xla issue 9753).
    """
    facts = accelerator.facts
    if runtime_version not in facts.unfit_runtime_versions:
        return None
    reported = "; ".join(citation(key) for key in facts.sources["unfit_runtime_versions"])
    return (
        f"{facts.name} slices with runtime version {runtime_version} become READY without a usable "
        f"chip; {facts.name} needs {facts.runtime_version} ({reported})"
    )


# Package data never changes while a process runs: reading a table twice would only cost time.
@cache
def _load(generation: str) -> tuple[Generation, tuple[AcceleratorType, ...]]:
    table = _read(f"{generation}.toml")
    rows = table.pop("types")
    facts = _generation(table)
    return facts, tuple(_accelerator_type(facts, row) for row in rows)


@cache
def _sources() -> dict[str, Any]:
    return _read("sources.toml")


def _read(name: str) -> dict[str, Any]:
    path = Path(__file__).parent / "data" / "accelerators" / name
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _generation(table: dict[str, Any]) -> Generation:
    values = {fact: entry["value"] for fact, entry in table.items()}
    values = {fact: tuple(v) if isinstance(v, list) else v for fact, v in values.items()}
    sources = {fact: tuple(entry["sources"]) for fact, entry in table.items()}
    name = values.pop("prefix")
    values.setdefault("unfit_runtime_versions", ())
    values["machines"] = tuple(Machine(**each) for each in values.get("machines", ()))
    return Generation(name=name, sources=sources, **values)


def _accelerator_type(facts: Generation, row: dict[str, Any]) -> AcceleratorType:
    values = {"topology_derived": False, **row, "sources": tuple(row["sources"])}
    return AcceleratorType(facts=facts, size=values[facts.size_counts], **values)


def _refuse(text: str) -> NoReturn:
    """Raise `BadInput` that says what is wrong with `text` and which names are near it."""
    plain = "".join(unicodedata.normalize("NFKC", text[: 2 * _SHOWN]).lower().split())
    if _BEYOND.fullmatch(plain):
        # Cloud TPU documentation, "TPU software versions".
        raise _unknown(
            text,
            "the Cloud TPU API ends at v6e, unless Google has enabled your project; TPU7x and "
            "later come through Compute Engine or GKE",
            Fix.command(
                *("tpukit", "create", plain, "--allow-unlisted-type"),
                *("--runtime-version", "v2-alpha-tpu7-ubuntu2404"),
                note="where Google has enabled your project; else follow "
                "https://docs.cloud.google.com/tpu/docs/tpu7x",
            ),
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
    """Return what stands for the generation, and the size where there is one."""
    by_length = sorted(_SPELLINGS, key=len, reverse=True)
    spelled = next((head for head in by_length if _sized(plain, head) is not None), None)
    if spelled is None:
        return plain.rstrip("-"), None
    return spelled, int(_sized(plain, spelled) or 0)


def _sized(plain: str, head: str) -> str | None:
    match = re.fullmatch(re.escape(head) + r"[-_]*([0-9]+)", plain)
    return match[1] if match else None


def _nearest(generation: str, size: int | None) -> list[str]:
    """Return the name with this size, or those of the next size below and above."""
    known = types_of(generation)
    if size is None:
        return [known[0].name]
    below = [found.name for found in known if found.size <= size][-1:]
    above = [found.name for found in known if found.size >= size][:1]
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
