"""A command in a fork of the tests' server is what it is in a Python of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from support.command_line import Tpukit
from support.local_cloud import running_cloud
from support.warm_tpukit import TPUKIT, WarmTpukit


def test_a_command_ends_and_prints_as_it_does_alone(tmp_path: Path) -> None:
    tpukit = Tpukit(tmp_path, {"TPUKIT_PROJECT": "p"})
    for line in ("--version", "types v3-8", "nope", "list --zone \udcff", "create v3-8 A_B", ""):
        cold = subprocess.run(
            [*TPUKIT, *line.split()],
            env=tpukit.environment,
            cwd=tmp_path,
            capture_output=True,
            input="",
            text=True,
            check=False,
        )
        warm = tpukit(*line.split())
        found = (warm.args, warm.returncode, warm.stdout, warm.stderr)
        assert found == (cold.args, cold.returncode, cold.stdout, cold.stderr)


def test_it_has_a_process_of_its_own_that_a_signal_ends(tmp_path: Path) -> None:
    with running_cloud(tmp_path, create_seconds=600.0) as cloud:
        for number in (signal.SIGKILL, signal.SIGINT):
            with WarmTpukit(
                ["create", "v3-8", "demo"],
                env=cloud.environment(),
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            ) as process:
                assert process.stderr
                next(line for line in process.stderr if "CREATING" in line)
                assert process.poll() is None
                assert os.getsid(process.pid) == process.pid != os.getpid()
                process.send_signal(number)
                process.communicate(timeout=60)
            assert process.returncode == {signal.SIGKILL: -9, signal.SIGINT: 130}[number]
