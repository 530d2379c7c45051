"""What is to hold in the morning. Each check yields what is wrong."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clients import RUN, Client, Typed
from job import line, whole
from plan import WORKERS, Event
from world import NAME, World

from tpukit.jobs.detached_job import JobLost

#: A worker's exit status of the job, but for its number.
STATUS = 40
_SPOILT = ("DAMAGED", "skipped")
#: What a log says of bytes for which the disk had no room.
_DROPPED = re.compile(r"tpukit: the disk was full, and (\d+) bytes of output were dropped")
#: The shortest and the longest line `skipped …` of the job, in bytes: they may be among those.
_SHORTEST_SKIPPED, _LONGEST_SKIPPED = 35, 37


@dataclass(frozen=True)
class Morning:
    """What was to happen, what did, and on whom the job was lost with a reboot."""

    world: World
    client: Client
    events: Sequence[Event]
    lines: int
    final_push: Typed
    strays: Sequence[str]

    @property
    def rebooted(self) -> set[int]:
        return {event.worker for event in self.events if event.kind == "reboot"}

    @property
    def full(self) -> set[int]:
        return {event.worker for event in self.events if event.kind == "full disk"}

    def struck(self, typed: Typed, *kinds: str) -> set[int]:
        """Return the workers that such faults held while a command went on, or just before."""
        return {
            event.worker
            for event in self.events
            if event.kind in kinds
            and event.at < typed.ended
            and typed.began < event.at + event.seconds + 15
        }


Check = Callable[[Morning], Iterator[str]]


def every_line_once_in_the_log(morning: Morning) -> Iterator[str]:
    for index in WORKERS:
        logs = morning.world.home(index).glob(f".tpukit/jobs/run.{RUN}@*/log")
        text = "".join(log.read_text(errors="replace") for log in logs)
        yield from _lines(f"worker {index}", text.splitlines(), morning, index, to_the_end=True)


def every_line_once_in_what_was_printed(morning: Morning) -> Iterator[str]:
    """Who was killed had printed the beginning; who was not, all of it."""
    for typed in (*(each for each, _ in morning.client.followers.values()), *morning.client.killed):
        killed = typed in morning.client.killed
        lines = typed.out.split("\n")
        if killed:
            lines.pop()  # half of it may have been written
        for index in WORKERS:
            own = [text[4:] for text in lines if text.startswith(f"[{index}] ")]
            yield from _lines(f"{typed} worker {index}", own, morning, index, to_the_end=not killed)


def no_file_is_damaged(morning: Morning) -> Iterator[str]:
    """Checkpoints, what the job read in the pushed tree, and the tree in the end."""
    for index in WORKERS:
        out = morning.world.home(index) / "out"
        for place in (out / "checkpoints").iterdir():
            if place.suffix != ".new" and not whole(place.read_text()):
                yield f"worker {index}: {place.name} is damaged"
        yield from _metrics(f"worker {index}", out / "metrics")
        project = morning.client.place / "project"
        for file in project.iterdir():
            there = morning.world.home(index) / "project" / file.name
            if not there.exists() or there.read_bytes() != file.read_bytes():
                yield f"worker {index}: project/{file.name} is not what was pushed"


def every_copy_is_whole(morning: Morning) -> Iterator[str]:
    """What was copied while it grew is a beginning of what there is in the end."""
    for typed in _of(morning, "cp"):
        for copy in (morning.client.place / typed.mark).rglob("*"):
            if not copy.is_file():
                continue
            index = int(next(part for part in copy.parts if part.startswith("worker-"))[7:])
            inside = Path(*copy.parts[copy.parts.index("out") :]) if "out" in copy.parts else copy
            original = morning.world.home(index) / inside
            if copy.name.endswith(".new"):
                continue
            if copy.name.startswith("."):
                yield f"{typed}: {copy} was left behind"
            elif not original.exists() or not original.read_bytes().startswith(copy.read_bytes()):
                yield f"{typed}: {copy} is not what worker {index} had"


def the_job_ran_once(morning: Morning) -> Iterator[str]:
    for index in WORKERS:
        starts = (morning.world.home(index) / "starts").read_text()
        if starts != "x\n":
            yield f"worker {index}: {starts.count('x')} starts"


def every_command_ran_once_at_most(morning: Morning) -> Iterator[str]:
    """Where a command's exit status says that it ran, exactly once."""
    for typed in _of(morning, "run"):
        full = morning.struck(typed, "full disk")
        for index in WORKERS:
            file = morning.world.home(index) / "marks"
            count = file.read_text().split().count(typed.mark) if file.exists() else 0
            if count > 1 or (typed.status == 3 and count < 1 and index not in full):
                yield f"{typed}: {count} times on worker {index}, status {typed.status}"
        if typed.status == 3 and typed.out.count(f"told {typed.mark}\n") != len(WORKERS):
            yield f"{typed}: not every worker's output came, status 3"


