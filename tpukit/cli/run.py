"""`tpukit run`: one command on every worker, or on some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.clock import Deadline
from tpukit.console import Console, View
from tpukit.errors import BadInput, interruption

if TYPE_CHECKING:
    from tpukit.remote.fanout import Outcome
    from tpukit.remote.values import Completed
    from tpukit.remote.worker import RemoteWorker


def run(
    toolkit: Toolkit,
    name: flag.Name,
    command: flag.Command = None,
    worker: flag.Workers = "all",
    timeout: flag.Timeout = "60s",
) -> View:
    """Run a command once on every worker.

    The exit status is the highest of all workers'. One word after -- is a shell line; several words
    are run exactly as they are. The timeout is for connecting.

    Examples:
      tpukit run demo -- hostname
      tpukit run demo --worker 0,2-3 -- python3 train.py --steps 100
    """
    from tpukit import access, bootstrap
    from tpukit.remote.fanout import fan_out

    line = flag.remote_command(command)
    if not line:
        raise BadInput("there is no command to run", fix=f"tpukit run {name} -- hostname")
    found = toolkit.find(name)
    patience = flag.seconds(timeout)
    deadline = toolkit.deadline(patience)
    workers = bootstrap.remote_workers(toolkit.means(), found, deadline, patience)
    chosen = access.parse_workers(worker, [each.index for each in workers])
    printer = _Printer(toolkit.console, several=len(chosen) > 1)

    def work(each: RemoteWorker) -> Completed:
        with each.connect() as connection:
            hear = None if toolkit.console.as_json else printer.listener(each.index)
            done = connection.run(line, on_output=hear, deadline=Deadline.never(toolkit.clock))
            printer.finish(each.index)
            return done

    try:
        outcomes = fan_out([workers[each] for each in chosen], work, cancel=toolkit.connector.close)
    except KeyboardInterrupt as signal:
        error = interruption(signal)
        error.exists = (f"the command may still run on workers {worker} of slice {found.name}",)
        raise error from None
    return _view(toolkit.console, outcomes)


def _view(console: Console, outcomes: list[Outcome[RemoteWorker, Completed]]) -> View:
    for each in outcomes:
        if each.error:
            console.warn(f"worker {each.item.index}: {each.error.what}: {each.error.why}")
        elif each.value and not each.value.ok and len(outcomes) > 1:
            console.say(f"worker {each.item.index} exited with status {each.value.status}")
    status = max(each.error.exit_code if each.error else each.value.status for each in outcomes)  # type: ignore[union-attr]
    return View({"results": [_document(each) for each in outcomes]}, status=status)


def _document(outcome: Outcome[RemoteWorker, Completed]) -> dict[str, Any]:
    if outcome.error:
        return {"worker": outcome.item.index, "error": outcome.error.document()}
    done = outcome.value
    assert done is not None
    return {
        "worker": outcome.item.index,
        "status": done.status,
        "stdout": done.stdout.decode("utf-8", "replace"),
        "stderr": done.stderr.decode("utf-8", "replace"),
    }


class _Printer:
    """Prints whole lines with the worker they came from; one worker alone stays as it is."""

    def __init__(self, console: Console, several: bool) -> None:
        self._console = console
        self._several = several
        self._rest: dict[tuple[int, str], bytes] = {}

    def listener(self, worker: int) -> Any:
        if not self._several:
            return self._console.write_remote
        return lambda stream, chunk: self._hear(worker, stream, chunk)

    def finish(self, worker: int) -> None:
        """Print a last line that had no end."""
        for stream in ("stdout", "stderr"):
            rest = self._rest.pop((worker, stream), b"")
            if rest:
                self._console.write_prefixed(stream, f"[{worker}] ", rest)

    def _hear(self, worker: int, stream: str, chunk: bytes) -> None:
        *lines, rest = (self._rest.get((worker, stream), b"") + chunk).split(b"\n")
        self._rest[worker, stream] = rest
        for line in lines:
            self._console.write_prefixed(stream, f"[{worker}] ", line)
