"""`python -m tpukit.emulator --directory DIR`: run the emulator and its guardian in front."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tpukit.emulator.core.operation_metadata import DEFAULT, OPERATION_METADATA
from tpukit.emulator.process.guardian import guarded
from tpukit.emulator.process.home import ENGINES, EmulatorHome, exclusively
from tpukit.errors import BadInput, Fix, TpukitError

_LOCK_SECONDS = 2.0  #: how long to wait for an earlier emulator that is ending


def main(arguments: Sequence[str]) -> int:
    """Run an emulator until TERM or INT and return an exit status."""
    options = _parse(arguments)
    os.umask(0o022)
    home = EmulatorHome(options.directory)
    try:
        home.create()
        with _locked(home):
            home.hold()
            home.sweep()
            home.document.unlink(missing_ok=True)
            return guarded(
                lambda guardian: _emulate(options, home, guardian),
                lambda: _clean_up(options, home),
            )
    except TpukitError as error:
        sys.stderr.write("\n".join(error.lines()) + "\n")
        if options.ready_descriptor is not None:
            with contextlib.suppress(OSError):  # the starting process may be gone
                os.write(options.ready_descriptor, json.dumps(error.document()).encode())
        return error.exit_code


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tpukit.emulator", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="directory of its files")
    parser.add_argument("--create-seconds", type=float, default=2.0, help="duration of a create")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (0: any)")
    parser.add_argument("--engine", choices=ENGINES, default="auto", help="kind of workers")
    parser.add_argument(
        "--operation-metadata",
        choices=OPERATION_METADATA,
        default=DEFAULT,
        help="message type of an operation's metadata",
    )
    parser.add_argument("--ready-descriptor", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--owner-descriptor", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--owned-directory", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _emulate(given: argparse.Namespace, home: EmulatorHome, guardian: int) -> int:
    # Only the emulator process imports this: the guardian stays small.
    from tpukit.emulator.process.emulator_process import emulate

    owner = () if given.owner_descriptor is None else (given.owner_descriptor,)
    ends, ready = (guardian, *owner), given.ready_descriptor
    kinds = given.engine, given.operation_metadata
    keep = not owner  # an owner removes the files at the end
    return emulate(home, given.create_seconds, given.port, *kinds, ends, ready, keep)


@contextlib.contextmanager
def _locked(home: EmulatorHome) -> Iterator[None]:
    """Hold the directory's lock; the guardian and the emulator share it until both are gone."""
    from tpukit.emulator.process import daemon

    give_up_at = time.monotonic() + _LOCK_SECONDS
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(exclusively(home.lock, wait=False))
                break
            except BlockingIOError:
                if time.monotonic() >= give_up_at and daemon.running(home.path):
                    stop = Fix.command("tpukit", "emulator", "stop")
                    raise BadInput(f"another emulator runs in {home.path}", fix=stop) from None
                time.sleep(0.02)
        yield


def _clean_up(given: argparse.Namespace, home: EmulatorHome) -> None:
    """End the processes of an emulator that died, and withdraw its address.

    If its owner has died too, remove the owner's directory.
    """
    from tpukit.emulator.workers import processes, worker_folders

    marker = f"{home.identity()}/"
    processes.end(lambda: processes.descendants(os.getpid()) + processes.marked(marker))
    home.document.unlink(missing_ok=True)
    owner = given.owner_descriptor
    if owner is not None and select.select([owner], [], [], 0)[0]:
        worker_folders.remove(given.owned_directory)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
