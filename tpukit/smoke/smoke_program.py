"""Compute on every device of this worker and print the result as one `TPUKIT-SMOKE {json}` line.

The provisioned interpreter of a worker reads it from standard input:

    cat FRAMEWORK_program.py [BENCH_program.py [SOAK_program.py]] smoke_program.py |
        python - FRAMEWORK WORKERS SECONDS LEVEL SOAK_SECONDS

A framework's program defines
    PACKAGES                 packages; the report shows their versions
    prepare(emulated)        force the platform before the framework is imported: the TPU, or CPU
                             devices if `emulated` is not 0
    compute(workers, side)   return the report's values, from `platform` to `global_sum`: twice for
                             each device the `digest` of the float32 product of `operands(side)`,
                             and over all devices the sum of 1 for the first, 2 for the second and
                             so on. If the framework can, also:
                               indices       the numbers of this worker's devices in the slice
                               memory_bytes  of each of its devices
                               missing       the devices that are missing in the sum
                               ring          the number that each device got from the one before

For levels 2 and 3, its bench program defines
    bench()                  return figures: see jax_bench_program.py
and for level 3, its soak program defines
    soak(seconds)            return the results of a load: see jax_soak_program.py

It ends itself after SECONDS, with a traceback of the hanging call, and when the client is gone.
"""

import faulthandler
import hashlib
import importlib.metadata
import json
import os
import platform
import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

#: Rows of the left operand and columns of the right one, on CPU devices and on TPU devices.
STAND_IN_SIDE, SIDE = 256, 2048
#: Columns of the left operand. Integers to 255 are exact in bfloat16, and the sums of 256 of their
#: products are exact in float32 in any order of addition: 255 * 255 * 256 < 2**24.
INNER = 256
_LARGEST = 255


def operands(side: int, seed: int = 0) -> "list[numpy.ndarray]":
    """Return both operands of a seed, as NumPy arrays of int16."""
    import numpy

    source, span = random.Random(seed), 2 * _LARGEST + 1
    matrices = []
    for shape in ((side, INNER), (INNER, side)):
        raw = numpy.frombuffer(source.randbytes(2 * side * INNER), numpy.uint16).reshape(shape)
        matrices.append((raw % span).astype(numpy.int16) - _LARGEST)
    return matrices


def digest(product: Any) -> str:
    """Return a digest of a NumPy array of float32.

    Adding 0 turns -0 into 0: a device may compute either.
    """
    return hashlib.sha256((product + 0).tobytes()).hexdigest()[:16]


def versions(names: tuple[str, ...]) -> dict[str, str]:
    installed = {}
    for name in names:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {**installed, "python": platform.python_version()}


def write_line(line: str = "") -> None:
    """Write a line in one system call, after ending any unfinished line of a framework."""
    os.write(1, f"\n{line}\n".encode())


def exit_without_a_client() -> None:
    """End this process when its output has no reader: an orphan would keep the TPU busy."""
    while True:
        time.sleep(2)
        try:
            write_line()
        except OSError:
            os._exit(1)


def main(framework: str, workers: int, seconds: float, level: int, soak_seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True)
    threading.Thread(target=exit_without_a_client, daemon=True).start()
    emulated = int(os.environ.get("TPUKIT_EMULATED_DEVICES") or 0)
    framework_program = globals()
    framework_program["prepare"](emulated)
    seen = framework_program["compute"](workers, STAND_IN_SIDE if emulated else SIDE)
    if level >= 2:
        seen["bench"] = framework_program["bench"]()
    if level >= 3:
        seen["soak"] = framework_program["soak"](soak_seconds)
    report = {
        "framework": framework,
        "versions": versions(framework_program["PACKAGES"]),
        "emulated": emulated,
        **seen,
    }
    write_line("TPUKIT-SMOKE " + json.dumps(report))
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    name, workers, seconds, level, soak_seconds = sys.argv[1:]
    main(name, int(workers), float(seconds), int(level), float(soak_seconds))
