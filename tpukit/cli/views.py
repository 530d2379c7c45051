"""The results of the commands as tables and documents."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpukit.cli.output import place
from tpukit.console import Cell, View
from tpukit.errors import Fix, SecurityRefusal
from tpukit.text import one_line, sanitize

if TYPE_CHECKING:
    from tpukit.accelerators import AcceleratorType
    from tpukit.access.rule_opening import Opening
    from tpukit.access.ssh_config import Host
    from tpukit.cli.offers import Offers
    from tpukit.models import (
        DataDisk,
        FirewallRule,
        ProvisionReport,
        Slice,
        SliceList,
        SmokeReport,
        WorkerSmokeReport,
    )
    from tpukit.recovery.watch_file import Watch
    from tpukit.remote.command.attached import CommandOutcome
    from tpukit.remote.command.end import EndReport
    from tpukit.remote.command.fan_out import Outcome
    from tpukit.remote.connection.worker import RemoteWorker
    from tpukit.remote.job.job_list import JobState, Removal
    from tpukit.remote.transfer.upload import Recipient
    from tpukit.slices import lifetime
    from tpukit.slices.survey import Leftover, Survey
    from tpukit.slices.update import Updated
    from tpukit.smoke.history import Change, KeptRun
    from tpukit.up import UpReport
    from tpukit.work.guard import GuardReport
    from tpukit.work.runs import States

#: Of what a failed command wrote: lines that are shown again at the end.
_LAST_LINES = 5
_SMOKE_COLUMNS = ("WORKER", "DEVICES", "PLATFORM", "FRAMEWORK", "ALL DEVICES", "RESULT", "NOTE")


def slices(listed: SliceList, now: float, rates: Mapping[str, float]) -> View:
    """Show slices, one a row; `now` is in seconds since the epoch."""
    document = {
        "slices": [_with_lifetime(each, now, rates) for each in listed.slices],
        "unreachable": list(listed.unreachable),
    }
    what = ("NAME", "ZONE", "TYPE", "STATE", "HEALTH", "WORKERS", "CAPACITY")
    columns = (*what, "OWNER", "CREATED", "HOURS", "LEFT", "COST", "PURPOSE")
    rows = [_slice_row(each, now, rates) for each in listed.slices]
    silent = [f"{each} did not answer: the list may be incomplete" for each in listed.unreachable]
    return View(document, columns, rows, warnings=silent)


def one_slice(
    found: Slice, *, extra: dict[str, Any] | None = None, next: tuple[Fix, ...] = ()
) -> View:
    """Show one slice: its name alone where the caller is a script, its whole document as JSON."""
    return View({"slice": found.document(), **(extra or {})}, rows=[[found.name]], next=next)


def updated(done: Updated, warnings: Sequence[str]) -> View:
    """Show what of a slice was changed."""
    document = {
        "slice": done.slice.document(),
        "changed": list(done.changed),
        "beside": list(done.beside),
    }
    return View(document, rows=[[done.slice.name]], warnings=warnings)


def several_slices(made: Sequence[tuple[Slice, Mapping[str, object]]], next: Sequence[Fix]) -> View:
    """Show slices that were made by one command, a name a row."""
    documents = [{"slice": found.document(), **extra} for found, extra in made]
    return View({"slices": documents}, rows=[[found.name] for found, _ in made], next=next)


def watches(found: Sequence[tuple[Watch, int | None]], *, with_history: bool) -> View:
    """Show watches, one a row, and the process at each; or what one has been through."""
    documents = [{**watch.document(), "process": process} for watch, process in found]
    if with_history:
        rows = [
            [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(each.time)), each.event, each.detail]
            for watch, _ in found
            for each in watch.history
        ]
        return View({"watches": documents}, ("TIME", "EVENT", "DETAIL"), rows)
    columns = ("NAME", "ZONE", "STATE", "PROCESS", "RUN", "RECOVERIES", "STATUS", "LAST")
    rows = [
        [
            *(each["name"], each["zone"], each["state"], each["process"] or "", each["run"]),
            *(each["recoveries"], "" if each["status"] is None else each["status"]),
            each["history"][-1]["event"] if each["history"] else "",
        ]
        for each in documents
    ]
    return View({"watches": documents}, columns, rows)


def described(found: Slice, now: float, rates: Mapping[str, float]) -> View:
    """Show everything about one slice, a field a row; `now` is in seconds since the epoch."""
    from tpukit.slices import lifetime

    lives = lifetime.lifetime(found, now, rates)
    workers = {
        f"worker {each.index}": ", ".join(
            f"{kind} {address}"
            for kind, address in (
                ("external", each.external_address),
                ("internal", each.internal_address),
            )
            if address
        )
        for each in found.workers
    }
    fields = {
        "name": found.name,
        "zone": found.zone,
        "project": found.project,
        "accelerator type": found.accelerator_type,
        "topology": found.topology,
        "runtime version": found.runtime_version,
        "state": found.state,
        "health": f"{found.health} {found.health_description}".strip(),
        "capacity": found.provisioning,
        "network": found.network,
        "subnetwork": found.subnetwork,
        "external addresses": "yes" if found.external_addresses else "no",
        "service account": found.service_account,
        "data disks": ", ".join(map(_disk, found.data_disks)),
        "queued resource": found.queued_resource,
        "tags": ", ".join(found.tags),
        "labels": ", ".join(f"{key}={value}" for key, value in sorted(found.labels.items())),
        "created": found.created,
        "hours": _figure(lives.hours),
        "expires": f"{lives.expires} ({_left(lives)})" if lives.expires else lives.unreadable,
        "cost": _figure(lives.cost),
        "purpose": lives.purpose,
        **workers,
    }
    document = {"slice": _with_lifetime(found, now, rates)}
    return View(document, ("FIELD", "VALUE"), list(fields.items()))


def reaped(
    found: Survey,
    deleted: Sequence[Leftover],
    rules: Sequence[str],
    *,
    changed: Sequence[Leftover] = (),
    shown: View | None = None,
) -> View:
    """Show what was left over and is gone, or the calls that would delete it, and what is not."""
    shown = shown or View(
        {}, rows=[[each.kind, each.name, each.zone, each.why] for each in deleted]
    )
    document = {
        "deleted": [each.document() for each in deleted],
        "due": [each.document() for each in found.due],
        "spared": [each.document() for each in (*found.spared, *changed)],
        "unreachable": list(found.unreachable),
        "unseen": list(found.unseen),
        "rules_left_over": list(rules),
        **shown.document,
    }
    silent = [
        f"{each} did not answer: what is left there was not seen" for each in found.unreachable
    ]
    silent += [f"queued resources were not seen: {why}" for why in found.unseen]
    silent += [f"{each.label} is gone, or not what it was: it was left alone" for each in changed]
    silent += [f"the slice of rule {name} is gone" for name in rules]
    remove = [Fix.command("tpukit", "firewall", "remove", name) for name in rules]
    return replace(
        shown, document=document, warnings=silent, next=remove, status=int(not found.whole)
    )


def extended(found: Slice, now: float) -> View:
    """Show when a slice's life ends now: alone where the caller is a script."""
    from tpukit.slices import lifetime

    document = {"slice": _with_lifetime(found, now, {})}
    return View(document, rows=[[lifetime.lifetime(found, now).expires or "never"]])


