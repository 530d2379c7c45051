"""The results of a smoke test: of a figure, of a worker, of a slice."""

from __future__ import annotations

from dataclasses import dataclass, field

from tpukit.errors import TpukitError
from tpukit.models import Documented


@dataclass(frozen=True)
class Measurement(Documented):
    """One figure of a smoke test: of a device, of a link to another, or of the whole slice.

    `what` is `matmul` (bfloat16), `hbm`, `host-to-device`, `device-to-host`, `all-reduce` (of
    `size` bytes for each device), `link`, `soak` (the worst window of a load) or `link-health`
    (libtpu's worst score of a worker's links under load, from 0, healthy, to 10; `note` names the
    links).

    A device's number is that of its worker's framework. `peak` is the chip's lowest published peak,
    or for `soak` the median of the first minute, and `share` is `value / peak`; both are None if no
    peak is known, and on CPU devices. `verdict` is empty, `warn` or `fail`.
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

    @property
    def place(self) -> str:
        """The measured part of the slice in words: `worker 0 device 3`."""
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

    def __str__(self) -> str:
        """Return it in words: `worker 0 device 3: matmul 61.5 TFLOP/s, 67% of 918, …`."""
        share = f", {self.share:.0%} of {self.peak:.4g}" if self.share is not None else ""
        note = f", {self.note}" if self.note else ""
        return f"{self.place}: {self.what} {self.value:.4g} {self.unit}{share}{note}"


@dataclass(frozen=True)
class WorkerSmokeReport(Documented):
    """The results of one worker's smoke program, or its error.

    `devices` counts this worker's devices, `global_devices` those of the whole slice in the
    framework's distributed runtime. `matmul` is the digest of each device's product of integers,
    which are exact in bfloat16; if a device is wrong, it is the first wrong digest. `chip` is the
    chip's number if each chip has its own program, which must find that chip only.
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
    chip: int | None = None

    @property
    def ok(self) -> bool:
        return not self.error


@dataclass(frozen=True)
class SmokeReport(Documented):
    """The results of all workers. `stand_in` describes the CPU devices of an emulated slice.

    `notes` are contradictions to the table of accelerator types that are no failures, and low
    measurements.
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
        """The figures that a healthy slice cannot have."""
        return tuple(figure for figure in self.measurements if figure.verdict == "fail")
