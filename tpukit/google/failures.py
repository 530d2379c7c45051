"""One table from the errors of Google's APIs and libraries to ours.

Google reports a stockout as code 8, 9 or 13, and code 8 may also mean quota, so the text of the
message decides (`data/api_errors.toml`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import tpukit.errors as errors
from tpukit.errors import Fix, TpukitError
from tpukit.google.no_answer import NoAnswer, arrived, cause
from tpukit.google.provider import Doubtful
from tpukit.text import one_line

_BY_STATUS: dict[str, type[TpukitError]] = {
    "INVALID_ARGUMENT": errors.BadInput,
    "FAILED_PRECONDITION": errors.TpukitError,
    "OUT_OF_RANGE": errors.BadInput,
    "UNAUTHENTICATED": errors.NotAuthenticated,
    "PERMISSION_DENIED": errors.NotAllowed,
    "NOT_FOUND": errors.NotFound,
    "ALREADY_EXISTS": errors.NameTaken,
    "RESOURCE_EXHAUSTED": errors.QuotaExceeded,
}
_BY_HTTP = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
#: The canonical codes by their numbers: https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto
_CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"
)  # fmt: skip
#: Longer messages of the API are cut to this number of characters.
_LONGEST_MESSAGE = 2048
#: The most values in one answer: a list of 500 slices has some 50,000. A value takes up to 72 bytes
#: of memory but only 3 bytes of text (`[],`), so a small answer could fill the memory.
_MOST_VALUES = 1_000_000
#: The status of an answer that did not come from the API, such as a proxy's page.
UNREADABLE = "UNREADABLE"
#: The reason of a 401 for the newest token: another program may be about to renew it.
TOKEN_REFUSED = "TOKEN_REFUSED"
Row = Mapping[str, Any]  #: of the table
#: The fix if there are no usable credentials.
LOGIN = Fix.command(
    *("gcloud", "auth", "application-default", "login"), note="or try without an account: --local"
)
#: The fix if a server cannot be reached.
UNREACHED = Fix.command(
    *("tpukit", "config", "explain"),
    note="shows the origin of the address, perhaps an emulator that has stopped",
)


@dataclass(frozen=True)
class Failure:
    """An unsuccessful call, made by any library.

    `status` is the name of a canonical code, or "" without any answer. `retry_after` is in seconds.
    """

    status: str
    message: str
    http: int = 0
    reason: str = ""
    links: tuple[str, ...] = ()
    retry_after: float | None = None
    sent: bool = True  #: whether the request may have reached the server
    #: Whether the call addressed one resource by name, so that NOT_FOUND means this resource. In an
    #: operation or a create, NOT_FOUND means something that it needs, such as a network.
    named: bool = True
    #: Whether this is a failed operation or queued resource that asked for capacity. Its codes 8
    #: and 13 mean a stockout, unless the text says otherwise.
    capacity: bool = False

    @property
    def doubtful(self) -> bool:
        """Whether the server may have carried out the request."""
        return self.sent and (self.status in ("", UNREADABLE) or self.http >= 500)

    @property
    def transient(self) -> bool:
        """Whether the same call may succeed a little later.

        Of the 429s this is true of rate limits, but not of a used-up quota.
        """
        if self.http == 429:
            known = _known(self)
            return known is None or known["retry"] == "same-zone"
        return not self.status or self.http >= 500 or self.status == "ABORTED"


class RestFailure(Exception):
    """A REST call of ours has failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def from_body(http: int, body: object, headers: Mapping[str, str]) -> Failure:
    """Read an error document of AIP-193 or Compute Engine; anything else is UNREADABLE."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        # The answer is not the API's, so its 404 does not mean "no such slice". These codes mean
        # the same from a proxy, which may ask us to log in or to wait.
        clear = http in (401, 403, 429) or http >= 500
        status = _BY_HTTP.get(http, UNREADABLE) if clear else UNREADABLE
        message = f"answer {http} without an error document"
        return Failure(status, message, http=http, retry_after=_delay(headers))
    status = _text(error.get("status")) or _BY_HTTP.get(http, UNREADABLE)
    return _with_details(status, error, http, headers)


def from_answer(http: int, content: bytes, headers: Mapping[str, str]) -> Failure:
    """Read the answer of a call that failed."""
    try:
        body = parsed(content)
    except ValueError as error:
        failure = from_body(http, None, headers)
        return replace(failure, message=f"answer {http}: {error}") if is_page(content) else failure
    return from_body(http, body, headers)


def is_page(content: bytes) -> bool:
    """Return True if an answer is HTML or XML, such as a proxy's login page."""
    return content.lstrip()[:1] == b"<"


