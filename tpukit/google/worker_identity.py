"""The guest attributes of a worker: its host keys, its host name and its SSH port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpukit.google.node_json import field, text_of
from tpukit.models import WorkerIdentity


def read_identity(index: int, attributes: Any) -> WorkerIdentity:
    """Return a worker's identity from its guest attributes; raise ValueError for other JSON."""
    items = {
        (text_of(item, "namespace"), text_of(item, "key")): text_of(item, "value")
        for item in field(field(attributes, "queryValue", dict, {}), "items", list, [])
    }
    host_keys = tuple(
        value if value.startswith(kind) else f"{kind} {value}"
        for (namespace, kind), value in items.items()
        if namespace == "hostkeys" and value
    )
    port = items.get(("ssh", "port"), "")
    return WorkerIdentity(
        index=index,
        host_keys=host_keys,
        hostname=_hostname(items),
        ssh_port=int(port) if port.isdecimal() and 0 < int(port) < 65536 else 22,
    )


def _hostname(items: Mapping[tuple[str, str], str]) -> str:
    """Return a worker's name in Identity-Aware Proxy, or "" if the worker has not published it.

    A TPU VM publishes `deviceInfo/hostname` (recorded: docs/reference/real-workers.md). gcloud
    takes the key `hostname` of any namespace: command_lib/compute/tpus/tpu_vm/ssh.py. The agent of
    OS Config, if a user installs it, publishes `guestInventory/Hostname`.
    """
    return next(
        (
            value
            for wanted in ("hostname", "Hostname")
            for (_, key), value in items.items()
            if key == wanted and value
        ),
        "",
    )