def every_exit_status_is_right(morning: Morning) -> Iterator[str]:
    """What no fault can excuse, and what one can: each where its fault was."""
    for typed in morning.client.typed:
        if typed.status not in _allowed(morning, typed):
            said = " | ".join(typed.told.strip().splitlines()[-3:])
            yield f"{typed}: {typed.status} from {typed.began:.1f} to {typed.ended:.1f} s: {said}"
    last = max(set(WORKERS) - morning.rebooted)
    expected = {"attach": STATUS + last, "logs": JobLost("").exit_code}
    for verb, (typed, _) in morning.client.followers.items():
        if typed.status != expected[verb]:
            yield f"{typed}: {typed.status} instead of {expected[verb]}"
    if morning.final_push.status != 0:
        yield f"{morning.final_push}: {morning.final_push.status}"


def every_worker_s_end_is_known(morning: Morning) -> Iterator[str]:
    jobs = morning.world.tpukit.document("jobs", "pod", RUN)["jobs"]
    for job in jobs:
        index = job["worker"]
        right = ("lost", None) if index in morning.rebooted else ("finished", STATUS + index)
        if (job["state"], job["status"]) != right:
            yield f"worker {index}: {job['state']} {job['status']}"


def no_stray_is_left(morning: Morning) -> Iterator[str]:
    yield from morning.strays


CHECKS: Mapping[str, Check] = {
    check.__name__.replace("_", " "): check
    for check in (
        every_line_once_in_the_log,
        every_line_once_in_what_was_printed,
        no_file_is_damaged,
        every_copy_is_whole,
        the_job_ran_once,
        every_command_ran_once_at_most,
        every_exit_status_is_right,
        every_worker_s_end_is_known,
        no_stray_is_left,
    )
}


def strays(world: World, seconds: float = 20.0) -> list[str]:
    """Return what still runs on the workers once all has had time to end."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        found = {index: world.host.processes(index) for index in WORKERS}
        if not any(found.values()):
            return []
        time.sleep(0.2)
    return [f"worker {index}: {each}" for index, left in found.items() for each in left]


def _lines(
    where: str, found: Sequence[str], morning: Morning, index: int, *, to_the_end: bool
) -> Iterator[str]:
    """Compare with the beginning of the lines, or with all."""
    damaged = [text for text in found if text.startswith("DAMAGED")]
    yield from (f"{where}: {each}" for each in damaged)
    own = [text for text in found if not text.startswith(_SPOILT)]
    if index in morning.full:
        own = _filled(own)
    if own and index in morning.rebooted and own[-1] != line(len(own)):
        own.pop()  # the reboot has cut it
    expected = [line(number) for number in range(1, len(own) + 1)]
    if own != expected:
        first = next(n for n, (a, b) in enumerate(zip(own, expected, strict=True)) if a != b)
        yield f"{where}: line {first + 1} of {len(own)} is {own[first]!r}"
    elif to_the_end and len(own) != morning.lines and index not in morning.rebooted:
        yield f"{where}: {len(own)} of {morning.lines} lines"
    elif to_the_end and not own:
        yield f"{where}: no lines"


def _filled(lines: Sequence[str]) -> list[str]:
    """Return lines with those that a notice counts as dropped, if as many bytes are missing."""
    filled: list[str] = []
    for text in lines:
        notice = _DROPPED.fullmatch(filled[-1]) if filled else None
        number = re.match(r"line (\d+) ", text)
        if notice and number:
            before = filled[:-1]
            cut = before.pop() if before and before[-1] != line(len(before)) else ""
            missing = [line(count) for count in range(len(before) + 1, int(number[1]))]
            size = sum(len(lost) + 1 for lost in missing) - len(cut)
            begins = not cut or bool(missing and missing[0].startswith(cut))
            if begins and _is_skipped_lines(int(notice[1]) - size):
                filled = [*before, *missing]
        filled.append(text)
    return filled


def _is_skipped_lines(size: int) -> bool:
    """Return True if so many bytes can be lines `skipped …` of the job, or none."""
    return any(_SHORTEST_SKIPPED * count <= size <= _LONGEST_SKIPPED * count for count in range(31))


def _metrics(where: str, file: Path) -> Iterator[str]:
    for text in file.read_text().splitlines():
        if text != line(int(text.split()[1])):
            yield f"{where}: metrics has {text!r}"


def _of(morning: Morning, verb: str) -> list[Typed]:
    return [each for each in morning.client.typed if each.words[0] == verb and each.mark]


def _allowed(morning: Morning, typed: Typed) -> set[int]:
    """Return the exit statuses that are right for a command.

    A command is run at most once: where the connection is lost under it nobody knows its end, and
    255 says so; a server that stalls is waited for. A copy and a push go on after a loss; a worker
    that is down long, or whose disk is full, is a failure. A failure names those that a fault has
    struck and no others.
    """
    if "--detach" in typed.words or typed.words[0] == "kill":
        return {0}
    lost = morning.struck(typed, "reset", "restart", "moved", "reboot")
    down, full = morning.struck(typed, "reboot"), morning.struck(typed, "full disk")
    if typed.words[0] == "run":
        own, failures = (130, set()) if "130" in typed.mark else (3, {255} if lost else set())
        how = "lost {} worker"
    else:
        how = "{} worker"
        own, failures = 0, {1, 255} if down else set()
    named = {int(match) for match in re.findall(how.format(NAME) + r" (\d)", typed.told)}
    if typed.status != own and named - lost - full:
        return {own}
    return {own} | failures | ({1} if full else set())
