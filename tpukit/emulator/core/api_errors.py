"""Errors as Google's APIs answer them (AIP-193), and checks of the values in a request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sys import float_info
from typing import Any, TypeGuard

Json = dict[str, Any]

#: google/rpc/code.proto: name -> (number, HTTP status).
CODES: Mapping[str, tuple[int, int]] = {
    "CANCELLED": (1, 499),
    "UNKNOWN": (2, 500),
    "INVALID_ARGUMENT": (3, 400),
    "DEADLINE_EXCEEDED": (4, 504),
    "NOT_FOUND": (5, 404),
    "ALREADY_EXISTS": (6, 409),
    "PERMISSION_DENIED": (7, 403),
    "RESOURCE_EXHAUSTED": (8, 429),
    "FAILED_PRECONDITION": (9, 400),
    "ABORTED": (10, 409),
    "OUT_OF_RANGE": (11, 400),
    "UNIMPLEMENTED": (12, 501),
    "INTERNAL": (13, 500),
    "UNAVAILABLE": (14, 503),
    "DATA_LOSS": (15, 500),
    "UNAUTHENTICATED": (16, 401),
}


@dataclass(frozen=True)
class Status:
    """A google.rpc.Status by its name; `http`, if not 0, overrides the usual HTTP status.

    `reason` is the one word that Compute Engine gives in place of the status.
    """

    status: str
    message: str
    details: Sequence[Json] = ()
    http: int = 0
    reason: str = ""

    @property
    def code(self) -> int:
        return CODES[self.status][0]

    @property
    def http_code(self) -> int:
        return self.http or CODES[self.status][1]

    def operation_error(self) -> Json:
        """Return the `error` field of a finished operation."""
        details = {"details": list(self.details)} if self.details else {}
        return {"code": self.code, "message": self.message, **details}

    def body(self) -> Json:
        """Return the HTTP body of the Cloud TPU API."""
        return self._body({"status": self.status})

    def compute_body(self) -> Json:
        """Return the HTTP body of the Compute Engine API, which names a reason, not a status.

        Three refusals do carry a status: bad credentials, a project that has not enabled the API,
        and a malformed message. They come from the front end that both APIs share.
        """
        if self.status == "UNAUTHENTICATED":
            return self.body()
        reason = self.reason or _COMPUTE_REASONS.get(self.status, "backendError")
        domain = "usageLimits" if reason == "accessNotConfigured" else "global"
        item = {"message": self.message, "domain": domain, "reason": reason}
        status = {"status": self.status} if reason in _FRONT_END else {}
        return self._body({"errors": [item], **status})

    def _body(self, entries: Json) -> Json:
        details = {"details": list(self.details)} if self.details else {}
        error = {"code": self.http_code, "message": self.message, **entries, **details}
        return {"error": error}


_FRONT_END = ("accessNotConfigured", "badRequest")
_COMPUTE_REASONS = {
    "INVALID_ARGUMENT": "invalid",
    "NOT_FOUND": "notFound",
    "ALREADY_EXISTS": "alreadyExists",
    "PERMISSION_DENIED": "forbidden",
    "RESOURCE_EXHAUSTED": "rateLimitExceeded",
    "FAILED_PRECONDITION": "conditionNotMet",
}


class ApiError(Exception):
    """A refusal by the emulated service."""

    def __init__(
        self,
        status: str,
        message: str,
        details: Sequence[Json] = (),
        http: int = 0,
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.status = Status(status, message, details, http, reason)


def invalid(message: str, details: Sequence[Json] = ()) -> ApiError:
    return ApiError("INVALID_ARGUMENT", message, details)


def not_found(name: str) -> ApiError:
    """Return the error of the Cloud TPU API: tests/recorded/exchanges/tpu-node-missing."""
    detail = {"@type": "type.googleapis.com/google.rpc.ResourceInfo", "resourceName": name}
    return ApiError("NOT_FOUND", f"Resource '{name}' was not found", [detail])


def camel(name: str) -> str:
    """Return a field name in JSON's spelling; protobuf's parsers accept both spellings."""
    head, *rest = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in rest)


def is_text(value: object) -> TypeGuard[str]:
    """Return True if a value is text that UTF-8 can encode, without half a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_text(document: Json, key: str, default: str) -> str:
    """Return a text from a document; raise `ApiError` if the value is not text."""
    value = document.get(key, default)
    if not is_text(value):
        raise invalid(f"{key} must be a text.")
    return value


def is_number(value: object, least: float = 0, most: float = float_info.max) -> TypeGuard[float]:
    """Return True if a JSON value is a number within bounds; true and false are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def is_whole(value: object, least: float = 0, most: float = float_info.max) -> TypeGuard[int]:
    """Return True if a JSON value is a whole number within bounds."""
    return isinstance(value, int) and is_number(value, least, most)


def read_number(
    document: Json, key: str, default: float, least: float = 0, most: float = float_info.max
) -> float:
    """Return a number from a document; raise `ApiError` if the value is none within bounds."""
    value = document.get(key, default)
    if not is_number(value, least, most):
        limit = f" and at most {most:.0f}" if most < float_info.max else ""
        raise invalid(f"{key} must be a number, at least {least:g}{limit}.")
    return float(value)


def read_whole(document: Json, key: str, default: int, least: float = 0) -> int:
    """Return a whole number from a document; raise `ApiError` if the value is none in bounds."""
    value = document.get(key, default)
    if not is_whole(value, least):
        raise invalid(f"{key} must be a whole number, at least {least:g}.")
    return value


def error_info(reason: str, **metadata: str) -> Json:
    """Return the google.rpc.ErrorInfo detail."""
    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    return {"@type": kind, "reason": reason, "domain": "googleapis.com", "metadata": metadata}


def field_violation(field: str, description: str) -> Json:
    """Return the google.rpc.BadRequest detail with one violation."""
    violation = {"field": field, "description": description}
    return {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]}


def encode(document: Any) -> bytes:
    """Return a document as JSON bytes; half a surrogate pair passes through."""
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
