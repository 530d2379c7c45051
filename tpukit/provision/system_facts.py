"""The facts about a worker's system: the changes that steps need, and those already made."""

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
from tpukit.ssh import agent_client
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.ssh.client import Connection

Line = Annotated[str, AfterValidator(one_line)]


@dataclass
class Ledger(Documented):
    """The record of a step's changes on a worker; `undo` has the changes to reverse, in order."""

    step: Line
    by: Line = ""  #: the version of tpukit that applied it
    at: Line = ""
    undo: list[Line] = field(default_factory=list)
    number: int = 0
    value: Line = ""  #: the step's value at that time


@dataclass
class StepFact:
    """The changes that a step needs, the reason if it cannot be applied, and other notes."""

    needed: list[Line] = field(default_factory=list)
    refused: Line = ""
    fix: Line = ""
    notes: list[Line] = field(default_factory=list)


@dataclass
class SystemFacts:
    """All facts that system steps need; `steps` and `ledgers` have the steps' words as keys."""

    steps: dict[str, StepFact] = field(default_factory=dict)
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    ended_jobs: set[Line] = field(default_factory=set)
    open_jobs: list[Line] = field(default_factory=list)  #: jobs that still run, or were lost
    free_kilobytes: int = 0
    kernel_log_bytes: int = 0  #: the size of /var/log/kern.log
    emulated: bool = False


class WorkerFacts(BaseModel):
    """The answer of the agent's `read_facts`; `environments` only if requested."""

    system: SystemFacts
    environments: Facts | None


def read_all_facts(
    steps: Sequence[WantedStep], environments: bool, connection: Connection, deadline: Deadline
) -> WorkerFacts:
    """Return a worker's facts in one round trip.

    Raises `ProvisionFailed` if the answer lacks a step, and the errors of `agent_client.ask`.
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
    """Return the facts of a worker's system; raise the errors of `read_all_facts`."""
    return read_all_facts(steps, False, connection, deadline).system


def read_facts(connection: Connection, deadline: Deadline) -> Facts:
    """Return the facts for recipes; raise the errors of `read_all_facts`."""
    facts = read_all_facts((), True, connection, deadline).environments
    assert facts, "they were requested"
    return facts


def refusal(lines: Sequence[str], reason: str) -> ProvisionFailed | None:
    """Return the error for a refusal in the log of a step, or None if there is none."""
    for answer in agent_client.answers_in("a job", "\n".join(lines).encode()):
        if answer.has("refused"):
            return refused(answer.text("refused"), answer.text("fix"), reason)
    return None


def refused(cause: str, fix: str, reason: str = "") -> ProvisionFailed:
    """Return the error for a step that cannot be applied."""
    return ProvisionFailed(one_line(cause), reason=reason, fix=Fix(note=one_line(fix)))