def _with_lifetime(found: Slice, now: float, rates: Mapping[str, float]) -> dict[str, Any]:
    from tpukit.slices import lifetime

    lives = lifetime.lifetime(found, now, rates)
    return {**found.document(), "lifetime": lives.document()}


def _figure(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def _left(lives: lifetime.Lifetime) -> str:
    """Return how much time is left, in the largest unit of which there are two."""
    from tpukit.slices import lifetime

    if lives.seconds_left is None:
        return lives.unreadable
    if lives.over:
        return "time is up"
    return f"{lifetime.span(lives.seconds_left)} left"


def _disk(disk: DataDisk) -> str:
    return f"{disk.source} (read-only)" if disk.read_only else disk.source


def up(report: UpReport, bills: bool) -> View:
    """Show the smoke test of a slice that is up, a worker a row."""
    name, until = report.slice.name, f"until then it {'bills' if bills else 'stays'}"
    shell = Fix.command("tpukit", "ssh", name)
    delete = Fix.command("tpukit", "delete", name, note=until)
    shown = replace(smoke(report.smoke), next=(shell, delete))
    project = report.slice.network_project or report.slice.project
    shown = _with_exposing(shown, report.exposing, project)
    warnings = (*shown.warnings, *_unguarded(report.guard))
    return replace(shown, document=report.document(), warnings=warnings)


def _unguarded(guard: GuardReport | None) -> list[str]:
    """Return what the guard of a slice cannot do."""
    if guard and not guard.kept_by:
        return [f"the slice does not end by itself: {guard.summary}; tpukit reap ends it"]
    if guard and not guard.sees_all:
        return ["the guard sees only your own use of the devices"]
    return []


def smoke(report: SmokeReport, slower: Sequence[Change] = ()) -> View:
    """Show a smoke test, a worker a row or a figure a row; what is odd or low is warned of."""
    if report.measurements:
        return _measurements(report, slower)
    rows = [_smoke_row(worker, report.stand_in) for worker in report.workers]
    return View({"smoke": report.document()}, _SMOKE_COLUMNS, rows, warnings=report.notes)


def smoke_history(runs: Sequence[KeptRun], slower: Sequence[Change]) -> View:
    """Show the smoke tests that are kept of a name, a run a row, and what is slower than before."""
    rows: list[list[object]] = []
    for run in runs:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(run.time))
        figures = [run.summary(what) for what in ("matmul", "hbm", "all-reduce", "link")]
        shown = ["" if each is None else f"{each:.4g}" for each in figures]
        result = "passed" if run.ok else one_line(run.error or "failed")
        rows.append(
            [when, run.zone, run.accelerator_type, run.framework, run.level, *shown, result]
        )
    names = ("MATMUL TFLOP/s", "HBM GB/s", "ALL-REDUCE GB/s", "SLOWEST LINK GB/s")
    columns = ("WHEN", "ZONE", "TYPE", "WITH", "LEVEL", *names, "RESULT")
    documents = [run.model_dump(mode="json") for run in runs]
    return View(
        {"runs": documents, "slower": [each.document() for each in slower]},
        columns,
        rows,
        warnings=[_slower(each) for each in slower],
    )


