"""The result of a check, and the fix."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from tpukit.errors import Fix, TpukitError
from tpukit.text import one_line

Outcome = Literal["ok", "warning", "failure", "not checked"]


@dataclass(frozen=True)
class Finding:
    """One result of a check: its subject, the result in words, and a fix unless all is well."""

    check: str
    outcome: Outcome
    said: str
    fix: Fix | None = None

    def document(self) -> dict[str, Any]:
        """Return the JSON value."""
        return {**vars(self), "fix": self.fix.document() if self.fix else None}


def checked(check: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings of a check; its error is a failure."""
    try:
        return list(look())
    except TpukitError as error:
        return [Finding(check, "failure", one_line(error.summary()), error.fix)]


def failed(findings: Iterable[Finding]) -> bool:
    """Return True if a check has failed."""
    return any(finding.outcome == "failure" for finding in findings)
