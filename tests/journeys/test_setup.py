"""A setup on one slice, with a folder that another one shares; then nothing is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import Tpukit
from support.emulated_workers import needs_root

pytestmark = [pytest.mark.journey, pytest.mark.full_size, needs_root]

#: What may differ: the accounts of tests that run beside this one, the cache of the linker,
#: backups and locks of the account files, what `run` itself keeps, and the agent beside that.
LISTING = r"""
set -- ! -name ld.so.cache ! -path '/etc/sudoers.d/tpukit*' ! -regex '/etc/[a-z]*-'
set -- "$@" ! -regex '/etc/[a-z]*\.\(lock\|[0-9]*\)'
set -- "$@" ! -path '*/.tpukit/jobs*' ! -path '*/.tpukit/agent*' ! -name .tpukit
find /etc "$HOME" "$@" -printf '%y %m %u %p %l\n'
find /etc "$HOME" -type f "$@" -exec sha256sum {} +
"""
DISK = "projects/emulator-project/zones/emulator-local1-a/disks/scratch"
FRAMEWORK = """
git init -q /opt/omz && cd /opt/omz && touch oh-my-zsh.sh && git add -A &&
git -c user.name=x -c user.email=x@example.com commit -qm first &&
git config --system url.file:///opt/omz.insteadOf https://github.com/ohmyzsh/ohmyzsh.git
"""


@pytest.fixture
def tpukit(tmp_path: Path) -> Iterator[Tpukit]:
    with Tpukit(tmp_path) as tpukit:
        yield tpukit


def on(tpukit: Tpukit, name: str, line: str) -> str:
    return tpukit.succeeds("--local", "run", name, "--", line).stdout


def listings(tpukit: Tpukit) -> set[tuple[str, str]]:
    """Return every file of both slices, and what is in it."""
    names = ("server", "demo")
    return {(name, line) for name in names for line in on(tpukit, name, LISTING).splitlines()}


def test_a_file_written_on_one_slice_is_read_on_the_other_and_undo_leaves_nothing(
    tpukit: Tpukit, tmp_path: Path
) -> None:
    tpukit.succeeds("emulator", "start", "--engine", "namespaces", "--create-seconds", "0.2")
    tpukit.succeeds("--local", "create", "v3-8", "server")
    tpukit.succeeds("--local", "create", "v3-8", "demo", "--data-disk", DISK)
    for name in ("server", "demo"):
        tpukit.succeeds("--local", "firewall", "apply", name)
    on(tpukit, "demo", FRAMEWORK)
    before = listings(tpukit)
    setups = Path(tpukit.environment["TPUKIT_HOME"], "config", "setups")
    setups.mkdir(parents=True)
    (setups / "mine.toml").write_text('apply = ["flax", "shell", "disk", "nfs=server:/data"]')

    refused = tpukit("--local", "provision", "demo", "disk", "nfs=ghost:/data")
    assert (refused.returncode, "nfs=SLICE:/FOLDER" in refused.stderr) == (3, True)
    plan = tpukit.document("--local", "provision", "plan", "demo", "mine")["plan"]
    needed = {step["name"] for step in plan["workers"][0]["steps"] if step["outcome"] == "needed"}
    assert {"shell", "disk", "nfs=server:/data", "venv", "packages"} <= needed
    assert listings(tpukit) ^ before == set()

    tpukit.succeeds("--local", "provision", "demo", "mine", timeout=900)
    on(tpukit, "demo", "echo from demo >/data/file")
    assert on(tpukit, "server", "cat /data/file") == "from demo\n"
    on(tpukit, "server", "echo from server >/data/file")
    assert on(tpukit, "demo", "cat /data/file; mountpoint /mnt/data").startswith("from server\n")
    tpukit.succeeds("--local", "run", "demo", "--with", "flax", "--", "python", "-c", "import flax")
    rules = tpukit.document("--local", "firewall", "list")
    assert rules["left_over"] == []
    opened = {port for rule in rules["rules"] for port in rule["allowed"]}
    assert opened == {"tcp:22", "udp:60000-61000", "tcp:2049"}
    again = tpukit.document("--local", "provision", "demo", "mine")["provision"]
    assert again["changes"] == 0

    on(tpukit, "demo", "rm /data/file")
    tpukit.succeeds("--local", "provision", "undo", "demo", "--yes")
    assert listings(tpukit) ^ before == set()
    left = tpukit.document("--local", "firewall", "list")["rules"]
    assert {port for rule in left for port in rule["allowed"]} == {"tcp:22"}
