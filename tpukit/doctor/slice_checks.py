"""Checks of a slice: its state, and on every worker the chips, memory, disk, clock and runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpukit.accelerators import AcceleratorType
from tpukit.access import rule_opening, ssh_rule
from tpukit.access.context import Context
from tpukit.clock import Clock, Deadline
from tpukit.doctor.findings import Finding, Outcome
from tpukit.errors import Fix
from tpukit.explain.known_words import word_explanations
from tpukit.google.retrying_session import CLOCK_DIFFERENCE
from tpukit.jobs.job_list import list_jobs
from tpukit.models import Slice
from tpukit.slices.lifetime import span
from tpukit.slices.losses import loss
from tpukit.smoke.cleanliness import require_clean
from tpukit.smoke.loads import LoadWatch, WorkerLoad
from tpukit.smoke.presence import look_for_chips
from tpukit.smoke.smoke_report import SmokeReport
from tpukit.ssh.fan_out import fan_out
from tpukit.ssh.worker import RemoteWorker
from tpukit.text import counted, one_line

#: The part of a disk or of the memory from which a worker is short of it.
_FULL = 0.95


def state_findings(slice_: Slice) -> Iterator[Finding]:
    """Yield the findings on the state and health that the API shows."""
    for word, good in ((slice_.state, "READY"), (slice_.health, "HEALTHY")):
        for known in word_explanations(word, slice_.name)[:1]:
            outcome: Outcome = "ok" if word == good else "failure"
            said = f"{word}: {known.cause.partition(': ')[2]}"
            fix = loss(slice_).fix if slice_.lost else known.fix
            yield Finding("slice", outcome, said, None if word == good else fix)


def worker_findings(
    workers: Sequence[RemoteWorker], slice_: Slice, clock: Clock, seconds: float
) -> Iterator[Finding]:
    """Yield the findings on every worker; a worker that does not answer has one finding.

    The check of clocks and runs, and that of the chips, have so many seconds each.
    """
    deadline = Deadline.after(clock, seconds)
    told = fan_out(workers, lambda worker: _told(worker, clock, deadline), window=len(workers))
    answering = []
    for outcome in told:
        check = f"worker {outcome.item.index}"
        if outcome.value is None:
            error = outcome.error
            assert error
            yield Finding(check, "failure", one_line(error.summary()), error.fix)
        else:
            answering.append(outcome.item)
            yield from outcome.value
    accelerator = AcceleratorType.parse(slice_.accelerator_type)
    report = look_for_chips(answering, accelerator, deadline=Deadline.after(clock, seconds))
    yield from chip_findings(report, slice_.name)
    with LoadWatch(answering, clock) as watch:
        for load in watch.sample():
            if load.value:
                yield from room_findings(load.item.index, load.value)


def rule_findings(context: Context, slice_: Slice) -> Iterator[Finding]:
    """Yield the finding on the firewall rule that lets this machine reach the slice's port 22."""
    firewall = context.firewall.of(slice_.network_project)
    for source in rule_opening.sources(context, slice_.workers[0].address):
        if said := ssh_rule.missing(firewall, slice_, source):
            decides = firewall.has_policies(slice_.network or "default")
            fix = Fix.command("tpukit", "firewall", "apply", slice_.name, *context.route)
            outcome: Outcome = "warning" if decides else "failure"
            yield Finding("firewall", outcome, said, fix, lambda: _opened(context, slice_))
            return
    yield Finding("firewall", "ok", "a rule lets this machine reach port 22")


def _opened(context: Context, slice_: Slice) -> str:
    _, opening = rule_opening.open_for(context, slice_)
    return f"rule {opening.rule.name}: {opening.summary}"


def clean_findings(
    workers: Sequence[RemoteWorker], slice_: Slice, clock: Clock, seconds: float
) -> Iterator[Finding]:
    """Yield the finding that a slice is clean; raise the errors of `require_clean`."""
    require_clean(workers, slice_, clock, seconds)
    yield Finding("clean slice", "ok", "no holder, no lock, all chips, empty HBM")


def chip_findings(report: SmokeReport, name: str) -> Iterator[Finding]:
    """Yield the findings on the chips of each worker of a slice."""
    for worker in report.workers:
        check = f"worker {worker.worker}, chips"
        if worker.error:
            ends = Fix.command("tpukit", "kill", name, "--all-holders")
            fix = ends if "busy with" in worker.error else None
            yield Finding(check, "failure", worker.error, fix)
        else:
            what = "CPU devices stand in for them" if worker.emulated else "free"
            yield Finding(check, "ok", f"{counted(worker.devices, 'device')}, {what}")


def _told(worker: RemoteWorker, clock: Clock, deadline: Deadline) -> list[Finding]:
    """Return the findings on a worker's clock and runs."""
    with worker.connect() as connection:
        answer = connection.run("date +%s", deadline=deadline)
        jobs = list_jobs(connection, worker.record, deadline=deadline)
    text = answer.stdout.decode(errors="replace").strip()
    check = f"worker {worker.index}"
    runs = [job.run for job in jobs if job.attached or job.state == "running"]
    findings = [Finding(f"{check}, runs", "ok", ", ".join(runs) or "none is going on")]
    skewed = clock_finding(check, float(text), clock.time()) if text.isdecimal() else None
    return [*findings, skewed] if skewed else findings


def clock_finding(check: str, theirs: float, ours: float) -> Finding | None:
    """Return the finding on a worker's clock, or None if it is right; times are in seconds."""
    ahead = theirs - ours
    if abs(ahead) <= CLOCK_DIFFERENCE:
        return None
    said = f"it is {span(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} this machine's"
    fix = Fix(note="on the worker, timedatectl shows whether its clock is synchronised")
    return Finding(f"{check}, clock", "failure", said, fix)


def room_findings(index: int, load: WorkerLoad) -> Iterator[Finding]:
    """Yield the findings on a worker's memory and disk."""
    places = {
        "memory": (load.memory_used, load.memory_total, "tpukit top shows it over time"),
        "disk": (load.disk_used, load.disk_total, "look at ~/.cache, /var/log/kern.log and /tmp"),
    }
    for what, (used, total, advice) in places.items():
        if not total:
            continue
        share = used / total
        said = f"{share:.0%} of {total / 2**30:.0f} GiB in use"
        full = share > _FULL
        outcome: Outcome = "warning" if full else "ok"
        yield Finding(f"worker {index}, {what}", outcome, said, Fix(note=advice) if full else None)