def _slower(each: Change) -> str:
    share = f"{each.share:.2f} of its median before, {each.before:.4g}"
    return f"{each.place}: {each.what} {each.value:.4g} {each.unit}, {share}"


def _measurements(report: SmokeReport, slower: Sequence[Change]) -> View:
    stand_in = [f"{report.stand_in}: their figures have no peak"] if report.stand_in else []
    rows: list[list[object]] = []
    for each in report.measurements:
        peak = "" if each.peak is None else f"{each.peak:.4g}"
        share = "" if each.share is None else f"{each.share:.0%}"
        size = "" if each.size is None else f"{each.size >> 20} MiB a device"
        notes = [text for text in (each.verdict, size, each.note) if text]
        value = f"{each.value:.4g} {each.unit}"
        rows.append([each.what, each.place, value, peak, share, "; ".join(notes)])
    columns = ("FIGURE", "OF", "MEASURED", "PEAK", "SHARE", "NOTE")
    warnings = (*report.notes, *map(_slower, slower), *stand_in)
    return View({"smoke": report.document()}, columns, rows, warnings=warnings)


def provision(report: ProvisionReport) -> View:
    """Show what changed on each worker, a step a row; the document has every step."""
    rows: list[list[object]] = []
    for worker in report.workers:
        told = [step for step in worker.steps if step.outcome != "unchanged"]
        seconds = sum(step.seconds for step in worker.steps)
        same = [worker.worker, "", "unchanged", f"{seconds:.1f} s", worker.python]
        rows += [
            [worker.worker, step.name, step.outcome, f"{step.seconds:.1f} s", step.detail]
            for step in told
        ] or [same]
    columns = ("WORKER", "STEP", "OUTCOME", "TIME", "DETAIL")
    return View({"provision": report.document()}, columns, rows)


