"""Ends runs and the holders of TPU devices, and checks that they are gone before it answers.

It never ends Google's own runtime, a container of the user tpu-runtime, because systemd would start
it again after five seconds (docs/reference/real-workers.md).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from typing import Callable, Mapping, Set, Tuple

from tpukit.agent.devices import described, device_files, holders, lock_file, remove_lock
from tpukit.agent.live_processes import Process, look
from tpukit.agent.main import Home, Request, say
from tpukit.agent.run_records import RunRecord, requested

KILL_SECONDS = 5.0
#: A command may still be starting, so one look that finds nothing is not enough.
SETTLE_SECONDS = 0.3
LOOK_SECONDS = 0.05
LEADER_SECONDS = 20.0
#: Seconds between two signs of life.
BEAT_SECONDS = 1.0
RUNTIME_USER = "tpu-runtime"

Processes = Mapping[int, Process]
Find = Callable[[Processes], Set[int]]
Sent = Set[Tuple[int, int]]


def find_holders(home: Home, request: Request) -> None:
    """Answer the processes that hold a device."""
    say({"held": described(holders(device_files(home), look()))})


def end_runs(home: Home, request: Request) -> None:
    """End runs and jobs, and with `holders` "ended" also other processes that hold a device.

    They get `signal` first, TERM after half of the `grace` in seconds, and KILL after all of it.
    With `holders` "told", holders that belong to no run stay, and the answer lists them. The lock
    file of libtpu is removed if every known holder is gone.
    """
    first, grace = signal.Signals["SIG" + request["signal"]], request["grace"]
    named = requested(home, request)
    there = [run for run in named if run.is_there()]
    runs = there or named  # a command may have been sent, but have no record yet
    looks = request["holders"] != "none"
    watched = device_files(home) | {lock_file(home)} if looks else set()
    seen: dict[int, int] = {}  # start times: a holder closes its files before its process is gone

    def of_runs(alive: Processes) -> set[int]:
        return set().union(*(run.find(alive) for run in runs))

    def holding(alive: Processes) -> dict[int, Process]:
        if watched:
            seen.update((pid, process.born) for pid, process in holders(watched, alive).items())
        return {pid: alive[pid] for pid in seen if pid in alive and alive[pid].born == seen[pid]}

    def unwanted(alive: Processes) -> set[int]:
        wanted = of_runs(alive) - {run.leader for run in runs if not run.attached}
        held = holding(alive)
        if request["holders"] != "ended":
            return wanted
        return wanted | {pid for pid, process in held.items() if process.user() != RUNTIME_USER}

    sent, left = end(unwanted, first, grace)
    if not left:
        # If a leader has not started its command yet, TERM prevents that, or is passed on. Later it
        # ignores TERM, and gets the time to note its command's status and to exit.
        _, left = end(of_runs, signal.SIGTERM, LEADER_SECONDS)
    ended = {pid for pid, _ in sent}
    forced = {pid for pid, number in sent if number == signal.SIGKILL}
    alive = look()
    for run in runs:
        if not run.find(alive):
            close(run, forced)
    known = set().union(*(run.known for run in runs))
    held = holding(alive)
    say(
        {
            "runs": len(there),
            "ended": len(ended & known),
            "holders_ended": len(ended - known),
            "forced": len(forced),
            "left": described(left),
            "why": "" if os.geteuid() == 0 else "sudo asks for a password there",
            "held": described({pid: held[pid] for pid in held.keys() - left.keys()}),
            "lock_removed": looks and not held and remove_lock(lock_file(home)),
            "certain": all(run.scope or not (run.known or run.attached) for run in runs),
        }
    )


def close(run: RunRecord, forced: set[int]) -> None:
    """Note a run's status if its runner could not; remove the record of an attached run."""
    if run.attached:
        shutil.rmtree(run.folder, ignore_errors=True)
    elif run.known:  # without known processes, the run was lost before, and its folder is right
        with contextlib.suppress(FileNotFoundError):  # the runner has noted its status
            run.leave_status(137 if forced & run.known.keys() else 143)


def end(find: Find, first: int, grace: float) -> tuple[Sent, dict[int, Process]]:
    """End the processes of `find`; return the signals sent to each, and the processes left."""
    began = time.monotonic()
    firm = began + grace / 2
    last = began + (0 if first == signal.SIGKILL else grace)
    sent: Sent = set()
    left: dict[int, Process] = {}
    empty, beat = 0, began
    while time.monotonic() < last + KILL_SECONDS:
        alive = look()
        left = {pid: alive[pid] for pid in find(alive)}
        empty = 0 if left else empty + 1
        if empty == 2:
            break
        now = time.monotonic()
        if now >= beat:
            say({"waits_for": len(left)})
            beat = now + BEAT_SECONDS
        for pid, process in left.items():
            number = signal.SIGTERM if now >= firm or process.ignores(first) else first
            number = signal.SIGKILL if now >= last else number
            if (pid, number) not in sent:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
                    os.kill(pid, signal.SIGCONT)
            sent.add((pid, number))
        time.sleep(LOOK_SECONDS if left or sent else SETTLE_SECONDS)
    return sent, left