def parsed(content: bytes) -> Any:
    """Return the value of a JSON text; raise ValueError if it is not JSON or would fill memory."""
    if is_page(content):
        raise ValueError("a web page came in place of the API's answer")
    if sum(map(content.count, (b"[", b"{", b","))) > _MOST_VALUES:
        raise ValueError("the answer has too many values")
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("the answer is nested too deeply") from error


def from_operation(error: Mapping[str, Any], *, capacity: bool) -> Failure:
    """Read the JSON of the `google.rpc.Status` of a failed operation; see `Failure.capacity`.

    An empty status, which queued resources have been seen with, becomes UNKNOWN.
    """
    code: Any = error.get("code")
    known = isinstance(code, int) and code in range(len(_CODES))
    failure = _with_details(_CODES[code] if known else "UNKNOWN", error, 0, {})
    message = failure.message or "Google gave no reason"
    return replace(failure, message=message, named=False, capacity=capacity)


def from_exception(error: Exception) -> Failure | None:
    """Read an exception of google-auth, requests or ours; return None for any other.

    Classes are compared by name, because importing these libraries takes 200 ms of CPU.
    """
    if isinstance(error, RestFailure):
        return error.failure
    if isinstance(error, NoAnswer):
        return Failure("", str(error), sent=error.sent)
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(error).__mro__}
    if "google.auth.exceptions.GoogleAuthError" in kinds:
        lost = "google.auth.exceptions.TransportError" in kinds or getattr(
            error, "retryable", False
        )
        return _no_answer(error) if lost else _not_authenticated(error)
    if isinstance(error, ValueError):  # not JSON (from requests too), or JSON of another shape
        return unreadable(error)
    lost = isinstance(error, TimeoutError) or "requests.exceptions.RequestException" in kinds
    return _no_answer(error) if lost else None


def _no_answer(error: Exception) -> Failure:
    return Failure("", cause(error), sent=arrived(error))


def _not_authenticated(error: Exception) -> Failure:
    return Failure("UNAUTHENTICATED", message_of(error), http=401)


def message_of(error: Exception) -> str:
    """Return the message of an error of google-auth, which may contain whole JSON answers."""
    texts = (_message_in(str(part)) for part in error.args if not isinstance(part, dict))
    return one_line(": ".join(filter(None, texts))[:_LONGEST_MESSAGE]) or type(error).__name__


def _message_in(text: str) -> str:
    try:
        document = parsed(text.encode()) if text.lstrip().startswith("{") else None
    except ValueError:
        return text
    return from_body(0, document, {}).message if document else text


def unreadable(error: Exception) -> Failure:
    """Return the failure of a call with an answer that is not the API's."""
    return Failure(UNREADABLE, f"the answer could not be read: {one_line(str(error))[:200]}")