def rules(found: Sequence[FirewallRule]) -> View:
    rows = [
        [
            rule.name,
            rule.network,
            ",".join(rule.allowed) or f"denies {','.join(rule.denied)}",
            ",".join(rule.source_ranges),
            _targets(rule) or "(every worker)",
        ]
        for rule in found
    ]
    columns = ("NAME", "NETWORK", "ALLOWS", "FROM", "TAGS")
    return View({"rules": [rule.document() for rule in found]}, columns, rows)


def listed_rules(
    shown: Sequence[FirewallRule],
    left: Sequence[FirewallRule],
    exposing: Sequence[FirewallRule],
    project: str,
) -> View:
    """Show rules; warn of those whose slice is gone, and of those that let the world in."""
    names = [rule.name for rule in left]
    gone = [f"the slice of rule {name} is gone" for name in names]
    remove = [Fix.command("tpukit", "firewall", "remove", name) for name in names]
    return _with_exposing(
        replace(rules(shown), warnings=gone, next=remove), exposing, project, left_over=names
    )


def audit(exposing: Sequence[FirewallRule], project: str) -> View:
    """Show the rules that let the world in; there being any is a failure."""
    status = SecurityRefusal.exit_code if exposing else 0
    return _with_exposing(replace(rules(exposing), status=status), exposing, project)


def opened(openings: Sequence[Opening], project: str) -> View:
    """Show the rules that let us in, and warn of those that let everybody in."""
    exposing = {rule.name: rule for each in openings for rule in each.exposing}
    shown = rules([each.rule for each in openings])
    return _with_exposing(shown, tuple(exposing.values()), project)


def _with_exposing(
    shown: View, exposing: Sequence[FirewallRule], project: str, **more: Any
) -> View:
    """Add a warning and the command that closes it for each rule that lets the world in."""
    from tpukit.access.ssh_rule import close_command

    return replace(
        shown,
        document={**shown.document, **more, "open_to_world": [rule.name for rule in exposing]},
        warnings=(*shown.warnings, *map(_exposure, exposing)),
        next=(*shown.next, *(close_command(rule, project) for rule in exposing)),
    )


def _exposure(rule: FirewallRule) -> str:
    whom = f"the machines of {_targets(rule)}" if _targets(rule) else "every machine"
    return f"rule {rule.name} lets the whole world reach port 22 of {whom} on {rule.network}"


def _targets(rule: FirewallRule) -> str:
    return ",".join((*rule.target_tags, *rule.target_service_accounts))


def types(found: Sequence[AcceleratorType]) -> View:
    """Show accelerator types, one a row; the generation is in the document alone."""
    listed = [_type_document(each) for each in found]
    rows = [[each[key] for key in each if key not in ("generation", "zones")] for each in listed]
    columns = ("TYPE", "CHIPS", "CORES", "WORKERS", "DEVICES", "TOPOLOGY", "RUNTIME", "ZONES")
    zones = [_zones(each["zones"], short=len(listed) > 1) for each in listed]
    rows = [[*row, cell] for row, cell in zip(rows, zones, strict=True)]
    return View({"types": listed}, columns, rows)


