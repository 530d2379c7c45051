"""The choice of the engine that runs the workers, with the reason."""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpukit.emulator.workers.engines.engine import EmulatedWorker, Engine, Login, base_interpreter
from tpukit.emulator.workers.engines.portable import PortableEngine
from tpukit.emulator.workers.inherited_environment import inherited_environment
from tpukit.emulator.workers.local_worker_host import new_record
from tpukit.emulator.workers.slice_facts import SliceFacts
from tpukit.emulator.workers.worker_folders import remove
from tpukit.errors import TpukitError
from tpukit.paths import Paths

_PROGRAMS = ("ip", "mount", "nsenter", "setsid", "unshare")
_TRIAL_NODE = "projects/p/locations/z/nodes/trial"
_TRIAL_ADDRESS = "127.77.254.254"
_TRIAL_SECONDS = 30.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineChoice:
    engine: Engine
    reason: str


def choose(
    name: str,
    folder: Path,
    identity: str,
    environment: Mapping[str, str],
    api_port: Callable[[], int] = int,
) -> EngineChoice:
    """Return the engine with a name; `auto` is the portable one, which every machine can run.

    `folder` holds the workers' files, and `identity` marks their processes. `api_port` is for
    `WorkerNetworks`. Raises `TpukitError` if the machine cannot run the engine.
    """
    inherited = inherited_environment(environment, Path.home())
    if name == "namespaces":
        from tpukit.emulator.workers.engines.namespaces import namespaces_engine

        if missing := _missing():
            raise TpukitError("the namespaces engine cannot run here", reason=f"it needs {missing}")
        hidden = namespaces_engine.hidden_folders(Path.home(), folder.parent)
        engine = namespaces_engine.NamespacesEngine(inherited, base_interpreter(), hidden, api_port)
        return _tried(engine, folder, identity)
    if name == "machines":
        from tpukit.emulator.workers.engines.machines import machines_engine, root_file_system

        cache = Paths.from_environment(environment).machines
        root = root_file_system.ensure_root(cache, _log.warning)
        machines = machines_engine.MachinesEngine(inherited, root, identity, api_port)
        return _tried(machines, folder, identity)
    missing = _missing()
    other = f"namespaces needs {missing}" if missing else "--engine namespaces is possible here"
    portable = PortableEngine(inherited, base_interpreter(), is_root=os.geteuid() == 0)
    return EngineChoice(portable, f"runs on every machine; {other}")


def lacking(platform: str, user: int, find: Callable[[str], object]) -> str:
    """Return the missing requirements of the namespaces engine; `find` looks for a program."""
    if platform != "linux":
        return "Linux"
    if user != 0:
        return "root"
    return ", ".join(name for name in _PROGRAMS if not find(name))


def _missing() -> str:
    return lacking(sys.platform, os.geteuid(), shutil.which)


def _tried(engine: Engine, folder: Path, identity: str) -> EngineChoice:
    """Return an engine after a command has run on a trial worker; raise `TpukitError` if not."""
    bits = random.SystemRandom().getrandbits(32)
    record = new_record(0, _TRIAL_ADDRESS, f"trial-{bits:08x}")
    node = {"name": _TRIAL_NODE, "acceleratorType": "v3-8"}
    marker = f"{identity}/{_TRIAL_NODE}/0"
    folder = folder / record.hostname
    worker = EmulatedWorker(record, SliceFacts.of(node, [record]), folder, marker)
    sockets = None
    try:
        sockets = engine.start(worker)
        login = Login("root", "test -w / && hostname", ("127.0.0.1", 1, record.address, 22))
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
            raise TpukitError(f"a trial worker of the {engine.name} engine fails", why=done.stderr)
    except subprocess.TimeoutExpired as error:
        raise TpukitError(f"a trial worker of the {engine.name} engine is silent") from error
    finally:
        engine.end(marker)
        for socket in (
            (sockets.metadata, sockets.ssh, sockets.proxy, sockets.api) if sockets else ()
        ):
            if socket:
                socket.close()
        remove(folder)
    return EngineChoice(engine, "asked for; a trial worker ran")
