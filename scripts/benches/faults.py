"""Creates under faults: what tpukit, google-cloud-tpu used plainly, and gcloud lose by them.

Emulated clouds without machines run in this process, as many as there are creates at a time. At
each rate, so many of all answers are spoilt: refused with 503, cut off, or, one in 25, held back
for longer than tpukit waits for one; half of them before the call is carried out, half of them
after it. The seed decides which: each cloud has its own creates, and its own faults. Pauses of
tpukit take no time here. Each client asks in one zone; with "3 zones" it asks in the next one where
the one before failed.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from measure import row
from polling import CountedClock

from tpukit.clock import Clock, Deadline, SystemClock
from tpukit.emulator.api.http_server import ApiServer, build_server
from tpukit.emulator.core.emulator_clock import EmulatorClock
from tpukit.emulator.workers.paper_host import PaperHost
from tpukit.errors import TpukitError
from tpukit.google.access_tokens import AccessTokens
from tpukit.google.credentials import find_credentials
from tpukit.google.retrying_session import Session
from tpukit.google.tpu import CloudTpu
from tpukit.models import SliceRequest
from tpukit.slices import naming
from tpukit.slices.capacity import Search, obtain
from tpukit.slices.ensure import Ensured, ensure
from tpukit.slices.journal import Journal

PROJECT, TYPE, IMAGE = "bench-project", "v2-8", "tpu-ubuntu2204-base"
ZONES = ("us-central1-a", "us-central1-b", "us-central1-c")
TOKEN = "token-of-the-bench"
#: Clouds side by side, each with one create at a time. gcloud is a process that works for seconds.
AT_ONCE, AT_ONCE_BY_GCLOUD = 8, 4
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
#: Makes a slice of a name; whether it says so.
Create = Callable[[str], bool]
_COLUMNS = ("FAULTS", "CREATES", "SUCCEEDED", "FAILED", "LOST", "DUPLICATES", "SERVED")
_NOTES = """\
lost: the create ended in an error, or was said to be done, and the cloud has it otherwise
duplicates: slices of one name beyond the first
served: answers that were spoilt"""


@dataclass(frozen=True)
class Client:
    """How a client creates on a server, how often, and how many at a time."""

    name: str
    make: Callable[[ApiServer, Path, Clock], Create]
    creates: int
    at_once: int = AT_ONCE
    clock: Callable[[], Clock] = SystemClock

    @property
    def is_ours(self) -> bool:
        return self.clock is CountedClock


@dataclass(frozen=True)
class Figures:
    """What came of some creates."""

    creates: int = 0
    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    duplicates: int = 0
    served: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(*map(sum, zip(self.values, other.values, strict=True)))

    @property
    def values(self) -> tuple[int, ...]:
        return (
            *(self.creates, self.succeeded, self.failed),
            *(self.lost, self.duplicates, self.served),
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--creates", type=int, default=250, help="creates at each rate")
    parser.add_argument("--gcloud", type=int, default=10, help="creates by gcloud at each rate")
    parser.add_argument("--rate", type=float, action="append", help="of faults; repeatable")
    parser.add_argument("--seed", type=int, default=1)


def run(options: argparse.Namespace) -> int:
    has_gcloud = bool(shutil.which("gcloud"))
    by_gcloud = options.gcloud if has_gcloud else 0
    clients = (
        Client("tpukit", _tpukit, options.creates, clock=CountedClock),
        Client("tpukit, 3 zones", _tpukit_anywhere, options.creates, clock=CountedClock),
        Client("google-cloud-tpu", _google, options.creates),
        Client("google-cloud-tpu, 3 zones", _google_anywhere, options.creates),
        Client("gcloud", _gcloud, by_gcloud, AT_ONCE_BY_GCLOUD),
    )
    widths = [max(len(client.name) for client in clients), *map(len, _COLUMNS)]
    print(row(("CLIENT", *_COLUMNS), widths), flush=True)
    totals = {client.name: Figures() for client in clients if client.creates}
    rates = options.rate or [0.05, 0.1, 0.2, 0.3]
    for rate in rates:
        for client in clients:
            if client.creates:
                deletes_one = has_gcloud and client.is_ours and rate == rates[-1]
                found = _figures(client, rate, options.seed, deletes_one)
                totals[client.name] += found
                print(
                    row((client.name, f"{rate:.0%}", *map(str, found.values)), widths), flush=True
                )
    for name, found in totals.items():
        print(row((name, "all", *map(str, found.values)), widths))
    print(_NOTES)
    if has_gcloud and options.creates:
        print("gcloud listed the slices that tpukit does, at the last rate, and deleted one")
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(f"seed {options.seed}; {date.today()}; {machine}")
    ours = [totals[client.name] for client in clients if client.is_ours and client.creates]
    return int(any(our.values[1:5] != (our.creates, 0, 0, 0) for our in ours))


def _figures(client: Client, rate: float, seed: int, deletes_one: bool) -> Figures:
    """Divide the creates among as many clouds as there are at a time, and add up their figures.

    With `deletes_one`, gcloud has to see all of the first cloud, and to delete one.
    """

    def part(number: int) -> Figures:
        clock = client.clock()
        with _cloud(rate, 1000 * seed + 10 * number, clock) as (server, directory):
            names = [f"s{each}" for each in range(number, client.creates, client.at_once)]
            create = client.make(server, directory, clock)
            found = _compared(server, {name: create(name) for name in names})
            if deletes_one and not number:
                _let_gcloud_delete(server, directory, clock)
            return found

    with ThreadPoolExecutor(client.at_once) as pool:
        return sum(pool.map(part, range(client.at_once)), Figures())


def _compared(server: ApiServer, outcomes: dict[str, bool]) -> Figures:
    """Compare what was said of each create with what there is."""
    there = Counter(name.rpartition("/")[2] for name in server.service.context.state.nodes)
    succeeded = sum(outcomes.values())
    return Figures(
        creates=len(outcomes),
        succeeded=succeeded,
        failed=len(outcomes) - succeeded,
        lost=sum(said != (name in there) for name, said in outcomes.items()),
        duplicates=sum(count - 1 for count in there.values()),
        served=sum(rule["served"] for rule in server.edge.faults.documents()),
    )


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
            operation_metadata="tpu",  # which google-cloud-tpu reads over REST
        )
        left, rules = 1.0, []
        for number, (share, fault) in enumerate(_FAULTS):
            # Each rule meets what those before it have let pass.
            odds = {"probability": rate * share / left, "seed": seed + number}
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


def _requests(name: str, zones: Sequence[str]) -> list[SliceRequest]:
    plain = [SliceRequest(name, PROJECT, zone, TYPE, IMAGE) for zone in zones]
    return [naming.labelled(each, "bench", name) for each in plain]


@dataclass(frozen=True)
class _Tpukit:
    """What tpukit's commands call, against one server."""

    tpu: CloudTpu
    journal: Journal
    clock: Clock

    @classmethod
    def at(cls, server: ApiServer, directory: Path, clock: Clock) -> _Tpukit:
        credentials = find_credentials(str(directory / "token"), "", directory / "no")
        session = Session(AccessTokens(credentials, clock), clock, timeout=PATIENCE_SECONDS)
        journal = Journal(directory / "journal.jsonl", clock)
        return cls(CloudTpu(session, PROJECT, server.url), journal, clock)

    def ensure(self, request: SliceRequest) -> Ensured:
        deadline = Deadline.after(self.clock, 1800.0)
        return ensure(
            self.tpu, request, deadline=deadline, journal=self.journal, on_state=lambda _: None
        )

    def obtain(self, requests: Sequence[SliceRequest]) -> None:
        sought = [
            replace(request, labels={**request.labels, naming.SEARCH: naming.LOOKING})
            for request in requests
        ]
        deadline = Deadline.after(self.clock, 1800.0)
        obtain(
            self.tpu,
            Search(sought),
            self.ensure,
            deadline=deadline,
            journal=self.journal,
            on_state=lambda _: None,
        )


