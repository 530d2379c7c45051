"""One table from the errors of Google's libraries to ours.

Over REST google-api-core raises one class for several statuses (`Conflict` for ALREADY_EXISTS and
for ABORTED, `BadRequest` for INVALID_ARGUMENT and FAILED_PRECONDITION), and a failed operation
keeps its details in `errors[0]`, so the status is read from the answer's body. A stockout comes
under the codes 8, 9 and 13 and code 8 is also quota: there the text decides
(`data/api_errors.toml`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import cache
from importlib.resources import files
from typing import Any

import tpukit.errors as errors
from tpukit.cloud.http_client import NoAnswer, arrived, cause
from tpukit.cloud.provider import Doubtful
from tpukit.errors import Fix, TpukitError
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
#: The most characters of an API's message that anybody reads.
_LONGEST_MESSAGE = 2048
#: The most values that an answer of the API has: a list of 500 slices has some 50,000. In memory
#: each takes up to 72 bytes, 24 times what `[]` takes in the text.
_MOST_VALUES = 1_000_000
#: The status of an answer that is no answer of the API: a proxy's page, a path that is not served.
UNREADABLE = "UNREADABLE"
#: The reason of a 401 for a token that is still the newest: somebody may be renewing it now.
TOKEN_REFUSED = "TOKEN_REFUSED"
Row = Mapping[str, Any]  #: of the table
#: What to type where there are no credentials that work.
LOGIN = Fix.command(
    *("gcloud", "auth", "application-default", "login"), note="or try without an account: --local"
)
#: What to type where a server cannot be reached.
UNREACHED = Fix.command(
    *("tpukit", "config", "explain"),
    note="shows where its address comes from: it may be that of an emulator that was stopped",
)


@dataclass(frozen=True)
class Failure:
    """What is known of an unsuccessful call, whichever library made it.

    `status` is a canonical code name, or "" where no answer came at all. `retry_after` is in
    seconds.
    """

    status: str
    message: str
    http: int = 0
    reason: str = ""
    links: tuple[str, ...] = ()
    retry_after: float | None = None
    sent: bool = True  #: whether the request may have reached the server
    #: Whether the call was on one resource by its name: NOT_FOUND means that resource then. What an
    #: operation or a create does not find is something that it needs, a network for example.
    named: bool = True
    #: Whether an operation or a queued resource that asked for capacity failed. Codes 8 and 13
    #: without a known text mean then that there is none.
    capacity: bool = False

    @property
    def doubtful(self) -> bool:
        """Whether the request may have been carried out although it was not confirmed."""
        return self.sent and (self.status in ("", UNREADABLE) or self.http >= 500)

    @property
    def transient(self) -> bool:
        """Whether the same call may succeed when it is repeated a little later.

        Of the 429s only the rate limits: a quota that is used up does not come back in seconds.
        """
        if self.http == 429:
            known = _known(self)
            return known is None or known["retry"] == "same-zone"
        return not self.status or self.http >= 500 or self.status == "ABORTED"


class RestFailure(Exception):
    """Raised by our own REST calls, so that one table reads every library's errors."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def from_body(http: int, body: object, headers: Mapping[str, str]) -> Failure:
    """Read an error document of AIP-193 or Compute Engine; anything else is UNREADABLE."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        # This is no answer of the API: a page with 404 must not be taken for "no such slice". A
        # proxy too may ask for a login, or to wait.
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
    """Return True if an answer is HTML or XML, as a proxy or a login page sends it."""
    return content.lstrip()[:1] == b"<"


def parsed(content: bytes) -> Any:
    """Return the value of a JSON text; raise ValueError if it is none, or would fill memory."""
    if is_page(content):
        raise ValueError("a web page came in place of the API's answer")
    if sum(map(content.count, (b"[", b"{", b","))) > _MOST_VALUES:
        raise ValueError("the answer has too many values")
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("the answer is nested too deeply") from error


def from_operation(error: Mapping[str, Any], *, capacity: bool) -> Failure:
    """Read the `google.rpc.Status` of a failed operation, as a dict of its JSON form.

    `capacity` is whether the operation asked for capacity, as `Failure` has it. A status without
    anything in it, as queued resources have been seen with, is UNKNOWN.
    """
    code: Any = error.get("code")
    known = isinstance(code, int) and code in range(len(_CODES))
    failure = _with_details(_CODES[code] if known else "UNKNOWN", error, 0, {})
    message = failure.message or "Google gave no reason"
    return replace(failure, message=message, named=False, capacity=capacity)


def from_exception(error: Exception) -> Failure | None:
    """Read an exception of google-api-core, google-auth, requests or ours; None for any other.

    They are known by their names: to import these libraries takes 200 ms of CPU.
    """
    if isinstance(error, RestFailure):
        return error.failure
    if isinstance(error, NoAnswer):
        return Failure("", str(error), sent=error.sent)
    kinds = {f"{each.__module__}.{each.__name__}" for each in type(error).__mro__}
    if "google.auth.exceptions.GoogleAuthError" in kinds:
        lost = "google.auth.exceptions.TransportError" in kinds or getattr(
            error, "retryable", False
        )
        return _no_answer(error) if lost else _not_authenticated(error)
    if isinstance(error, ValueError):  # no JSON, of requests too; JSON of another shape
        return unreadable(error)
    lost = isinstance(error, TimeoutError) or "requests.exceptions.RequestException" in kinds
    return _no_answer(error) if lost else None


def _no_answer(error: Exception) -> Failure:
    return Failure("", cause(error), sent=arrived(error))


def _not_authenticated(error: Exception) -> Failure:
    return Failure("UNAUTHENTICATED", told(error), http=401)


def told(error: Exception) -> str:
    """Return what an error of google-auth says: it holds texts, causes and whole answers."""
    texts = (_told(str(each)) for each in error.args if not isinstance(each, dict))
    return one_line(": ".join(filter(None, texts))[:_LONGEST_MESSAGE]) or type(error).__name__


def _told(text: str) -> str:
    try:
        document = parsed(text.encode()) if text.lstrip().startswith("{") else None
    except ValueError:
        return text
    return from_body(0, document, {}).message if document else text


def unreadable(error: Exception) -> Failure:
    """Return the failure of a call whose answer came, and is none that the API gives."""
    return Failure(UNREADABLE, f"the answer could not be read: {one_line(str(error))[:200]}")


def to_error(
    failure: Failure,
    doing: str,
    *,
    reading_back: bool = False,
    otherwise: type[TpukitError] = errors.TpukitError,
) -> TpukitError:
    """Return our error for a failure while `doing` (`create slice demo`).

    A failure that leaves the outcome open, and one of which another call in progress is the cause,
    is `Doubtful` where the caller can read back. `otherwise` is the class of what has none.
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


