"""Runs a watch in this process, for `watch` and `up --keep`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from tpukit.cli.output import chosen_output
from tpukit.cli.requirement_flags import RequirementFlags, on_top
from tpukit.cli.stages import Stages, job_progress, timed
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.cp import metered
from tpukit.console import View
from tpukit.errors import Fix
from tpukit.watch.saved_watches import Record, Watch, WatchFile, WatchFiles

if TYPE_CHECKING:
    from tpukit.provision.recipes import Recipe
    from tpukit.provision.requirements import Requirements
    from tpukit.up import Progress


def files(toolkit: Toolkit) -> WatchFiles:
    """Return the files of this machine's watches in the project."""
    endpoint, project = toolkit.settings.get("tpu_endpoint"), toolkit.settings.require("project")
    return WatchFiles(toolkit.paths.watches, endpoint, project)


def attend(toolkit: Toolkit, file: WatchFile, watch: Watch) -> View:
    """Run a watch until it ends, and show it; this process must hold its file.

    Raises the errors of `Watcher.watch`.
    """
    from tpukit.watch.supervisor import Watcher
    from tpukit.watch.workload import Workload

    spec, name = watch.spec, watch.name

    def say(line: str) -> None:
        at = time.strftime("%H:%M:%SZ", time.gmtime(toolkit.clock.time()))
        toolkit.console.say(f"{at} {name}: {line}")

    @contextmanager
    def progress() -> Iterator[Progress]:
        with Stages(toolkit.console, toolkit.clock, timed) as stages:
            yield job_progress(stages, toolkit.cloud.cost_so_far)

    def setup() -> tuple[Recipe | None, Requirements | None]:
        from tpukit.provision.recipes import Recipe

        if not spec.recipe:
            return None, None
        recipe = Recipe.named(spec.recipe, toolkit.project_files.recipes)
        flags = RequirementFlags(spec.requirements, [*spec.indexes], spec.editable)
        return recipe, on_top(flags, [recipe], toolkit.environ)

    toolkit.reach.unlock_key()
    record = Record(file, watch, toolkit.clock.time)
    work = Workload(
        toolkit.reach.context(spec.source_ranges),
        toolkit.settings.get("tpu_endpoint"),
        spec,
        environment=lambda: _environment(toolkit, watch),
        setup=setup,
        progress=progress,
        transfer=lambda: metered(toolkit, "sent", relay=True),
        output=lambda workers: chosen_output(toolkit.console, workers, "", as_json_lines=False).log,
        say=say,
    )
    cleanup = replace(toolkit.slices.cleanup, on_state=lambda name: say, on_warning=say)
    status = Watcher(cleanup, record, work, toolkit.clock, toolkit.cloud.owner, say).watch()
    if status or not spec.delete_when_done:
        delete = ("tpukit", "delete", name, "--zone", record.watch.zone)
        costs = f"the slice {toolkit.cloud.costs} until then"
        toolkit.console.suggest(Fix.command(*delete, note=costs))
    return View({"watch": record.watch.document()}, status=status)


def _environment(toolkit: Toolkit, watch: Watch) -> str:
    from tpukit.cli.verbs.run import VariableFlags, given_variables
    from tpukit.jobs.shell_environment import shell_lines

    spec = watch.spec
    given = VariableFlags([*spec.variables], spec.variable_file, spec.activate)
    variables = given_variables(given, toolkit)
    return shell_lines(variables, spec.activate, spec.workdir or spec.push_to)
