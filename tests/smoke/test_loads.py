"""What workers are busy with: real figures of this machine, and libtpu's where it has some."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.local_worker import LocalConnection, LocalWorker

from tpukit.cli.verbs.top import _lines, _view
from tpukit.clock import SystemClock
from tpukit.errors import TransportFailed
from tpukit.smoke.loads import LoadWatch
from tpukit.ssh.worker import RemoteWorker

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="workers have /proc"),
]
SDK = """
class Metric:
    def __init__(self, values): self.values = values
    def data(self): return self.values
class tpumonitoring:
    def get_metric(name):
        return Metric({
            "duty_cycle_pct": ["80.0", "100.0"], "tensorcore_util": ["tensorcore_0: 41.5"],
            "hbm_capacity_usage": ["8000000000"], "hbm_capacity_total": ["16000000000"],
        }[name])
"""


def with_libtpu(home: Path, sdk: str = SDK) -> Path:
    """A home with an environment whose libtpu has a monitoring SDK, and one whose has none."""
    for name, files in (("a", {"__init__.py": ""}), ("b", {"__init__.py": "", "sdk.py": sdk})):
        venv = home / ".tpukit/venvs" / name
        packages = venv / f"lib/python3.{sys.version_info.minor}/site-packages"
        (packages / "libtpu").mkdir(parents=True)
        for file, text in files.items():
            (packages / "libtpu" / file).write_text(text)
        (venv / "bin").mkdir()
        path = f"import sys; sys.path.insert(0, {str(packages)!r}); exec(sys.argv[1])"
        python = venv / "bin/python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -c "{path}" "$3"\n')
        python.chmod(0o755)
    return home


def test_a_worker_tells_its_own_figures_and_those_of_its_chips(tmp_path: Path) -> None:
    reached = LocalWorker(with_libtpu(tmp_path)).remote()
    connected = []

    def connect():
        connected.append(reached)
        return reached.connect()

    worker = RemoteWorker(0, connect)

    def refuse():
        raise TransportFailed("no answer from demo worker 1")

    with LoadWatch([worker, RemoteWorker(1, refuse)], SystemClock()) as watch:
        sample = watch.sample()
        assert watch.sample()[0].value
    assert len(connected) == 1, "the second sample goes over the connection that is there"
    load = sample[0].value
    assert load
    assert 0 <= load.busy <= 1
    assert load.disk_total == shutil.disk_usage(tmp_path).total
    assert 0 < load.memory_used < load.memory_total
    assert load.processors > 0
    chips = [load.chip(each) for each in ("duty_cycle_pct", "tensorcore_util", "unheard")]
    assert chips == [90.0, 41.5, None]
    view = _view(sample)
    assert view.rows[0][2:5] == ["90%", "42%", "8.0 GB of 16.0 GB"]
    assert view.rows[0][-1] == ""
    assert view.warnings == ["no answer from demo worker 1"]
    assert view.status == TransportFailed.exit_code
    assert json.loads(json.dumps(view.document))["workers"][1]["error"]
    assert [line.split()[0] for line in _lines(sample)] == ["WORKER", "0", "1"]


def test_an_odd_answer_is_an_error_of_that_worker_alone(tmp_path: Path) -> None:
    """It says that it is busy seven times over."""

    class Odd(LocalConnection):
        def run(self, command, **options):
            done = super().run(command, **options)
            return replace(done, stdout=re.sub(rb'"busy": [0-9.e-]+', b'"busy": 7', done.stdout))

    odd = RemoteWorker(1, lambda: Odd(LocalWorker(tmp_path, index=1)))
    with LoadWatch([LocalWorker(tmp_path).remote(), odd], SystemClock()) as watch:
        good, bad = watch.sample()
    assert good.value
    assert bad.error
    assert bad.error.what == "local worker 1 gave an invalid answer"
    assert "busy" in bad.error.reason


def test_a_stand_in_says_so_and_a_libtpu_that_fails_tells_nothing(tmp_path: Path) -> None:
    home = with_libtpu(tmp_path, "raise SystemExit(3)")
    for variables, note in (({"TPUKIT_EMULATED_DEVICES": "8"}, "CPU devices"), ({}, "libtpu")):
        worker = LocalWorker(home, environment=variables).remote()
        with LoadWatch([worker], SystemClock()) as watch:
            (row,) = _view(watch.sample()).rows
        assert str(row[-1]).startswith(note)
