"""Level 0: the chips are on the bus, have a driver and are free. No framework, none is opened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from tpukit.accelerators import AcceleratorType
from tpukit.clock import Deadline
from tpukit.provision.kernel_log import kernel_log_advice
from tpukit.remote import agent_client
from tpukit.remote.command.end import Holder, device_holders, stop_runtime
from tpukit.remote.command.fan_out import Outcome, fan_out
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.smoke.smoke_report import SmokeReport, WorkerSmokeReport
from tpukit.text import one_line

#: The part of the disk that is to be free: marin-community/marin's probe asks for as much.
_FREE_DISK = 0.05

Word = Annotated[str, Field(max_length=100)]
Count = Annotated[int, Field(ge=0)]


class PciFunction(BaseModel):
    """A function of Google's on the PCI bus; `driver` is empty where none is bound to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Word
    subsystem: Word
    driver: Word


class Presence(BaseModel):
    """What the agent's `look_for_chips` saw, which says what each of it is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    functions: Annotated[tuple[PciFunction, ...], Field(max_length=1024)]
    files: Count
    control_agent: bool
    lock: bool
    free_bytes: Count
    disk_bytes: Count
    kernel_log_bytes: Count
    libtpu: Annotated[tuple[Word, ...], Field(max_length=1024)]
    emulated: Count


Seen = tuple[Presence, tuple[Holder, ...]]


def look_for_chips(
    workers: Sequence[RemoteWorker], accelerator: AcceleratorType, *, deadline: Deadline
) -> SmokeReport:
    """Return what is seen of every worker's chips; a worker that fails is never raised."""

    def look(worker: RemoteWorker) -> Seen:
        with worker.connect() as connection:
            failure = f"{worker.label} did not list its chips"
            answer = agent_client.ask(connection, "look_for_chips", {}, failure, deadline=deadline)
            seen = answer.model(Presence)
            return seen, device_holders(connection, deadline=deadline)

    return judge_presence(fan_out(workers, look, window=len(workers)), accelerator)


def judge_presence(
    found: Sequence[Outcome[RemoteWorker, Seen]], accelerator: AcceleratorType
) -> SmokeReport:
    """Return the report on what was seen: devices by the chips that are there."""
    reports = [_report(each, accelerator) for each in found]
    notes = [f"worker {each.item.index}: {note}" for each in found for note in _notes(each)]
    stand_ins = sum(each.value[0].emulated for each in found if each.value)
    stand_in = f"{stand_ins} CPU devices in a TPU's place: there is no chip to look at"
    total = sum(each.devices for each in reports)
    reports = [
        replace(each, global_devices=total, global_devices_expected=accelerator.devices)
        for each in reports
    ]
    return SmokeReport("", tuple(reports), stand_in if stand_ins else "", tuple(notes), level=0)


def _report(found: Outcome[RemoteWorker, Seen], accelerator: AcceleratorType) -> WorkerSmokeReport:
    expected = accelerator.devices_per_worker
    blank = WorkerSmokeReport(found.item.index, devices_expected=expected)
    if not found.value:
        assert found.error
        return replace(blank, error=one_line(found.error.summary()), cause=found.error)
    seen, holders = found.value
    chips = _chips(seen, accelerator)
    devices = seen.emulated or len(chips) * accelerator.facts.devices_per_chip
    problems = "; ".join(_problems(seen, holders, chips, accelerator))
    emulated = seen.emulated > 0
    platform = "cpu" if emulated else ", ".join(sorted({each.driver for each in chips}))
    return replace(
        blank, devices=devices, platform=one_line(platform), emulated=emulated, error=problems
    )


def _chips(seen: Presence, accelerator: AcceleratorType) -> list[PciFunction]:
    wanted = accelerator.facts.pci
    return [
        each
        for each in seen.functions
        if each.device == wanted["device"]
        and each.subsystem == wanted.get("subsystem", each.subsystem)
    ]


def _problems(
    seen: Presence,
    holders: Sequence[Holder],
    chips: Sequence[PciFunction],
    accelerator: AcceleratorType,
) -> Iterable[str]:
    if seen.emulated:
        if seen.emulated != accelerator.devices_per_worker:
            yield f"{seen.emulated} of {accelerator.devices_per_worker} devices"
        return
    if len(chips) != accelerator.chips_per_worker:
        yield f"{len(chips)} of {accelerator.chips_per_worker} chips on the PCI bus"
    unbound = sum(not each.driver for each in chips)
    if unbound:
        yield f"{unbound} of {len(chips)} chips without a driver: the runtime version may not fit"
    elif chips and not seen.files:
        yield "no file of a chip in /dev"
    if chips and accelerator.facts.control_agent and not seen.control_agent:
        name, version = accelerator.facts.name, accelerator.runtime_version
        yield (
            "no process of vbarcontrolagent, and nothing listens on its port 8353: without it"
            f" libtpu finds no {name} chip; runtime version {version} has it"
        )
    if holders:
        yield f"the devices are busy with {', '.join(map(str, holders))}"


def _notes(found: Outcome[RemoteWorker, Seen]) -> Iterable[str]:
    if not found.value:
        return
    seen, holders = found.value
    if any(each.of_runtime for each in holders):
        stop = stop_runtime(found.item.slice)
        yield f"tpu-runtime lets the devices go once it is stopped: {stop}"
    if seen.lock and not holders:
        yield "libtpu's lock is left and nobody holds a device: tpukit kill removes it"
    if seen.free_bytes < _FREE_DISK * seen.disk_bytes:
        free = f"only {seen.free_bytes / seen.disk_bytes:.0%} of the disk is free"
        yield "; ".join(filter(None, (free, kernel_log_advice(seen.kernel_log_bytes))))
    if not seen.libtpu and not seen.emulated:
        yield "no environment has libtpu yet"