def _tpukit(server: ApiServer, directory: Path, clock: Clock) -> Create:
    client = _Tpukit.at(server, directory, clock)
    return lambda name: _without(TpukitError, lambda: client.ensure(*_requests(name, ZONES[:1])))


def _tpukit_anywhere(server: ApiServer, directory: Path, clock: Clock) -> Create:
    client = _Tpukit.at(server, directory, clock)
    return lambda name: _without(TpukitError, lambda: client.obtain(_requests(name, ZONES)))


def _without(error: type[Exception], act: Callable[[], object]) -> bool:
    """Act, and return whether that went without such an error."""
    try:
        act()
    except error:
        return False
    return True


def _google(server: ApiServer, directory: Path, clock: Clock) -> Create:
    """Return what the library's own samples do: create, and wait for the result."""
    create = _google_client(server)
    return lambda name: create(name, ZONES[0])


def _google_anywhere(server: ApiServer, directory: Path, clock: Clock) -> Create:
    """Return the loop that is written around the samples: the next zone after an error."""
    create = _google_client(server)
    return lambda name: any(create(name, zone) for zone in ZONES)


def _google_client(server: ApiServer) -> Callable[[str, str], bool]:
    from google.api_core.client_options import ClientOptions
    from google.cloud import tpu_v2
    from google.oauth2.credentials import Credentials

    options = ClientOptions(api_endpoint=server.url)
    credentials = Credentials(TOKEN)  # type: ignore[no-untyped-call]
    client: Any = tpu_v2.TpuClient(
        credentials=credentials, transport="rest", client_options=options
    )

    def create(name: str, zone: str) -> bool:
        node = tpu_v2.Node(accelerator_type=TYPE, runtime_version=IMAGE)
        parent = f"projects/{PROJECT}/locations/{zone}"
        # The library raises errors of several packages.
        return _without(
            Exception,
            lambda: client.create_node(parent=parent, node_id=name, node=node).result(),
        )

    return create


