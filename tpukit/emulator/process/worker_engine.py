"""The engine of an emulator's workers; only the chosen engine is imported."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from tpukit.emulator.process.home import EmulatorHome
from tpukit.emulator.workers.paper_host import PaperHost
from tpukit.emulator.workers.worker_host import WorkerHost, WorkerHostFactory, WorkerOracle

_NOTHING_LISTENS = "workers have addresses and host keys, but no SSH servers"


@dataclass(frozen=True)
class WorkerEngine:
    """An engine's description for `emulator.json`, with functions to make its host and close it."""

    name: str
    reason: str
    limits: tuple[str, ...]
    make_host: WorkerHostFactory
    close: Callable[[], None]
    foreign_ssh: bool = False


def worker_engine(name: str, home: EmulatorHome) -> WorkerEngine:
    """Return the engine with a name from `home.ENGINES`.

    Raises `TpukitError` if this machine cannot run it.
    """
    if name == "paper":
        return WorkerEngine(name, "asked for", (_NOTHING_LISTENS,), PaperHost, lambda: None)
    return _machines(name, home)


def _machines(name: str, home: EmulatorHome) -> WorkerEngine:
    from tpukit.emulator.workers.addresses import foreign_ssh
    from tpukit.emulator.workers.engines.engine_choice import choose
    from tpukit.emulator.workers.local_worker_host import LocalWorkerHost

    logging.getLogger("asyncssh").setLevel(logging.CRITICAL)
    identity, randomness = home.identity(), random.SystemRandom()

    def api_port() -> int:
        running = home.published()
        return urlsplit(running.url).port or 0 if running else 0

    choice = choose(name, home.workers, identity, os.environ, api_port)
    hosts: list[LocalWorkerHost] = []

    def make_host(oracle: WorkerOracle) -> WorkerHost:
        given = (home.workers, identity, oracle, choice.engine, randomness)
        hosts.append(LocalWorkerHost(*given, lambda: home.token_file.read_text().strip()))
        return hosts[-1]

    def close() -> None:
        for host in hosts:
            host.close()

    engine = choice.engine
    foreign = engine.name == "portable" and foreign_ssh()
    return WorkerEngine(engine.name, choice.reason, engine.limits, make_host, close, foreign)
