"""The result of a check, the fix, and the repair that `tpukit doctor --fix` makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from tpukit.errors import Fix, TpukitError
from tpukit.text import one_line

Outcome = Literal["ok", "warning", "failure", "not checked"]


@dataclass(frozen=True)
class Finding:
    """One result of a check: its subject, the result in words, and a fix unless all is well.

    `repair` makes a repair that is safe without a question, and returns a line about it.
    """

    check: str
    outcome: Outcome
    said: str
    fix: Fix | None = None
    repair: Callable[[], str] | None = field(default=None, compare=False)

    def document(self) -> dict[str, Any]:
        """Return the JSON value."""
        fix = self.fix.document() if self.fix else None
        return {"check": self.check, "outcome": self.outcome, "said": self.said, "fix": fix}


def checked(
    check: str, look: Callable[[], Iterable[Finding]], otherwise: Outcome = "failure"
) -> list[Finding]:
    """Return the findings of a check; its error is a finding with the outcome `otherwise`."""
    try:
        return list(look())
    except TpukitError as error:
        return [Finding(check, otherwise, one_line(error.summary()), error.fix)]


def failed(findings: Iterable[Finding]) -> bool:
    """Return True if a check has failed."""
    return any(finding.outcome == "failure" for finding in findings)


def repair(findings: Iterable[Finding]) -> list[str]:
    """Make the repairs of findings, and return a line about each."""
    return [_repaired(finding) for finding in findings if finding.repair]


def _repaired(finding: Finding) -> str:
    assert finding.repair
    try:
        return finding.repair()
    except TpukitError as error:
        return f"{finding.check}: not repaired: {one_line(error.summary())}"
