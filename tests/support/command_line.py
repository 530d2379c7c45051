"""The installed program, run as its users run it: as a process, with a home of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from support import fix_recorder, operation_metadata, warm_tpukit
from support.warm_tpukit import WarmTpukit
from tpukit.emulator.control_client import EmulatorClient
from tpukit.emulator.process import daemon

Finished = subprocess.CompletedProcess[str]

#: Of the caller's settings none may reach the program under test.
_FOREIGN = ("TPUKIT_", "CLOUDSDK_", "GOOGLE_")


def loaded_by(*arguments: str, environment: Mapping[str, str] | None = None) -> set[str]:
    """Return the modules that a command line loads, by running it in a new interpreter."""
    program = (
        "import sys\n"
        "from tpukit.cli.main import status\n"
        f"status({list(arguments)!r})\n"
        "print('\\n'.join(['MODULES', *sys.modules]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.partition("MODULES\n")[2].split())


@dataclass(frozen=True)
class Tpukit:
    """`tpukit` with its own TPUKIT_HOME below `home`, which is also where it is called."""

    home: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
        gcloud = {"CLOUDSDK_CONFIG": str(self.home / "gcloud")}
        return {
            **kept,
            **gcloud,
            **fix_recorder.environment(),
            **operation_metadata.environment(),
            "TPUKIT_HOME": str(self.home / "tpukit"),
            **self.variables,
        }

    def __enter__(self) -> Tpukit:
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop its emulator, if it has started one."""
        self("emulator", "stop")

    @property
    def emulator(self) -> EmulatorClient:
        """The control plane of its emulator."""
        running = daemon.expected(self.home / "tpukit" / "state" / "emulator")
        return EmulatorClient(running.url, running.token)

    def __call__(self, *words: str, timeout: float = 300, stdin: str = "") -> Finished:
        return warm_tpukit.run(
            words, env=self.environment, cwd=self.home, stdin=stdin, timeout=timeout
        )

    def succeeds(self, *words: str, timeout: float = 300, stdin: str = "") -> Finished:
        """Run to the end, which has to be status 0."""
        return self.ends_with(0, *words, timeout=timeout, stdin=stdin)

    def ends_with(
        self, status: int, *words: str, timeout: float = 300, stdin: str = ""
    ) -> Finished:
        done = self(*words, timeout=timeout, stdin=stdin)
        assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def document(self, *words: str) -> Any:
        """Return the JSON document that a successful command prints."""
        return json.loads(self.succeeds(*words, "--json").stdout)

    def slices(self, name: str) -> list[Any]:
        found = self.document("--local", "list")["slices"]
        return [row for row in found if row["name"] == name]

    def rules(self, name: str) -> list[Any]:
        """Return the firewall rules that tpukit has made for a slice."""
        found = self.document("--local", "firewall", "list")["rules"]
        return [row for row in found if row["name"].startswith(f"tpukit-{name}-")]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command whose stderr is read line by line."""
        return WarmTpukit(
            words,
            env=self.environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def interrupted(
        self, number: signal.Signals, moment: Callable[[str], bool], *words: str
    ) -> tuple[int, str]:
        """Send a signal at the first line of narration that is the moment; return what it did."""
        with self.start(*words) as process:
            assert process.stderr
            told: list[str] = []
            for line in process.stderr:
                told.append(line)
                if moment(line):
                    process.send_signal(number)
                    break
            else:
                raise AssertionError(f"the moment never came:\n{''.join(told)}")
            told += process.stderr
        return process.returncode, "".join(told)

    def processes(self) -> list[psutil.Process]:
        """Return whatever runs in or for this home: emulators, and what their workers started."""
        return [process for process in psutil.process_iter() if _mentions(process, str(self.home))]


def _mentions(process: psutil.Process, place: str) -> bool:
    try:
        alive = process.status() != psutil.STATUS_ZOMBIE
        places = (*process.cmdline(), process.cwd(), *process.environ().values())
    except (psutil.Error, OSError):
        return False
    return alive and any(place in text for text in places)
