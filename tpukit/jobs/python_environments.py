"""The Python environments of recipes on workers."""

from __future__ import annotations

from collections.abc import Sequence

from tpukit.clock import Clock, Deadline
from tpukit.errors import BadInput, Fix, NotFound
from tpukit.models import worker_names
from tpukit.ssh import worker_files
from tpukit.ssh.fan_out import fan_out, values
from tpukit.ssh.worker import RemoteWorker

_ASK_SECONDS = 30.0


def environments(worker: RemoteWorker, clock: Clock) -> tuple[str, ...]:
    """Return the names of the environments on a worker, in order; raise what `connect` raises."""
    home, pattern = '"$HOME"/', worker_files.venv_python("*")
    line = f'echo; for path in {home}{pattern}; do [ -x "$path" ] && echo "$path"; done; true'
    with worker.connect() as connection:
        done = connection.run(line, deadline=Deadline.after(clock, _ASK_SECONDS))
    paths = done.stdout.decode("utf-8", "replace").splitlines()
    return tuple(path.split("/")[-3] for path in paths if path.count("/") > 3)


def require_environment(workers: Sequence[RemoteWorker], recipe: str, clock: Clock) -> None:
    """Raise `NotFound` if a worker has no environment of that recipe."""
    names = values(fan_out(workers, lambda worker: environments(worker, clock)))
    missing = [worker for worker, own in zip(workers, names, strict=True) if recipe not in own]
    if missing:
        name = missing[0].slice
        named = worker_names(worker.index for worker in missing if worker.slice == name)
        raise NotFound(
            f"{name} has no environment {recipe} on {named}",
            fix=Fix.command("tpukit", "provision", name, recipe),
        )


def common_environment(workers: Sequence[RemoteWorker], clock: Clock) -> str:
    """Return the name of the environment if every slice has exactly one, else "".

    It asks one worker of each slice. Raises `BadInput` if some have exactly one, and the others
    have not exactly the same.
    """
    asked = list({worker.slice: worker for worker in reversed(workers)}.values())[::-1]
    names = values(fan_out(asked, lambda worker: environments(worker, clock)))
    only = {own[0] if len(own) == 1 else "" for own in names}
    if len(only) == 1:
        return only.pop()
    first = max(only)
    lacking = [worker.slice for worker, own in zip(asked, names, strict=True) if first not in own]
    has = [
        f"{worker.slice} has {', '.join(own) or 'none'}"
        for worker, own in zip(asked, names, strict=True)
    ]
    raise BadInput(
        "the slices have different environments for python",
        why="\n".join(has),
        fix=Fix.command("tpukit", "provision", lacking[0], first)
        if lacking
        else Fix(note=f"add --with {first}"),
        otherwise=Fix(note="/usr/bin/python3 is the system's on every slice"),
    )


def usual_environment(worker: RemoteWorker, first: str, clock: Clock) -> str:
    """Return the name `first` if the worker has that environment or none, else its first one."""
    names = environments(worker, clock)
    return first if first in names or not names else names[0]
