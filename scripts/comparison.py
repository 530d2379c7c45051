"""One emulated slice, and gcloud and tpukit to do the same job on it."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import TPUKIT, tpukit

NAME = "defects"
#: Seconds in which something that is bound to happen has happened, on a slow machine too.
PATIENCE = 120.0
Finished = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Did:
    """What one client did, and whether that is right."""

    text: str
    right: bool

    def __str__(self) -> str:
        return f"{'right' if self.right else 'WRONG'}: {self.text}"


@dataclass(frozen=True)
class Row:
    defect: str
    gcloud: Did
    tpukit: Did

    def __str__(self) -> str:
        return f"{self.defect}\t{self.gcloud}\t{self.tpukit}"


@dataclass
class Comparison:
    """One slice of four workers, and both clients in homes of their own."""

    environment: Mapping[str, str]
    directory: Path
    rows: list[Row] = field(default_factory=list)

    def gcloud(self, *words: str, **given: object) -> Finished:
        """Run `gcloud compute tpus tpu-vm ssh` on the slice."""
        return self._run(self.gcloud_words(*words), **given)

    def gcloud_words(self, *words: str) -> Sequence[str]:
        return self._gcloud_words("ssh", NAME, *words)

    def any_gcloud(self, *words: str, group: str = "tpu-vm", track: Sequence[str] = ()) -> Finished:
        """Run another command of `gcloud compute tpus`."""
        return self._run(self._gcloud_words(*words, group=group, track=track))

    def described(self, name: str, **given: Any) -> dict[str, Any]:
        """Return what the API has under a name, as gcloud shows it."""
        done = self.any_gcloud("describe", name, "--format=json", **given)
        if done.returncode:
            raise SystemExit(f"gcloud does not describe {name}: {done.stderr}")
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def tpukit(self, *words: str, home: str = "", **given: object) -> Finished:
        """Run tpukit; in another home it has another key."""
        own = {"TPUKIT_HOME": home} if home else {}
        return self._run(self.tpukit_words(*words), own, **given)

    def tpukit_words(self, *words: str) -> Sequence[str]:
        return [*TPUKIT, *words]

    def arrange(self, *words: str) -> str:
        """Run a command of tpukit that has to succeed, and is not what is judged."""
        return tpukit(self.environment, *words)

    def both(self, defect: str, gcloud: Callable[[], Did], ours: Callable[[], Did]) -> None:
        self.rows.append(Row(defect, gcloud(), ours()))

    def scratch(self, name: str) -> Path:
        """Return a path that no run has used; the workers share this machine's files."""
        return Path(tempfile.mkdtemp(dir=self.directory)) / name

    def fault(self, worker: int, kind: str) -> None:
        self.arrange("emulator", "worker", NAME, str(worker), "--fault", kind)

    def heal(self) -> None:
        self.arrange("emulator", "worker", NAME, "--clear")

    def forget_hosts(self) -> None:
        """Let gcloud's next connection to each worker be its first."""
        Path(self.environment["HOME"], ".ssh", "google_compute_known_hosts").unlink(missing_ok=True)

    def _gcloud_words(
        self, verb: str, *words: str, group: str = "tpu-vm", track: Sequence[str] = ()
    ) -> Sequence[str]:
        zone = f"--zone={self.environment['CLOUDSDK_COMPUTE_ZONE']}"
        return ["gcloud", "--quiet", *track, "compute", "tpus", group, verb, zone, *words]

    def _run(
        self, words: Sequence[str], own: Mapping[str, str] | None = None, **given: object
    ) -> Finished:
        options = {"stdin": subprocess.DEVNULL, "timeout": 2 * PATIENCE, **given}
        variables = {**self.environment, **(own or {})}
        return subprocess.run(
            words, env=variables, capture_output=True, text=True, check=False, **options
        )


def until(true: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Look until it is so, or for so long; return whether it is."""
    limit = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < limit:
        time.sleep(0.1)
    return found