def _gcloud(server: ApiServer, directory: Path, clock: Clock) -> Create:
    def create(name: str) -> bool:
        words = ("create", name, f"--zone={ZONES[0]}")
        words += (f"--accelerator-type={TYPE}", f"--version={IMAGE}")
        return not _by_gcloud(server, directory, *words).returncode

    return create


def _let_gcloud_delete(server: ApiServer, directory: Path, clock: Clock) -> None:
    """Let gcloud list all slices and delete one; end the program where it differs from tpukit."""
    server.edge.faults.clear()
    tpu = _Tpukit.at(server, directory, clock).tpu
    ours = sorted(f"{slice_.zone} {slice_.name}" for slice_ in tpu.list("-").slices)
    columns = "value[separator=' '](name.segment(3),name.basename())"
    seen = _by_gcloud(server, directory, "list", "--zone=-", f"--format={columns}").stdout
    if sorted(seen.splitlines()) != ours:
        raise SystemExit(f"gcloud lists {seen!r}, tpukit {ours}")
    zone, name = ours[0].split()
    _by_gcloud(server, directory, "delete", name, f"--zone={zone}", "--async")
    clock.sleep(600.0)  # the cloud's time stands still unless somebody sleeps
    if ours[1:] != sorted(f"{slice_.zone} {slice_.name}" for slice_ in tpu.list("-").slices):
        raise SystemExit(f"gcloud has not deleted {name} in {zone}")


def _by_gcloud(server: ApiServer, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "CLOUDSDK_CONFIG": str(directory / "gcloud"),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{server.url}/",
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(directory / "token"),
        "CLOUDSDK_CORE_PROJECT": PROJECT,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
    }
    line = ["gcloud", "compute", "tpus", "tpu-vm", *words]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
