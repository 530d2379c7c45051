"""No command takes longer than it was given, whatever the server does."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.hostile_server import BOUNDLESS, hostile, whole
from support.local_cloud import PROJECT, ZONE, Cloud, bare_environment

from cli.conftest import Run

pytestmark = pytest.mark.process

COMMANDS = [
    "create v2-8 demo",
    "up v2-8 demo --no-firewall",
    "delete demo --yes",
    "wait demo",
    "run demo -- true",
    "ssh demo -- true",
    "logs demo",
    "provision demo jax",
    "smoke demo",
    "start demo",
    "stop demo --force",
    "jobs demo",
]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody with a token, a project and a zone."""
    token = tmp_path / "token"
    token.write_text("token")
    return {
        **bare_environment(tmp_path),
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(token),
        "CLOUDSDK_CORE_PROJECT": PROJECT,
        "CLOUDSDK_COMPUTE_ZONE": ZONE,
    }


def at(url: str) -> dict[str, str]:
    return {
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{url}/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{url}/compute/v1/",
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_ends_by_its_timeout(run: Run, environment: dict[str, str], command: str) -> None:
    verb, *rest = command.split()
    with hostile(BOUNDLESS["silence"]) as server:
        started = time.monotonic()
        done = run(verb, "--timeout", "1s", *rest, environment={**environment, **at(server.url)})
        assert time.monotonic() - started < 3.0
    assert done.status in (1, 8), done.err
    assert "a defect" not in done.err


def test_a_create_that_stalls_ends_by_its_timeout_and_may_still_appear(
    run: Run, prompt_cloud: Cloud
) -> None:
    prompt_cloud.fault(method="nodes.create", kind="stall", phase="before", seconds=600.0)
    started = time.monotonic()
    done = run(
        *("create", "v2-8", "demo", "--no-firewall", "--timeout", "1s"),
        environment=prompt_cloud.environment(),
    )
    assert time.monotonic() - started < 3.5
    assert "may still appear" in done.err


def without_room(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run tpukit in a process that may write no byte into any file.

    It has EFBIG where a full disk has ENOSPC.
    """
    line = (sys.executable, "-P", "-m", "tpukit", *words)
    return subprocess.run(
        ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *line],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_key_that_a_full_disk_has_no_room_for_is_no_bad_input(
    prompt_cloud: Cloud, tmp_path: Path
) -> None:
    home = {"TPUKIT_HOME": str(tmp_path / "new")}
    done = without_room({**prompt_cloud.environment(), **home}, "create", "v3-8", "demo")
    assert done.returncode == 1, done.stderr
    assert "error: this machine's disk has no room" in done.stderr
    assert prompt_cloud.nodes() == []


def test_an_emulator_that_may_not_write_is_said_to_lack_room(tmp_path: Path) -> None:
    home = {"TPUKIT_HOME": str(tmp_path / "new")}
    done = without_room({**bare_environment(tmp_path), **home}, "--local", "list")
    assert done.returncode == 1, done.stderr
    assert "disk" in done.stderr


def test_where_nothing_listens_is_said_in_one_short_line(
    run: Run, environment: dict[str, str]
) -> None:
    """As after `emulator stop`, in a shell that still has its variables."""
    with hostile(whole(200, b"{}")) as server:
        url = server.url
    started = time.monotonic()
    done = run("list", "--quiet", environment={**environment, **at(url)})
    assert time.monotonic() - started < 6.0
    told = done.says(1).err.splitlines()
    assert told[0] == f"error: cannot list slices: {url.removeprefix('http://')}: " + (
        "nothing listens there (no answer)"
    )
    assert "fix: tpukit config explain" in told


def test_a_proxy_is_not_asked_for_this_machine_s_own_addresses(
    run: Run, prompt_cloud: Cloud
) -> None:
    """Neither by what reads nor by what writes, which is another library."""
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    given = {**prompt_cloud.environment(), **proxies}
    assert run("create", "v2-8", "demo", "--no-firewall", environment=given).status == 0
    assert run("list", environment=given).out.startswith("demo\t")
