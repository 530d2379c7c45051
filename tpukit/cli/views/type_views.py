"""Accelerator types, zones and runtime versions as tables and documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpukit.console import Cell, View

if TYPE_CHECKING:
    from tpukit.accelerators import AcceleratorType
    from tpukit.cli.offers import Offers


def types(found: Sequence[AcceleratorType]) -> View:
    """Show accelerator types, one a row; the generation is in the document alone."""
    listed = [_type_document(each) for each in found]
    rows = [[each[key] for key in each if key not in ("generation", "zones")] for each in listed]
    columns = ("TYPE", "CHIPS", "CORES", "WORKERS", "DEVICES", "TOPOLOGY", "RUNTIME", "ZONES")
    zones = [_zones(each["zones"], short=len(listed) > 1) for each in listed]
    rows = [[*row, cell] for row, cell in zip(rows, zones, strict=True)]
    return View({"types": listed}, columns, rows)


def one_type(found: AcceleratorType) -> View:
    """Show all that is known of one accelerator type, a figure a row with its sources."""
    from tpukit.cli import hardware

    facts = hardware.of_type(found)
    documents = [{"fact": f.name, "value": f.value, "sources": list(f.sources)} for f in facts]
    document = {**_type_document(found), "hardware": documents}
    rows: list[list[object]] = [
        [fact.name, fact.value or "not published", "; ".join(fact.sources)] for fact in facts
    ]
    zones: list[object] = [
        "zones",
        " ".join(found.facts.zones),
        "documented or listed: tpukit types --live",
    ]
    rows = [["type", found.name, ""], *rows, zones]
    return View({"types": [document]}, ("FACT", "VALUE", "SOURCE"), rows)


def generations(found: Sequence[AcceleratorType]) -> View:
    """Show accelerator types, one generation a row."""
    rows: list[list[object]] = []
    for facts in dict.fromkeys(each.facts for each in found):
        sizes = " ".join(str(each.size) for each in found if each.facts == facts)
        rows.append([facts.name, facts.size_counts, facts.runtime_version, sizes])
    columns = ("GENERATION", "SIZES IN", "RUNTIME", "SIZES")
    return View({"types": [_type_document(each) for each in found]}, columns, rows)


def live_types(found: Offers, prefix: str) -> View:
    """Show the accelerator types that the API offers, one a row; no column is our table's alone."""
    from tpukit import accelerators

    exact = prefix in found.names
    known = {each.name: each for each in accelerators.all_types()}
    ours = {each for each in known if set(known[each].facts.zones) & found.by_zone.keys()}
    documents, rows = [], []
    for name in sorted(found.names | ours, key=_type_order):
        if name != prefix if exact else not name.startswith(prefix):
            continue
        zones = found.zones_of(name)
        table = [z for z in known[name].facts.zones if z in found.by_zone] if name in known else []
        facts = _type_document(known[name]) if name in known else {"name": name}
        documents.append({**facts, "zones": list(zones), "table_zones": table})
        cells = [facts.get(key, "") for key in ("name", "chips", "workers", "topology")]
        said = _compared(zones, table) if name in known else "not in it"
        rows.append([*cells, facts.get("runtime_version", ""), _zones(zones, not exact), said])
    columns = ("TYPE", "CHIPS", "WORKERS", "TOPOLOGY", "RUNTIME", "ZONES", "OUR TABLE")
    document = {"types": documents, "unreachable": sorted(found.silent)}
    return View(document, columns, rows, warnings=found.warnings)


def zones(shown: Mapping[str, frozenset[str]], found: Offers) -> View:
    """Show zones with what they offer, one a row."""
    from tpukit.cli.offers import table_types

    documents, rows = [], []
    for zone, names in shown.items():
        ours = _generations(table_types(zone))
        live = _generations(names)
        listed = sorted(names, key=_type_order)
        documents.append({"name": zone, "types": listed, "table_generations": ours})
        compared = _compared(_generations(found.by_zone[zone]), ours) if ours else "not in it"
        rows.append([zone, " ".join(live), compared])
    document = {"zones": documents, "unreachable": sorted(found.silent)}
    return View(document, ("ZONE", "OFFERS", "OUR TABLE"), rows, warnings=found.warnings)


def versions(zone: str, found: Sequence[str], generation: str) -> View:
    """Show the runtime versions of a zone, one a row; of a generation those that may fit it."""
    from tpukit import accelerators

    facts = [accelerators.types_of(each)[0].facts for each in accelerators.GENERATIONS]
    documents, rows = [], []
    for name in found:
        usual = [each.name for each in facts if each.runtime_version == name]
        unfit = [each.name for each in facts if name in each.unfit_runtime_versions]
        if generation in unfit:
            continue
        documents.append({"name": name, "usual_for": usual, "unfit_for": unfit})
        rows.append([name, " ".join(usual), " ".join(unfit)])
    columns = ("VERSION", "USUAL FOR", "NO CHIP ON")
    return View({"zone": zone, "versions": documents}, columns, rows)


def _generations(names: Iterable[str]) -> list[str]:
    """Return the generations of accelerator types, the oldest first."""
    return list(dict.fromkeys(each.rpartition("-")[0] for each in sorted(names, key=_type_order)))


def _type_order(name: str) -> tuple[int, str, int]:
    from tpukit.accelerators import GENERATIONS

    head, _, size = name.rpartition("-")
    place = GENERATIONS.index(head) if head in GENERATIONS else len(GENERATIONS)
    return place, head, int(size) if size.isdecimal() else 0


def _compared(live: Iterable[str], ours: Iterable[str]) -> str:
    """Return what our table has and the API has not, and the reverse: `+v4 -v2`, or `same`."""
    here, there = set(live), set(ours)
    more, fewer = sorted(there - here), sorted(here - there)
    return " ".join([*(f"+{each}" for each in more), *(f"-{each}" for each in fewer)]) or "same"


def _zones(zones: Sequence[str], short: bool) -> Cell:
    every = " ".join(zones)
    return Cell(every, f"{len(zones)} zones" if short else every)


def _type_document(each: AcceleratorType) -> dict[str, Any]:
    keys = ("chips", "cores", "workers", "devices", "topology", "runtime_version")
    own = {key: getattr(each, key) for key in keys}
    generation = each.facts
    return {
        "name": each.name,
        "generation": generation.name,
        **own,
        "zones": list(generation.zones),
    }
