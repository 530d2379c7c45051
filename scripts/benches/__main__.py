"""One measurement by name, as a plain table. The exit status is 1 where a claim does not hold."""

from __future__ import annotations

import argparse
import sys

import emulated
import faults
import imports
import installs
import latency
import polling
import provisioning
import scale
import ssh
import startup
import transfer
import typer_releases

BENCHES = {
    "startup": startup,
    "polling": polling,
    "ssh": ssh,
    "imports": imports,
    "installs": installs,
    "latency": latency,
    "emulator": emulated,
    "faults": faults,
    "transfer": transfer,
    "provision": provisioning,
    "scale": scale,
    "typer": typer_releases,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True)
    for name, bench in BENCHES.items():
        bench.add_arguments(names.add_parser(name, help=bench.__doc__, description=bench.__doc__))
    options = parser.parse_args()
    return int(BENCHES[options.name].run(options))


sys.exit(main())