def one_type(found: AcceleratorType) -> View:
    """Show all that is known of one accelerator type, a figure a row with its sources."""
    from tpukit.cli import hardware

    facts = hardware.of_type(found)
    documents = [{"fact": f.name, "value": f.value, "sources": list(f.sources)} for f in facts]
    document = {**_type_document(found), "hardware": documents}
    rows: list[list[object]] = [
        [fact.name, fact.value or "not published", "; ".join(fact.sources)] for fact in facts
    ]
    zones: list[object] = [
        "zones",
        " ".join(found.facts.zones),
        "documented or listed: tpukit types --live",
    ]
    rows = [["type", found.name, ""], *rows, zones]
    return View({"types": [document]}, ("FACT", "VALUE", "SOURCE"), rows)


def generations(found: Sequence[AcceleratorType]) -> View:
    """Show accelerator types, one generation a row."""
    rows: list[list[object]] = []
    for facts in dict.fromkeys(each.facts for each in found):
        sizes = " ".join(str(each.size) for each in found if each.facts == facts)
        rows.append([facts.name, facts.size_counts, facts.runtime_version, sizes])
    columns = ("GENERATION", "SIZES IN", "RUNTIME", "SIZES")
    return View({"types": [_type_document(each) for each in found]}, columns, rows)


def live_types(found: Offers, prefix: str) -> View:
    """Show the accelerator types that the API offers, one a row; no column is our table's alone."""
    from tpukit import accelerators

    exact = prefix in found.names
    known = {each.name: each for each in accelerators.all_types()}
    ours = {each for each in known if set(known[each].facts.zones) & found.by_zone.keys()}
    documents, rows = [], []
    for name in sorted(found.names | ours, key=_type_order):
        if name != prefix if exact else not name.startswith(prefix):
            continue
        zones = found.zones_of(name)
        table = [z for z in known[name].facts.zones if z in found.by_zone] if name in known else []
        facts = _type_document(known[name]) if name in known else {"name": name}
        documents.append({**facts, "zones": list(zones), "table_zones": table})
        cells = [facts.get(key, "") for key in ("name", "chips", "workers", "topology")]
        said = _compared(zones, table) if name in known else "not in it"
        rows.append([*cells, facts.get("runtime_version", ""), _zones(zones, not exact), said])
    columns = ("TYPE", "CHIPS", "WORKERS", "TOPOLOGY", "RUNTIME", "ZONES", "OUR TABLE")
    document = {"types": documents, "unreachable": sorted(found.silent)}
    return View(document, columns, rows, warnings=found.warnings)


def zones(shown: Mapping[str, frozenset[str]], found: Offers) -> View:
    """Show zones with what they offer, one a row."""
    from tpukit.cli.offers import table_types

    documents, rows = [], []
    for zone, names in shown.items():
        ours = _generations(table_types(zone))
        live = _generations(names)
        listed = sorted(names, key=_type_order)
        documents.append({"name": zone, "types": listed, "table_generations": ours})
        compared = _compared(_generations(found.by_zone[zone]), ours) if ours else "not in it"
        rows.append([zone, " ".join(live), compared])
    document = {"zones": documents, "unreachable": sorted(found.silent)}
    return View(document, ("ZONE", "OFFERS", "OUR TABLE"), rows, warnings=found.warnings)


def versions(zone: str, found: Sequence[str], generation: str) -> View:
    """Show the runtime versions of a zone, one a row; of a generation those that may fit it."""
    from tpukit import accelerators

    facts = [accelerators.types_of(each)[0].facts for each in accelerators.GENERATIONS]
    documents, rows = [], []
    for name in found:
        usual = [each.name for each in facts if each.runtime_version == name]
        unfit = [each.name for each in facts if name in each.unfit_runtime_versions]
        if generation in unfit:
            continue
        documents.append({"name": name, "usual_for": usual, "unfit_for": unfit})
        rows.append([name, " ".join(usual), " ".join(unfit)])
    columns = ("VERSION", "USUAL FOR", "NO CHIP ON")
    return View({"zone": zone, "versions": documents}, columns, rows)


