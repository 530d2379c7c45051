"""`true` on N workers by tpukit and its rivals: client CPU time a worker, and wall time.

Then the same of a command that writes many lines, which the client shows with their workers.

The workers are processes of OpenSSH's server where there is one and this account is root (SSHD
names one that is not installed); else the emulator's, and tpukit is measured alone. Servers and
clients share this machine's processors. The memory is that of the client's largest process, and of
all that share the connections where several do.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from measure import TPUKIT, Cost, cost, cpu_seconds, emulator, show, spread, tpukit
from shared import all_at_once, shared
from sshd import NAME, ZONE, SshdWorkers, sshd_path, sshd_workers

from tpukit.accelerators import AcceleratorType

ACCELERATOR = "v4-128"  #: sixteen workers
#: gcloud starts a process a worker; more than this many fill this kind of machine's memory.
GCLOUD_MOST = 32
MOST_WORKERS = 256
MOST_SECONDS = 300

OURS = "tpukit"
#: Clients whose SSH is written in C; libssh2 without a client around it is shown beside them.
IN_C = ("OpenSSH", "OpenSSH, tuned", "parallel-ssh")
BARE = "libssh2, bare"
#: Numbers of workers whose output is shown.
OUTPUT_COUNTS = (1, 4, 16)
LINES_OF_LIBRARY = "parallel-ssh, lines"
#: Debian's program of that name, from its package pssh; the library has none.
PROGRAM = "pssh"

Measure = Callable[[SshdWorkers, int], Cost]
Samples = Mapping[tuple[str, int], Sequence[Cost]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=3, help="runs of each, one after the other")
    parser.add_argument("--workers", default="1,4,16,32,64,256", help="numbers of workers")
    parser.add_argument("--clients", default="", help="some of the clients, split by ;")
    parser.add_argument("--lines", type=int, default=500_000, help="of output a worker; 0: none")
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
        with sshd_workers(directory, sshd, max(counts)) as found:
            clients = _clients(rivals)
            chosen = options.clients.split(";") if options.clients else list(clients)
            measures = {name: clients[name] for name in chosen}
            samples = _samples(found, measures, counts, options.runs)
            shown = [count for count in OUTPUT_COUNTS if count <= max(counts) and options.lines]
            showing = _showing(rivals, f"seq {options.lines}")
            outputs = _samples(found, showing, shown, options.runs) if shown else {}
    _show(samples, chosen, counts)
    if shown:
        print(f"seq {options.lines}, shown")
        _show(outputs, list(showing), shown)
    complete = OURS not in chosen or all((OURS, count) in samples for count in counts)
    holds = [_judge(samples, counts), _judge_output(outputs, shown)]
    return int(not (complete and all(holds)))


def _samples(
    workers: SshdWorkers, clients: Mapping[str, Measure], counts: Sequence[int], runs: int
) -> Samples:
    samples: dict[tuple[str, int], list[Cost]] = {}
    for measure in clients.values():
        measure(workers, 1)  # keys, known hosts and caches
    for count in counts:
        for _ in range(runs):
            for client, measure in clients.items():
                if client == "gcloud" and count > GCLOUD_MOST:
                    continue
                try:
                    samples.setdefault((client, count), []).append(measure(workers, count))
                except SystemExit as failed:
                    print(f"N={count} {client} failed: {str(failed)[-200:]}", flush=True)
    return samples


def _show(samples: Samples, clients: Sequence[str], counts: Sequence[int]) -> None:
    columns = ("CLIENT", *(f"N={count}" for count in counts))
    print("client CPU ms a worker / wall s / MB, medians")
    show(columns, [[client, *(_cell(samples, client, n) for n in counts)] for client in clients])
    print(f"CPU / wall time as a multiple of {OURS}")
    show(columns, [[client, *(_ratios(samples, client, n) for n in counts)] for client in clients])


def _judge(samples: Samples, counts: Sequence[int]) -> bool:
    """Print the claims that these samples bear on; return whether they all hold."""
    claims: list[tuple[str, float, float]] = []
    least, most = min(counts), MOST_WORKERS
    if (OURS, GCLOUD_MOST) in samples and ("gcloud", GCLOUD_MOST) in samples:
        cpu, wall = _relation(samples, OURS, "gcloud", GCLOUD_MOST)
        claims.append((f"of gcloud's CPU time at {GCLOUD_MOST}", cpu, 0.2))
        claims.append((f"of gcloud's wall time at {GCLOUD_MOST}", wall, 1.0))
    if (OURS, most) in samples and least < most:
        more = _total(samples, OURS, most) - _total(samples, OURS, least)
        further = 1000 * more / (most - least)
        claims.append(("client CPU ms of each further worker", further, 6.0))
    if (OURS, most) in samples:
        claims.append(
            (f"MB at {most}", median(sample.memory for sample in samples[OURS, most]), 120.0)
        )
    in_c = [each for each in IN_C if (each, most) in samples]
    if in_c and (OURS, most) in samples:
        fastest = min(in_c, key=lambda each: median(run.wall for run in samples[each, most]))
        _, wall = _relation(samples, OURS, fastest, most)
        claims.append((f"of the wall time of {fastest}, the fastest in C, at {most}", wall, 1.2))
    holds = _hold(claims)
    if (BARE, most) in samples and (OURS, most) in samples:
        print(
            f"{_relation(samples, OURS, BARE, most)[1]:.2f} of the wall time of {BARE}, at {most}"
        )
    return holds


def _judge_output(samples: Samples, counts: Sequence[int]) -> bool:
    """Print how the output of workers compares with parallel-ssh's; return whether it holds."""
    claims: list[tuple[str, float, float]] = []
    for count in counts:
        rival = PROGRAM if (PROGRAM, count) in samples else LINES_OF_LIBRARY
        if (OURS, count) in samples and (rival, count) in samples:
            cpu, wall = _relation(samples, OURS, rival, count)
            claims.append((f"of the CPU time of {rival} for the output of {count}", cpu, 1.5))
            claims.append((f"of the wall time of {rival} for the output of {count}", wall, 1.5))
    return _hold(claims)


