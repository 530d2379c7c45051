"""Compile the smoke test's JAX programs for TPUs, with libtpu and without a chip.

    python compiled_for_tpus.py TOPOLOGY… <PROGRAMS

A topology is one of libtpu's, such as `v6e:2x2`, and may name a chip's configuration:
`v4:2x2x1:megacore`. Each program prints one JSON line: the topology, the program, and of a chain
the bytes that its figure counts in a step, those that the compiled loop reads and writes in a
step, and how many copies of arrays are in the loop. It needs no package but jax and libtpu.
"""

import json
import math
import os
import re
import sys
import types

# Neither is asked for: a metadata server, and a chip.
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"

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


def main(topology_names: list, text: str) -> None:
    program = types.ModuleType("program")
    exec(text, program.__dict__)
    for name in topology_names:
        shape, _, configuration = name.partition(":megacore")
        options = {"chip_config_name": "megacore"} if name != shape else {}
        found = topologies.get_topology_desc(shape, "tpu", **options)
        for what, counted, function, *arguments in programs(program, list(found.devices)):
            compiled = function.lower(*arguments).compile()
            told = {"topology": name, "program": what, "devices": len(found.devices)}
            if counted:
                told |= {"counted": round(counted), **loop(compiled.as_text())}
                told["operations"] = compiled.cost_analysis().get("flops", 0)
            print(json.dumps(told), flush=True)


def programs(program: types.ModuleType, devices: list):
    """Yield each program's name, the bytes that its figure counts, and what to lower."""
    sizes, count = program.SIZES[False], len(devices)
    one = SingleDeviceSharding(devices[0])

    def on_one(*arrays):
        return [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=one) for a in arrays]

    def steps(array=None):
        whole = NamedSharding(array.sharding.mesh, PartitionSpec()) if array else one
        return jax.ShapeDtypeStruct((), "int32", sharding=whole)

    sides = (program.SIDE, program.INNER), (program.INNER, program.SIDE)
    factors = on_one(*(jax.ShapeDtypeStruct(shape, "bfloat16") for shape in sides))
    yield "product", 0, jax.jit(program.product), *factors
    shared, spread = program.exchanging(devices)
    yield "exchange", 0, shared, jax.ShapeDtypeStruct((count, count), "int32", sharding=spread)

    chain = program._matmul(sizes["side"])
    # A product of square matrices takes two operations for each of its terms.
    side = round((chain.amount * 1e12 / 4) ** (1 / 3))
    arguments = on_one(*chain.make())
    yield "matmul", 2 * 3 * 2 * side**2, chain.run, steps(), *arguments
    yield "hash of matmul", 0, program._hashing(), arguments[0]
    chain = program._memory(sizes["memory"])
    arguments = on_one(*chain.make())
    yield "hbm", chain.amount * 1e9, chain.run, steps(), *arguments
    yield "hash of hbm", 0, program._hashing(), arguments[0]

    for size in sizes["all-reduce"]:
        run, array = program._reducing(devices, size)
        yield f"all-reduce of {size >> 20} MiB", 2 * size, run, steps(array), array
    for pairs in program._matchings(devices):
        run, array = program._exchanging(devices, pairs, sizes["link"])
        # What it sends it reads, and what arrives it writes: twice a step.
        yield f"link of {len(pairs)} pairs", 4 * sizes["link"], run, steps(array), array

    write, differing = program._patterns(program._BUFFER[False] // 4)
    which = on_one(*(jax.ShapeDtypeStruct((), kind) for kind in ("int32", "uint32")))
    buffer = jax.ShapeDtypeStruct((program._BUFFER[False] // 4,), "uint32")
    yield "pattern", 0, write, *which
    yield "pattern read", 0, differing, *on_one(buffer), *which


def loop(text: str) -> dict:
    """Return what the loop of a compiled program reads and writes in a step, and its copies."""
    (body,) = _WHILE.findall(text)
    lines = text[text.index(f"\n{body} (") :].split("\n}\n")[0].splitlines()
    kinds, moved, copies, instructions = {}, 0, 0, []
    for line in filter(None, map(_INSTRUCTION.match, lines)):
        name, kind, what, operands = line[1], *_read(line[2])
        kinds[name] = kind
        if what in _NAMES:
            continue
        ends = [] if what.endswith("-done") else [kinds[each] for each in operands]
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
        for axis, part in zip(inner, reversed([int(n) for n in tile.split(",") if n])):
            sides[axis] = -(-sides[axis] // part) * part
        total += math.prod(sides) * int(bits) // 8
    return total


main(sys.argv[1:], sys.stdin.read())
