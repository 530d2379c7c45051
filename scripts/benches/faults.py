"""Creates under faults: what tpukit, google-cloud-tpu used plainly, and gcloud lose by them.

An emulated cloud without machines runs in this process. At each rate, so many of all its answers
are spoilt: refused with 503, cut off, or, one in 25, held back for longer than tpukit waits for
one; half of them before the call is carried out, half of them after it. The seed decides which.
tpukit's pauses take no time here. Lost is a slice that exists though its create ended in an error.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measure import show
from polling import CountedClock

from tpukit.clock import Clock, Deadline, SystemClock
from tpukit.cloud.access_tokens import AccessTokens
from tpukit.cloud.credentials import find_credentials
from tpukit.cloud.session import Session
from tpukit.cloud.tpu import CloudTpu
from tpukit.emulator.api.http_server import ApiServer, build_server
from tpukit.emulator.core.emulator_clock import EmulatorClock
from tpukit.emulator.workers.paper_host import PaperHost
from tpukit.errors import TpukitError
from tpukit.models import SliceRequest
from tpukit.slices import naming
from tpukit.slices.ensure import ensure
from tpukit.slices.journal import Journal

PROJECT, ZONE, TYPE, IMAGE = "bench-project", "us-central1-a", "v2-8", "tpu-ubuntu2204-base"
TOKEN = "token-of-the-bench"
#: Seconds for which an answer is held back, and for which tpukit waits for one here.
STALL_SECONDS, PATIENCE_SECONDS = 1.5, 1.0
#: What is served to a call, and how often among the faults.
_FAULTS: list[tuple[float, dict[str, Any]]] = [
    (share / 2, {"kind": kind, "phase": phase, **more})
    for share, kind, more in (
        (0.48, "status", {"status": "UNAVAILABLE"}),
        (0.48, "reset", {}),
        (0.04, "stall", {"seconds": STALL_SECONDS}),
    )
    for phase in ("before", "after")
]
Create = Callable[[str], bool]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--creates", type=int, default=1000, help="creates at each rate")
    parser.add_argument("--gcloud", type=int, default=10, help="creates by gcloud at each rate")
    parser.add_argument("--rate", type=float, action="append", help="of faults; repeatable")
    parser.add_argument("--seed", type=int, default=1)


def run(options: argparse.Namespace) -> int:
    rates = options.rate or [0.05, 0.1, 0.2, 0.3]
    rows: list[list[str]] = []
    holds = True
    for rate in rates:
        for client, make, clock, count in (
            ("tpukit", _tpukit, CountedClock(), options.creates),
            ("google-cloud-tpu", _google, SystemClock(), options.creates),
            ("gcloud", _gcloud, SystemClock(), options.gcloud if shutil.which("gcloud") else 0),
        ):
            if not count:
                continue
            with _cloud(rate, options.seed, clock) as (server, directory):
                figures, served = _figures(server, make(server, directory, clock), count)
            rows.append([client, f"{rate:.0%}", *map(str, (count, *figures)), str(served)])
            holds = holds and (client != "tpukit" or figures == (count, 0, 0, 0))
    columns = ("CLIENT", "FAULTS", "CREATES", "SUCCEEDED", "FAILED", "LOST", "DUPLICATES", "SERVED")
    show(columns, rows)
    print(f"seed {options.seed}; gcloud makes fewer: each of its creates takes seconds")
    return int(not holds)


def _figures(
    server: ApiServer, create: Create, count: int
) -> tuple[tuple[int, int, int, int], int]:
    """Return how many creates succeeded, failed, were lost, or made too many; and faults served."""
    outcomes = {f"s{number}": create(f"s{number}") for number in range(count)}
    found = [name.rpartition("/")[2] for name in server.service.context.state.nodes]
    succeeded = sum(outcomes.values())
    lost = sum(not outcomes.get(name, True) for name in found)
    duplicates = len(found) - len(set(found)) + sum(name not in outcomes for name in found)
    missing = sum(ok and name not in found for name, ok in outcomes.items())
    served = sum(rule["served"] for rule in server.edge.faults.documents())
    return (succeeded - missing, count - succeeded, lost, duplicates), served


@contextmanager
def _cloud(rate: float, seed: int, clock: Clock) -> Iterator[tuple[ApiServer, Path]]:
    """Run a cloud that spoils its answers; the seed of each of its rules follows from `seed`."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        server = build_server(
            directory / "emulator",
            TOKEN,
            PaperHost,
            create_seconds=5.0 if isinstance(clock, CountedClock) else 0.0,
            clock=EmulatorClock(base=clock.time),
        )
        left, rules = 1.0, []
        for number, (share, fault) in enumerate(_FAULTS):
            # Each rule meets what those before it have let pass.
            odds = {"probability": rate * share / left, "seed": 1000 * seed + number}
            rules.append({**fault, **odds, "method": "nodes.* operations.*"})
            left -= rate * share
        server.edge.faults.add(rules)
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        (directory / "token").write_text(TOKEN)
        try:
            yield server, directory
        finally:
            server.shutdown()
            serving.join(5)


def _tpukit(server: ApiServer, directory: Path, clock: Clock) -> Create:
    tokens = AccessTokens(find_credentials(str(directory / "token"), "", directory / "no"), clock)
    session = Session(tokens, clock, timeout=PATIENCE_SECONDS)
    tpu = CloudTpu(session, PROJECT, server.url)
    journal = Journal(directory / "journal.jsonl", clock)

    def create(name: str) -> bool:
        request = naming.labelled(SliceRequest(name, PROJECT, ZONE, TYPE, IMAGE), "bench", name)
        deadline = Deadline.after(clock, 1800.0)
        try:
            ensure(tpu, request, deadline=deadline, journal=journal, on_state=lambda _: None)
        except TpukitError:
            return False
        return True

    return create


def _google(server: ApiServer, directory: Path, clock: Clock) -> Create:
    """Return what the library's own samples do: create, and wait for the result."""
    from google.api_core.client_options import ClientOptions
    from google.cloud import tpu_v2
    from google.oauth2.credentials import Credentials

    options = ClientOptions(api_endpoint=server.url)
    credentials = Credentials(TOKEN)  # type: ignore[no-untyped-call]
    client: Any = tpu_v2.TpuClient(
        credentials=credentials, transport="rest", client_options=options
    )

    def create(name: str) -> bool:
        node = tpu_v2.Node(accelerator_type=TYPE, runtime_version=IMAGE)
        parent = f"projects/{PROJECT}/locations/{ZONE}"
        try:
            client.create_node(parent=parent, node_id=name, node=node).result()
        except Exception:  # noqa: BLE001  whatever the library raises
            return False
        return True

    return create


def _gcloud(server: ApiServer, directory: Path, clock: Clock) -> Create:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "CLOUDSDK_CONFIG": str(directory / "gcloud"),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{server.url}/",
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(directory / "token"),
        "CLOUDSDK_CORE_PROJECT": PROJECT,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
    }

    def create(name: str) -> bool:
        words = ("gcloud", "compute", "tpus", "tpu-vm", "create", name, f"--zone={ZONE}")
        words += (f"--accelerator-type={TYPE}", f"--version={IMAGE}")
        quiet = subprocess.DEVNULL
        return not subprocess.run(
            words, env=environment, stdout=quiet, stderr=quiet, check=False
        ).returncode

    return create
