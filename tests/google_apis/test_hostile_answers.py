"""Whatever a server says, and however slowly: an error of ours, in time, in little memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.hostile_server import BOUNDLESS, hostile, some_answer
from support.local_cloud import PROJECT, ZONE, Cloud, bare_environment

from tpukit.errors import TpukitError
from tpukit.google.firewall_rules import ComputeFirewall
from tpukit.google.provider import Doubtful
from tpukit.google.retrying_session import Session
from tpukit.google.tpu import CloudTpu
from tpukit.models import FirewallRule, Slice
from tpukit.slices import change, naming
from tpukit.slices.ensure import ensure
from tpukit.slices.find import find
from tpukit.text import sanitize

pytestmark = pytest.mark.process

RULE = FirewallRule("tpukit-demo", "default", ("192.0.2.7/32",), ("tag",))


def commands(cloud: Cloud, url: str, seconds: float) -> dict[str, Callable[[], object]]:
    """Return what commands do with the API, by their names, with so many seconds a request."""
    session = Session(cloud.tokens, cloud.clock, timeout=seconds)
    tpu, firewall = CloudTpu(session, PROJECT, url), ComputeFirewall(session, PROJECT, url)
    request = naming.labelled(cloud.request(), "ada", "nonce")
    known = Slice("demo", PROJECT, ZONE, "v3-8", "r", "READY")
    shared = {"journal": cloud.journal, "on_state": cloud.states.append}
    return {
        "list": lambda: tpu.list("-"),
        "describe": lambda: find(tpu, "demo"),
        "describe --zone": lambda: find(tpu, "demo", ZONE),
        "identities": lambda: tpu.identities(ZONE, "demo"),
        "create": lambda: ensure(tpu, request, deadline=cloud.deadline(40.0), **shared),
        "delete": lambda: change.delete(tpu, known, deadline=cloud.deadline(40.0), **shared),
        "firewall list": firewall.list,
        "firewall apply": lambda: firewall.insert(RULE),
    }


def check(action: Callable[[], object]) -> None:
    """Hold whatever comes of an action to be a value, or an error that can be shown."""
    try:
        action()
    except TpukitError as error:
        text = "\n".join(error.lines())
        assert len(text) < 8_000
        assert sanitize(text) == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(40, 300), marks=pytest.mark.long)], ids=str
)
def test_any_answer_is_a_value_or_an_error_of_ours(cloud: Cloud, seeds: range) -> None:
    for seed in seeds:
        with hostile(some_answer(seed)) as server:
            for action in commands(cloud, server.url, 2.0).values():
                check(action)


@pytest.mark.parametrize("name", BOUNDLESS)
def test_an_answer_without_an_end_is_given_up_in_time(cloud: Cloud, name: str) -> None:
    with hostile(BOUNDLESS[name]) as server:
        session = Session(cloud.tokens, cloud.clock, timeout=0.5, retry_seconds=0.0)
        started = time.monotonic()
        with pytest.raises(TpukitError):
            CloudTpu(session, PROJECT, server.url).list("-")
        assert time.monotonic() - started < 3.0


@pytest.mark.parametrize("name", ["a body of 200 MB", "200 MB in 200 kB", "a body without an end"])
def test_what_writes_reads_no_more_of_an_answer(cloud: Cloud, name: str) -> None:
    with hostile(BOUNDLESS[name]) as server, pytest.raises(Doubtful, match="could not be read"):
        CloudTpu(cloud.session, PROJECT, server.url).create(cloud.request())


MOST_BYTES = [
    "a body without an end",
    "a body of 200 MB",
    "a chunk of a negative size",
    "200 MB in 200 kB",
    "a million lists",
]
#: Prints the status of `tpukit list` and the most memory that it held, in kB.
MEASURED = """
from tpukit.cli.main import status
code = status(["list"])
print(code, *[line.split()[1] for line in open("/proc/self/status") if "VmHWM" in line])
"""


@pytest.mark.process
@pytest.mark.parametrize("name", MOST_BYTES)
def test_an_answer_of_any_size_takes_little_memory(tmp_path: Path, name: str) -> None:
    token = tmp_path / "token"
    token.write_text("token")
    with hostile(BOUNDLESS[name]) as server:
        environment = {
            **bare_environment(tmp_path),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{server.url}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{server.url}/compute/v1/",
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(token),
            "CLOUDSDK_CORE_PROJECT": PROJECT,
        }
        words = [sys.executable, "-c", MEASURED]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    status, kilobytes = done.stdout.split()
    assert (status, int(kilobytes) < 200 * 1024) == ("1", True), done
