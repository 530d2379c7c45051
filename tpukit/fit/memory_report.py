"""What the compiler writes about the memory of a program: its total and its largest buffers.

XLA writes these files with the compile option `xla_dump_to`, also for a program that is too large:
`…memory-usage-report.txt`, `…buffer-assignment.txt` and the program's text. Their form is no
interface: what cannot be read is left out. As JAX 0.10 with libtpu 0.0.52 wrote them, 2026-11.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpukit.text import one_line

_TOTAL = re.compile(r"^Total bytes: (\d+)", re.MULTILINE)
_VALUE = re.compile(
    r"^ value: <\d+ (\S+?)(?:\{[\d,]*\})? @\d+> \(size=(\d+),.*?\): (\w+)\[([\d,]*)\]"
)
_INSTRUCTION = re.compile(r"^ +(?:ROOT )?%(\S+) = .*?metadata=\{([^}]*)\}", re.MULTILINE)
_NUMBERED = re.compile(r"^(\d+) \{(.*?)\}$", re.MULTILINE)
_NAMED = re.compile(r'^(\d+) "(.*)"$', re.MULTILINE)
_COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
_BITS = re.compile(r"\d+")
#: The number of buffers to report.
_MOST = 8


@dataclass(frozen=True)
class Buffer:
    """An array in the memory of each device; `size` and `padding` are in bytes.

    `operation` is JAX's name for what makes it, or the argument's; `line` is the line of the user's
    program, or 0.
    """

    size: int
    padding: int
    shape: str
    operation: str
    line: int


@dataclass(frozen=True)
class MemoryReport:
    """The memory of a compiled program in bytes on each device, and its collective operations."""

    total: int
    buffers: tuple[Buffer, ...]
    collectives: Mapping[str, int]


def read(folder: Path, program: Path) -> MemoryReport:
    """Read the report of the largest program in a folder of the compiler's files."""
    totals = {_total(path): path for path in folder.rglob("*memory-usage-report.txt")}
    if not totals:
        return MemoryReport(0, (), {})
    total, path = max(totals.items())
    begin = path.name.removesuffix("-memory-usage-report.txt")
    text = _text(path.with_name(f"{begin}.txt"))
    buffers = _buffers(_text(path.with_name(f"{begin}-buffer-assignment.txt")), text, program)
    return MemoryReport(total, tuple(buffers), Counter(_COLLECTIVE.findall(text)))


def _total(path: Path) -> int:
    return sum(map(int, _TOTAL.findall(_text(path))))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _buffers(assignment: str, text: str, program: Path) -> Iterator[Buffer]:
    """Yield the largest buffers: of an allocation's values that share a place, the first."""
    metadata, lines = dict(_INSTRUCTION.findall(text)), _lines(text, program)
    values = sorted(_values(assignment), key=lambda value: -value[1])
    for name, size, kind, shape in values[:_MOST]:
        given = metadata.get(name, "")
        frame = re.search(r"stack_frame_id=(\d+)", given)
        operation = re.search(r'op_name="([^"]*)"', given)
        logical = math.prod(map(int, filter(None, shape.split(",")))) * _bits(kind) // 8
        yield Buffer(
            size,
            max(0, size - logical),
            f"{kind}[{shape}]",
            one_line(operation[1] if operation else name),
            lines.get(int(frame[1]), 0) if frame else 0,
        )


def _values(assignment: str) -> Iterator[tuple[str, int, str, str]]:
    """Yield name, bytes, kind and shape of the first value at each place of each allocation."""
    for allocation in assignment.split("\nallocation ")[1:]:
        places = set()
        for line in allocation.splitlines()[1:]:
            value = _VALUE.match(line)
            place = re.search(r"offset=\d+", line)
            if value and place and place[0] not in places:
                places.add(place[0])
                yield value[1], int(value[2]), value[3], value[4]


def _bits(kind: str) -> int:
    bits = _BITS.search(kind)
    return int(bits[0]) if bits else 8


def _lines(text: str, program: Path) -> Mapping[int, int]:
    """Return the line of the user's program by the number of a stack frame."""
    files = {
        number for number, path in _NAMED.findall(_part(text, "FileNames")) if _is(path, program)
    }
    locations: dict[int, int] = {}
    for number, given in _NUMBERED.findall(_part(text, "FileLocations")):
        fields = _fields(given)
        if str(fields.get("file_name_id")) in files:
            locations[int(number)] = fields.get("line", 0)
    frames = {
        int(number): _fields(given)
        for number, given in _NUMBERED.findall(_part(text, "StackFrames"))
    }
    return {number: _line(number, frames, locations) for number in frames}


def _line(
    number: int, frames: Mapping[int, Mapping[str, int]], locations: Mapping[int, int]
) -> int:
    """Return the line of the innermost frame in the user's program; 0 if there is none."""
    seen: set[int] = set()
    while number in frames and number not in seen:
        seen.add(number)
        location = frames[number].get("file_location_id", 0)
        if location in locations:
            return locations[location]
        number = frames[number].get("parent_frame_id", 0) - 1
    return 0


def _part(text: str, title: str) -> str:
    return text.partition(f"\n{title}\n")[2].partition("\n\n")[0]


def _fields(given: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", given)}


def _is(path: str, program: Path) -> bool:
    return path == str(program) or Path(path).resolve() == program.resolve()
