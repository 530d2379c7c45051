"""Whether a step fits on types, as a table and as a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tpukit.console import View
from tpukit.errors import Fix, VerificationFailed

if TYPE_CHECKING:
    from tpukit.fit.compiler import Fit
    from tpukit.fit.memory_report import Buffer

_GIB = 1 << 30


def fits(results: Sequence[Fit], smallest: Fit | None, rates: Mapping[str, float]) -> View:
    """Show the results, one type in a row; of a single type, the largest buffers too.

    `rates` are the prices of a chip for an hour.
    """
    document = {
        "types": [
            {**result.document(), "price_per_hour": _price(result, rates)} for result in results
        ],
        "smallest": smallest.accelerator.name if smallest else None,
    }
    next_ = (Fix.command("tpukit", "up", smallest.accelerator.name),) if smallest else ()
    status = 0 if smallest else VerificationFailed.exit_code
    if len(results) == 1:
        return View(document, ("FACT", "VALUE"), _facts(results[0], rates), next_, status=status)
    columns = ("TYPE", "DEVICES", "FITS", "PEAK", "HBM", "COMPILED IN", "AN HOUR")
    rows: list[list[object]] = [
        [
            result.accelerator.name,
            result.accelerator.devices,
            _word(result),
            _gib(result.memory.total),
            _gib(result.available),
            f"{result.seconds:.0f} s",
            _price(result, rates) or "",
        ]
        for result in results
    ]
    return View(document, columns, rows, next_, status=status)


def _facts(result: Fit, rates: Mapping[str, float]) -> list[list[object]]:
    memory, facts = result.memory, result.accelerator.facts
    collectives = [f"{count} {kind}" for kind, count in memory.collectives.items()]
    rows = {
        "type": result.accelerator.name,
        "devices": f"{result.accelerator.devices}, each a {facts.device_unit}",
        "fits": _word(result),
        "peak of a device": _gib(memory.total),
        "HBM of a device": _gib(result.available),
        "collectives": ", ".join(collectives) or "none",
        "compiled in": f"{result.seconds:.0f} s",
        "price of an hour": _price(result, rates),
        "the compiler": result.refusal,
    }
    rows |= {f"buffer {number}": _buffer(one) for number, one in enumerate(memory.buffers, 1)}
    return [[name, value] for name, value in rows.items() if value not in ("", None)]


def _buffer(buffer: Buffer) -> str:
    padding = (
        f", {_gib(buffer.padding)} of it padding" if buffer.padding > buffer.size // 10 else ""
    )
    line = f", line {buffer.line}" if buffer.line else ""
    return f"{_gib(buffer.size)}{padding}: {buffer.shape} {buffer.operation}{line}"


def _word(result: Fit) -> str:
    return "yes" if result.fits else "no"


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB" if size else ""


def _price(result: Fit, rates: Mapping[str, float]) -> float | None:
    rate = rates.get(result.accelerator.facts.name)
    return None if rate is None else round(rate * result.accelerator.chips, 2)
