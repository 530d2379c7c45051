"""One file to N workers by `tpukit cp`, and by loops of scp and rsync, behind a slow uplink.

As root with tc, everything runs in a network namespace whose loopback is shaped: 100 Mbit/s for
all that goes to the workers' port 22, 10 Gbit/s for the rest, no delay. Elsewhere nothing is
shaped. The workers' files are in memory where there is /dev/shm.
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

from measure import TPUKIT, emulator, show, tpukit

ACCELERATOR = "v4-256"  #: 32 workers
#: What time at 32 workers may be of time at one.
MOST = 1.3
_INSIDE = "TPUKIT_BENCH_SHAPED"

Send = Callable[[Path, int], float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=200, help="size of the file")
    parser.add_argument("--workers", default="1,8,32", help="numbers of workers for tpukit")
    parser.add_argument("--loops", default="1,8", help="numbers of workers for scp and rsync")
    # 32 workers write to one disk here, each to its own in the cloud.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    parser.add_argument("--directory", default=memory, help="of the workers' files")
    parser.add_argument("--rate", default="100mbit", help="of the uplink, as tc has it")


def run(options: argparse.Namespace) -> int:
    if _INSIDE not in os.environ:
        return _enter()
    tempfile.tempdir = options.directory
    shaped = _shape(options.rate)
    print(f"uplink {options.rate}, 10gbit inside, no delay" if shaped else "not shaped")
    counts = [int(word) for word in options.workers.split(",")]
    loops = [int(word) for word in options.loops.split(",") if word]
    with tempfile.TemporaryDirectory(prefix="tpukit-bench-") as name, emulator() as environment:
        tpukit(environment, "create", ACCELERATOR, "bench")
        tpukit(environment, "firewall", "apply", "bench")
        tpukit(environment, "ssh-config", "bench")
        times = _measure(Path(name), options.megabytes << 20, environment, counts, loops)
    show(
        ("CLIENT", *(f"N={count} s" for count in counts)),
        [
            [client, *(f"{found[n]:.1f}" if n in found else "-" for n in counts)]
            for client, found in times.items()
        ],
    )
    ours = times["tpukit cp"]
    if not {1, 32} <= set(ours):
        return 0
    print(f"tpukit, 32 workers beside one: {ours[32] / ours[1]:.2f} times")
    return int(ours[32] > MOST * ours[1])


def _enter() -> int:
    """Run the same command line in a network namespace of its own where that is allowed."""
    words = [sys.executable, *sys.argv]
    probe = ["unshare", "--net", "true"]
    isolated = not os.geteuid() and shutil.which("unshare") and shutil.which("tc")
    if isolated and subprocess.run(probe, check=False).returncode == 0:
        words = ["unshare", "--net", *words]
    return subprocess.run(words, env={**os.environ, _INSIDE: words[0]}, check=False).returncode


def _shape(rate: str) -> bool:
    """Shape the loopback of our own network namespace; tell whether that was possible."""
    if os.environ[_INSIDE] != "unshare":
        return False
    for line in (
        "ip link set lo up",
        "tc qdisc add dev lo root handle 1: htb default 10 r2q 1000",
        "tc class add dev lo parent 1: classid 1:10 htb rate 10gbit burst 10m",
        f"tc class add dev lo parent 1: classid 1:20 htb rate {rate} burst 256k",
        "tc filter add dev lo parent 1: protocol ip u32 match ip dport 22 0xffff flowid 1:20",
    ):
        done = subprocess.run(line.split(), capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{line}: {done.stderr.strip()}")
            return False
    return True


def _measure(
    directory: Path,
    size: int,
    environment: Mapping[str, str],
    counts: Sequence[int],
    loops: Sequence[int],
) -> dict[str, dict[int, float]]:
    clients: dict[str, tuple[Send, Sequence[int]]] = {"tpukit cp": (_ours(environment), counts)}
    config = f"{environment['TPUKIT_HOME']}/state/ssh/config"
    if shutil.which("scp"):
        clients["scp, one after the other"] = (_loop(["scp", "-q", "-F", config]), loops)
    if shutil.which("rsync"):
        clients["rsync, one after the other"] = (_loop(_rsync(config)), loops)
    found: dict[str, dict[int, float]] = {}
    for client, (send, numbers) in clients.items():
        for count in numbers:
            # Another file each time: what is there already would not be sent.
            file = directory / "file"
            file.write_bytes(os.urandom(size))
            found.setdefault(client, {})[count] = send(file, count)
            tpukit(environment, "run", "bench", "--", "rm -f file; sync")
    return found


def _rsync(config: str) -> list[str]:
    # Emulated workers have this machine's programs, wherever it keeps them.
    return ["rsync", "-e", f"ssh -F {config}", f"--rsync-path={shutil.which('rsync')}"]


def _ours(environment: Mapping[str, str]) -> Send:
    def send(file: Path, count: int) -> float:
        workers = f"0-{count - 1}"
        return _timed([*TPUKIT, "cp", str(file), "bench:", "--worker", workers], environment)

    return send


def _loop(words: Sequence[str]) -> Send:
    def send(file: Path, count: int) -> float:
        return sum(_timed([*words, str(file), f"tpu.bench.{n}:"], os.environ) for n in range(count))

    return send


def _timed(words: Sequence[str], environment: Mapping[str, str]) -> float:
    started = time.monotonic()
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed: {done.stderr[-400:]}")
    return time.monotonic() - started
