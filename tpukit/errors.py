"""The error tree, each class with its exit code.

    TpukitError                1   the operation failed
    ├── BadInput               2   usage, a flag, a name, a file, an environment variable
    ├── NotFound               3   the cloud really answered "not found"
    ├── NotAuthenticated       4   no credentials, or refused ones
    ├── NotAllowed             4   credentials without the permission
    ├── NameTaken              5   the name exists with another spec or another owner
    ├── NoCapacity             6   stockout: worth another try, another zone
    ├── QuotaExceeded          6   quota or rate limit
    ├── SliceLost              7   preempted, terminated, or vanished after it was ready
    ├── DeadlinePassed         8   the wait ended; what it waited for still exists
    ├── SecurityRefusal        9   a world-open firewall, loose key modes, credentials over http
    │   └── HostKeyMismatch    9   the worker is not who the API says it is
    ├── VerificationFailed    10   provisioning or the smoke test failed
    │   ├── ProvisionFailed   10
    │   └── SmokeFailed       10
    ├── Interrupted          130   Ctrl-C
    ├── Terminated           143   SIGTERM
    └── TransportFailed      255   no SSH connection, or it broke
        └── AuthenticationFailed 255  the worker refused our key

Errors carry what a reader needs next: what failed, why, what still exists (and bills), and the
command to type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard


class TpukitError(Exception):
    """Something failed; `exit_code` is the contract with scripts."""

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        reason: str = "",
        why: str = "",
        exists: Sequence[str] = (),
        fix: str = "",
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.reason = reason
        self.why = why
        self.exists = tuple(exists)
        self.fix = fix
        self.details = details or {}

    def lines(self) -> list[str]:
        """Return the message as stderr shows it, one labelled line a fact."""
        head = f"error: {self.what}" + (f" ({self.reason})" if self.reason else "")
        why = ["why: " + "\n     ".join(self.why.splitlines())] if self.why else []
        exists = [f"exists: {line}" for line in self.exists]
        fix = [f"fix: {self.fix}"] if self.fix else []
        return [head, *why, *exists, *fix]

    def summary(self) -> str:
        """Return what failed and why as one phrase, for a report that has other lines."""
        head = f"{self.what} ({self.reason})" if self.reason else self.what
        return f"{head}: {self.why}" if self.why else head

    def document(self) -> dict[str, Any]:
        """Return the error as the value of the `error` key of a JSON document."""
        return {
            "code": self.exit_code,
            "kind": type(self).__name__,
            "message": self.what,
            "reason": self.reason,
            "why": self.why,
            "exists": list(self.exists),
            "fix": self.fix,
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


class Interrupted(TpukitError):
    exit_code = 130


class Terminated(TpukitError):
    exit_code = 143


class TransportFailed(TpukitError):
    exit_code = 255


class AuthenticationFailed(TransportFailed):
    pass


class TerminationSignal(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived; raised in the main thread just as Ctrl-C is."""


def from_document(
    document: Mapping[str, Any],
    *others: type[TpukitError],
    default: type[TpukitError] = TpukitError,
) -> TpukitError:
    """Return the error whose document another process of ours has told.

    Its class is one of this module or of `others`, else `default`. Raises KeyError and TypeError
    for what is no such document.
    """
    named = {each.__name__: each for each in (*globals().values(), *others) if _is_error(each)}
    return named.get(document["kind"], default)(
        document["message"],
        reason=document["reason"],
        why=document["why"],
        exists=document["exists"],
        fix=document["fix"],
        details=document.get("details"),
    )


def _is_error(value: object) -> TypeGuard[type[TpukitError]]:
    return isinstance(value, type) and issubclass(value, TpukitError)


def interruption(signal: KeyboardInterrupt) -> TpukitError:
    """Return the error for Ctrl-C or a termination signal; who raises it adds what exists."""
    if isinstance(signal, TerminationSignal):
        return Terminated("terminated by a signal")
    return Interrupted("interrupted")
