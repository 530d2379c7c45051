"""What a TAB completes: asked for directly, and typed into real shells."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.local_cloud import Cloud, FakeClock, bare_environment

from cli.conftest import Run
from tpukit.clock import SystemClock
from tpukit.slices.name_hints import LIFETIME, NameHints


def words(run: Run, *typed: str) -> list[str]:
    done = run("completion", "--words", "--", *typed)
    assert (done.status, done.err) == (0, "")
    return [line.partition("\t")[0] for line in done.out.splitlines()]


def test_commands_flags_types_zones_and_recipes_are_known(run: Run) -> None:
    assert words(run, "de") == ["describe", "delete"]
    assert words(run, "--local", "firewall", "a") == ["apply", "audit"]
    assert words(run, "up", "v3-3") == ["v3-32"]
    assert words(run, "up", "v3-8", "--zone", "us-south1-b") == ["us-south1-b"]
    assert words(run, "--zone", "europe-west4-b", "up", "v6e-25") == ["v6e-256"]
    assert words(run, "up", "--zone=europe-west4-b") == ["--zone=europe-west4-b"]
    assert words(run, "up", "--zone", "=", "europe-west4-b") == ["--zone=europe-west4-b"]
    assert words(run, "provision", "demo", "j") == words(run, "provision", "plan", "demo", "j")
    assert words(run, "provision", "demo", "torch") == ["torch_tpu", "torch_xla"]
    assert words(run, "provision", "und") == ["undo"]
    assert words(run, "provision", "demo", "jax", "ap") == ["apt"]
    assert words(run, "run", "--det") == ["--detach"]
    assert words(run, "cp", "") == [":files"]
    assert words(run, "run", "demo", "--", "l") == [":files"]
    assert words(run, "nonsense", "x") == words(run, "up", "v3-8", "demo", "more") == []


def test_a_name_is_known_for_half_an_hour_and_until_its_slice_is_deleted(
    clock: FakeClock, tmp_path: Path
) -> None:
    hints = NameHints(tmp_path / "state/names.json", clock)
    assert hints.names() == []
    hints.saw(["old"])
    clock.now += LIFETIME - 1
    hints.saw(["demo", "gone"])
    assert hints.names() == ["demo", "gone", "old"]
    clock.now += 1
    hints.forget(["gone"])
    assert hints.names() == ["demo"]
    for broken in ("", "[]", '{"demo": "now"}', "\0"):
        hints.path.write_text(broken)
        assert hints.names() == []
    NameHints(tmp_path / "state/names.json/below", clock).saw(["nowhere"])


def test_names_come_from_what_was_listed_and_ask_nobody(run: Run, standing: Cloud) -> None:
    environment = standing.environment()
    assert run("list", environment=environment).status == 0
    dead = {**environment, "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": "http://127.0.0.1:9/"}
    for typed in (["describe", "d"], ["delete", "other", "d"], ["run", "d"]):
        done = run("completion", "--words", "--", *typed, environment=dead)
        assert done.out == "demo\t\n"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A shell's, with tpukit in PATH and a slice that was seen."""
    found = {**bare_environment(tmp_path), "HOME": str(tmp_path), "TERM": "dumb"}
    NameHints(Path(found["TPUKIT_HOME"]) / "state/names.json", SystemClock()).saw(["my-own-slice"])
    program = tmp_path / "bin" / "tpukit"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m tpukit "$@"\n')
    program.chmod(0o755)
    return {**found, "PATH": f"{program.parent}:{os.environ['PATH']}"}


def typed(shell: list[str], setup: str, keys: str, wanted: str, environment: dict[str, str]) -> str:
    """Type into an interactive shell until it shows what is wanted; return all that it showed."""
    process, master = pty.fork()
    if process == 0:
        os.execvpe(shell[0], shell, environment)
    seen = ""
    try:
        for text, until in ((f"{setup}; echo rea''dy\r", "\nready"), (keys, wanted)):
            os.write(master, text.encode())
            begun, limit = len(seen), time.monotonic() + 60
            while until not in shown(seen[begun:]) and time.monotonic() < limit:
                if select.select([master], [], [], 1.0)[0]:
                    seen += os.read(master, 65536).decode("utf-8", "replace")
    finally:
        os.close(master)
        os.waitpid(process, 0)
    return shown(seen)


def shown(text: str) -> str:
    """Return what a terminal shows of it: a backspace takes back a character."""
    return re.sub(r".\x08", "", text.replace("\r", "").replace("\x07", ""))


SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source <(tpukit completion bash)"),
    "zsh": (
        ["zsh", "-f", "-i"],
        "autoload -U compinit; compinit -u; source <(tpukit completion zsh)",
    ),
}


@pytest.mark.process
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_what_is_typed(shell: str, environment: dict[str, str]) -> None:
    """zsh where it is installed: the test says so in its report where it is not."""
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed: its completion is NOT checked by this run")
    start, setup = SHELLS[shell]
    for keys, wanted in (
        ("tpukit desc\tmy\t", "tpukit describe my-own-slice"),
        ("tpukit up v3-3\t--zone=us-south1-c\t--loc\t", "v3-32 --zone=us-south1-c --local"),
    ):
        assert wanted in typed(start, setup, keys, wanted, environment), keys


@pytest.mark.process
def test_fish_completes_what_is_typed(environment: dict[str, str]) -> None:
    if not shutil.which("fish"):
        pytest.skip("fish is not installed: its completion is NOT checked by this run")
    for line, wanted in (
        ("tpukit desc", "describe\tShow one slice."),
        ("tpukit describe my", "my-own-slice"),
        ("tpukit up v3-3", "v3-32\t16 chips"),
    ):
        script = f"tpukit completion fish | source; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert done.stdout.splitlines() == [wanted]