@cache
def _table() -> tuple[tuple[re.Pattern[str], Row], ...]:
    import tomllib

    text = files("tpukit").joinpath("data/api_errors.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["error"]
    return tuple((re.compile(row["pattern"], re.IGNORECASE | re.MULTILINE), row) for row in rows)


def _known(failure: Failure) -> Row | None:
    """Return the row that a failure fits, with the names in its message filled into its words.

    gcloud prints messages as JSON, so that pasted ones have a backslash before each quote.
    """
    message = one_line(failure.message).replace('\\"', '"')
    for pattern, row in _table():
        here = failure.capacity and row.get("operation") == failure.status
        if ("operation" not in row or here) and (match := pattern.search(message)):
            named = {f"{{{name}}}": text for name, text in match.groupdict("").items()}
            command = [named.get(word, word) for word in row.get("command", ())]
            return {**row, "command": command}
    return None


def _with_details(
    status: str, error: Mapping[str, Any], http: int, headers: Mapping[str, str]
) -> Failure:
    details = _objects(error.get("details"))
    by_type = {_text(each.get("@type")).rpartition(".")[2]: each for each in details}
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


def _text(found: object) -> str:
    """Return a text, cut to what anybody reads; nothing of anything else."""
    return found[:_LONGEST_MESSAGE] if isinstance(found, str) else ""


def _objects(found: object) -> list[dict[str, Any]]:
    """Return the JSON objects of a list, and nothing of anything else."""
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _delay(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that `Retry-After` asks for, as a number or a date: RFC 9110, 10.2.3."""
    value = headers.get("retry-after", "")
    if value[:1].isalpha():
        try:
            ends, now = map(parsedate_to_datetime, (value, headers.get("date", "")))
            return max(0.0, (ends - now).total_seconds())
        except (ValueError, TypeError):
            return None
    return _seconds(value)


def _seconds(delay: object) -> float | None:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s?", _text(delay))
    return float(match[1]) if match else None
