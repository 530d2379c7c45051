"""`tpukit attach`: follow a detached run to its end."""

from __future__ import annotations

from tpukit.cli import parameters as flag
from tpukit.cli.logs import PATIENCE, JsonLines, read
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import interruption
from tpukit.text import quote


def attach(
    toolkit: Toolkit,
    name: flag.Names,
    run: flag.RunId = "",
    worker: flag.Workers = "all",
    json_lines: JsonLines = False,
    timeout: flag.Timeout = PATIENCE,
) -> View:
    """Follow a detached run to its end and return its exit status.

    That is the highest of all workers'. Ctrl-C leaves the run running.

    Examples:
      tpukit attach demo
      tpukit attach demo 20261121-143355-3f2a
    """
    try:
        found = read(toolkit, name, run, worker, timeout, json_lines=json_lines, to_the_end=True)
    except KeyboardInterrupt as signal:
        error = interruption(signal)
        error.exists = (f"run {run or '(the last one)'} goes on",)
        error.fix = quote(["tpukit", "kill", name, *([run] if run else ["--all"])])
        raise error from None
    for each in found:
        if each.value and each.value.status:
            toolkit.console.warn(f"{each.item.label} exited with status {each.value.status}")
    codes = [each.error.exit_code if each.error else _status(each.value) for each in found]
    return View({}, status=max(codes, default=0))


def _status(result: object) -> int:
    return int(getattr(result, "status", 0))
