"""Compile the smoke test's JAX programs for TPUs, with libtpu and without a chip.

    python compiled_for_tpus.py <REQUESTS

A request is a line of JSON: the programs' text, a topology of libtpu's, such as `v6e:2x2`, and how
the names of the programs to compile begin. A topology may end with `:megacore`, which makes a
device of both cores of a v4 chip, as JAX has them. Each program prints a line of JSON: the number
of the request, the topology, the program, and of a chain what its figure counts in a step and what
the compiled loop does: operations, bytes that it reads and writes, and copies of arrays. It needs
no package but jax and libtpu.
"""

import json
import math
import os
import re
import sys
import types

# It asks for no metadata server, no chip and no lock: it shares libtpu with whoever compiles, too.
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "true"

import jax
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

_WHILE = re.compile(r" while\(.*body=(%[\w.-]+)")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?(%[\w.-]+) = (.*)")
_ARRAY = re.compile(r"\b([a-z]+)(\d+)\w*\[([\d,]*)\](?:\{([\d,]*):T\(([\d,]+)\))?")
#: What moves nothing.
_NAMES = ("parameter", "get-tuple-element", "tuple", "constant", "bitcast")
#: Numbers beside the arrays, such as the loop's own counter.
_SMALL = 1 << 16


def main() -> None:
    for number, line in enumerate(sys.stdin):
        text, name, begins = json.loads(line)
        shape = name.removesuffix(":megacore")
        options = {"chip_config_name": "megacore"} if name != shape else {}
        devices = list(topologies.get_topology_desc(shape, "tpu", **options).devices)
        program = types.ModuleType("program")
        exec(text, program.__dict__)
        for what, counted, function, arguments in programs(program, devices):
            if what.startswith(begins):
                compiled = function.lower(*arguments()).compile()
                told = {"request": number, "topology": name, "program": what}
                if counted:
                    told |= {"devices": len(devices), **counted, **loop(compiled.as_text())}
                    told["operations"] = compiled.cost_analysis().get("flops", 0)
                sys.stdout.write(f"{json.dumps(told)}\n")


def programs(program: types.ModuleType, devices: list):
    """Yield each program's name, what its figure counts in a step, and what to lower."""
    sizes, count = program.SIZES[False], len(devices)
    one = SingleDeviceSharding(devices[0])

    def on_one(*arrays):
        return [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=one) for a in arrays]

    def steps(array=None):
        whole = NamedSharding(array.sharding.mesh, PartitionSpec()) if array else one
        return jax.ShapeDtypeStruct((), "int32", sharding=whole)

    sides = (program.SIDE, program.INNER), (program.INNER, program.SIDE)
    factors = on_one(*(jax.ShapeDtypeStruct(shape, "bfloat16") for shape in sides))
    yield "product", None, jax.jit(program.product), lambda: factors
    shared, spread = program.exchanging(devices)
    rows = jax.ShapeDtypeStruct((count, count), "int32", sharding=spread)
    yield "exchange", None, shared, lambda: [rows]

    matmul, memory = program._matmul(sizes["side"]), program._memory(sizes["memory"])
    words = 2 * 3 * sizes["side"] ** 2  # two products, each of two matrices that make a third
    counted = {"counted_operations": matmul.amount * 1e12, "counted": 2 * words}
    yield "matmul", counted, matmul.run, lambda: [steps(), *on_one(*matmul.make())]
    counted = {"counted": round(memory.amount * 1e9)}
    yield "hbm", counted, memory.run, lambda: [steps(), *on_one(*memory.make())]
    for chain in (matmul, memory):
        yield "hash", None, program._hashing(), lambda made=chain.make: on_one(made()[0])

    for size in sizes["all-reduce"]:
        run, array, amount = program._reducing(devices, size)
        # All is read and written; its figure counts what goes over the links of a device.
        counted = {"counted": round(amount * 1e9 * count / (count - 1))}
        yield (
            f"all-reduce of {size >> 20} MiB",
            counted,
            run,
            lambda given=array: [steps(given), given],
        )
    for pairs in program._matchings(devices):
        run, array, amount = program._exchanging(devices, pairs, sizes["link"])
        # What it sends it reads, and as much arrives and is written.
        counted = {"counted": round(2 * amount * 1e9)}
        yield f"link of {len(pairs)} pairs", counted, run, lambda given=array: [steps(given), given]

    write, differing = program._patterns(program._BUFFER[False] // 4)
    which = on_one(*(jax.ShapeDtypeStruct((), kind) for kind in ("int32", "uint32")))
    buffer = jax.ShapeDtypeStruct((program._BUFFER[False] // 4,), "uint32")
    yield "pattern", None, write, lambda: which
    yield "pattern read", None, differing, lambda: [*on_one(buffer), *which]


def loop(text: str) -> dict:
    """Return what the loop of a compiled program reads and writes in a step, and its copies."""
    bodies = _WHILE.findall(text)
    if not bodies:  # it does nothing that its end needs
        return {"accessed": 0, "copies": 0, "instructions": []}
    body = bodies[0]
    lines = text[text.index(f"\n{body} (") :].split("\n}\n")[0].splitlines()
    kinds, moved, copies, instructions = {}, 0, 0, []
    for line in filter(None, map(_INSTRUCTION.match, lines)):
        name, kind, what, operands = line[1], *_read(line[2])
        kinds[name] = kind
        if what in _NAMES:
            continue
        ends = [] if what.endswith("-done") else [kinds[operand] for operand in operands]
        ends += [] if what.endswith("-start") else [kind]
        sizes = [size for size in map(_bytes, ends) if size >= _SMALL]
        if sizes:
            moved += sum(sizes)
            copies += what.startswith("copy")
            instructions.append(what)
    return {"accessed": moved, "copies": copies, "instructions": instructions}


def _read(instruction: str) -> tuple:
    """Return an instruction's type, its name, and the names of its operands."""
    at = depth = 0
    while depth or instruction[at] != " ":
        depth += {"(": 1, ")": -1}.get(instruction[at], 0)
        at += 1
    what, _, rest = instruction[at + 1 :].partition("(")
    return instruction[:at], what, re.findall(r"%[\w.-]+", rest.partition(")")[0])


def _bytes(kind: str) -> int:
    """Return the bytes of arrays in a device's memory, with those that pad them to tiles."""
    total = 0
    for _, bits, shape, order, tile in _ARRAY.findall(kind):
        sides = [int(side) for side in shape.split(",") if side]
        inner = [int(axis) for axis in order.split(",") if axis]
        for axis, part in zip(
            inner, reversed([int(n) for n in tile.split(",") if n]), strict=False
        ):
            sides[axis] = -(-sides[axis] // part) * part
        total += math.prod(sides) * int(bits) // 8
    return total


main()
