"""The setting `ssh_key`: asked for its passphrase once, on a terminal, and only if it is needed."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest
from support.warm_tpukit import TPUKIT

from cli.conftest import Run
from tpukit.emulator.process import daemon
from tpukit.paths import Paths

pytestmark = pytest.mark.process

PASSPHRASE = "correct horse"


def typed(words: list[str], environment: dict[str, str], answer: str) -> tuple[str, str]:
    """Run a command on a terminal, answer its first question, and return stdout and the screen."""
    far, near = pty.openpty()
    with subprocess.Popen(
        [*TPUKIT, *words],
        env=environment,
        stdin=near,
        stdout=subprocess.PIPE,
        stderr=near,
        text=True,
        start_new_session=True,
    ) as process:
        os.close(near)
        screen = ""
        try:
            while part := os.read(far, 1000).decode(errors="replace"):
                if "passphrase of" not in screen and "passphrase of" in screen + part:
                    os.write(far, f"{answer}\n".encode())
                screen += part
        except OSError:  # so Linux says that nobody has the terminal any more
            pass
        os.close(far)
        return process.communicate(timeout=60)[0], screen


def test_a_key_of_the_user_s_own_is_asked_for_once(
    run: Run, own_emulator: dict[str, str], tmp_path: Path
) -> None:
    key = tmp_path / "mine"
    keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", PASSPHRASE, "-f", key]
    subprocess.run(keygen, check=True)
    before = key.with_suffix(".pub").read_text()
    # As `tpukit emulator env` has it: a local command takes no credentials of the user's.
    directory = Paths.from_environment(own_emulator).emulator
    emulator = daemon.environment(directory, daemon.running(directory))
    environment = {**own_emulator, **emulator, "TPUKIT_SSH_KEY": str(key)}
    del environment["TPUKIT_LOCAL"]
    made = run("create", "v4-16", "demo", "--yes", environment=environment)
    assert made.status == 0, made.err
    assert run("firewall", "apply", "demo", environment=environment).status == 0
    listed = run("ssh-config", "demo", environment=environment)
    assert listed.status == 0, "what connects to no worker needs no key"
    words = ["run", "demo", "--", "echo welcome"]
    refused = run(*words, environment=environment).says(2)
    assert f"fix: ssh-add {key}" in refused.err
    out, screen = typed(words, environment, PASSPHRASE)
    assert out.count("welcome") == 2, screen
    assert screen.count("passphrase of") == 1
    assert PASSPHRASE not in screen
    if shutil.which("ssh"):
        words = ["ssh", "demo", "--terminal", "--", "echo welcome"]
        out, screen = typed(words, environment, PASSPHRASE)
        assert out.split() == ["welcome"], screen
        assert screen.count("passphrase") == 1
        assert PASSPHRASE not in screen
    assert key.with_suffix(".pub").read_text() == before
