"""Runs one process for each chip of this worker; each sees only its own chip."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
from typing import BinaryIO, Sequence

from tpukit.agent.loopback import free_ports
from tpukit.agent.main import Home, Request

#: libtpu serves metrics on this port for chip 0, and on the next ones for the others: the recorded
#: TPU_RUNTIME_METRICS_PORTS of a worker (docs/reference/real-workers.md).
_METRICS_PORT = 8431
_PIECE = 64 << 10
#: The longest line in bytes; a longer one is written in parts.
_LONGEST_LINE = 64 << 10
#: Signals that end the processes, not this one: it writes their last output and their status.
_PASSED = ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2")


def run_per_chip(home: Home, request: Request) -> None:
    """Run a command for each of `chips` at the same time; end with the highest of their statuses.

    `command` is its text in parts, with the chip's number between them. The user's shell runs it,
    with `sudo` as root, without input. Each line of the output begins with its chip: `[chip 2] `.
    The processes stay in the session and process group of this one, so a signal to the run reaches
    them directly.
    """
    for name in _PASSED:
        # Not SIG_IGN, which the processes would inherit.
        signal.signal(getattr(signal, f"SIG{name}"), lambda *_: None)
    chips = request["chips"]
    ports = free_ports(2 * chips)
    # MEGASCALE_* would make libtpu wait for the other slices of a multislice.
    common = {name: text for name, text in os.environ.items() if not name.startswith("MEGASCALE_")}
    output, processes = _Output(), []
    for chip in range(chips):
        own = {**common, **_variables(chip, chips, ports[2 * chip : 2 * chip + 2])}
        own["TPU_ACCELERATOR_TYPE"] = request["accelerator_type"]
        if home.emulated:
            own.update(_stand_ins(home.emulated_devices // chips))
        line = str(chip).join(request["command"]).encode("utf-8", "surrogateescape")
        processes.append(output.started(chip, _words(line, request["sudo"]), own))
    output.copy()
    statuses = [_status(process) for process in processes]
    for chip, status in enumerate(statuses):
        if status:
            output.write(chip, sys.stderr.buffer, b"tpukit: exited with status %d\n" % status)
    sys.exit(max(statuses))


def mark_of(chip: int) -> bytes:
    """Return the beginning of each line of a chip's output."""
    return b"[chip %d] " % chip


def _words(line: bytes, sudo: bool) -> list[bytes]:
    """Return the command of a process; tpukit/jobs/shell_environment.py explains it."""
    root = ["sudo", "-n", "-E", "--", "env", "PATH=" + os.environ["PATH"]] if sudo else ["env"]
    shell = os.environ.get("SHELL") or "/bin/sh"
    return [*map(os.fsencode, [*root, "SHLVL=1", shell, "-c"]), line]


def _variables(chip: int, chips: int, ports: Sequence[int]) -> dict[str, str]:
    """Return the variables that show a process one chip, as a slice of its own.

    One chip as the whole slice: `configure_one_chip_topology` in pytorch/xla:torch_xla/_internal/
    tpu.py, and ray-project/ray:python/ray/_private/accelerators/tpu.py, with the older names.
    Processes with an address and port each: jax-ml/jax:jax/_src/test_multiprocess.py. The metadata
    of a slice with several workers would contradict that, so variables take its place: pytorch/xla
    issue 7714. `jax.distributed.initialize()` then finds one process, whose coordinator needs a
    port of its own: jax-ml/jax:jax/_src/clusters/cloud_tpu_cluster.py.
    """
    process_port, coordinator_port = ports
    return {
        "TPUKIT_CHIP": str(chip),
        "TPUKIT_CHIPS": str(chips),
        "TPU_VISIBLE_CHIPS": str(chip),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1",
        "TPU_HOST_BOUNDS": "1,1,1",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_PROCESS_ADDRESSES": f"localhost:{process_port}",
        "TPU_PROCESS_PORT": str(process_port),
        "CLOUD_TPU_TASK_ID": "0",
        "TPU_WORKER_ID": "0",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_RUNTIME_METRICS_PORTS": str(_METRICS_PORT + chip),
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "JAX_COORDINATOR_PORT": str(coordinator_port),
        "JAX_COORDINATOR_BIND_ADDRESS": f"localhost:{coordinator_port}",
    }


def _stand_ins(devices: int) -> dict[str, str]:
    """Return the variables that show a process so many of an emulated worker's devices."""
    count = r"(?<=--xla_force_host_platform_device_count=)\d+"
    flags = re.sub(count, str(devices), os.environ.get("XLA_FLAGS", ""))
    return {"TPUKIT_EMULATED_DEVICES": str(devices), "XLA_FLAGS": flags}


def _status(process: subprocess.Popen[bytes]) -> int:
    code = process.wait()
    return code if code >= 0 else 128 - code


class _Output:
    """The output of the processes: whole lines, each with its chip, on the stream it came from."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._rest: dict[int, bytes] = {}
        # A log has one pipe for both streams: then a process has one too, which keeps their order.
        self._one_pipe = os.path.samestat(os.fstat(1), os.fstat(2))

    def started(
        self, chip: int, words: Sequence[bytes], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start the process of a chip."""
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if self._one_pipe else subprocess.PIPE,
            env=environment,
        )
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            if source:
                self._selector.register(source, selectors.EVENT_READ, (chip, target.buffer))
        return process

    def copy(self) -> None:
        """Write all output until the processes, and those that they have started, close it."""
        while self._selector.get_map():
            for key, _ in self._selector.select():
                chip, target = key.data
                data = os.read(key.fd, _PIECE)
                lines, end, rest = (self._rest.pop(key.fd, b"") + data).rpartition(b"\n")
                lines += end
                if rest and (not data or len(rest) > _LONGEST_LINE):
                    lines, rest = lines + rest + b"\n", b""
                self._rest[key.fd] = rest
                self.write(chip, target, lines)
                if not data:
                    self._selector.unregister(key.fileobj)

    def write(self, chip: int, target: BinaryIO, lines: bytes) -> None:
        """Write whole lines of a chip, each after its mark."""
        mark = mark_of(chip)
        if lines:
            target.write(mark + lines[:-1].replace(b"\n", b"\n" + mark) + b"\n")
            target.flush()
