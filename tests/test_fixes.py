"""What users are told to type is parsed by the program it is for; the judge can fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import fixes, second_attempts

pytestmark = pytest.mark.process

RIGHT = (
    "tpukit --local --zone us-central1-a delete demo",
    "tpukit run demo --detach -- hostname --not-ours",
    "tpukit emulator fault add --help",
    "gcloud compute tpus tpu-vm ssh demo --zone us-central1-a --project demo-project",
    "rm /a/file",
)
WRONG = {
    "tpukit": "there is no verb",
    "tpukit dleete demo": "No such command",
    "tpukit delete demo --zoen z": "No such option",
    "tpukit stop": "Missing argument",
    "tpukit run NAME -- hostname": "NAME is left to the reader",
    "tpukit emulator fault": "there is no verb",
    "sudo reboot": "nobody here knows sudo",
}


SESSION = """
import subprocess, sys
from support import fix_recorder
from tpukit.errors import Fix

PROGRAM = "from tpukit.errors import Fix; Fix.command('tpukit', 'list', '--there')"

def test_here():
    Fix.command("tpukit", "list", "--here")

def test_there():
    subprocess.run([sys.executable, "-c", PROGRAM], env=fix_recorder.environment(), check=True)
"""


def faults(*lines: str) -> dict[str, str]:
    return {
        " ".join(words): text
        for words, text in fixes.faults(tuple(line.split()) for line in lines).items()
    }


def test_what_can_be_typed_passes_and_what_cannot_is_named() -> None:
    found = faults(*RIGHT, *WRONG)
    assert found.keys() == WRONG.keys()
    for line, text in WRONG.items():
        assert text in found[line]


@pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed")
def test_gcloud_s_own_commands_are_judged_by_gcloud() -> None:
    wrong, right = "gcloud compute networks list --zoen z", "gcloud compute networks list"
    found = faults(right, wrong, "gcloud compute networsk list")
    assert found.keys() == {wrong, "gcloud compute networsk list"}
    assert "unrecognized arguments: --zoen" in found[wrong]


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_session_in_which_a_wrong_command_was_suggested_fails_and_names_it(
    tmp_path: Path, workers: str
) -> None:
    (tmp_path / "test_it.py").write_text(SESSION)
    ours = ("SUGGESTED_COMMANDS", second_attempts.VARIABLE)
    variables = {key: value for key, value in os.environ.items() if key not in ours}
    told = tmp_path / "told"
    words = ["-p", "support.fixes", "-p", "no:cacheprovider", "-n", workers, str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        env={
            **variables,
            "PYTHONPATH": str(Path(__file__).parent),
            second_attempts.VARIABLE: str(told),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    for flag in ("--here", "--there"):
        line = f"cannot be typed: tpukit list {flag}: No such option"
        assert line in done.stdout
        assert f"FAILED: a suggested command {line}" in told.read_text()