def _hold(claims: Sequence[tuple[str, float, float]]) -> bool:
    """Print claims, each with a figure and the most that it may be; return whether all hold."""
    for what, found, limit in claims:
        print(f"{found:.2f} {what}: {'holds' if found <= limit else 'DOES NOT HOLD'} ({limit:g})")
    return all(found <= limit for _, found, limit in claims)


def _clients(rivals: Path) -> dict[str, Measure]:
    found: dict[str, Measure] = {OURS: _program(_tpukit)}
    if shutil.which("gcloud"):
        found["gcloud"] = _program(_gcloud)
    found["OpenSSH"] = _program(_openssh)
    found["OpenSSH, tuned"] = _program(lambda workers, count: _openssh(workers, count, tuned=True))
    found["OpenSSH, warm"] = shared
    for name in ("parallel-ssh", BARE, "Fabric"):
        found[name] = _program(_rival(rivals, name))
    return found


def _showing(rivals: Path, command: str) -> dict[str, Measure]:
    """Return who runs a command and shows what each worker writes."""
    found: dict[str, Measure] = {
        OURS: _program(lambda workers, count: _tpukit(workers, count, command)),
        "OpenSSH": _program(lambda workers, count: _openssh(workers, count, command=command)),
        LINES_OF_LIBRARY: _program(_rival(rivals, LINES_OF_LIBRARY, command)),
    }
    if shutil.which("parallel-ssh"):
        found[PROGRAM] = _program(lambda workers, count: _pssh(workers, count, command))
    return found


def _program(words: Callable[[SshdWorkers, int], Sequence[str]]) -> Measure:
    """Return who measures a command that has to succeed within `MOST_SECONDS`."""
    return lambda workers, count: cost(
        ["timeout", f"{MOST_SECONDS}", *words(workers, count)], workers.environment
    )


def _tpukit(workers: SshdWorkers, count: int, command: str = "true") -> Sequence[str]:
    return [*TPUKIT, "--quiet", "run", NAME, "--worker", f"0-{count - 1}", "--", command]


def _gcloud(workers: SshdWorkers, count: int) -> Sequence[str]:
    words = ["gcloud", "--quiet", "compute", "tpus", "tpu-vm", "ssh", NAME, f"--zone={ZONE}"]
    return [*words, f"--worker=0-{count - 1}" if count > 1 else "--worker=0", "--command=true"]


def _openssh(
    workers: SshdWorkers, count: int, tuned: bool = False, command: str = "true"
) -> Sequence[str]:
    """One process a worker, all at once, told to read nothing and to offer one key."""
    each = f"ssh {workers.options}"
    if tuned:
        each += " -o KexAlgorithms=curve25519-sha256"
    places = " ".join(workers.addresses[:count])
    return ["sh", "-c", all_at_once(places, f'{each} "$place" "{command}"')]


def _pssh(workers: SshdWorkers, count: int, command: str) -> Sequence[str]:
    hosts = [word for place in workers.addresses[:count] for word in ("-H", place)]
    return ["parallel-ssh", "-i", "-p", f"{count}", "-x", workers.options, *hosts, command]


def _rival(rivals: Path, name: str, *command: str) -> Callable[[SshdWorkers, int], Sequence[str]]:
    program = Path(__file__).with_name("ssh_rivals.py")

    def words(workers: SshdWorkers, count: int) -> Sequence[str]:
        python = rivals / "bin" / "python"
        known = [str(workers.known_hosts), str(workers.key), workers.user]
        return [str(python), str(program), name, *known, str(count), *command]

    return words


def _environment(directory: Path) -> Path:
    """Make a virtual environment of the bench's own with the libraries that are compared."""
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    pip = [directory / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", "parallel-ssh", "fabric"], check=True)
    return directory


def _total(samples: Samples, client: str, count: int) -> float:
    return median(sample.cpu for sample in samples[client, count])


def _relation(samples: Samples, ours: str, theirs: str, count: int) -> tuple[float, float]:
    """Return our CPU and wall time as parts of theirs, of medians."""
    one, other = samples[ours, count], samples[theirs, count]
    return (
        median(each.cpu for each in one) / median(each.cpu for each in other),
        median(each.wall for each in one) / median(each.wall for each in other),
    )


def _cell(samples: Samples, client: str, count: int) -> str:
    if (client, count) not in samples:
        return "-"
    every = samples[client, count]
    wall, memory = median(each.wall for each in every), median(each.memory for each in every)
    return f"{1000 * _total(samples, client, count) / count:.1f} / {wall:.2f} / {memory:.0f}"


def _ratios(samples: Samples, client: str, count: int) -> str:
    if (client, count) not in samples or (OURS, count) not in samples:
        return "-"
    return "{:.2f} / {:.2f}".format(*_relation(samples, client, OURS, count))


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
