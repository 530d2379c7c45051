"""The error tree, each class with its exit code.

    TpukitError                1   the operation failed
    ├── BadInput               2   usage, a flag, a name, a file, an environment variable
    ├── NotFound               3   the cloud really answered "not found"
    ├── NotAuthenticated       4   no credentials, or refused ones
    ├── NotAllowed             4   no permission, or the slice belongs to somebody else
    │   └── NotEnabled         4   the API is off, or the zone is closed to the project
    ├── NameTaken              5   the name exists with another spec or another owner
    ├── NoCapacity             6   stockout: worth another try, another zone
    ├── QuotaExceeded          6   quota or rate limit
    ├── SliceLost              7   preempted, terminated, being deleted, or vanished
    ├── DeadlinePassed         8   the wait ended; nothing was deleted
    ├── SecurityRefusal        9   an open rule, loose keys, credentials over http, untrusted files
    │   └── HostKeyMismatch    9   the worker has another host key than the API says
    ├── VerificationFailed    10   provisioning or the smoke test failed
    │   ├── ProvisionFailed   10
    │   ├── SmokeFailed       10
    │   └── DevicesBusy       10  another process holds the devices: they cannot be tested
    ├── Interrupted          130   Ctrl-C
    ├── Terminated           143   SIGTERM
    └── TransportFailed      255   no SSH connection, or it broke
        ├── AuthenticationFailed 255  the worker refused our key
        └── Unanswered         255  no packet came back, for example because of a firewall

An error names the failure, its reason, the things that still exist (and bill), and the command to
type next.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from tpukit.text import quote


@dataclass(frozen=True)
class Fix:
    """A command to type next, as words, and a note; either may be empty.

    Each new fix raises the audit event `tpukit.fix` with its words, so that tests see all of them.
    """

    arguments: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        sys.audit("tpukit.fix", self.arguments)

    @classmethod
    def command(cls, *arguments: str, note: str = "") -> Fix:
        """Return a fix with these words as its command."""
        return cls(arguments, note)

    def __str__(self) -> str:
        """Return the command as a shell line, or the note if there is no command."""
        return quote(self.arguments) if self.arguments else self.note

    def lines(self, label: str) -> list[str]:
        """Return the lines for a person, with the command on its own line for pasting."""
        note = [f"note: {self.note}"] if self.arguments and self.note else []
        return [f"{label}: {self}", *note]

    def document(self) -> dict[str, Any]:
        """Return the fix as a JSON document."""
        return {"arguments": list(self.arguments), "note": self.note}


class TpukitError(Exception):
    """A failure. `exit_code` is the exit status of the command, on which scripts rely.

    `what` is the failed action, `reason` a short cause, `why` a longer explanation. `exists` lists
    the things that remain and bill, and `slices` the zone and name of slices among them. `fix` is
    the command to type next, and `otherwise` an alternative. `retry` says when the same command may
    succeed, if known: `same-zone` (a little later), `other-zone`, `after-fix` or `never`. `also`
    has further errors.

    `common` is True for errors that concern all workers, not only the worker that raised it.
    """

    exit_code = 1
    common = False

    def __init__(
        self,
        what: str,
        *,
        reason: str = "",
        why: str = "",
        exists: Sequence[str] = (),
        fix: Fix | None = None,
        otherwise: Fix | None = None,
        retry: str = "",
        also: Sequence[TpukitError] = (),
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.reason = reason
        self.why = why
        self.exists = tuple(exists)
        self.slices: tuple[tuple[str, str], ...] = ()
        self.fix = fix
        self.otherwise = otherwise
        self.retry = retry
        self.also = tuple(also)
        self.details = details or {}

    def lines(self, label: str = "error") -> list[str]:
        """Return the labelled lines for stderr."""
        head = f"{label}: {self.what}" + (f" ({self.reason})" if self.reason else "")
        why = ["why: " + "\n     ".join(self.why.splitlines())] if self.why else []
        exists = [f"exists: {line}" for line in self.exists]
        fixes = [line for fix in (self.fix, self.otherwise) if fix for line in fix.lines("fix")]
        also = [line for error in self.also for line in error.lines("also")]
        return [head, *why, *exists, *fixes, *also]

    def summary(self) -> str:
        """Return the failure with its reason and explanation in one phrase."""
        head = f"{self.what} ({self.reason})" if self.reason else self.what
        return f"{head}: {self.why}" if self.why else head

    def document(self) -> dict[str, Any]:
        """Return the value of the `error` key in a JSON document."""
        return {
            "code": self.exit_code,
            "kind": type(self).__name__,
            "message": self.what,
            "reason": self.reason,
            "why": self.why,
            "exists": list(self.exists),
            "fix": str(self.fix or ""),
            "fix_arguments": list(self.fix.arguments) if self.fix else [],
            "fix_note": self.fix.note if self.fix else "",
            **({"retry": self.retry} if self.retry else {}),
            **({"otherwise": self.otherwise.document()} if self.otherwise else {}),
            **({"also": [error.document() for error in self.also]} if self.also else {}),
            **({"details": self.details} if self.details else {}),
        }


class BadInput(TpukitError):
    exit_code = 2


class NotFound(TpukitError):
    exit_code = 3


class NotAuthenticated(TpukitError):
    exit_code = 4


class NotAllowed(TpukitError):
    exit_code = 4


class NotEnabled(NotAllowed):
    pass


class NameTaken(TpukitError):
    exit_code = 5


class NoCapacity(TpukitError):
    exit_code = 6


class QuotaExceeded(TpukitError):
    exit_code = 6


class SliceLost(TpukitError):
    exit_code = 7


class DeadlinePassed(TpukitError):
    exit_code = 8


class SecurityRefusal(TpukitError):
    exit_code = 9


class HostKeyMismatch(SecurityRefusal):
    pass


class VerificationFailed(TpukitError):
    exit_code = 10


class ProvisionFailed(VerificationFailed):
    pass


class SmokeFailed(VerificationFailed):
    pass


class DevicesBusy(VerificationFailed):
    pass


class Interrupted(TpukitError):
    exit_code = 130


class Terminated(TpukitError):
    exit_code = 143


class TransportFailed(TpukitError):
    exit_code = 255


class AuthenticationFailed(TransportFailed):
    pass


class Unanswered(TransportFailed):
    pass


class TerminationSignal(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived; raised in the main thread, like Ctrl-C."""


