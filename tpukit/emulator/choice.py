"""Which engine runs the workers, and why."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpukit.emulator.engine import EmulatedWorker, Engine, Login, base_interpreter
from tpukit.emulator.facts import SliceFacts
from tpukit.emulator.folders import remove
from tpukit.emulator.home import EmulatorHome
from tpukit.emulator.namespaces import NamespacesEngine, hidden_folders
from tpukit.emulator.portable import PortableEngine
from tpukit.emulator.site import site_environment
from tpukit.emulator.workers import WorkerRecord
from tpukit.errors import TpukitError

_PROGRAMS = ("ip", "mount", "nsenter", "setsid", "unshare")
_TRIAL_NODE = "projects/p/locations/z/nodes/trial"
_TRIAL_SECONDS = 30.0


@dataclass(frozen=True)
class Choice:
    engine: Engine
    reason: str


def choose(name: str, home: EmulatorHome, environment: Mapping[str, str]) -> Choice:
    """Return the engine of a name; `auto` is the portable one, which every machine can run.

    Raises `TpukitError` where the machine cannot run the engine.
    """
    site = site_environment(environment, Path.home())
    if name == "namespaces":
        hidden = hidden_folders(Path.home(), home.path)
        engine = NamespacesEngine(site, base_interpreter(), hidden)
        try:
            _try(engine, home)
        except subprocess.TimeoutExpired as error:
            raise TpukitError("a trial worker of the namespaces engine is silent") from error
        return Choice(engine, "asked for; a trial worker ran")
    missing = _missing()
    other = f"namespaces needs {missing}" if missing else "--engine namespaces is possible here"
    portable = PortableEngine(site, base_interpreter(), is_root=os.geteuid() == 0)
    return Choice(portable, f"runs on every machine; {other}")


def lacking(platform: str, user: int, find: Callable[[str], object]) -> str:
    """Return what keeps the namespaces engine from running; `find` looks for a program."""
    if platform != "linux":
        return "Linux"
    if user != 0:
        return "root"
    return ", ".join(name for name in _PROGRAMS if not find(name))


def _missing() -> str:
    return lacking(sys.platform, os.geteuid(), shutil.which)


def _try(engine: NamespacesEngine, home: EmulatorHome) -> None:
    """Run a command on a worker that is made and removed for it."""
    if missing := _missing():
        raise TpukitError("the namespaces engine cannot run here", reason=f"it needs {missing}")
    bits = random.SystemRandom().getrandbits(32)
    record = WorkerRecord(0, "127.77.254.254", 22, f"trial-{bits:08x}", "", "")
    node = {"name": _TRIAL_NODE, "acceleratorType": "v3-8"}
    marker = f"{home.identity()}/{_TRIAL_NODE}/0"
    folder = home.workers / record.hostname
    worker = EmulatedWorker(record, SliceFacts.of(node, [record]), folder, marker)
    doors = None
    try:
        doors = engine.wake(worker)
        login = Login("trial", "test -w / && hostname", ("127.0.0.1", 1, record.address, 22))
        program = engine.program(worker, login)
        done = subprocess.run(
            program.words,
            env=program.environment,
            capture_output=True,
            text=True,
            timeout=_TRIAL_SECONDS,
            check=False,
        )
        if done.stdout.strip() != record.hostname:
            raise TpukitError("a trial worker of the namespaces engine fails", why=done.stderr)
    finally:
        engine.end(marker)
        for socket in (doors.metadata, doors.ssh, doors.proxy) if doors else ():
            if socket:
                socket.close()
        remove(folder)
