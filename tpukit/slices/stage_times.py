"""The times that the stages of earlier main jobs took on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tpukit.paths import keep_json, recall_json

#: The number of jobs of one kind, and of kinds, to remember.
_JOBS, _KINDS = 9, 100


@dataclass(frozen=True)
class StageTimes:
    """The file with the times; everything works without it.

    A kind is what makes jobs comparable: the cloud or an emulator, the accelerator type, the
    recipe.
    """

    path: Path
    kind: str

    def expected(self) -> Mapping[str, float]:
        """Return the median seconds of each known stage."""
        return {stage: median(seconds) for stage, seconds in self._known().items() if seconds}

    def record(self, seconds: Mapping[str, float]) -> None:
        """Add the seconds of a job's stages."""
        known = self._known()
        times = {
            stage: [*known.get(stage, ()), round(seconds[stage], 1)][-_JOBS:] for stage in seconds
        }
        kinds = {kind: old for kind, old in recall_json(self.path).items() if kind != self.kind}
        latest = [*kinds.items(), (self.kind, {**known, **times})][-_KINDS:]
        keep_json(self.path, dict(latest))

    def _known(self) -> dict[str, list[float]]:
        known: Any = recall_json(self.path).get(self.kind)
        try:
            return {str(stage): [*map(float, times)] for stage, times in known.items()}
        except (AttributeError, TypeError, ValueError):  # nothing, or not our file
            return {}
