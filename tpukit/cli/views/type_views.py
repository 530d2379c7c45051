"""Accelerator types, zones and runtime versions as tables and documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tpukit.console import Cell, View

if TYPE_CHECKING:
    from tpukit.accelerators import AcceleratorType, Generation
    from tpukit.cli.listings import Offers
    from tpukit.slices.capacity_memory import Attempt, PlaceMemory


def types(accelerators: Sequence[AcceleratorType]) -> View:
    """Show accelerator types, one in a row; only the document has the generation."""
    documents = [_type_document(accelerator) for accelerator in accelerators]
    columns = ("TYPE", "CHIPS", "CORES", "WORKERS", "DEVICES", "TOPOLOGY", "RUNTIME", "ZONES")
    rows: list[list[object]] = []
    for document in documents:
        cells = [document[key] for key in document if key not in ("generation", "zones")]
        rows.append([*cells, _zones(document["zones"], short=len(documents) > 1)])
    return View({"types": documents}, columns, rows)


def one_type(accelerator: AcceleratorType) -> View:
    """Show all facts about one accelerator type, one in a row with its sources."""
    from tpukit.cli import hardware

    facts = hardware.of_type(accelerator)
    documents = [
        {"fact": fact.name, "value": fact.value, "sources": list(fact.sources)} for fact in facts
    ]
    document = {**_type_document(accelerator), "hardware": documents}
    rows: list[list[object]] = [
        [fact.name, fact.value or "not published", "; ".join(fact.sources)] for fact in facts
    ]
    zones: list[object] = [
        "zones",
        " ".join(accelerator.facts.zones),
        "documented or listed: tpukit types --live",
    ]
    rows = [["type", accelerator.name, ""], *rows, zones]
    return View({"types": [document]}, ("FACT", "VALUE", "SOURCE"), rows)


def generations(accelerators: Sequence[AcceleratorType]) -> View:
    """Show accelerator types, one generation in a row."""
    sizes: dict[Generation, list[str]] = {}
    for accelerator in accelerators:
        sizes.setdefault(accelerator.facts, []).append(str(accelerator.size))
    rows = [
        [facts.name, facts.size_counts, facts.runtime_version, " ".join(own)]
        for facts, own in sizes.items()
    ]
    documents = [_type_document(accelerator) for accelerator in accelerators]
    return View({"types": documents}, ("GENERATION", "SIZES IN", "RUNTIME", "SIZES"), rows)


def live_types(offers: Offers, prefix: str) -> View:
    """Show the accelerator types that the API offers, one in a row, compared with our table."""
    from tpukit.accelerators import all_types

    exact = prefix in offers.names
    known = {accelerator.name: accelerator for accelerator in all_types()}
    ours = {name for name in known if set(known[name].facts.zones) & offers.by_zone.keys()}
    documents, rows = [], []
    for name in sorted(offers.names | ours, key=_type_order):
        if name != prefix if exact else not name.startswith(prefix):
            continue
        zones = offers.zones_of(name)
        table_zones = known[name].facts.zones if name in known else ()
        table = [zone for zone in table_zones if zone in offers.by_zone]
        facts = _type_document(known[name]) if name in known else {"name": name}
        documents.append({**facts, "zones": list(zones), "table_zones": table})
        cells = [facts.get(key, "") for key in ("name", "chips", "workers", "topology")]
        compared = _compared(zones, table) if name in known else "not in it"
        rows.append([*cells, facts.get("runtime_version", ""), _zones(zones, not exact), compared])
    columns = ("TYPE", "CHIPS", "WORKERS", "TOPOLOGY", "RUNTIME", "ZONES", "OUR TABLE")
    document = {"types": documents, "unreachable": sorted(offers.silent)}
    return View(document, columns, rows, warnings=offers.warnings)


def zones(shown: Mapping[str, frozenset[str]], offers: Offers) -> View:
    """Show zones with their accelerator types, one in a row."""
    from tpukit.cli.listings import table_types

    documents, rows = [], []
    for zone, names in shown.items():
        ours = _generations(table_types(zone))
        live = _generations(names)
        listed = sorted(names, key=_type_order)
        documents.append({"name": zone, "types": listed, "table_generations": ours})
        compared = _compared(_generations(offers.by_zone[zone]), ours) if ours else "not in it"
        rows.append([zone, " ".join(live), compared])
    document = {"zones": documents, "unreachable": sorted(offers.silent)}
    return View(document, ("ZONE", "OFFERS", "OUR TABLE"), rows, warnings=offers.warnings)


def capacity(places: Sequence[PlaceMemory], attempts: Sequence[Attempt], now: float) -> View:
    """Show what requests for capacity came to, one place in a row."""
    from tpukit.slices.lifetime import span

    rows = [
        [
            place.last.zone,
            place.last.type,
            place.last.bought,
            place.last.api,
            place.attempts,
            place.made,
            place.last.outcome,
            span(max(0.0, now - place.last.time)),
        ]
        for place in places
    ]
    columns = ("ZONE", "TYPE", "CAPACITY", "API", "ASKED", "MADE", "LAST", "AGO")
    return View({"attempts": [asdict(one) for one in attempts]}, columns, rows)


def versions(zone: str, names: Sequence[str], generation: str) -> View:
    """Show the runtime versions of a zone, one in a row, without those unfit for `generation`."""
    from tpukit.accelerators import GENERATIONS, types_of

    facts = [types_of(name)[0].facts for name in GENERATIONS]
    documents, rows = [], []
    for name in names:
        usual = [known.name for known in facts if known.runtime_version == name]
        unfit = [known.name for known in facts if name in known.unfit_runtime_versions]
        if generation in unfit:
            continue
        documents.append({"name": name, "usual_for": usual, "unfit_for": unfit})
        rows.append([name, " ".join(usual), " ".join(unfit)])
    columns = ("VERSION", "USUAL FOR", "NO CHIP ON")
    return View({"zone": zone, "versions": documents}, columns, rows)


def _generations(names: Iterable[str]) -> list[str]:
    """Return the generations of accelerator types, the oldest first."""
    return list(dict.fromkeys(name.rpartition("-")[0] for name in sorted(names, key=_type_order)))


def _type_order(name: str) -> tuple[int, str, int]:
    from tpukit.accelerators import GENERATIONS

    head, _, size = name.rpartition("-")
    place = GENERATIONS.index(head) if head in GENERATIONS else len(GENERATIONS)
    return place, head, int(size) if size.isdecimal() else 0


def _compared(live: Iterable[str], ours: Iterable[str]) -> str:
    """Return `+v4 -v2` if only our table has v4 and only the API has v2, or `same`."""
    more, fewer = sorted({*ours} - {*live}), sorted({*live} - {*ours})
    return " ".join([*(f"+{name}" for name in more), *(f"-{name}" for name in fewer)]) or "same"


def _zones(zones: Sequence[str], short: bool) -> Cell:
    every = " ".join(zones)
    return Cell(every, f"{len(zones)} zones" if short else every)


def _type_document(accelerator: AcceleratorType) -> dict[str, Any]:
    keys = ("chips", "cores", "workers", "devices", "topology", "runtime_version")
    return {
        "name": accelerator.name,
        "generation": accelerator.facts.name,
        **{key: getattr(accelerator, key) for key in keys},
        "zones": list(accelerator.facts.zones),
    }
