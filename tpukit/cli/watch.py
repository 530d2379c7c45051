"""`tpukit watch`: a command that outlives its slice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from tpukit.cli import parameters as flag
from tpukit.cli.requirement_flags import RequirementFlags
from tpukit.cli.run import VariableFlags
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import watch_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix, NameTaken, NotFound, interruption
from tpukit.provision import recipe_names
from tpukit.slices import naming

if TYPE_CHECKING:
    from tpukit.models import Slice, SliceRequest
    from tpukit.recovery.watch_file import Watch, WatchFile, WatchSpec

Name = Annotated[str, Argument(metavar="[NAME]", help="Name of the slice.")]


@dataclass(frozen=True)
class WatchFlags:
    """How the slice is made again, and what is put onto it."""

    push: Annotated[
        str, Option(metavar="DIRECTORY", help="Push this folder before each beginning.")
    ] = ""
    to: Annotated[
        str, Option(metavar="PATH", help="Folder on the workers; default: its own name.")
    ] = ""
    zones: Annotated[
        str, Option(metavar="ZONE,…", help="Where else it may be made, where there is no room.")
    ] = ""
    recoveries: Annotated[
        int, Option(metavar="N", help="How often it is recovered, at most.", min=0)
    ] = 100
    max_wait: Annotated[
        str, Option(metavar="DURATION", help="How long to try for capacity, each time.")
    ] = "6h"
    run_id: Annotated[
        str, Option(metavar="RUN", help="Name of the run; one that runs already is watched.")
    ] = ""
    delete_when_done: Annotated[
        bool, Option("--delete-when-done", help="Delete the slice after an end with status 0.")
    ] = False
    on_demand: Annotated[
        bool, Option("--on-demand", help="Buy the next slices on demand; default: as this one.")
    ] = False


@dataclass(frozen=True)
class AttendanceFlags:
    """Who is at the watch."""

    detach: Annotated[
        bool,
        Option(
            "--detach", "-d", help="Watch in a background process; return once the command runs."
        ),
    ] = False
    list_: Annotated[bool, Option("--list", help="List the watches of this machine.")] = False
    stop: Annotated[bool, Option("--stop", help="End the watch; the slice and the run go on.")] = (
        False
    )


def watch(
    toolkit: Toolkit,
    how: WatchFlags,
    environment: VariableFlags,
    on_top: RequirementFlags,
    attendance: AttendanceFlags,
    route: flag.RouteFlags,
    name: Name = "",
    command: flag.Command = None,
    source_ranges: flag.SourceRanges = None,
    no_firewall: flag.NoFirewall = False,
) -> View:
    """Keep a command running on a slice that may be lost.

    The command runs detached on every worker. Where the slice is preempted, terminated, suspended
    or gone, it is deleted and made again, provisioned, pushed to, and the command begun again under
    the same run id: it has to go on from its own checkpoint, which belongs in a bucket. An API that
    is silent is no loss. A watch that was killed is taken up by its name alone.

    Examples:
      tpukit watch demo --with jax --push . -- python3 train.py --checkpoint-dir gs://bucket/run
      tpukit watch demo --zones us-central1-b,us-east1-d --detach -- ./train.sh
      tpukit watch demo --stop
    """
    from tpukit.cli import watching

    toolkit = toolkit.by(route)
    if attendance.list_:
        return _list(toolkit, name)
    if not name:
        raise BadInput("which slice to watch is not said", fix=Fix.command("tpukit", "list"))
    naming.check_name(name)
    if attendance.stop:
        return _stop(toolkit, name)
    file = _file(toolkit, name, anew=bool(command))
    line = flag.remote_command(command)
    with file.held(), _telling_what_exists(file):
        found = _watch(toolkit, file, name, line, how, environment, on_top)
        spec = found.spec
        ranges = tuple(source_ranges or ()) or spec.source_ranges
        firewall = spec.firewall and not no_firewall
        found = replace(found, spec=replace(spec, firewall=firewall, source_ranges=ranges))
        file.save(found)
        _tell_checkpoints(toolkit, found)
        if not attendance.detach:
            return _attend(toolkit, file, found)
    pid = watching.spawn(toolkit, file, found, route.words)
    toolkit.console.say(f"{name}: watched by process {pid}, which writes to {file.log}")
    after = Fix.command("tpukit", "watch", name, "--stop", note="ends the watch")
    document = {"watch": found.document(), "process": pid, "log": str(file.log)}
    return View(document, rows=[[found.spec.run_id]], next=(after,))


def _file(toolkit: Toolkit, name: str, *, anew: bool) -> WatchFile:
    """Return the file of the watch to take up, or for a new one of the slice of that name."""
    from tpukit.cli import watching

    there = _named(toolkit, name)
    if there and (there[1].open or not anew):
        return there[0]
    zone = toolkit.find(name).zone if anew else toolkit.flags.zone
    return watching.files(toolkit).of(zone, name)


def _named(toolkit: Toolkit, name: str) -> tuple[WatchFile, Watch] | None:
    """Return the watch of the slice of that name, in --zone if that is given, and its file.

    Raises `BadInput` if the slices of several zones are watched.
    """
    from tpukit.cli import watching

    there = watching.files(toolkit).named(name, toolkit.flags.zone)
    there = [each for each in there if each[1].open] or there[-1:]
    if len(there) > 1:
        zones = ", ".join(watch.zone for _, watch in there)
        fix = Fix(note=f"add --zone {there[0][1].zone}")
        raise BadInput(f"slices {name} of several zones are watched: {zones}", fix=fix)
    return there[0] if there else None


def _taken(before: Watch) -> NameTaken:
    name = before.name
    return NameTaken(
        f"slice {name} is to be watched with another command",
        reason=before.spec.command[:60],
        fix=Fix.command("tpukit", "watch", name, note="takes that watch up"),
        otherwise=Fix.command("tpukit", "watch", name, "--stop", note="ends it"),
    )


def _over(before: Watch) -> BadInput:
    """Return the error for a watch that is over: its command is not run again unasked."""
    name, last = before.name, before.history[-1]
    again = ("tpukit", "watch", name, "--zone", before.zone, "--", before.spec.command)
    return BadInput(
        f"the watch of slice {name} has ended",
        reason=f"{last.event}: {last.detail}" if last.detail else last.event,
        fix=Fix.command(*again, note="runs the command once more, if the slice is there"),
    )


@contextmanager
def _telling_what_exists(file: WatchFile) -> Iterator[None]:
    """Give an interrupt before the watch itself begins what is known to exist."""
    try:
        yield
    except KeyboardInterrupt as signal:
        error, known = interruption(signal), file.load()
        if known:
            name, zone = known.name, known.zone
            error.exists = (f"slice {name} in {zone}, {known.state} when it was watched last",)
            error.fix = Fix.command("tpukit", "watch", name, note="takes the watch up again")
            error.otherwise = Fix.command("tpukit", "delete", name, "--zone", zone)
        raise error from None


def check_places(request: SliceRequest, zones: Sequence[str]) -> None:
    """Raise `BadInput` if the slice cannot be made in one of the zones."""
    if zones and request.data_disks:
        raise BadInput(
            "a slice with data disks is made again in its own zone alone",
            why="a disk is in one zone",
            fix=Fix(note="leave out --zones"),
        )


def keep_slice(toolkit: Toolkit, spec: WatchSpec) -> View:
    """Make a slice and keep it, in the foreground, without a command; Ctrl-C ends it."""
    from tpukit.cli import watching
    from tpukit.recovery.watch_file import RECOVERING, Watch

    name = spec.request.name
    file = watching.files(toolkit).of(spec.request.zone, name)
    before = file.load()
    if before and before.open and before.spec.command:
        raise _taken(before)
    with file.held():
        # Whatever is there of that name is found when it is made.
        kept = Watch(spec, state=RECOVERING, zone=spec.request.zone)
        file.save(kept)
        toolkit.console.say(f"{name}: kept until Ctrl-C")
        return _attend(toolkit, file, kept)


def _attend(toolkit: Toolkit, file: WatchFile, found: Watch) -> View:
    from tpukit.cli import watching

    status, ended = watching.attend(toolkit, file, found)
    if status or not found.spec.delete_when_done:
        delete = ("tpukit", "delete", ended.name, "--zone", ended.zone)
        toolkit.console.suggest(Fix.command(*delete, note=f"the slice {toolkit.costs} until then"))
    return View({"watch": ended.document()}, status=status)


def _watch(
    toolkit: Toolkit,
    file: WatchFile,
    name: str,
    line: str,
    how: WatchFlags,
    environment: VariableFlags,
    on_top: RequirementFlags,
) -> Watch:
    """Return the watch that is taken up, or a new one.

    Raises:
        NameTaken: a watch of another command is to be taken up.
        BadInput: the watch has ended, or there is neither a watch nor a command.
        TpukitError: there is no such slice, or it is not ours.
    """
    from tpukit.recovery.watch_file import ENDED

    before = file.load()
    if before and before.open and line not in ("", before.spec.command):
        raise _taken(before)
    if before and (before.open or not line):
        if before.state == ENDED:
            raise _over(before)
        spec = _spec(before.spec, line, how, environment, on_top) if line else before.spec
        toolkit.console.say(f"{name}: taken up, after {before.recoveries} recoveries")
        return replace(before, spec=spec, stopped=False)
    if not line:
        fix = Fix.command("tpukit", "watch", name, "--", "hostname", note="for example")
        raise BadInput("there is no command to watch", fix=fix)
    return _new(toolkit, name, line, how, environment, on_top)


def _new(
    toolkit: Toolkit,
    name: str,
    line: str,
    how: WatchFlags,
    environment: VariableFlags,
    on_top: RequirementFlags,
) -> Watch:
    from tpukit.recovery.watch_file import Event, Watch, WatchSpec, request_of
    from tpukit.remote.worker_files import new_run_id
    from tpukit.slices.ensure import check_same

    toolkit.hints.forget(name)
    found = toolkit.find(name)
    request = request_of(found)
    check_same(found, naming.labelled(request, toolkit.owner, ""))
    bought = "on-demand" if how.on_demand else _bought(toolkit, found, line)
    spec = WatchSpec(
        replace(request, provisioning=bought),
        run_id=how.run_id or new_run_id(toolkit.clock),
        queued_resource=found.queued_resource,
    )
    spec = _spec(spec, line, how, environment, on_top)
    if not spec.recipe and found.ready:
        spec = replace(spec, recipe=_provisioned(toolkit, found))
    now = round(toolkit.clock.time(), 3)
    began = Event("watched", f"{found.state} in {found.zone}", now)
    toolkit.console.say(f"run {spec.run_id}")
    return Watch(spec, zone=found.zone, id=found.id, history=(began,))


def _bought(toolkit: Toolkit, found: Slice, line: str) -> str:
    """Return how the slice was bought; raise `BadInput` if a create cannot buy another one so."""
    from tpukit.slices.find import REMADE

    bought = found.provisioning
    if found.queued_resource:
        with suppress(NotFound):
            bought = toolkit.provider.get_queued(found.zone, found.queued_resource).provisioning
    if bought not in REMADE:
        again = ("tpukit", "watch", found.name, "--on-demand", "--", line)
        raise BadInput(
            f"slice {found.name} was bought as {bought}, and a lost slice cannot be made again so",
            fix=Fix.command(*again, note="makes it again on demand, at another price"),
        )
    return bought


def _spec(
    spec: WatchSpec,
    line: str,
    how: WatchFlags,
    environment: VariableFlags,
    on_top: RequirementFlags,
) -> WatchSpec:
    """Return a spec with what was asked for now; raise `BadInput` for what makes no sense."""
    from tpukit.work.pushes import target_path
    from tpukit.work.worktree import source_folder

    zones = flag.zone_names(how.zones)
    check_places(spec.request, zones)
    root = source_folder(how.push) if how.push else None
    if how.to and not root:
        raise BadInput("--to is where --push puts a folder", fix=Fix(note="add --push ."))
    named = environment.env_file
    return replace(
        spec,
        run_id=how.run_id or spec.run_id,
        command=line,
        zones=zones,
        recipe=environment.with_ or spec.recipe,
        activate=environment.with_,
        requirements=on_top.file,
        indexes=tuple(on_top.index or ()),
        editable=on_top.editable,
        push=str(root) if root else "",
        push_to=target_path(how.to or root.name) if root else "",
        workdir=environment.workdir,
        variables=tuple(environment.env or ()),
        variable_file=str(Path(named).absolute()) if named else "",
        recoveries=how.recoveries,
        max_wait=flag.seconds(how.max_wait, "--max-wait"),
        delete_when_done=how.delete_when_done,
    )


def _provisioned(toolkit: Toolkit, found: Slice) -> str:
    """Return the recipe that worker 0 was provisioned with, to be the one of later slices too."""
    from tpukit.work.environments import environments

    (worker,) = toolkit.workers(found, "0", flag.seconds("5m"))
    there = [each for each in environments(worker, toolkit.clock) if each in recipe_names()]
    if there:
        toolkit.console.say(f"{found.name}: provisioned with {there[0]}, as later slices will be")
    return there[0] if there else ""


def _tell_checkpoints(toolkit: Toolkit, found: Watch) -> None:
    from tpukit.recovery import checkpoints

    if found.spec.command and (
        line := checkpoints.warning(found.spec.command, found.spec.variables)
    ):
        toolkit.console.warn(line)


def _list(toolkit: Toolkit, name: str) -> View:
    from tpukit.cli import watching

    every = [
        (watch, file.process())
        for file, watch in watching.files(toolkit).all()
        if not name or watch.name == name
    ]
    if name and not every:
        raise NotFound(f"there is no watch of slice {name}")
    return watch_views.watches(every, with_history=bool(name))


def _stop(toolkit: Toolkit, name: str) -> View:
    from tpukit.cli import watching

    there = _named(toolkit, name)
    if there is None:
        fix = Fix.command("tpukit", "watch", "--list", note="shows the watches there are")
        raise NotFound(f"there is no watch of slice {name}", fix=fix)
    file, found = there
    was_open = watching.stop(toolkit, file)
    if was_open:
        toolkit.console.say(f"{name}: watched no longer; what runs there goes on")
    after = Fix.command("tpukit", "delete", name, "--zone", found.zone)
    return View({"stopped": was_open, "name": name}, rows=[[name]], next=(after,))
