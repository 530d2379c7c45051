"""What every client can call, read from the clients themselves."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

GCLOUD = shutil.which("gcloud")
GROUPS = (
    "tpus/tpu_vm",
    "tpus/queued_resources",
    "tpus/locations",
    "tpus/reservations",
    "tpus/topologies",
    # The TPU Node architecture. `execution-groups` also makes Compute Engine VMs without
    # chips, which the emulator refuses.
    "tpus/accelerator_types",
    "tpus/versions",
)
NODE_ARCHITECTURE = ("create", "delete", "describe", "list", "reimage", "start", "stop")
#: Firewall commands that call Compute Engine's v1 API for rules of a network.
FIREWALL = ("create", "delete", "describe", "list", "update")

REST, GRPC = "google-cloud-tpu v2 REST", "google-cloud-tpu v2 gRPC"
SECURE, ASYNC = "google-cloud-tpu v2 gRPC, TLS", "google-cloud-tpu v2 gRPC, async"
ALPHA = "google-cloud-tpu v2alpha1 gRPC"
DISCOVERY = "google-api-python-client"


@cache
def required() -> tuple[tuple[str, str], ...]:
    """Return (client, command) for all that has to have been called once."""
    return tuple(sorted({*_gcloud(), *_google(), *_discovery()}))


def command_of(client: str, words: tuple[str, ...]) -> str:
    """Return the command that a line of words begins with; the words up to its arguments."""
    known = [command for name, command in required() if name == client]
    line = " ".join(words)
    return max((c for c in known if f"{line} ".startswith(f"{c} ")), key=len, default=words[0])


def _gcloud() -> Iterator[tuple[str, str]]:
    if GCLOUD is None:
        return
    surface = Path(GCLOUD).resolve().parent.parent / "lib" / "surface" / "compute"
    for group in GROUPS:
        for path in sorted((surface / group).rglob("*")):
            if path.suffix in (".py", ".yaml") and path.stem != "__init__":
                words = path.relative_to(surface).with_suffix("").parts
                for track in _tracks(path.read_text(encoding="utf-8")):
                    yield f"gcloud {track}", " ".join(words).replace("_", "-")
    for verb in NODE_ARCHITECTURE:
        yield from (("gcloud GA", f"tpus {verb}"), ("gcloud alpha", f"tpus {verb}"))
    for verb in FIREWALL:
        yield "gcloud GA", f"firewall-rules {verb}"


def _tracks(text: str) -> set[str]:
    """Return the release tracks that a command's definition names; by default it is in all."""
    lists = re.findall(r"^- release_tracks: \[([^]]*)\]|ReleaseTracks\(([^)]*)\)", text, re.M)
    named = " ".join(" ".join(pair) for pair in lists)
    return {track for track in ("GA", "alpha") if not named or track.upper() in named}


def _google() -> Iterator[tuple[str, str]]:
    from google.cloud.tpu_v2.services.tpu.transports import rest_base
    from google.cloud.tpu_v2.services.tpu.transports.grpc import TpuGrpcTransport
    from google.cloud.tpu_v2alpha1.services.tpu.transports.grpc import (
        TpuGrpcTransport as AlphaTransport,
    )

    base = rest_base._BaseTpuRestTransport
    for name, _ in inspect.getmembers(base, inspect.isclass):
        if name.startswith("_Base"):
            yield REST, name.removeprefix("_Base")
    for client, transport in (
        (GRPC, TpuGrpcTransport),
        (SECURE, TpuGrpcTransport),
        (ASYNC, TpuGrpcTransport),
        (ALPHA, AlphaTransport),
    ):
        for name in re.findall(r'"/[\w.]+/(\w+)"', inspect.getsource(transport)):
            yield client, name


def _discovery() -> Iterator[tuple[str, str]]:
    """Yield the methods of the discovery documents that come with google-api-python-client."""
    try:
        from googleapiclient import discovery_cache
    except ImportError:
        return
    for version in ("v2", "v2alpha1"):
        document = json.loads(discovery_cache.get_static_doc("tpu", version))
        for method in methods_of(document):
            yield DISCOVERY, f"{version} {method}"
    for verb in ("delete", "get", "insert", "list", "patch", "update"):
        yield DISCOVERY, f"compute v1 firewalls.{verb}"


def methods_of(document: Any) -> Iterator[str]:
    """Yield the names of the methods below projects.locations, themselves included."""
    for name, resource in document.get("resources", {}).items():
        for method in resource.get("methods", {}):
            yield f"{name}.{method}"
        yield from methods_of(resource)
