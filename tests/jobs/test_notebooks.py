"""A notebook as its client sees it go on; Jupyter itself runs in the journeys."""

from __future__ import annotations

import threading

import pytest

from tpukit.clock import SystemClock
from tpukit.jobs.notebooks import Notebook
from tpukit.ssh.worker import RemoteWorker

pytestmark = pytest.mark.process


def test_a_notebook_of_which_nothing_is_left_has_ended(
    workers: list[RemoteWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a worker that was made anew: nobody waits for it for ever."""
    monkeypatch.setattr("tpukit.jobs.notebooks.RENEWAL_SECONDS", 0.2)
    notebook, found = Notebook(workers[0], "jax", SystemClock(), 60.0, {}), list[str]()
    waiting = threading.Thread(target=lambda: found.append(notebook.wait()), daemon=True)
    waiting.start()
    waiting.join(30)
    assert [word for word in found if "was lost" in word]
