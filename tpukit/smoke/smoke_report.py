"""What came of a smoke test: a figure, a worker, a slice."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tpukit.errors import TpukitError
from tpukit.models import Documented


@dataclass(frozen=True)
class Measurement(Documented):
    """One figure of a smoke test: of a device, of a link to another, or of the whole slice.

    `what` is `matmul` (bfloat16), `hbm`, `host-to-device`, `device-to-host`, `all-reduce` (of
    `size` bytes a device), `link`, `soak` (the worst window of a load) or `link-health` (libtpu's
    worst score of a worker's links under it: 0 is well, 10 the worst; `note` names the links).
    Devices are numbered as their worker's framework lists its own. `share` is of `peak`, the chip's
    lowest published one, or of a load the median of its first minute; None where there is none, and
    on CPU devices. `verdict` is empty, `warn` or `fail`.
    """

    what: str
    worker: int | None
    device: int | None
    value: float
    unit: str
    peak: float | None = None
    share: float | None = None
    verdict: str = ""
    note: str = ""
    to_worker: int | None = None
    to_device: int | None = None
    size: int | None = None

    def judged(
        self,
        verdict: str,
        *,
        peak: float | None = None,
        share: float | None = None,
        note: str | None = None,
    ) -> Measurement:
        """Return it with a verdict, and with what it was compared to."""
        return replace(
            self,
            verdict=verdict,
            peak=self.peak if peak is None else peak,
            share=self.share if share is None else share,
            note=self.note if note is None else note,
        )

    @property
    def place(self) -> str:
        """What was measured, in words: `worker 0 device 3`."""
        if self.worker is None:
            return "all devices"
        if self.device is None:
            return f"worker {self.worker}"
        own = f"worker {self.worker} device {self.device}"
        return (
            own
            if self.to_device is None
            else f"{own} - worker {self.to_worker} device {self.to_device}"
        )


@dataclass(frozen=True)
class WorkerSmokeReport(Documented):
    """What one worker's smoke program saw, or why there is nothing to show.

    `devices` are this worker's own, `global_devices` those of the whole slice as the framework's
    distributed runtime counts them. `matmul` is a digest of the product that every device computed,
    of integers that are exact in bfloat16; where one is wrong, the first wrong one.
    """

    _derived, _hidden = ("ok",), ("cause",)
    worker: int
    framework: str = ""
    version: str = ""
    platform: str = ""
    device_kind: str = ""
    devices: int = 0
    devices_expected: int = 0
    global_devices: int = 0
    global_devices_expected: int = 0
    processes: int = 0
    matmul: str = ""
    matmul_expected: str = ""
    global_sum: float | None = None
    global_sum_expected: float | None = None
    seconds: float = 0.0
    emulated: bool = False
    error: str = ""
    cause: TpukitError | None = field(default=None, compare=False)  #: `error`, with its class
    log_tail: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.error


@dataclass(frozen=True)
class SmokeReport(Documented):
    """Every worker's smoke test; `stand_in` is what an emulated slice computed on.

    `notes` hold what contradicts the table of accelerator types without being a failure, and the
    measurements that are low.
    """

    _derived = ("ok",)
    framework: str
    workers: tuple[WorkerSmokeReport, ...]
    stand_in: str = ""
    notes: tuple[str, ...] = ()
    level: int = 1
    measurements: tuple[Measurement, ...] = ()

    @property
    def ok(self) -> bool:
        return (
            bool(self.workers)
            and all(worker.ok for worker in self.workers)
            and not self.failed_measurements
        )

    @property
    def failed_measurements(self) -> tuple[Measurement, ...]:
        """Those that no healthy slice has."""
        return tuple(each for each in self.measurements if each.verdict == "fail")
