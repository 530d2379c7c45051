"""The check that a slice is clean: no process holds a device, its HBM is empty, no chip is missing.

A program starts on a clean slice as on a new one. The check needs no framework and opens no device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpukit.accelerators import AcceleratorType, is_listed
from tpukit.clock import Clock, Deadline
from tpukit.console import amount
from tpukit.errors import BadInput, DevicesBusy, Fix, decisive
from tpukit.models import Slice
from tpukit.smoke.loads import LoadWatch
from tpukit.smoke.presence import LOCK_LEFT, look_for_chips
from tpukit.ssh.worker import RemoteWorker


def require_clean(
    workers: Sequence[RemoteWorker], slice_: Slice, clock: Clock, seconds: float
) -> None:
    """Raise an error that names everything in the way of a program on a slice's workers.

    The looks at chips and at HBM may take so many seconds each. If no process holds a device, its
    HBM is empty; libtpu's own figure is only asked as well.

    Raises:
        DevicesBusy: the slice is not clean.
        BadInput: our table does not list the slice's type, so the number of chips is unknown.
        TpukitError: a worker could not be reached.
    """
    if not is_listed(slice_.accelerator_type):
        what = f"the chips of {slice_.accelerator_type} are unknown"
        raise BadInput(what, fix=Fix(note="leave out --clean"))
    accelerator = AcceleratorType.parse(slice_.accelerator_type)
    report = look_for_chips(workers, accelerator, deadline=Deadline.after(clock, seconds))
    if silent := decisive(worker.cause for worker in report.workers):
        raise silent
    reasons = [
        f"worker {worker.worker}: {worker.error}" for worker in report.workers if worker.error
    ]
    reasons += [note for note in report.notes if LOCK_LEFT in note]
    if reasons := reasons or list(_used_memory(workers, clock)):
        raise DevicesBusy(
            f"slice {slice_.name} is not clean",
            why="\n".join(reasons),
            fix=Fix.command(
                *("tpukit", "kill", slice_.name, "--all-holders"),
                note="ends every process that holds a device, and removes libtpu's lock",
            ),
        )


def _used_memory(workers: Sequence[RemoteWorker], clock: Clock) -> Iterator[str]:
    with LoadWatch(workers, clock) as watch:
        for load in watch.sample():
            used = load.value.chips.get("hbm_capacity_usage", ()) if load.value else ()
            if any(used):
                yield f"worker {load.item.index}: {amount(sum(used))} of its HBM are in use"
