"""One emulated slice, and gcloud and tpukit to do the same job on it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from measure import TPUKIT, tpukit

NAME = "defects"
Finished = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Did:
    """What one client did, and whether that is right."""

    text: str
    right: bool


@dataclass
class World:
    """One slice of four workers, and both clients in homes of their own."""

    environment: Mapping[str, str]
    directory: Path
    rows: list[tuple[str, Did, Did]] = field(default_factory=list)

    def gcloud(self, *words: str, **given: object) -> Finished:
        """Run `gcloud compute tpus tpu-vm ssh` on the slice."""
        return self._run(self.gcloud_words(*words), **given)

    def gcloud_words(self, *words: str) -> Sequence[str]:
        return self.any_gcloud_words("ssh", NAME, *words)

    def any_gcloud(self, *words: str, track: Sequence[str] = ()) -> Finished:
        """Run another command of `gcloud compute tpus tpu-vm`."""
        return self._run(self.any_gcloud_words(*words, track=track))

    def any_gcloud_words(self, *words: str, track: Sequence[str] = ()) -> Sequence[str]:
        zone = f"--zone={self.environment['CLOUDSDK_COMPUTE_ZONE']}"
        verb, *more = words
        return ["gcloud", "--quiet", *track, "compute", "tpus", "tpu-vm", verb, zone, *more]

    def tpukit(self, *words: str, home: str = "", **given: object) -> Finished:
        """Run tpukit; in another home it has another key."""
        own = {"TPUKIT_HOME": home} if home else {}
        return self._run(self.tpukit_words(*words), own, **given)

    def tpukit_words(self, *words: str) -> Sequence[str]:
        return [*TPUKIT, *words]

    def both(self, defect: str, gcloud: Callable[[], Did], ours: Callable[[], Did]) -> None:
        row = defect, gcloud(), ours()
        self.rows.append(row)
        print("\t".join((defect, _cell(row[1]), _cell(row[2]))), flush=True)

    def scratch(self, name: str) -> Path:
        """Return a path that no run has used; the workers share this machine's files."""
        return Path(tempfile.mkdtemp(dir=self.directory)) / name

    def fault(self, worker: int, kind: str) -> None:
        tpukit(self.environment, "emulator", "worker", NAME, str(worker), "--fault", kind)

    def heal(self) -> None:
        tpukit(self.environment, "emulator", "worker", NAME, "--clear")

    def _run(
        self, words: Sequence[str], own: Mapping[str, str] | None = None, **given: object
    ) -> Finished:
        options = {"stdin": subprocess.DEVNULL, "timeout": 240, **given}
        variables = {**self.environment, **(own or {})}
        return subprocess.run(
            words, env=variables, capture_output=True, text=True, check=False, **options
        )


def _cell(did: Did) -> str:
    return f"{'right' if did.right else 'WRONG'}: {did.text}"