def _generations(names: Iterable[str]) -> list[str]:
    """Return the generations of accelerator types, the oldest first."""
    return list(dict.fromkeys(each.rpartition("-")[0] for each in sorted(names, key=_type_order)))


def _type_order(name: str) -> tuple[int, str, int]:
    from tpukit.accelerators import GENERATIONS

    head, _, size = name.rpartition("-")
    place = GENERATIONS.index(head) if head in GENERATIONS else len(GENERATIONS)
    return place, head, int(size) if size.isdecimal() else 0


def _compared(live: Iterable[str], ours: Iterable[str]) -> str:
    """Return what our table has and the API has not, and the reverse: `+v4 -v2`, or `same`."""
    here, there = set(live), set(ours)
    more, fewer = sorted(there - here), sorted(here - there)
    return " ".join([*(f"+{each}" for each in more), *(f"-{each}" for each in fewer)]) or "same"


def _zones(zones: Sequence[str], short: bool) -> Cell:
    every = " ".join(zones)
    return Cell(every, f"{len(zones)} zones" if short else every)


def _slice_row(found: Slice, now: float, rates: Mapping[str, float]) -> list[object]:
    from tpukit.slices import lifetime

    cells = (found.name, found.zone, found.accelerator_type, found.state, found.health)
    from tpukit.slices import naming

    owner, created = naming.owner(found), found.created[:19]
    age = Cell(created, ago(created, now))
    lives = lifetime.lifetime(found, now, rates)
    seconds = "" if lives.seconds_left is None else f"{lives.seconds_left:.0f}"
    left = Cell(lives.unreadable or seconds, _left(lives))
    used = (_figure(lives.hours), left, _figure(lives.cost), lives.purpose)
    return [*cells, len(found.workers), found.provisioning, owner, age, *used]


def ago(created: str, now: float) -> str:
    """Return how long ago a time such as 2026-11-22T08:47:03 (UTC) was: `5 min ago`."""
    from tpukit.slices import lifetime

    try:
        seconds = now - lifetime.utc_seconds(created)
    except ValueError:
        return created
    return f"{lifetime.span(seconds)} ago" if seconds >= 120 else "just now"


def _type_document(each: AcceleratorType) -> dict[str, Any]:
    keys = ("chips", "cores", "workers", "devices", "topology", "runtime_version")
    own = {key: getattr(each, key) for key in keys}
    generation = each.facts
    return {
        "name": each.name,
        "generation": generation.name,
        **own,
        "zones": list(generation.zones),
    }


def _smoke_row(worker: WorkerSmokeReport, stand_in: str) -> list[object]:
    return [
        worker.worker,
        f"{worker.devices} of {worker.devices_expected} devices",
        worker.platform,
        f"{worker.framework} {worker.version}",
        f"{worker.global_devices} of {worker.global_devices_expected}",
        "passed" if worker.ok else worker.error,
        stand_in,
    ]


def results(found: Sequence[CommandOutcome], *, as_lines: bool) -> View:
    """Return how a command ended on each worker, with a warning for each on which it failed.

    The status is the highest; who was only stopped because of another's failure does not count.
    """
    from tpukit.remote.command.attached import CommandCancelled

    counted = [each for each in found if not isinstance(each.error, CommandCancelled)]
    failed = [each for each in found if not as_lines and not (each.value and each.value.ok)]
    return View(
        {"results": [_result(each) for each in found]},
        warnings=[line for each in failed for line in _failure(each, alone=len(found) == 1)],
        next=tuple(
            dict.fromkeys(each.error.fix for each in failed if each.error and each.error.fix)
        ),
        status=max(map(_status, counted), default=0),
    )


