"""`tpukit diagnose`: find out why the steps of a training program are slow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli.output import chosen_output
from tpukit.cli.python_commands import environment_for
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.run import VariableFlags, given_variables
from tpukit.cli.views import outcome_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix, TpukitError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpukit.smoke.diagnosis import Diagnosis, StepTimes
    from tpukit.ssh.fan_out import Outcome
    from tpukit.ssh.worker import RemoteWorker

_HOOK = "from tpukit_steps import steps; for batch in steps(loader): …"
_COLUMNS = ("WORKER", "STEP", "CACHED", "INPUT ALONE", "HOST", "COMPILED", "CPU", "DUTY", "ADVICE")

Steps = Annotated[
    int, Option(metavar="N", min=1, max=100_000, help="Number of steps to time, for each kind.")
]
Deadline = Annotated[str, Option(metavar="DURATION", help="End the program after so long.")]


@flag.connecting
def diagnose(
    toolkit: Toolkit,
    name: flag.OnlyName = flag.LEFT_OUT,
    *,
    environment: VariableFlags,
    command: flag.Command = None,
    worker: flag.Workers = "all",
    steps: Steps = 20,
    deadline: Deadline = "30m",
    timeout: flag.Timeout = "60s",
) -> View:
    """Find out why the steps of a training program are slow.

    The program must take its batches from `tpukit_steps`, a module that this command provides:
    `from tpukit_steps import steps`, then `for batch in steps(loader):`. tpukit times the first
    steps unchanged, then steps that reuse one batch, then the loader alone. Then the program ends,
    before it saves anything.

    Examples:
      tpukit diagnose demo --with jax -- python train.py
      tpukit diagnose demo --steps 50 --json -- python3 train.py
    """
    from tpukit.jobs.attached import AttachedRun, CommandRequest
    from tpukit.jobs.shell_environment import shell_lines
    from tpukit.smoke import diagnosis
    from tpukit.ssh.worker_files import new_run_id

    line = flag.remote_command(command)
    if not line:
        fix = Fix.command("tpukit", "diagnose", name, "--", "python3", "train.py")
        raise BadInput("there is no program to diagnose", fix=replace(fix, note="for example"))
    variables = given_variables(environment, toolkit)
    limit = flag.seconds(deadline, "--deadline")
    workers = toolkit.reach.workers(name, worker, flag.seconds(timeout))
    run, console = new_run_id(toolkit.clock), toolkit.console
    recipe = environment_for(toolkit, environment.with_, workers, line)
    lines = shell_lines(variables, recipe, environment.workdir) + diagnosis.shell_lines(run, steps)
    request = CommandRequest(line, lines, limit=limit, fail_fast=True)
    output = chosen_output(console, workers, "", False)
    command_run = AttachedRun(request, toolkit.clock, output.write, console.say, run)
    try:
        results = command_run.on_all(workers)
    finally:
        output.finish()
    if any(not (result.value and result.value.ok) for result in results):
        return outcome_views.results(results, as_lines=False)
    return _view(diagnosis.read(workers, run, toolkit.clock))


def _view(outcomes: Sequence[Outcome[RemoteWorker, StepTimes | None]]) -> View:
    from tpukit.smoke.diagnosis import Diagnosis

    known = [Diagnosis(outcome.item.index, outcome.value) for outcome in outcomes if outcome.value]
    failed = [outcome.error for outcome in outcomes if outcome.error]
    if failed:
        raise failed[0]
    if not known:
        raise TpukitError(
            "the program ended without taking a batch from tpukit_steps",
            fix=Fix(note=f"change two lines of its loop: {_HOOK}"),
        )
    rows = [row for diagnosis in known for row in _rows(diagnosis)]
    documents = [diagnosis.document() for diagnosis in known]
    view = View({"diagnosis": documents}, _COLUMNS, rows)
    if all(diagnosis.advice for diagnosis in known):
        return view
    note = "while the program runs: shows which operations of the devices take the time"
    return replace(view, next=[Fix.command("tpukit", "profile", outcomes[0].item.slice, note=note)])


def _rows(diagnosis: Diagnosis) -> list[list[object]]:
    """Return a row with the figures and the first advice, and a row for each further advice."""
    times = diagnosis.times
    figures: list[object] = [
        diagnosis.worker,
        *(
            f"{seconds * 1000:.1f} ms"
            for seconds in (times.real_seconds, times.cached_seconds, times.input_seconds)
        ),
        f"{times.host_share:.0%}",
        times.compilations,
        f"{times.busy:.0%} of {times.processors}",
        "" if times.duty_cycle is None else f"{times.duty_cycle:.0f}%",
    ]
    first, *rest = diagnosis.advice or ("none: the devices take the step's whole time",)
    return [[*figures, first], *([diagnosis.worker, *[""] * 7, advice] for advice in rest)]
