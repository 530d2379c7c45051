"""Received files are put in place by several processes at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tpukit.agent.placing import merge


def test_folders_that_arrive_at_once_are_merged(tmp_path: Path) -> None:
    """As if workers that share a home folder took the same upload."""
    workers, rounds = 4, 300
    with ThreadPoolExecutor(workers) as pool:
        for number in range(rounds):
            start, target = threading.Barrier(workers), tmp_path / f"target-{number}"

            def put(worker: int, start: threading.Barrier, number: int, target: Path) -> None:
                source = tmp_path / f"source-{number}-{worker}"
                source.mkdir()
                (source / f"from-{worker}").touch()
                start.wait()
                merge(str(source), str(target))

            jobs = [pool.submit(put, worker, start, number, target) for worker in range(workers)]
            for job in jobs:
                job.result()
            assert {path.name for path in target.iterdir()} == {f"from-{n}" for n in range(workers)}