def from_document(document: Mapping[str, Any]) -> TpukitError:
    """Return the error of a `TpukitError.document`, with its class from this module.

    Raises KeyError or TypeError for any other document.
    """
    fix = Fix(tuple(document["fix_arguments"]), document["fix_note"])
    other = document.get("otherwise")
    kinds = {kind.__name__: kind for kind in globals().values() if _is_error(kind)}
    return kinds.get(document["kind"], TpukitError)(
        document["message"],
        reason=document["reason"],
        why=document["why"],
        exists=document["exists"],
        fix=fix if str(fix) else None,
        otherwise=Fix(tuple(other["arguments"]), other["note"]) if other else None,
        retry=document.get("retry", ""),
        details=document.get("details"),
    )


def _is_error(value: object) -> TypeGuard[type[TpukitError]]:
    return isinstance(value, type) and issubclass(value, TpukitError)


def interruption(signal: KeyboardInterrupt) -> TpukitError:
    """Return the error for Ctrl-C or a termination signal; the caller sets its `exists`."""
    if isinstance(signal, TerminationSignal):
        return Terminated("terminated by a signal")
    return Interrupted("interrupted")


def together(what: str, errors: Sequence[TpukitError]) -> TpukitError:
    """Return one error for several, such as `2 settings are wrong`; a single one is returned as is.

    It has the class of the first `SecurityRefusal`, or else of the first error.
    """
    if len(errors) == 1:
        return errors[0]
    first = next((error for error in errors if isinstance(error, SecurityRefusal)), errors[0])
    fixes = [error.fix for error in errors if error.fix]
    command = next((fix.arguments for fix in fixes if fix.arguments), ())
    return type(first)(
        f"{len(errors)} {what}",
        why="\n".join(error.summary() for error in errors),
        fix=Fix(command, "; ".join(dict.fromkeys(fix.note for fix in fixes if fix.note))),
    )


#: Errors that matter more than a failed remote command, the most important first.
_DECISIVE = (
    SliceLost,
    NotFound,
    SecurityRefusal,
    NotAuthenticated,
    NotAllowed,
    DeadlinePassed,
    AuthenticationFailed,
    TransportFailed,
    DevicesBusy,
)


def decisive(errors: Iterable[TpukitError | None]) -> TpukitError | None:
    """Return the most important of several workers' errors, or None if only their work failed."""
    known = [error for error in errors if error]
    return next((error for kind in _DECISIVE for error in known if isinstance(error, kind)), None)
