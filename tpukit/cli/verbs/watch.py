"""`tpukit watch`: keep a command running even if its slice is lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from tpukit.cli import parameters as flag
from tpukit.cli.python_commands import is_python, say_environment
from tpukit.cli.requirement_flags import RequirementFlags
from tpukit.cli.search_flags import MAX_WAIT
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.run import VariableFlags
from tpukit.cli.views import watch_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix, NotFound, interruption
from tpukit.provision import recipe_names
from tpukit.slices import naming
from tpukit.watch import RECOVERIES

if TYPE_CHECKING:
    from tpukit.cli.toolkit.cloud import Cloud
    from tpukit.models import Slice, SliceRequest
    from tpukit.watch.saved_watches import Watch, WatchFile, WatchSpec

Name = Annotated[str, Argument(metavar="[NAME]", help="Name of the slice.")]


@dataclass(frozen=True)
class WatchFlags:
    """How a lost slice is made again, and how the command starts there."""

    push: Annotated[
        str, Option(metavar="DIRECTORY", help="Push this folder before each start.")
    ] = ""
    to: Annotated[
        str, Option(metavar="PATH", help="Folder on the workers; default: its own name.")
    ] = ""
    zones: Annotated[
        str, Option(metavar="ZONE,…", help="Further zones to try if there is no capacity.")
    ] = ""
    recoveries: Annotated[
        int, Option(metavar="N", help="Most times to make the slice again.", min=0)
    ] = RECOVERIES
    max_wait: Annotated[
        str, Option(metavar="DURATION", help="How long to try for capacity, each time.")
    ] = MAX_WAIT
    run_id: Annotated[
        str, Option(metavar="RUN", help="Name of the run; it may already run on the slice.")
    ] = ""
    clean: Annotated[
        bool,
        Option(
            "--clean", help="Start it only if no process holds a device and no chip is missing."
        ),
    ] = False
    delete_when_done: Annotated[
        bool, Option("--delete-when-done", help="Delete the slice if the command exits with 0.")
    ] = False
    ray: Annotated[
        str,
        Option(
            metavar="NAME,…",
            help="Slices of its Ray cluster, that of the head first: it joins them again.",
        ),
    ] = ""
    on_demand: Annotated[
        bool,
        Option("--on-demand", help="Buy later slices on demand; default: like the first slice."),
    ] = False


@dataclass(frozen=True)
class AttendanceFlags:
    """Start a watch in the background, list watches, or stop one."""

    detach: Annotated[
        bool,
        Option(
            "--detach", "-d", help="Watch in a background process; return when the command runs."
        ),
    ] = False
    list_: Annotated[bool, Option("--list", help="List the watches of this machine.")] = False
    stop: Annotated[
        bool, Option("--stop", help="End the watch; the slice and the command go on.")
    ] = False


@dataclass(frozen=True)
class _Wanted:
    """The command to watch, with its flags."""

    line: str
    how: WatchFlags
    environment: VariableFlags
    on_top: RequirementFlags

    @property
    def given(self) -> bool:
        return bool(self.line or self.how.ray)

    def applied_to(self, spec: WatchSpec) -> WatchSpec:
        """Return the spec with the values of these flags; raise `BadInput` if they contradict."""
        from tpukit.files.pushes import target_path
        from tpukit.files.worktree import source_folder
        from tpukit.jobs.ray_cluster import RECIPE

        how, environment, on_top = self.how, self.environment, self.on_top
        zones = flag.zone_names(how.zones)
        check_places(spec.request, zones)
        root = source_folder(how.push) if how.push else None
        ray = flag.words(how.ray)
        if ray and spec.request.name not in ray:
            raise BadInput(f"--ray must also name {spec.request.name}", reason=how.ray)
        if ray and environment.with_ not in ("", RECIPE):
            raise BadInput(f"--ray needs the recipe {RECIPE}", fix=Fix(note="leave out --with"))
        recipe = RECIPE if ray else environment.with_
        if how.to and not root:
            raise BadInput("--to needs --push", fix=Fix(note="add --push ."))
        named = environment.env_file
        return replace(
            spec,
            run_id=how.run_id or spec.run_id,
            command=self.line,
            zones=zones,
            recipe=recipe or spec.recipe,
            activate=recipe or spec.activate,
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
            clean=how.clean,
            ray=ray,
        )


@flag.connecting
def watch(
    toolkit: Toolkit,
    how: WatchFlags,
    environment: VariableFlags,
    on_top: RequirementFlags,
    chosen: AttendanceFlags,
    name: Name = "",
    command: flag.Command = None,
    source_ranges: flag.SourceRanges = None,
    no_firewall: flag.NoFirewall = False,
) -> View:
    """Keep a command running on a slice that may be lost.

    The command runs detached on every worker. If the slice is preempted, terminated, suspended or
    deleted, tpukit makes it again, provisions it, pushes the folder, and starts the command under
    the same run id. The command must continue from its own checkpoint, which belongs in a bucket.
    If the API does not answer, tpukit waits. To resume a watch that was killed, give only the name.

    Examples:
      tpukit watch demo --with jax --push . -- python3 train.py --checkpoint-dir gs://bucket/run
      tpukit watch demo --zones us-central1-b,us-east1-d --detach -- ./train.sh
      tpukit watch demo --ray demo,other --detach
      tpukit watch demo --stop
    """
    from tpukit.cli import attendance
    from tpukit.watch import background, checkpoints

    if chosen.list_:
        return _list(toolkit, name)
    if not name:
        raise BadInput("no slice to watch was given", fix=Fix.command("tpukit", "watch", "--help"))
    naming.check_name(name)
    if chosen.stop:
        return _stop(toolkit, name)
    file = _file(toolkit, name, anew=bool(command or how.ray))
    wanted = _Wanted(flag.remote_command(command), how, environment, on_top)
    with file.held(), _telling_what_exists(file):
        watch_ = _watch(toolkit, file, name, wanted)
        spec = watch_.spec
        ranges = tuple(source_ranges or ()) or spec.source_ranges
        firewall = spec.firewall and not no_firewall
        watch_ = replace(watch_, spec=replace(spec, firewall=firewall, source_ranges=ranges))
        file.save(watch_)
        if spec.command and (line := checkpoints.warning(spec.command, spec.variables)):
            toolkit.console.warn(line)
        if not chosen.detach:
            return attendance.attend(toolkit, file, watch_)
    words = ["--project", toolkit.settings.require("project"), "--zone", watch_.zone]
    words += ["--local"] if toolkit.flags.local else []
    words += ["--profile", toolkit.flags.profile] if toolkit.flags.profile else []
    command = [sys.executable, "-P", "-m", "tpukit", *words, "watch", name, *toolkit.route.words]
    pid = background.start(file, watch_, command, toolkit.clock, toolkit.console.say)
    toolkit.console.say(f"{name}: watched by process {pid}, which writes to {file.log}")
    after = Fix.command("tpukit", "watch", name, "--stop", note="ends the watch")
    document = {"watch": watch_.document(), "process": pid, "log": str(file.log)}
    return View(document, rows=[[watch_.spec.run_id]], next=(after,))


def _file(toolkit: Toolkit, name: str, *, anew: bool) -> WatchFile:
    """Return the file of the watch to resume, or the file for a new watch of that slice."""
    from tpukit.cli import attendance

    files = attendance.files(toolkit)
    there = files.one(name, toolkit.flags.zone)
    if there and (there[1].open or not anew):
        return there[0]
    return files.of(toolkit.slices.find(name).zone if anew else toolkit.flags.zone, name)


@contextmanager
def _telling_what_exists(file: WatchFile) -> Iterator[None]:
    """Report the known slice if an interrupt comes before the watch begins."""
    try:
        yield
    except KeyboardInterrupt as signal:
        error, known = interruption(signal), file.load()
        if known:
            name, zone = known.name, known.zone
            error.exists = (f"slice {name} in {zone}, last watched as {known.state}",)
            error.fix = Fix.command("tpukit", "watch", name, note="resumes the watch")
            error.otherwise = Fix.command("tpukit", "delete", name, "--zone", zone)
        raise error from None


def check_places(request: SliceRequest, zones: Sequence[str]) -> None:
    """Raise `BadInput` if the slice cannot be made in one of the zones."""
    if zones and request.data_disks:
        raise BadInput(
            "a slice with data disks can be made again only in its own zone",
            why="a disk belongs to one zone",
            fix=Fix(note="leave out --zones"),
        )


def keep_slice(toolkit: Toolkit, spec: WatchSpec) -> View:
    """Create a slice, and create it again if it is lost, until Ctrl-C."""
    from tpukit.cli import attendance
    from tpukit.watch.saved_watches import RECOVERING, Watch, taken

    name = spec.request.name
    file = attendance.files(toolkit).of(spec.request.zone, name)
    before = file.load()
    if before and before.open and before.spec.command:
        raise taken(before)
    with file.held():
        # The recovery finds an existing slice of that name.
        kept = Watch(spec, state=RECOVERING, zone=spec.request.zone)
        file.save(kept)
        toolkit.console.say(f"{name}: watched until Ctrl-C")
        return attendance.attend(toolkit, file, kept)


def _watch(toolkit: Toolkit, file: WatchFile, name: str, wanted: _Wanted) -> Watch:
    """Return the watch to resume, or a new one.

    Raises the errors of `is_resumed`, `TpukitError` if the slice does not exist or is not ours, and
    `BadInput` if there is neither a watch nor a command.
    """
    from tpukit.watch.saved_watches import is_resumed

    before = file.load()
    if before and is_resumed(before, wanted.line, given=wanted.given):
        same = replace(wanted, line=wanted.line or before.spec.command)
        spec = same.applied_to(before.spec) if wanted.given else before.spec
        toolkit.console.say(f"{name}: resumed after {before.recoveries} recoveries")
        return replace(before, spec=spec, stopped=False)
    if not wanted.given:
        toolkit.slices.find(name)
        fix = Fix.command("tpukit", "watch", name, "--", "hostname", note="for example")
        raise BadInput("there is no command to watch", fix=fix)
    return _new(toolkit, name, wanted)


def _new(toolkit: Toolkit, name: str, wanted: _Wanted) -> Watch:
    from tpukit.slices.ensure import check_same
    from tpukit.ssh.worker_files import new_run_id
    from tpukit.watch.saved_watches import Event, Watch, WatchSpec, request_of

    toolkit.slices.hints.forget(name)
    slice_ = toolkit.slices.find(name)
    request = request_of(slice_)
    check_same(slice_, naming.labelled(request, toolkit.cloud.owner, ""))
    bought = "on-demand"
    if not wanted.how.on_demand:
        bought = _bought(toolkit.cloud, slice_, wanted.line)
    spec = WatchSpec(
        replace(request, provisioning=bought),
        run_id=new_run_id(toolkit.clock),
        queued_resource=slice_.queued_resource,
    )
    spec = wanted.applied_to(spec)
    if not spec.recipe and slice_.ready:
        spec = replace(spec, recipe=_provisioned(toolkit, slice_))
        if spec.recipe and is_python(wanted.line):
            say_environment(toolkit.console, spec.recipe)
            spec = replace(spec, activate=spec.recipe)
    now = round(toolkit.clock.time(), 3)
    began = Event("watched", f"{slice_.state} in {slice_.zone}", now)
    if wanted.line:
        toolkit.console.say(f"run {spec.run_id}")
    return Watch(spec, zone=slice_.zone, id=slice_.id, history=(began,))


def _bought(cloud: Cloud, slice_: Slice, line: str) -> str:
    """Return how the slice was bought; raise `BadInput` if a create cannot buy that way again."""
    from tpukit.slices.losses import REMADE

    bought = slice_.provisioning
    if slice_.queued_resource:
        with suppress(NotFound):
            bought = cloud.provider.get_queued(slice_.zone, slice_.queued_resource).provisioning
    if bought not in REMADE:
        again = ("tpukit", "watch", slice_.name, "--on-demand", "--", line)
        raise BadInput(
            f"slice {slice_.name} was bought as {bought}, which tpukit cannot do again",
            fix=Fix.command(*again, note="buys later slices on demand, at another price"),
        )
    return bought


def _provisioned(toolkit: Toolkit, slice_: Slice) -> str:
    """Return the recipe that worker 0 was provisioned with, for later slices; "" if none."""
    from tpukit.jobs.python_environments import environments

    (worker,) = toolkit.reach.workers(slice_, "0", flag.seconds("5m"))
    there = [
        environment
        for environment in environments(worker, toolkit.clock)
        if environment in recipe_names()
    ]
    if there:
        toolkit.console.say(f"{slice_.name}: provisioned with {there[0]}, as later slices will be")
    return there[0] if there else ""


def _list(toolkit: Toolkit, name: str) -> View:
    from tpukit.cli import attendance

    every = [
        (watch, file.process())
        for file, watch in attendance.files(toolkit).all()
        if not name or watch.name == name
    ]
    if name and not every:
        raise NotFound(f"there is no watch of slice {name}")
    return watch_views.watches(every, with_history=bool(name))


def _stop(toolkit: Toolkit, name: str) -> View:
    from tpukit.cli import attendance
    from tpukit.watch import background

    there = attendance.files(toolkit).one(name, toolkit.flags.zone)
    if there is None:
        fix = Fix.command("tpukit", "watch", "--list", note="shows the watches")
        raise NotFound(f"there is no watch of slice {name}", fix=fix)
    file, watch_ = there
    was_open = background.stop(file, toolkit.clock)
    if was_open:
        toolkit.console.say(f"{name}: no longer watched; its programs keep running")
    after = Fix.command("tpukit", "delete", name, "--zone", watch_.zone)
    return View({"stopped": was_open, "name": name}, rows=[[name]], next=(after,))
