"""A command in a fork of the tests' server is what it is in a Python of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.command_line import Tpukit
from support.local_cloud import running_cloud
from support.warm_tpukit import TPUKIT, WarmTpukit, script

pytestmark = pytest.mark.process


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


def in_a_shell(folder: Path, variables: Mapping[str, str]) -> str:
    program = folder / "tpukit-program"
    program.write_text(script(variables))
    program.chmod(0o755)
    return str(program)


def test_a_program_in_a_shell_ends_and_prints_as_one_alone_with_other_variables_too(
    tmp_path: Path,
) -> None:
    tpukit = Tpukit(tmp_path)
    program = in_a_shell(tmp_path, tpukit.environment)
    for variables in (tpukit.environment, {**tpukit.environment, "LC_ALL": "POSIX"}):
        for line in ("--version", "types v3-8", "nope"):
            alone, done = (
                subprocess.run(
                    [*words, *line.split()],
                    env=variables,
                    cwd=tmp_path,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    check=False,
                )
                for words in (TPUKIT, (program,))
            )
            told = (done.returncode, done.stdout, done.stderr)
            assert told == (alone.returncode, alone.stdout, alone.stderr)


def test_a_signal_to_a_program_in_a_shell_ends_the_command(tmp_path: Path) -> None:
    with running_cloud(tmp_path, create_seconds=600.0) as cloud:
        program = in_a_shell(tmp_path, cloud.environment())
        for number, status in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
            with subprocess.Popen(
                [program, "create", "v3-8", "demo"],
                env=cloud.environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                assert process.stderr
                next(line for line in process.stderr if "CREATING" in line)
                process.send_signal(number)
                process.communicate(timeout=60)  # the command has its stderr
            assert process.returncode == status
