"""What is true of a worker's system: what steps need there, and what they have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpukit.clock import Deadline
from tpukit.errors import Fix, ProvisionFailed
from tpukit.models import Documented
from tpukit.provision.facts import Facts, parse_facts
from tpukit.provision.system_steps import WantedStep, facts_program
from tpukit.remote.connection.target import Completed
from tpukit.remote.programs import program_text
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection

#: Begins each line that a step's program has for us.
MARK = "TPUKIT-STEP"
_KEEP = 1 << 20


@dataclass
class Ledger(Documented):
    """What a step has changed on a worker: `undo` are the words that take it back, in order."""

    step: str
    by: str = ""  #: the version that did it
    at: str = ""
    undo: list[str] = field(default_factory=list)
    number: int = 0
    value: str = ""  #: of the step, as it was then


@dataclass
class StepFact:
    """What a step's fact has said: what is needed, what stands in its way, what else is so."""

    needed: list[str] = field(default_factory=list)
    refused: str = ""
    fix: str = ""
    notes: list[str] = field(default_factory=list)
    checked: bool = False  #: whether it was said to the end

    @property
    def told(self) -> bool:
        return self.checked or bool(self.refused)


@dataclass
class SystemFacts:
    """Everything that is decided by; `steps` and `ledgers` are by the step's word."""

    steps: dict[str, StepFact] = field(default_factory=dict)
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    ended_jobs: set[str] = field(default_factory=set)
    open_jobs: list[str] = field(default_factory=list)  #: without an end: they run, or were lost
    free_kilobytes: int = 0
    emulated: bool = False


def read_system_facts(
    steps: Sequence[WantedStep], connection: Connection, deadline: Deadline
) -> SystemFacts:
    """Return a worker's facts in one round trip.

    Raises `ProvisionFailed` where the answer has no end, or a step has not said all.
    """
    return _told(steps, _answered(facts_program(tuple(steps)), connection, deadline))


def read_all_facts(
    steps: Sequence[WantedStep], connection: Connection, deadline: Deadline
) -> tuple[SystemFacts, Facts]:
    """Return a worker's facts and what recipes go by, in one round trip.

    Raises as `read_system_facts` does.
    """
    program = f"(\n{program_text('provision/facts.sh')}\n)\n{facts_program(tuple(steps))}"
    done = _answered(program, connection, deadline)
    return _told(steps, done), parse_facts(done.stdout, done.stderr)


def _answered(program: str, connection: Connection, deadline: Deadline) -> Completed:
    return connection.run("sh -s", stdin=program.encode(), deadline=deadline, keep=_KEEP)


def _told(steps: Sequence[WantedStep], done: Completed) -> SystemFacts:
    facts = parse_system_facts(done.text)
    found = facts.steps if facts else {}
    silent = [step.word for step in steps if not (step.word in found and found[step.word].told)]
    if facts is None or silent:
        raise ProvisionFailed(
            "the worker's facts cannot be read",
            why=one_line(done.stderr[-400:]),
            reason=", ".join(silent),
        )
    return facts


def parse_system_facts(output: str) -> SystemFacts | None:
    """Return the facts in a program's output, whatever is around them; None without its end."""
    facts = SystemFacts()
    for line in output.splitlines():
        mark, *rest = line.split("\t")
        if mark != MARK or len(rest) != 4:
            continue
        word, kind, text, more = rest
        if kind == "end":
            return facts
        _take(facts, word, kind, text, more)
    return None


def refusal(lines: Sequence[str], reason: str) -> ProvisionFailed | None:
    """Return the error for what a step's program has refused in the lines of its log, if it has."""
    for line in reversed(lines):
        mark, *rest = line.split("\t")
        if mark == MARK and len(rest) == 4 and rest[1] == "refused":
            return refused(rest[2], rest[3], reason)
    return None


def refused(cause: str, fix: str, reason: str = "") -> ProvisionFailed:
    """Return the error for a step that cannot be: one cause, one fix."""
    return ProvisionFailed(one_line(cause), reason=reason, fix=Fix(note=one_line(fix)))


def _take(facts: SystemFacts, word: str, kind: str, text: str, more: str) -> None:
    if kind == "ended":
        facts.ended_jobs.add(text)
    elif kind == "open":
        facts.open_jobs.append(text)
    elif kind == "free":
        facts.free_kilobytes = int(text) if text.isdigit() else 0
    elif kind == "emulated":
        facts.emulated = True
    elif kind in ("number", "changed", "undo"):
        ledger = facts.ledgers.setdefault(word, Ledger(word))
        if kind == "number":
            ledger.number, ledger.value = int(text) if text.isdigit() else 0, more
        elif kind == "changed":
            ledger.by, ledger.at = text, more
        else:
            ledger.undo.append(text)
    else:
        fact = facts.steps.setdefault(word, StepFact())
        if kind == "needed":
            fact.needed.append(text)
        elif kind == "refused":
            fact.refused, fact.fix = text, more
        elif kind == "checked":
            fact.checked = True
        else:
            fact.notes.append(text)
