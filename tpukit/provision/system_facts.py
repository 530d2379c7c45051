"""What is true of a worker's system: what steps need there, and what they have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel

from tpukit.clock import Deadline
from tpukit.errors import Fix, ProvisionFailed
from tpukit.models import Documented
from tpukit.provision.facts import Facts
from tpukit.provision.system_steps import WantedStep
from tpukit.remote import agent_client
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection

Line = Annotated[str, AfterValidator(one_line)]


@dataclass
class Ledger(Documented):
    """What a step has changed on a worker: `undo` are the words that take it back, in order."""

    step: Line
    by: Line = ""  #: the version that did it
    at: Line = ""
    undo: list[Line] = field(default_factory=list)
    number: int = 0
    value: Line = ""  #: of the step, as it was then


@dataclass
class StepFact:
    """What a step needs, what stands in its way, and what else is so."""

    needed: list[Line] = field(default_factory=list)
    refused: Line = ""
    fix: Line = ""
    notes: list[Line] = field(default_factory=list)


@dataclass
class SystemFacts:
    """Everything that is decided by; `steps` and `ledgers` are by the step's word."""

    steps: dict[str, StepFact] = field(default_factory=dict)
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    ended_jobs: set[Line] = field(default_factory=set)
    open_jobs: list[Line] = field(default_factory=list)  #: without an end: they run, or were lost
    free_kilobytes: int = 0
    kernel_log_bytes: int = 0  #: the size of /var/log/kern.log
    emulated: bool = False


class WorkerFacts(BaseModel):
    """What the agent's `read_facts` says; `environments` only if they were asked for."""

    system: SystemFacts
    environments: Facts | None


def read_all_facts(
    steps: Sequence[WantedStep], environments: bool, connection: Connection, deadline: Deadline
) -> WorkerFacts:
    """Return a worker's facts in one round trip.

    Raises `ProvisionFailed` if it says nothing of a step, `TpukitError` as `agent_client.ask`.
    """
    request = {"steps": [step.request for step in steps], "environments": environments}
    failure = "the worker's facts cannot be read"
    answer = agent_client.ask(connection, "read_facts", request, failure, deadline=deadline)
    facts = answer.model(WorkerFacts)
    silent = {step.word for step in steps} - facts.system.steps.keys()
    if silent or (environments and not facts.environments):
        raise ProvisionFailed(failure, reason=", ".join(sorted(silent)))
    return facts


def read_system_facts(
    steps: Sequence[WantedStep], connection: Connection, deadline: Deadline
) -> SystemFacts:
    """Return the facts of a worker's system; raise as `read_all_facts` does."""
    return read_all_facts(steps, False, connection, deadline).system


def read_facts(connection: Connection, deadline: Deadline) -> Facts:
    """Return the facts that recipes go by; raise as `read_all_facts` does."""
    facts = read_all_facts((), True, connection, deadline).environments
    assert facts, "they were asked for"
    return facts


def refusal(lines: Sequence[str], reason: str) -> ProvisionFailed | None:
    """Return the error for what a step's program has refused in the lines of its log, if it has."""
    for answer in agent_client.answers_in("a job", "\n".join(lines).encode()):
        if answer.has("refused"):
            return refused(answer.text("refused"), answer.text("fix"), reason)
    return None


def refused(cause: str, fix: str, reason: str = "") -> ProvisionFailed:
    """Return the error for a step that cannot be: one cause, one fix."""
    return ProvisionFailed(one_line(cause), reason=reason, fix=Fix(note=one_line(fix)))
