"""The scripts explain themselves, and leave the emulator of whoever runs them alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.emulated_workers import needs_root

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(
    path.name
    for path in (ROOT / "scripts").iterdir()
    if path.is_file() and path.read_bytes().startswith(b"#!")
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_prints_the_comment_at_its_top_as_help(name, tmp_path):
    script = ROOT / "scripts" / name
    done = subprocess.run(
        [script, "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == script.read_text().splitlines()[1].removeprefix("# ")
    assert "set -euo" not in done.stdout


@pytest.mark.journey
@needs_root
def test_foreign_clients_leave_the_user_s_own_emulator_alone(tmp_path):
    """The user's own is below XDG_STATE_HOME; the script resets and stops one of its own."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("TPUKIT_")}
    own |= {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    own |= {"PYTHON": sys.executable, "FOREIGN_CLIENTS": str(tmp_path / "clients")}
    tpukit = [sys.executable, "-P", "-m", "tpukit"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=tmp_path, env=own, capture_output=True, text=True, timeout=300, check=False
        )

    try:
        assert run(*tpukit, "emulator", "start", "--engine", "paper").returncode == 0
        assert run(*tpukit, "--local", "create", "v3-8", "mine").returncode == 0
        assert run(*tpukit, "emulator", "stop").returncode == 0
        foreign = run(str(ROOT / "scripts" / "foreign"), "nobody")
        assert foreign.returncode != 0
        assert "mine" in run(*tpukit, "--local", "list").stdout, foreign
    finally:
        run(*tpukit, "emulator", "stop")
