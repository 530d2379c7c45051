"""A worker's guest attributes in the form that both APIs answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpukit.emulator.core.api_errors import Json
from tpukit.emulator.workers.worker_host import WorkerRecord


def guest_entries(worker: WorkerRecord, published: Mapping[str, str], path: str) -> Sequence[Json]:
    """Return a worker's guest attributes below `path`: "", a namespace, or `namespace/key`.

    A TPU VM's host name is `deviceInfo/hostname` (recorded: docs/reference/real-workers.md). Only
    the emulator has the namespace `ssh`, and only if the port is not 22.
    """
    kind, body = worker.host_public_key.split()[:2]
    entries = [
        ("deviceInfo", "hostname", worker.hostname),
        ("hostkeys", kind, body),
    ]
    for name, value in published.items():
        namespace, _, key = name.partition("/")
        entries.append((namespace, key, value))
    if worker.port != 22:
        entries.append(("ssh", "port", str(worker.port)))
    return [
        {"namespace": namespace, "key": key, "value": value}
        for namespace, key, value in entries
        if path.strip("/") in ("", namespace, f"{namespace}/{key}")
    ]
