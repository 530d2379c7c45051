"""Wall time of first and second commands where every answer of the API takes 150 ms longer.

It fails if a second command on workers connects to the API each time.
With --ssh every answer of the workers does too. They are processes of OpenSSH's server then, for
which this account has to be root.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from statistics import median
from urllib.parse import urlsplit

from far import Place, delayed
from measure import TPUKIT, Cost, cost, emulator, show, tpukit
from shared import all_at_once, shared_connections
from sshd import SshdWorkers, sshd_path, sshd_workers

TYPE, NAME = "v4-32", "bench"  #: four workers
COLUMNS = (
    *("COMMAND", "FIRST s", "AGAIN s", "GCLOUD s", "AGAIN, CPU ms", "CPU BEFORE", "RATIO"),
    *("FIRST, API", "AGAIN, API"),  # the fewest connections to it
)
GCLOUD = ("--quiet", "compute", "tpus", "tpu-vm")
#: tpukit's words, and those of gcloud that do the same.
COMMANDS = {
    "list": (("list",), ("list",)),
    "run -- true": (("run", NAME, "--", "true"), ("ssh", NAME, "--worker=all", "--command=true")),
    "ssh -- true": (("ssh", NAME, "--", "true"), ("ssh", NAME, "--command=true")),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=3, help="runs of each, of which the median")
    parser.add_argument("--delay", type=float, default=0.15, metavar="SECONDS")
    parser.add_argument("--ssh", action="store_true", help="the workers answer as late as the API")
    parser.add_argument("--alone", action="store_true", help="without gcloud")
    parser.add_argument("--before", metavar="CHECKOUT", help="another version, to compare CPU with")


def run(options: argparse.Namespace) -> int:
    gcloud = None if options.alone else shutil.which("gcloud")
    if options.ssh:
        return _over_ssh(options, gcloud)
    with emulator() as near:
        tpukit(near, "create", TYPE, NAME)
        tpukit(near, "firewall", "apply", NAME)
        made: list[Place] = []
        with _far_api(near, options.delay, made.append) as far:
            far["HOME"] = near["TPUKIT_HOME"]  # of gcloud's keys and known hosts
            rows = [_row(name, options, near, far, gcloud, made) for name in COMMANDS]
    show(COLUMNS, [[str(cell) for cell in row] for row in rows])
    return int(any(int(row[-1]) for row in rows if row[0] != "list"))


def _row(
    name: str,
    options: argparse.Namespace,
    near: Mapping[str, str],
    far: Mapping[str, str],
    gcloud: str | None,
    made: Sequence[Place],
) -> Sequence[str]:
    ours, theirs = COMMANDS[name]
    words = [*TPUKIT, *ours]
    rival = [str(gcloud), *GCLOUD, *theirs]
    before = {**near, "PYTHONPATH": options.before or ""}
    first, again, other, now, then = [], [], [], [], []
    asked = []
    for _ in range(options.runs + 1):  # the first of each warms caches and is thrown away
        shutil.rmtree(f"{near['TPUKIT_HOME']}/state/hints", ignore_errors=True)
        before_first = len(made)
        first.append(cost(words, far).wall)
        between = len(made)
        again.append(cost(words, far).wall)
        asked.append((between - before_first, len(made) - between))
        now.append(cost(words, near))
        other.append(cost(rival, far).wall if gcloud else 0.0)
        then.append(cost(words, before) if options.before else Cost(0.0, 0.0, 0.0))
    pairs = [(each.cpu, old.cpu) for each, old in zip(now[1:], then[1:], strict=True)]
    return [
        name,
        *(f"{median(each[1:]):.2f}" for each in (first, again)),
        f"{median(other[1:]):.2f}" if gcloud else "-",
        f"{1000 * median(cpu for cpu, _ in pairs):.0f}",
        *(
            (f"{1000 * median(old for _, old in pairs):.0f}",
             f"{median(cpu / old for cpu, old in pairs):.2f}")
            if options.before else ("-", "-")
        ),
        *(str(min(column)) for column in zip(*asked, strict=True)),
    ]  # fmt: skip


@contextmanager
def _far_api(
    near: Mapping[str, str],
    seconds: float,
    on_connection: Callable[[Place], object] = lambda client: None,
) -> Iterator[dict[str, str]]:
    """Yield the environment in which an API answers late."""
    parts = urlsplit(near["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"])
    place = str(parts.hostname), int(parts.port or 80)
    with delayed(place, seconds, on_connection=on_connection) as (host, port):
        yield {name: each.replace(parts.netloc, f"{host}:{port}") for name, each in near.items()}


#: The verbs that connect: tpukit's words, and what one types on the workers by hand.
FAR_COMMANDS = {
    "run -- true": (("run", NAME, "--", "true"), "true"),
    "jobs": (("jobs", NAME), "ls ~/.tpukit/jobs"),
    "logs": (("logs", NAME, "small"), "cat ~/.tpukit/jobs/run.small@*/log"),
    "logs, 15 MB": (("logs", NAME, "big", "--worker=0"), "cat ~/.tpukit/jobs/run.big@*/log"),
    "ssh -- true": (("ssh", NAME, "--", "true"), "true"),
}
FAR_WORKERS = 4


def _over_ssh(options: argparse.Namespace, gcloud: str | None) -> int:
    sshd = sshd_path()
    if not sshd or os.geteuid():
        print("OpenSSH's server has to be installed, and this account to be root")
        return 1
    with (
        tempfile.TemporaryDirectory(prefix="tpukit-bench-") as name,
        sshd_workers(Path(name), sshd, FAR_WORKERS, options.delay) as found,
        _far_api(found.environment, options.delay) as environment,
    ):
        for run, line in (
            ("small", "echo done"),
            ("big", "yes a line of a log | head -c 15000000"),
        ):
            tpukit(environment, "run", NAME, "--detach", "--run-id", run, "--", line)
            tpukit(environment, "attach", NAME, run)
        rows = {name: _far_clients(name, found, environment, gcloud) for name in FAR_COMMANDS}
        walls = {name: _walls(clients, options.runs) for name, clients in rows.items()}
    columns = list(next(iter(rows.values())))
    print(f"wall s, medians; {FAR_WORKERS} workers, each answer {options.delay:g} s late")
    show(("COMMAND", *columns), [[name, *(walls[name][c] for c in columns)] for name in walls])
    return 0


def _far_clients(
    name: str, workers: SshdWorkers, environment: Mapping[str, str], gcloud: str | None
) -> dict[str, Callable[[], Cost] | None]:
    """Return what measures a command with each client."""
    ours, line = FAR_COMMANDS[name]
    one = ours[0] == "ssh" or "--worker=0" in ours
    hints = Path(environment["TPUKIT_HOME"], "state", "hints")
    words = [*TPUKIT, "--quiet", *ours]
    places = workers.addresses[:1] if one else workers.addresses

    def forgotten() -> Cost:
        shutil.rmtree(hints, ignore_errors=True)
        return cost(words, environment)

    def by_openssh(connections: Sequence[str]) -> Cost:
        command = f"ssh {workers.options} {' '.join(connections)} $place {quote(line)}"
        return cost(["sh", "-c", all_at_once(" ".join(places), command)], environment)

    def by_shared() -> Cost:
        with shared_connections(workers, places) as sockets:
            return by_openssh(["-S", f"{sockets}/$place"])

    worker = "--worker=0" if one else "--worker=all"
    theirs = [str(gcloud), *GCLOUD, "ssh", NAME, worker, f"--command={line}"]
    return {
        "FIRST": forgotten,
        "AGAIN": partial(cost, words, environment),
        "OPENSSH": partial(by_openssh, ["-S", "none"]),
        "SHARED": by_shared,
        "GCLOUD": partial(cost, theirs, environment) if gcloud else None,
    }


def _walls(clients: Mapping[str, Callable[[], Cost] | None], runs: int) -> dict[str, str]:
    """Return each client's median; they take turns, and the first of each is thrown away."""
    walls: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(runs + 1):
        for name, measure in clients.items():
            if measure:
                walls[name].append(measure().wall)
    return {name: f"{median(each[1:]):.2f}" if each else "-" for name, each in walls.items()}
