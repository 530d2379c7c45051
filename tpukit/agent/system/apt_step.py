"""A package of the worker's own package sources."""

from __future__ import annotations

from tpukit.agent.system.debian_packages import install_packages, is_installed
from tpukit.agent.system.step import WorkerStep


class AptStep(WorkerStep):
    """`NAME` or `NAME=VERSION`."""

    def _look(self) -> None:
        if not is_installed(self.value):
            self.needed.append(f"install {self.value}")

    def _change(self) -> None:
        install_packages(self.ledger, self.value)
