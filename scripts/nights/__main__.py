"""A night in the life: a detached job through faults at random, and the checks of the morning.

Four workers, each a real OpenSSH server that an ordinary user logs in to. The job writes numbered
lines and a checkpoint a second. Meanwhile connections are reset, servers stall and restart, one
worker is rebooted, workers move, a disk is full for a while, who follows is killed and starts anew,
people push, copy and run commands. Then every line is there once, in the log and in what was
printed; no file is damaged; the job ran once on each worker; each command's exit status is right;
nothing is left running.

The worker that is rebooted loses the job, rightly: what it wrote until then is held to the same,
`jobs` says `lost`, and it is not started again. Which faults come when follows from the seed; what
they meet does not. The exit status is 1 where a check fails, 2 where the night cannot be.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from checks import CHECKS, STATUS, Morning, strays
from clients import RUN, Client
from plan import Event, night
from support.openssh_server import eventually
from world import NAME, World, world

#: A child in a session of its own, one that has dropped its environment, and one that is root's and
#: ends when it is killed.
STRAYS = """setsid sleep 3600 & env -i sleep 3600 &
sudo -n sh -c 'trap "" HUP INT TERM; sleep 3600' & touch {mark}; wait"""


def main() -> int:
    # A shell's background ignores it, and what is ignored stays so in what is started from here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    given = arguments()
    seconds = given.minutes * 60
    events = night(given.seed, given.faults, seconds)
    faults = sum(event.kind not in ("push", "cp", "run") for event in events)
    print(f"night: --seed {given.seed} --faults {faults} --minutes {given.minutes}", flush=True)
    if given.plan:
        print(*events, sep="\n")
        return 0
    lacking = [name for name in ("sshd", "sudo", "useradd", "unshare", "mount") if not _has(name)]
    if os.geteuid() or lacking:
        why = f"{', '.join(lacking)} missing" if lacking else "not root"
        print(f"night: no ordinary user, disks and servers can be made here ({why})")
        return 2
    place = Path(tempfile.mkdtemp(prefix="tpukit-night-"))
    with world() as found:
        morning = live(found, Client(found, place), events, round(seconds * 250 / 3), seconds)
        wrong = judge(morning)
    if wrong:
        print(f"what was typed and printed: {place}")
    else:
        shutil.rmtree(place)
    return int(wrong)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("scripts/night", description="A job through faults at random.")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--faults", type=int, default=100, help="at least 10")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--plan", action="store_true", help="print what would happen, and end")
    given = parser.parse_args()
    if given.faults < 10:
        parser.error("--faults: at least 10")
    return given


def live(found: World, client: Client, events: list[Event], lines: int, seconds: float) -> Morning:
    """Live through the night, and end what was begun."""
    client.change_project()
    _need(client.push().status == 0, "the first push failed")
    # A worker's number is the last word of its home's name, which the rest of the night relies on.
    job = f"exec python3 project/job.py {lines} {seconds} $(({STATUS} + ${{HOME##*-}}))"
    started = client.type("run", NAME, "--detach", "--run-id", RUN, "--", job)
    _need(started.status == 0, f"the job did not start: {started.told}")
    client.begun = time.monotonic()
    client.follow("logs")
    client.follow("attach")
    kills = 0
    for event in events:
        time.sleep(max(0.0, event.at - client.now))
        print(f"{event}  (at {client.now:.1f})" if client.now > event.at + 1 else event, flush=True)
        if event.kind in ("push", "cp", "run"):
            client.command(event.kind)
        elif event.kind == "client killed":
            client.kill_follower(kills)
            kills += 1
        else:
            found.strike(event)
    found.settle()
    client.finish(seconds + 300)
    final = client.push()

    def leaving(mark: str) -> tuple[str, ...]:
        return NAME, "--", STRAYS.format(mark=mark)

    client.type("run", "--grace", "2s", *leaving("stop-130"), mark="stop-130", stop=signal.SIGINT)
    client.type("run", "--detach", "--run-id", "strays", *leaving("kill"))
    eventually(lambda: found.everywhere("kill"))
    client.type("kill", NAME, "strays", "--grace", "2s")
    return Morning(found, client, events, lines, final, strays(found))


def judge(morning: Morning) -> bool:
    """Print how commands ended, each check and what is wrong; return whether anything is."""
    wrong = False
    ended = Counter((result.words[0], result.status) for result in morning.client.typed)
    counts = [f"{count} {verb} with {status}" for (verb, status), count in sorted(ended.items())]
    print(f"typed: {', '.join(counts)}; {len(morning.client.killed)} followers killed")
    for name, check in CHECKS.items():
        found = list(check(morning))
        wrong = wrong or bool(found)
        print(f"{'WRONG' if found else 'ok':6}{name}", flush=True)
        for each in found[:10]:
            print(f"      {each}")
    return wrong


def _need(true: bool, otherwise: str) -> None:
    if not true:
        raise SystemExit(f"night: {otherwise}")


def _has(name: str) -> bool:
    return bool(shutil.which(name) or Path("/usr/sbin", name).exists())


if __name__ == "__main__":
    sys.exit(main())
