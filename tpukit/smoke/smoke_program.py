"""Compute on every device of this worker and print the result as one `TPUKIT-SMOKE {json}` line.

Runs on a worker with the provisioned interpreter, which reads it from standard input:

    cat FRAMEWORK_program.py smoke_program.py | python - FRAMEWORK WORKERS SECONDS

A framework's program defines
    PACKAGES                 the packages whose versions the report shows
    prepare(emulated)        force the platform, before the framework is imported: the TPU, or CPU
                             devices where `emulated` is not 0
    compute(workers, side)   return the report's values, from `platform` to `global_sum`: on each
                             device a product of two `side` x `side` matrices of ones, over all
                             devices the sum of 1 for the first, 2 for the second and so on

It ends by itself after SECONDS (with a traceback of where it hung), and when the client is gone.
"""

import faulthandler
import importlib.metadata
import json
import os
import platform
import sys
import threading
import time

SIDE = 256
#: A product of ones: each of SIDE x SIDE elements is SIDE. 2**24 is exact in bfloat16 and float32.
MATMUL = float(SIDE**3)


def versions(names: tuple) -> dict:
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {**found, "python": platform.python_version()}


def write_line(line: str = "") -> None:
    """Write a line of its own, whatever a framework has left unfinished, in one system call."""
    os.write(1, f"\n{line}\n".encode())


def exit_without_a_client() -> None:
    """End this process once nobody reads it: an orphan would keep the TPU busy."""
    while True:
        time.sleep(2)
        try:
            write_line()
        except OSError:
            os._exit(1)


def main(framework: str, workers: int, seconds: float) -> int:
    started = time.monotonic()
    faulthandler.dump_traceback_later(seconds, exit=True)
    threading.Thread(target=exit_without_a_client, daemon=True).start()
    emulated = int(os.environ.get("TPUKIT_EMULATED_DEVICES") or 0)
    framework_program = globals()
    framework_program["prepare"](emulated)
    seen = framework_program["compute"](workers, SIDE)
    count = seen["global_devices"]
    numbers_hold = (
        len(seen["matmuls"]) == seen["devices"]
        and all(value == MATMUL for value in seen["matmuls"])
        and seen["global_sum"] == count * (count + 1) / 2
    )
    report = {
        "framework": framework,
        "versions": versions(framework_program["PACKAGES"]),
        "emulated": emulated,
        **seen,
        "numbers_hold": numbers_hold,
        "seconds": time.monotonic() - started,
    }
    write_line("TPUKIT-SMOKE " + json.dumps(report))
    faulthandler.cancel_dump_traceback_later()
    return 0 if numbers_hold else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
