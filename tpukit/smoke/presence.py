"""Level 0: are the chips on the bus, with a driver, and free? It needs no framework."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from tpukit.accelerators import AcceleratorType
from tpukit.clock import Deadline
from tpukit.jobs.end import Holder, device_holders, stop_runtime
from tpukit.provision.kernel_log import kernel_log_advice
from tpukit.smoke.smoke_report import SmokeReport, WorkerSmokeReport
from tpukit.ssh import agent_client
from tpukit.ssh.fan_out import Outcome, fan_out
from tpukit.ssh.worker import RemoteWorker
from tpukit.text import one_line

#: The part of the disk that should be free, as in the probe of marin-community/marin.
_FREE_DISK = 0.05
#: The start of the note about a lock that no process holds.
LOCK_LEFT = "libtpu's lock is left"

Word = Annotated[str, Field(max_length=100)]
Count = Annotated[int, Field(ge=0)]


class PciFunction(BaseModel):
    """A PCI function with Google's vendor id; `driver` is empty if none is bound to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Word
    subsystem: Word
    driver: Word


class Presence(BaseModel):
    """The answer of the agent's `look_for_chips`, which explains the fields."""

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
    """Return the report on every worker's chips; it contains the errors of failed workers."""

    def look(worker: RemoteWorker) -> Seen:
        with worker.connect() as connection:
            failure = f"{worker.label} did not list its chips"
            answer = agent_client.ask(connection, "look_for_chips", {}, failure, deadline=deadline)
            seen = answer.model(Presence)
            return seen, device_holders(connection, deadline=deadline)

    return judge_presence(fan_out(workers, look, window=len(workers)), accelerator)


def judge_presence(
    outcomes: Sequence[Outcome[RemoteWorker, Seen]], accelerator: AcceleratorType
) -> SmokeReport:
    """Return the report on the workers' chips, with the number of devices that they make."""
    reports = [_report(outcome, accelerator) for outcome in outcomes]
    notes = [
        f"worker {outcome.item.index}: {note}" for outcome in outcomes for note in _notes(outcome)
    ]
    stand_ins = sum(outcome.value[0].emulated for outcome in outcomes if outcome.value)
    stand_in = f"{stand_ins} CPU devices in a TPU's place: there is no chip to look at"
    total = sum(report.devices for report in reports)
    reports = [
        replace(report, global_devices=total, global_devices_expected=accelerator.devices)
        for report in reports
    ]
    return SmokeReport("", tuple(reports), stand_in if stand_ins else "", tuple(notes), level=0)


def _report(
    outcome: Outcome[RemoteWorker, Seen], accelerator: AcceleratorType
) -> WorkerSmokeReport:
    expected = accelerator.devices_per_worker
    blank = WorkerSmokeReport(outcome.item.index, devices_expected=expected)
    if not outcome.value:
        assert outcome.error
        return replace(blank, error=one_line(outcome.error.summary()), cause=outcome.error)
    seen, holders = outcome.value
    chips = _chips(seen, accelerator)
    devices = seen.emulated or len(chips) * accelerator.facts.devices_per_chip
    problems = [*_problems(seen, chips, accelerator)]
    if holders:
        problems.append(f"the devices are busy with {', '.join(map(str, holders))}")
    emulated = seen.emulated > 0
    platform = "cpu" if emulated else ", ".join(sorted({chip.driver for chip in chips}))
    return replace(
        blank,
        devices=devices,
        platform=one_line(platform),
        emulated=emulated,
        error="; ".join(problems),
    )


def _chips(seen: Presence, accelerator: AcceleratorType) -> list[PciFunction]:
    wanted = accelerator.facts.pci
    return [
        function
        for function in seen.functions
        if function.device == wanted["device"]
        and function.subsystem == wanted.get("subsystem", function.subsystem)
    ]


def _problems(
    seen: Presence, chips: Sequence[PciFunction], accelerator: AcceleratorType
) -> Iterable[str]:
    if seen.emulated:
        if seen.emulated != accelerator.devices_per_worker:
            yield f"{seen.emulated} of {accelerator.devices_per_worker} devices"
        return
    if len(chips) != accelerator.chips_per_worker:
        yield f"{len(chips)} of {accelerator.chips_per_worker} chips on the PCI bus"
    unbound = sum(not chip.driver for chip in chips)
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


def _notes(outcome: Outcome[RemoteWorker, Seen]) -> Iterable[str]:
    if not outcome.value:
        return
    seen, holders = outcome.value
    if any(holder.of_runtime for holder in holders):
        stop = stop_runtime(outcome.item.slice)
        yield f"tpu-runtime holds the devices until you stop it: {stop}"
    if seen.lock and not holders:
        yield f"{LOCK_LEFT}, but no process holds a device: tpukit kill removes it"
    if seen.free_bytes < _FREE_DISK * seen.disk_bytes:
        free = f"only {seen.free_bytes / seen.disk_bytes:.0%} of the disk is free"
        yield "; ".join(filter(None, (free, kernel_log_advice(seen.kernel_log_bytes))))
    if not seen.libtpu and not seen.emulated:
        yield "no environment has libtpu yet"
