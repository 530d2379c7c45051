"""Command lines: most in this process, some as processes, some against the real emulator."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import warm_tpukit
from support.local_cloud import ZONE, Cloud, bare_environment, running_cloud
from support.warm_tpukit import TPUKIT, WarmTpukit

from tpukit.cli.main import status
from tpukit.emulator.process import daemon
from tpukit.paths import Paths
from tpukit.slices import naming


@dataclass(frozen=True)
class Result:
    """How a command line ended."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document of stdout."""
        return json.loads(self.out)

    def says(self, code: int) -> Result:
        """Hold the result to the contract of a failure, and return it."""
        text = self.out + self.err
        assert self.status == code, text
        assert "Traceback" not in text
        assert "a defect in tpukit" not in text, text
        assert "\x1b" not in text
        assert self.out == ""
        errors = [line for line in self.err.splitlines() if line.startswith("error:")]
        assert len(errors) == 1, self.err
        return self


Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Put back what a command line sets."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    kept = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run command lines in this process, in an empty directory, under `environment` alone."""
    home = tmp_path / "home-of-ada"
    home.mkdir()
    monkeypatch.chdir(tmp_path)

    def call(*words: str, environment: Mapping[str, str] | None = None) -> Result:
        given = bare_environment(home) if environment is None else dict(environment)
        for name in list(os.environ):
            monkeypatch.delenv(name)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        code = status(list(words))
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return call


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """A cloud with one READY slice of ada's, for command lines that change nothing."""
    with running_cloud(tmp_path_factory.mktemp("cloud"), create_seconds=0.0) as found:
        found.tpu.create(naming.labelled(found.request(), "ada", "nonce"))
        assert found.tpu.get(ZONE, "demo").ready
        yield found


@dataclass
class Local:
    """The real emulator in a directory of its own, and command lines as processes against it."""

    environment: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def words(self, *words: str) -> list[str]:
        return [*TPUKIT, *words]

    def run(self, *words: str, extra: Mapping[str, str] | None = None, **given: Any) -> Result:
        done = warm_tpukit.run(words, env={**self.environment, **(extra or {})}, **given)
        return Result(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, **given: Any) -> subprocess.Popen[str]:
        process = WarmTpukit(
            words,
            **given,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    @contextlib.contextmanager
    def slice(self, name: str, accelerator_type: str = "v3-8") -> Iterator[str]:
        """Make a slice for the block; its rule admits us."""
        assert self.run("create", accelerator_type, name).status == 0
        assert self.run("firewall", "apply", name).status == 0
        yield name
        assert self.run("delete", name, "--yes").status == 0

    @property
    def directory(self) -> Path:
        return Path(self.environment["TPUKIT_HOME"]) / "state" / "emulator"

    def close(self) -> None:
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.communicate()
        self.run("emulator", "stop")


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """An emulator whose creates take half a second."""
    home = tmp_path_factory.mktemp("local")
    job = Local({**bare_environment(home), "TPUKIT_LOCAL": "1"})
    started = job.run("emulator", "start", "--create-seconds", "0.5")
    assert started.status == 0, started.err
    yield job
    job.close()


@pytest.fixture
def own_emulator(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment in which every command is local, and what it started is stopped.

    Its PATH begins with the folder `bin` below `tmp_path`, for what stands in for programs.
    """
    environment = {**bare_environment(tmp_path), "TPUKIT_LOCAL": "1"}
    environment["PATH"] = f"{tmp_path / 'bin'}:{environment['PATH']}"
    directory = Paths.from_environment(environment).emulator
    directory.mkdir(parents=True, mode=0o700)
    daemon.start(directory, create_seconds=0.2)
    yield environment
    daemon.stop(directory)