@contextmanager
def reading(doing: str, *, reading_back: bool = False) -> Iterator[None]:
    """Raise our error if an answer is JSON of another shape than the block reads."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise to_error(unreadable(error), doing, reading_back=reading_back) from error


def to_error(
    failure: Failure,
    doing: str,
    *,
    reading_back: bool = False,
    otherwise: type[TpukitError] = errors.TpukitError,
) -> TpukitError:
    """Return our error for a failure while `doing` (`create slice demo`).

    If the caller can read back, an unknown outcome and a conflict with another call (ABORTED) are
    `Doubtful`. `otherwise` is the class for failures that have none in the table.
    """
    message = one_line(failure.message)
    known = _known(failure)
    kind: type[TpukitError] = _BY_STATUS.get(failure.status, otherwise)
    if reading_back and (failure.doubtful or failure.status == "ABORTED"):
        kind = Doubtful
    elif failure.status == "NOT_FOUND" and failure.named:
        kind = errors.NotFound
    elif known:
        kind = getattr(errors, known["kind"])
    elif failure.status == "NOT_FOUND":
        kind = errors.BadInput
    why = known["cause"] if known else message
    fix = _fix(kind, known, failure)
    what = f"cannot {doing}: {message or 'no answer'}"
    return kind(
        what,
        reason=_reason(failure, known),
        why=why if why != message else "",
        fix=fix,
        retry="same-zone" if failure.transient else str(known["retry"]) if known else "",
    )


def _fix(kind: type[TpukitError], known: Row | None, failure: Failure) -> Fix | None:
    if kind is errors.NotAuthenticated:
        return LOGIN
    if known:
        return Fix(tuple(known.get("command", ())), known["remedy"])
    if not failure.sent:
        return UNREACHED
    return Fix(note=f"read {failure.links[0]}") if failure.links else None


def _reason(failure: Failure, known: Row | None) -> str:
    named = known["id"] if known else failure.reason
    waits = f"asks to wait {failure.retry_after:g} s" if failure.retry_after else ""
    return one_line(", ".join(filter(None, (failure.status or "no answer", named, waits))))


def read_table(name: str) -> tuple[tuple[re.Pattern[str], Row], ...]:
    """Return the rows of a table of errors in `data`, with their compiled patterns."""
    import tomllib
    from importlib.resources import files

    text = files("tpukit").joinpath("data", name).read_text(encoding="utf-8")
    rows = tomllib.loads(text)["error"]
    return tuple((re.compile(row["pattern"], re.IGNORECASE | re.MULTILINE), row) for row in rows)


@cache
def api_errors() -> tuple[tuple[re.Pattern[str], Row], ...]:
    """Return the rows of api_errors.toml with their compiled patterns."""
    return read_table("api_errors.toml")


def filled(row: Row, match: re.Match[str]) -> tuple[str, ...]:
    """Return the command of a row with the names from its message; empty if it has none."""
    names = {f"{{{name}}}": text for name, text in match.groupdict("").items()}
    return tuple(names.get(word, word) for word in row.get("command", ()))


def _known(failure: Failure) -> Row | None:
    """Return the first row that fits a failure, with names from its message in its command.

    A message pasted from gcloud is JSON, with a backslash before each quote.
    """
    message = one_line(failure.message).replace('\\"', '"')
    for pattern, row in api_errors():
        here = failure.capacity and row.get("operation") == failure.status
        if ("operation" not in row or here) and (match := pattern.search(message)):
            return {**row, "command": filled(row, match)}
    return None


def _with_details(
    status: str, error: Mapping[str, Any], http: int, headers: Mapping[str, str]
) -> Failure:
    details = _objects(error.get("details"))
    by_type = {_text(detail.get("@type")).rpartition(".")[2]: detail for detail in details}
    info = by_type.get("ErrorInfo", {})
    links = [_text(link.get("url")) for link in _objects(by_type.get("Help", {}).get("links"))]
    delay = _seconds(by_type.get("RetryInfo", {}).get("retryDelay"))
    return Failure(
        status,
        _text(error.get("message")),
        http=http,
        reason=_text(info.get("reason")),
        links=tuple(one_line(link) for link in links if link.startswith("https://")),
        retry_after=_delay(headers) if delay is None else delay,
    )


def _text(value: object) -> str:
    """Return a text, cut to `_LONGEST_MESSAGE`; "" for any other value."""
    return value[:_LONGEST_MESSAGE] if isinstance(value, str) else ""


def _objects(value: object) -> list[dict[str, Any]]:
    """Return the JSON objects in a list; none for any other value."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _delay(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `Retry-After`, a number or a date: RFC 9110, section 10.2.3."""
    value = headers.get("retry-after", "")
    if value[:1].isalpha():
        from email.utils import parsedate_to_datetime

        try:
            ends, now = map(parsedate_to_datetime, (value, headers.get("date", "")))
            return max(0.0, (ends - now).total_seconds())
        except (ValueError, TypeError):
            return None
    return _seconds(value)


def _seconds(delay: object) -> float | None:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s?", _text(delay))
    return float(match[1]) if match else None
