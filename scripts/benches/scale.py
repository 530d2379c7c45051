"""What a create costs beside many slices, and what a list of all of them costs its client."""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import time
from collections.abc import Mapping
from statistics import median
from urllib.parse import urlsplit

from measure import TPUKIT, cost, emulator, show, tpukit

from tpukit.emulator import Emulator

#: Creates at each end of a run that are timed.
TIMED = 100
#: A create beside all slices may take this many times as long as one of the first.
MOST_GROWTH = 1.5
_BODY = json.dumps({"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slices", type=int, default=10_000)
    parser.add_argument("--lists", type=int, default=3, help="lists of each client")


def run(options: argparse.Namespace) -> int:
    first, last = f"1 to {TIMED}", f"{options.slices - TIMED + 1} to {options.slices}"
    with emulator("--engine", "paper") as environment:
        kept = _creates(environment, options.slices)
        lists = _lists(environment, options.lists)
    with Emulator() as own:
        forgotten = _creates(own.env, options.slices)
    print("milliseconds for each create, median and mean")
    rows = [
        [name, *_figures(times)] for name, times in (("daemon", kept), ("Emulator()", forgotten))
    ]
    show(["", first, "mean", last, "mean"], rows)
    print(f"a list of {options.slices} slices, the median of {options.lists}")
    show(["", "CPU s", "wall s", "MB"], lists)
    growth = median(kept[-TIMED:]) / median(kept[:TIMED])
    print(f"the last creates take {growth:.2f} times as long as the first")
    return int(growth > MOST_GROWTH)


def _figures(times: list[float]) -> list[str]:
    ends = times[:TIMED], times[-TIMED:]
    return [f"{1000 * take(end):.2f}" for end in ends for take in (median, _mean)]


def _mean(times: list[float]) -> float:
    return sum(times) / len(times)


def _creates(environment: Mapping[str, str], count: int) -> list[float]:
    """Create slices on one connection; return the seconds that each call took."""
    running = json.loads(tpukit(environment, "emulator", "status", "--json"))["emulator"]
    with open(environment["CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"]) as file:
        token = file.read().strip()
    head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    project = environment["CLOUDSDK_CORE_PROJECT"]
    place = f"/v2/projects/{project}/locations/{environment['CLOUDSDK_COMPUTE_ZONE']}"
    connection = http.client.HTTPConnection(urlsplit(running["url"]).netloc, timeout=60)
    times = []
    for number in range(count):
        began = time.perf_counter()
        connection.request("POST", f"{place}/nodes?nodeId=n{number}", _BODY, head)
        answer = connection.getresponse()
        text = answer.read()
        times.append(time.perf_counter() - began)
        if answer.status != 200:
            raise SystemExit(f"create {number} failed: {text.decode()}")
    connection.close()
    return times


def _lists(environment: Mapping[str, str], count: int) -> list[list[str]]:
    clients = {"tpukit list": [*TPUKIT, "list"], "tpukit list --json": [*TPUKIT, "list", "--json"]}
    if gcloud := shutil.which("gcloud"):
        clients["gcloud list"] = [gcloud, "compute", "tpus", "tpu-vm", "list"]
    return [[name, *_median_cost(words, environment, count)] for name, words in clients.items()]


def _median_cost(words: list[str], environment: Mapping[str, str], count: int) -> list[str]:
    costs = [cost(words, environment) for _ in range(count)]
    return [
        f"{median(each.cpu for each in costs):.2f}",
        f"{median(each.wall for each in costs):.2f}",
        f"{max(each.memory for each in costs):.0f}",
    ]
