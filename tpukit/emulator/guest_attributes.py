"""Guest attributes: what the agents on a worker published about it."""

from __future__ import annotations

from collections.abc import Sequence

from tpukit.emulator.context import Call
from tpukit.emulator.errors import Json, invalid
from tpukit.emulator.workers import WorkerRecord


def guest_attributes(call: Call, workers: Sequence[WorkerRecord], booted: bool) -> Json:
    """Answer one entry a worker, in the order of the workers; empty until they have booted."""
    wanted = [text for text in call.body.get("workerIds") or [] if text != ""]
    path = str(call.body.get("queryPath") or "")
    chosen = [workers[worker_index(text, workers)] for text in wanted] if wanted else workers
    answers = [_entries(worker, path) if booted else [] for worker in chosen]
    return {"guestAttributes": [{"queryPath": path, "queryValue": {"items": a}} for a in answers]}


def worker_index(text: object, workers: Sequence[WorkerRecord]) -> int:
    """Return the number of a worker that a call names; raise for one that there is not."""
    if not str(text).isdecimal() or int(str(text)) >= len(workers):
        raise invalid(f"Invalid worker id {text!r}")
    return int(str(text))


def _entries(worker: WorkerRecord, path: str) -> Sequence[Json]:
    """Return what the worker published below `path`, a namespace or a namespace and a key.

    gcloud looks for the key `hostname`, the guest agent writes `Hostname`: both are here. The
    namespace `ssh` is the emulator's own, and only where its port is not the usual one.
    """
    kind, body = worker.host_public_key.split()[:2]
    entries = [
        ("guestInventory", "Hostname", worker.hostname),
        ("guestInventory", "hostname", worker.hostname),
        ("hostkeys", kind, body),
    ]
    if worker.port != 22:
        entries.append(("ssh", "port", str(worker.port)))
    return [
        {"namespace": namespace, "key": key, "value": value}
        for namespace, key, value in entries
        if path.strip("/") in ("", namespace, f"{namespace}/{key}")
    ]