def ending(result: CommandOutcome) -> dict[str, Any]:
    """Return the document of how a command ended on a worker, without its output."""
    end = {"error": result.error.document()} if result.error else {"status": _status(result)}
    return {**place(result.item), **end}


def jobs(found: States, run: str, now: float) -> View:
    """Show the detached runs, or one on each worker; warn of each worker that did not say.

    `now` is in seconds since the epoch.
    """
    groups: dict[tuple[str, str], list[tuple[RemoteWorker, JobState]]] = {}
    for each in found:
        for state in each.value or ():
            groups.setdefault((state.run, each.item.slice), []).append((each.item, state))
    ordered = sorted(groups.items(), key=lambda each: (_begun(each[1]), each[0]))
    shown = [each for _, group in ordered for each in group]
    asked = Counter(each.item.slice for each in found)
    failed = [each for each in found if each.error]
    document = {
        "jobs": [{**place(worker), **state.document()} for worker, state in shown],
        "unreachable": [place(each.item) for each in failed],
    }
    return View(
        document,
        ("RUN", "SLICE", *(("WORKER",) if run else ()), "STATE", "STARTED", "COMMAND"),
        [[run, each[0].slice, each[0].index, *_job([each], 0, now)] for each in shown]
        if run
        else [[*place, *_job(group, asked[place[1]], now)] for place, group in ordered],
        warnings=[each.error.summary() for each in failed if each.error],
        status=worst(found),
    )


def _begun(group: Sequence[tuple[RemoteWorker, JobState]]) -> float:
    return min(state.started for _, state in group)


def started(name: str, run: str, workers: Sequence[RemoteWorker]) -> View:
    """Show the id of a detached run; what comes next is to follow it."""
    document = {"run": run, "workers": [place(each) for each in workers]}
    follow = Fix.command("tpukit", "logs", name, run, "-f")
    return View({"started": document}, rows=[[run]], next=(follow,))


def worst(found: Iterable[Outcome[Any, Any]]) -> int:
    """Return the highest exit status of the errors among these outcomes."""
    return max((each.error.exit_code for each in found if each.error), default=0)


def sent(found: Sequence[Outcome[Recipient, Any]]) -> View:
    """Show what each worker got; raise the error where there is one worker and it failed."""
    from tpukit.remote.command.fan_out import Outcome

    return _copied([Outcome(each.item.worker, each.value, each.error) for each in found])


def received(found: Sequence[Outcome[RemoteWorker, list[Path]]]) -> View:
    """Show the paths here that hold what was received; raise as `sent` does."""
    from tpukit.remote.command.fan_out import Outcome

    paths = [[str(path) for path in each.value or ()] for each in found]
    results = [
        Outcome(each.item, here, each.error) for each, here in zip(found, paths, strict=True)
    ]
    return replace(_copied(results), rows=[[path] for here in paths for path in here])


def _copied(found: Sequence[Outcome[RemoteWorker, Any]]) -> View:
    if len(found) == 1 and found[0].error:
        raise found[0].error
    documents = [
        {
            "worker": each.item.index,
            **({"error": each.error.document()} if each.error else {"result": each.value}),
        }
        for each in found
    ]
    failed = [f"{each.item.label}: {each.error.summary()}" for each in found if each.error]
    return View({"copied": documents}, warnings=failed, status=worst(found))


def hosts(path: Path, found: Sequence[Host], install: Fix | None) -> View:
    """Show the hosts of an OpenSSH configuration, and how to include it where it is not."""
    keys = ("worker", "address", "port")
    documents = [
        {"names": list(each.names), **{key: getattr(each.target, key) for key in keys}}
        for each in found
    ]
    rows = [
        [each.names[-1], each.names[0], each.target.address, each.target.port] for each in found
    ]
    document = {"path": str(path), "included": not install, "hosts": documents}
    columns = ("HOST", "ALSO", "ADDRESS", "PORT")
    return View({"ssh_config": document}, columns, rows, next=(install,) if install else ())


