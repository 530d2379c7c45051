"""A slice is clean if nothing is in the way of the next program; what is in the way is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import DEVNULL, Popen

import pytest
from support.local_worker import LocalWorker

from tpukit.clock import SystemClock
from tpukit.errors import BadInput, DevicesBusy, TransportFailed
from tpukit.models import Slice
from tpukit.smoke.cleanliness import require_clean
from tpukit.ssh.worker import RemoteWorker

EIGHT = {"TPUKIT_EMULATED_DEVICES": "8"}
DEMO = Slice("demo", "p", "z", "v3-8", "tpu-ubuntu2204-base", "READY")


def require(*workers: RemoteWorker, slice_: Slice = DEMO) -> None:
    require_clean(workers, slice_, SystemClock(), 60.0)


@contextmanager
def held(device: Path) -> Iterator[None]:
    device.parent.mkdir(parents=True)
    device.touch()
    with device.open() as file, Popen(["sleep", "600"], stdin=file, stdout=DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def test_a_whole_slice_without_a_holder_is_clean(tmp_path: Path) -> None:
    require(LocalWorker(tmp_path, environment=EIGHT).remote())


def test_a_holder_and_a_missing_device_are_named_with_the_command_that_ends_holders(
    tmp_path: Path,
) -> None:
    worker = LocalWorker(tmp_path, environment=EIGHT)
    few = LocalWorker(tmp_path, environment={"TPUKIT_EMULATED_DEVICES": "7"}, index=1)
    with (
        held(worker.home / ".tpukit/emulated-devices/accel0"),
        pytest.raises(DevicesBusy) as caught,
    ):
        require(worker.remote(), few.remote())
    assert "worker 0: the devices are busy with PID" in caught.value.why
    assert "worker 1: 7 of 8 devices" in caught.value.why
    assert str(caught.value.fix) == "tpukit kill demo --all-holders"
    assert caught.value.exit_code == 10


def test_a_lock_that_no_process_holds_is_in_the_way(tmp_path: Path) -> None:
    worker = LocalWorker(tmp_path, environment={**EIGHT, "TMPDIR": str(tmp_path)})
    (tmp_path / "libtpu_lockfile").touch()
    with pytest.raises(DevicesBusy) as caught:
        require(worker.remote())
    assert "libtpu's lock is left" in caught.value.why


def test_a_worker_that_does_not_answer_is_the_error(tmp_path: Path) -> None:
    def refuse():
        raise TransportFailed("no answer from demo worker 1")

    with pytest.raises(TransportFailed, match="worker 1"):
        require(LocalWorker(tmp_path, environment=EIGHT).remote(), RemoteWorker(1, refuse))


def test_a_type_without_a_known_number_of_chips_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="chips of tpu7x-8 are unknown"):
        require(slice_=replace(DEMO, accelerator_type="tpu7x-8"))
