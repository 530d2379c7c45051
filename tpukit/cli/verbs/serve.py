"""`tpukit serve`: run a recipe's service on a slice, and reach it on this machine."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from tpukit.cli import parameters as flag
from tpukit.cli.interrupted_runs import nothing_started
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.run import VariableFlags, given_variables
from tpukit.cli.views import job_views
from tpukit.console import View
from tpukit.errors import (
    BadInput,
    Fix,
    Interrupted,
    NameTaken,
    NotFound,
    SliceLost,
    TpukitError,
    interruption,
)
from tpukit.text import quote

if TYPE_CHECKING:
    from tpukit.jobs.detached_job import LogPart
    from tpukit.jobs.job_list import JobState
    from tpukit.jobs.services import ServiceRun
    from tpukit.ssh.forwarding import Forward
    from tpukit.ssh.worker import RemoteWorker

#: The most seconds for connecting.
_CONNECT_SECONDS = 60.0
#: The lines of the log that a second `serve` shows.
_TAIL = 10

Words = Annotated[
    list[str] | None,
    Argument(metavar="[-- MODEL…]", help="The model, and flags of the service."),
]


@dataclass(frozen=True)
class ServeFlags:
    """The end of the service, and its port on this machine."""

    stop: Annotated[bool, Option("--stop", help="End the service.")] = False
    port: Annotated[
        int | None,
        Option(
            metavar="PORT",
            help="Port here, 0 for a free one; default: the recipe's.",
            min=0,
            max=65535,
        ),
    ] = None


@flag.connecting
def serve(
    toolkit: Toolkit,
    name: flag.OnlyName = flag.LEFT_OUT,
    *,
    how: ServeFlags,
    environment: VariableFlags,
    command: Words = None,
    timeout: flag.Timeout = "30m",
) -> View:
    """Serve a model on a slice, and reach it on this machine.

    It starts the recipe's service as a detached run, waits until the service answers, forwards its
    port to this machine's loopback, and shows its log and its throughput. The service listens only
    on the worker's loopback. Ctrl-C ends the forward, not the service: `tpukit serve NAME` reaches
    it again, and --stop ends it. The slice must have one worker. The emulator runs a CPU stand-in
    with the same interface, and says so.

    Examples:
      tpukit serve demo --with vllm -- Qwen/Qwen3-0.6B
      tpukit serve demo --with vllm --env HF_TOKEN -- google/gemma-3-4b-it --max-model-len 4096
      tpukit serve demo
      tpukit serve demo --stop
    """
    from tpukit.jobs.detached_job import LogPart
    from tpukit.jobs.services import RUN, ServiceRun

    patience = flag.seconds(timeout)
    wanted = _Wanted.parse(toolkit, environment, [*command] if command else [])
    if how.stop and wanted:
        raise BadInput("--stop takes no recipe and no model", fix=Fix(note="leave them out"))
    with nothing_started():
        worker = toolkit.reach.worker(name, 0, min(patience, _CONNECT_SECONDS))
        if worker.workers > 1:
            raise _several(worker)
        service = ServiceRun(worker, toolkit.clock)
        state = service.running()
    if how.stop:
        return _stopped(toolkit, worker, state)
    _ensure(toolkit, service, state, wanted)
    try:
        _attend(toolkit, service, how.port, patience, LogPart(_TAIL if state else None))
    except (TpukitError, KeyboardInterrupt) as caught:
        error = interruption(caught) if isinstance(caught, KeyboardInterrupt) else caught
        gone = service.ended and not isinstance(caught, KeyboardInterrupt)
        if gone or isinstance(caught, SliceLost):
            raise
        reach, end = _left(worker.slice)
        if isinstance(error, Interrupted):
            return View({}, next=(reach, end), status=error.exit_code)
        error.exists = (
            *error.exists,
            f"run {RUN} on {worker.label}, which goes on",
        )
        error.fix, error.otherwise = error.fix or reach, end
        raise error from None
    raise service.end()


@dataclass(frozen=True)
class _Wanted:
    """The service that the command line describes."""

    recipe: str
    command: str
    table: Mapping[str, object]  #: of the recipe, with the model
    variables: Mapping[str, str]
    folder: str  #: to start in

    @classmethod
    def parse(
        cls, toolkit: Toolkit, environment: VariableFlags, words: list[str]
    ) -> _Wanted | None:
        """Return the service, or None without a recipe and words; raise `BadInput` if one lacks."""
        from tpukit.provision.recipes import Recipe

        variables = given_variables(environment, toolkit)
        if not environment.with_:
            if words:
                fix = Fix(note="add --with vllm, or another recipe with a [service]")
                raise BadInput("there is no recipe to serve with", fix=fix)
            return None
        recipe = Recipe.named(environment.with_, toolkit.project_files.recipes)
        service = recipe.service
        if not service:
            fix = Fix(note="--with vllm, or a recipe of your own with a [service]")
            raise BadInput(f"the recipe {recipe.name} has no service", fix=fix)
        flag.remote_command(words)  # raises an error unless it is UTF-8
        model = ""
        if "{model}" in service.command:
            if not words:
                fix = Fix(note=f"for example: --with {recipe.name} -- Qwen/Qwen3-0.6B")
                raise BadInput("there is no model to serve", fix=fix)
            model, *words = words
        line = service.command.replace("{model}", quote([model]))
        line = f"{line} {quote(words)}".strip()
        table = {**service.model_dump(), "usual_port": service.port, "model": model}
        return cls(recipe.name, line, table, variables, environment.workdir)


def _ensure(
    toolkit: Toolkit, service: ServiceRun, state: JobState | None, wanted: _Wanted | None
) -> None:
    """Start the wanted service unless it runs; raise an error if another one does, or none."""
    from tpukit.jobs.services import RUN

    worker = service.worker
    if state and wanted and not state.has_command(wanted.command):
        raise NameTaken(
            f"{worker.label} already has a service",
            reason=state.command,
            fix=Fix.command("tpukit", "serve", worker.slice, "--stop", note="ends it"),
            otherwise=Fix.command("tpukit", "serve", worker.slice, note="reaches it"),
        )
    if state:
        return
    if not wanted:
        raise _none(worker)
    service.start(**vars(wanted))
    toolkit.console.say(f"run {RUN}: {wanted.command}")


def _attend(
    toolkit: Toolkit,
    service: ServiceRun,
    port: int | None,
    patience: float,
    part: LogPart,
) -> None:
    """Wait until the service answers, and forward its port until it ends; show its log."""
    from tpukit.jobs.services import RUN, Throughput
    from tpukit.ssh.forwarding import Forward, Tunnels

    say, worker = toolkit.console.say, service.worker
    service.follow(say, part)
    say("waiting until it answers")
    address = service.address(toolkit.deadline(patience))
    if address.stand_in:
        say(f"a CPU stand-in serves in place of {address.recipe}: no model computes its answers")

    def instead(taken: Forward) -> Fix:
        note = "takes a free one here"
        return Fix.command("tpukit", "serve", worker.slice, "--port", "0", note=note)

    listen = address.usual_port if port is None else port
    forwards = [Forward(listen, address.port)]
    with Tunnels(worker.connect, forwards, toolkit.clock, say, instead) as tunnels:
        (forward,) = tunnels.open()
        url = f"http://127.0.0.1:{forward.listen}"
        document = {"url": url, "run": RUN, "recipe": address.recipe, "stand_in": address.stand_in}
        throughput = Throughput(forward.listen, address, toolkit.clock)
        toolkit.console.emit(View({"service": document}, rows=[[url]]))

        def watch() -> None:
            service.report(throughput, say)
            tunnels.close()

        threading.Thread(target=watch, name="tpukit-service", daemon=True).start()
        tunnels.keep()


def _stopped(toolkit: Toolkit, worker: RemoteWorker, state: JobState | None) -> View:
    from tpukit.jobs import runs
    from tpukit.jobs.services import RUN

    if not state:
        raise _none(worker)
    return job_views.ended(worker.slice, runs.end([worker], [RUN], toolkit.clock))


def _none(worker: RemoteWorker) -> NotFound:
    words = ("--with", "vllm", "--", "Qwen/Qwen3-0.6B")
    fix = Fix.command("tpukit", "serve", worker.slice, *words, note="starts one")
    return NotFound(f"no service runs on {worker.slice}", fix=fix)


def _several(worker: RemoteWorker) -> BadInput:
    return BadInput(
        f"{worker.slice} has {worker.workers} workers, and serve uses slices with one",
        why="each worker has only some of the chips; a model on several workers needs Ray",
        fix=Fix.command("tpukit", "types", note="shows the workers of each type"),
    )


def _left(name: str) -> tuple[Fix, Fix]:
    """Return the commands for a service that goes on."""
    return (
        Fix.command("tpukit", "serve", name, note="reaches the service again, which goes on"),
        Fix.command("tpukit", "serve", name, "--stop", note="ends it"),
    )