def ended(name: str, found: Sequence[Outcome[RemoteWorker, EndReport]]) -> View:
    """Show what was ended on each worker; warn where that failed, or others hold a device."""
    done = [(each.item, each.value) for each in found if each.value]
    failed = [(each.item, each.error) for each in found if each.error]
    spared = [
        f"{each} holds a TPU device of {worker.label}"
        for worker, report in done
        for each in report.spared
    ]
    document = {
        "ended": [{**place(worker), **report.document()} for worker, report in done],
        "failed": [{**place(worker), "error": error.document()} for worker, error in failed],
    }
    return View(
        document,
        ("SLICE", "WORKER", "ENDED", "HOLDERS ENDED", "BY KILL", "SPARED", "LOCK"),
        [_ended_row(worker, report) for worker, report in done],
        next=[Fix.command("tpukit", "kill", name, "--all-holders")] if spared else [],
        warnings=[*spared, *(error.summary() for _, error in failed)],
        status=worst(found),
    )


def _job(group: Sequence[tuple[RemoteWorker, JobState]], workers: int, now: float) -> list[object]:
    """Return the cells for a run on so many workers: `3/4 exited 0, 1/4 lost`; on one: `lost`."""
    words = Counter(
        f"exited {job.status}" if job.state == "finished" else job.state for _, job in group
    )
    state = ", ".join(f"{n}/{workers} {word}" if workers else word for word, n in words.items())
    started = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(_begun(group)))
    return [state, Cell(started, ago(started, now)), one_line(group[0][1].command)[:200]]


def environments(found: States) -> View:
    """Show what a run was started with on each worker; its secrets are masked already."""
    known = [(each.item, state) for each in found for state in each.value or ()]
    documents = [
        {**place(worker), "command": state.command, "environment": dict(state.environment)}
        for worker, state in known
    ]
    rows = [
        [worker.slice, worker.index, name, value]
        for worker, state in known
        for name, value in [*state.environment.items(), ("COMMAND", state.command)]
    ]
    return View({"environments": documents}, ("SLICE", "WORKER", "NAME", "VALUE"), rows)


def pruned(found: Sequence[Outcome[RemoteWorker, list[Removal]]]) -> View:
    """Show what was removed of ended runs, and how many bytes that freed on each worker."""
    every = [(each.item, one) for each in found for one in each.value or ()]
    gone = [(worker, one) for worker, one in every if one.bytes is not None]
    return View(
        {"pruned": [{**place(worker), **one.document()} for worker, one in gone]},
        ("RUN", "SLICE", "WORKER", "STATE", "BYTES"),
        [[one.run, worker.slice, worker.index, one.state, one.bytes] for worker, one in gone],
        warnings=[each.error.summary() for each in found if each.error],
        status=worst(found),
    )


def _ended_row(worker: RemoteWorker, report: EndReport) -> list[object]:
    counts = (report.ended, report.holders_ended, report.forced, len(report.spared))
    return [worker.slice, worker.index, *counts, "removed" if report.lock_removed else ""]


def _failure(result: CommandOutcome, alone: bool) -> list[str]:
    """Name a worker on which a command failed, with the end of what it wrote."""
    if result.error:
        return [result.error.summary()]
    if alone or not result.value:
        return []
    label, done = result.item.label, result.value
    written = sanitize(done.stderr.strip() or done.stdout.strip()).splitlines()[-_LAST_LINES:]
    return [f"{label} exited with status {done.status}", *(f"{label}: {line}" for line in written)]


def _status(result: CommandOutcome) -> int:
    if result.error:
        return result.error.exit_code
    assert result.value is not None
    return result.value.status


def _result(result: CommandOutcome) -> dict[str, Any]:
    names = ("stdout", "stderr") if result.value else ()
    streams = {name: getattr(result.value, name).decode("utf-8", "replace") for name in names}
    return {**ending(result), **streams}
