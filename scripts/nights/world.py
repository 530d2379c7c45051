"""Four workers that can be struck: real OpenSSH servers, each with a disk and a boot id of its own.

A worker is a mount namespace: its processes are known by it, whatever they have made of their
environment and their session, also under sudo. A reboot here is: the server and every process of
the worker killed at once, another boot id, and the server up again. What a kernel had not yet
written to a disk is not lost, as it could be there.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from plan import Event
from support.openssh_server import end_connections
from support.openssh_workers import NAME, OpenSshHost, OpenSshWorkers, openssh_workers

from tpukit.emulator.workers.worker_host import WorkerRecord

DISK = "64m"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: `mount` inside is the worker's alone: nobody else sees the boot id.
_ALONE = f'mount --bind "$1" {_BOOT_ID} && shift && exec "$@"'


class NightHost(OpenSshHost):
    """Boots every worker in a mount namespace, with a small disk as its home."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.namespaces: dict[int, set[str]] = defaultdict(set)
        self._held: list[int] = []

    def boot(self, node: dict[str, Any], workers: Sequence[WorkerRecord]) -> None:
        for worker in workers:
            home = self.home(worker.index)
            home.mkdir(exist_ok=True)
            if not os.path.ismount(home):
                _system("mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0755", "none", str(home))
            self.new_boot(worker.index)
        super().boot(node, workers)

    def before_server(self, index: int) -> Sequence[str]:
        return ("unshare", "--mount", "sh", "-c", _ALONE, "sh", str(self._boot_id(index)))

    def serve(self, worker: WorkerRecord) -> None:
        super().serve(worker)
        pid = self.server(worker.index).pid
        # Held open, its number is nobody else's: a kernel gives that of one which is gone again.
        self._held.append(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY))
        self.namespaces[worker.index].add(_namespace(pid))

    def new_boot(self, index: int) -> None:
        self._boot_id(index).write_text(f"{uuid.uuid4()}\n")

    def server(self, index: int) -> subprocess.Popen[bytes]:
        return self._servers[index]

    def processes(self, index: int) -> list[psutil.Process]:
        """Return what runs on a worker, but for its server."""
        found = []
        for process in psutil.process_iter(["name", "status"]):
            alive = process.info["status"] != psutil.STATUS_ZOMBIE
            if alive and not (process.info["name"] or "").startswith("sshd"):
                found += [process] if _namespace(process.pid) in self.namespaces[index] else []
        return found

    def close(self) -> None:
        super().close()
        for index in list(self.namespaces):
            kill(self.processes(index))
            _system("umount", "--lazy", str(self.home(index)))
        for each in self._held:
            os.close(each)

    def _boot_id(self, index: int) -> Path:
        return self._directory / f"boot-id-of-{index}"


class World:
    """The slice, and what can happen to it. Everything but a stall's or a disk's end is at once."""

    def __init__(self, workers: OpenSshWorkers, host: NightHost) -> None:
        self.workers = workers
        self.host = host
        self.tpukit = workers.tpukit
        self._later = ThreadPoolExecutor()
        self._ends: dict[int, list[Future[None]]] = defaultdict(list)

    def home(self, index: int) -> Path:
        return self.host.home(index)

    def everywhere(self, name: str) -> bool:
        """Return whether all workers have a file."""
        return all((self.home(worker.index) / name).exists() for worker in self.workers.workers)

    def strike(self, event: Event) -> None:
        """Strike a worker when what lasts there has ended, which may be late."""
        self._settle(event.worker)
        getattr(self, f"_{event.kind.replace(' ', '_')}")(event)

    def settle(self) -> None:
        """Wait for the end of what lasts."""
        for worker in list(self._ends):
            self._settle(worker)

    def _settle(self, worker: int) -> None:
        for future in self._ends.pop(worker, ()):
            future.result()

    def _reset(self, event: Event) -> None:
        end_connections(self.host.server(event.worker))

    def _restart(self, event: Event) -> None:
        self.workers.restart(event.worker)

    def _moved(self, event: Event) -> None:
        """Let a stranger answer where the worker was."""
        self.workers.move(event.worker, stranger=True)

    def _stall(self, event: Event) -> None:
        """Stop the server and its connections; the commands go on, and fill their pipes."""
        main = psutil.Process(self.host.server(event.worker).pid)
        stopped = [main, *(child for child in main.children(recursive=True) if _is_server(child))]
        for each in stopped:
            with contextlib.suppress(psutil.Error):
                each.suspend()
        self._after(event, lambda: _resume(stopped))

    def _full_disk(self, event: Event) -> None:
        ballast = self.home(event.worker) / ".ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        self._after(event, lambda: ballast.unlink())

    def _reboot(self, event: Event) -> None:
        self.host.stop(event.worker)
        kill(self.host.processes(event.worker))
        self.host.new_boot(event.worker)
        self._after(event, lambda: self.host.serve(self.workers.workers[event.worker]))

    def _after(self, event: Event, act: Callable[[], None]) -> None:
        def end() -> None:
            time.sleep(event.seconds)
            act()

        self._ends[event.worker].append(self._later.submit(end))


@contextmanager
def world() -> Iterator[World]:
    with openssh_workers("v3-32", NightHost) as workers:
        assert isinstance(workers.host, NightHost)
        yield World(workers, workers.host)


def kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _resume(stopped: Sequence[psutil.Process]) -> None:
    for each in stopped:
        with contextlib.suppress(psutil.Error):
            each.resume()


def _is_server(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("sshd")
    except psutil.Error:
        return False


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def _system(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


__all__ = ["NAME", "NightHost", "World", "kill", "world"]
