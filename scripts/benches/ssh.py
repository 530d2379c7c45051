"""`true` on N workers by tpukit and its rivals: client CPU time a worker, and wall time.

The workers are processes of OpenSSH's server where there is one and this account is root (SSHD
names one that is not installed); else the emulator's, and tpukit is measured alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from measure import TPUKIT, cpu_seconds, emulator, show, spread, tpukit
from sshd import NAME, ZONE, Crew, crew, sshd_path

from tpukit.accelerators import AcceleratorType

ACCELERATOR = "v4-128"  #: sixteen workers
#: gcloud starts a process a worker; more than this many fill this kind of machine's memory.
GCLOUD_MOST = 32
MOST_SECONDS = 120

Words = Callable[[Crew, int], Sequence[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=3, help="runs of each, one after the other")
    parser.add_argument("--workers", default="1,4,16,64,256", help="numbers of workers")
    parser.add_argument("--clients", default="", help="some of the clients; default: all")
    parser.add_argument("--alone", action="store_true", help="tpukit alone, on emulated workers")
    parser.add_argument("--rivals", default="", help="an environment with parallel-ssh and fabric")


def run(options: argparse.Namespace) -> int:
    sshd = sshd_path()
    if options.alone or not sshd or os.geteuid():
        if not options.alone:
            print("no OpenSSH server that we may run on port 22: the emulator's workers, alone")
        return _alone(options.runs)
    counts = [int(word) for word in options.workers.split(",")]
    with tempfile.TemporaryDirectory(prefix="tpukit-bench-") as name:
        directory = Path(name)
        rivals = Path(options.rivals) if options.rivals else _environment(directory / "rivals")
        with crew(directory, sshd, max(counts)) as found:
            clients = _clients(rivals)
            chosen = options.clients.split(",") if options.clients else clients
            _compare(found, {name: clients[name] for name in chosen}, counts, options.runs)
    return 0


def _compare(found: Crew, clients: Mapping[str, Words], counts: Sequence[int], runs: int) -> None:
    samples: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for words in clients.values():
        _cost(words(found, 1), found.environment)  # keys, known hosts and caches
    for count in counts:
        for _ in range(runs):
            for client, words in clients.items():
                if client == "gcloud" and count > GCLOUD_MOST:
                    continue
                try:
                    cost = _cost(words(found, count), found.environment)
                except SystemExit as failed:
                    print(f"N={count} {client} failed: {str(failed)[-200:]}", flush=True)
                    continue
                samples.setdefault((client, count), []).append(cost)
    print("client CPU ms a worker / wall s, medians")
    rows = [[client, *(_cell(samples.get((client, n)), n) for n in counts)] for client in clients]
    show(("CLIENT", *(f"N={count}" for count in counts)), rows)
    print("client CPU of each, as a multiple of tpukit's")
    rows = [
        [client, *(_ratio(samples.get((client, n)), samples["tpukit", n]) for n in counts)]
        for client in clients
    ]
    show(("CLIENT", *(f"N={count}" for count in counts)), rows)
    most = max(counts)
    if most > 1:
        totals = {n: median(cpu for cpu, _ in samples["tpukit", n]) for n in (min(counts), most)}
        further = (totals[most] - totals[min(counts)]) / (most - min(counts))
        print(f"tpukit, each further worker: {1000 * further:.1f} ms")


def _clients(rivals: Path) -> dict[str, Words]:
    found: dict[str, Words] = {"tpukit": _tpukit}
    if shutil.which("gcloud"):
        found["gcloud"] = _gcloud
    found["OpenSSH"] = _openssh
    for name in ("parallel-ssh", "fabric"):
        found[name] = _rival(rivals, name)
    return found


def _tpukit(found: Crew, count: int) -> Sequence[str]:
    return [*TPUKIT, "--quiet", "run", NAME, "--worker", f"0-{count - 1}", "--", "true"]


def _gcloud(found: Crew, count: int) -> Sequence[str]:
    words = ["gcloud", "--quiet", "compute", "tpus", "tpu-vm", "ssh", NAME, f"--zone={ZONE}"]
    return [*words, f"--worker=0-{count - 1}" if count > 1 else "--worker=0", "--command=true"]


def _openssh(found: Crew, count: int) -> Sequence[str]:
    """One process a worker, all at once, told to read nothing and to offer one key."""
    options = "-F none -o BatchMode=yes -o IdentitiesOnly=yes -o IdentityAgent=none"
    each = f"ssh {options} -o UserKnownHostsFile={found.known_hosts} -i {found.key} -l {found.user}"
    places = " ".join(found.addresses[:count])
    return ["sh", "-c", f'for place in {places}; do {each} "$place" true & done; wait']


def _rival(rivals: Path, name: str) -> Words:
    program = Path(__file__).with_name("ssh_rivals.py")

    def words(found: Crew, count: int) -> Sequence[str]:
        python = rivals / "bin" / "python"
        return [str(python), str(program), name, str(found.known_hosts), str(found.key), found.user,
                str(count)]  # fmt: skip

    return words


def _environment(directory: Path) -> Path:
    """Make a virtual environment of the bench's own with the libraries that are compared."""
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    pip = [directory / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", "parallel-ssh", "fabric"], check=True)
    return directory


def _cost(words: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Return CPU and wall seconds of a command that has to succeed within `MOST_SECONDS`."""
    started = time.monotonic()
    limited = ["timeout", f"{MOST_SECONDS}", *words]
    cpu = cpu_seconds(limited, environment)
    return cpu, time.monotonic() - started


def _cell(samples: Sequence[tuple[float, float]] | None, count: int) -> str:
    if not samples:
        return "-"
    cpu, wall = (median(values) for values in zip(*samples, strict=True))
    return f"{1000 * cpu / count:.1f} / {wall:.2f}"


def _ratio(
    samples: Sequence[tuple[float, float]] | None, ours: Sequence[tuple[float, float]]
) -> str:
    if not samples:
        return "-"
    return f"{median(cpu for cpu, _ in samples) / median(cpu for cpu, _ in ours):.2f}"


def _alone(runs: int) -> int:
    workers = AcceleratorType.parse(ACCELERATOR).workers
    one: list[float] = []
    every: list[float] = []
    with emulator() as environment:
        tpukit(environment, "create", ACCELERATOR, "bench")
        tpukit(environment, "firewall", "apply", "bench")
        command = [*TPUKIT, "run", "bench", "--worker"]
        for _ in range(runs):
            one.append(cpu_seconds([*command, "0", "--", "true"], environment))
            every.append(cpu_seconds([*command, "all", "--", "true"], environment))
    rows = [spread("1 worker", one), spread(f"{workers} workers", every)]
    show(("CONNECTIONS", "MEDIAN CPU ms", "MIN", "MAX"), rows)
    further = (median(every) - median(one)) / (workers - 1)
    print(f"each further worker: {1000 * further:.0f} ms")
    return 0
