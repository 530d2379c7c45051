"""The one table from the errors of Google's libraries to ours."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

import google.auth.exceptions
import pytest
import requests
from google.rpc.code_pb2 import Code
from support.local_cloud import FakeClock, Reply, scripted

from tpukit import errors
from tpukit.errors import TpukitError
from tpukit.google.access_tokens import AccessTokens
from tpukit.google.failures import (
    UNREADABLE,
    Failure,
    RestFailure,
    from_body,
    from_exception,
    from_operation,
    to_error,
)
from tpukit.google.provider import Doubtful
from tpukit.google.retrying_session import Session

ROWS = tomllib.loads(files("tpukit").joinpath("data/api_errors.toml").read_text())["error"]
EXAMPLES = [(row, text) for row in ROWS for text in row["examples"]]


def body(status: str, message: str = "it failed", **more: Any) -> dict[str, Any]:
    return {"error": {"code": 400, "status": status, "message": message, **more}}


def detail(kind: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"type.googleapis.com/google.rpc.{kind}", **fields}


def failed(code: int | str, message: str) -> errors.TpukitError:
    """Return our error for a create whose operation failed so."""
    number = Code.Value(code) if isinstance(code, str) else code
    return to_error(
        from_operation({"code": number, "message": message}, capacity=True), "create slice demo"
    )


def test_each_text_that_a_user_reported_is_told_apart() -> None:
    for row, text in EXAMPLES:
        error = failed(row.get("operation", "INTERNAL"), text)
        assert type(error).__name__ == row["kind"]
        assert error.reason.endswith(f", {row['id']}")
        assert error.why
        assert error.fix


def test_a_text_decides_whatever_code_it_comes_under() -> None:
    for row, text in EXAMPLES:
        for code in [5, 8, 9, 13] if "operation" not in row else []:
            assert type(failed(code, text)).__name__ == row["kind"]


def test_a_text_that_gcloud_printed_as_json_is_known_too() -> None:
    for row, text in EXAMPLES:
        escaped = text.replace('"', '\\"')
        assert failed(row.get("operation", "INTERNAL"), escaped).reason.endswith(row["id"])


def test_code_8_means_a_quota_only_if_it_says_so() -> None:
    for message in ("Insufficient capacity", "We are out of these", "", "a\nb"):
        assert type(failed("RESOURCE_EXHAUSTED", message)) is errors.NoCapacity
    assert type(failed("RESOURCE_EXHAUSTED", "Quota of something")) is errors.QuotaExceeded
    unknown = failed("RESOURCE_EXHAUSTED", "We are out of these")
    assert "does not know this text" in unknown.why


def test_an_internal_error_means_no_capacity_in_an_operation_alone() -> None:
    message = "an internal error has occurred"
    assert type(failed("INTERNAL", message)) is errors.NoCapacity
    listed = to_error(from_body(500, body("INTERNAL", message), {}), "list slices")
    assert type(listed) is errors.TpukitError


def test_what_an_operation_does_not_find_is_never_the_slice() -> None:
    assert type(failed("NOT_FOUND", "Reservation not found")) is errors.NoCapacity
    assert type(failed("NOT_FOUND", "The network was not found")) is errors.BadInput


def test_a_failure_without_a_word_says_so() -> None:
    for empty in ({}, {"code": 13}, {"message": ""}):
        error = to_error(from_operation(empty, capacity=True), "fill queued resource demo")
        assert error.what == "cannot fill queued resource demo: Google gave no reason"


def test_every_row_names_an_error_of_ours_and_its_source() -> None:
    assert all(issubclass(getattr(errors, row["kind"]), errors.TpukitError) for row in ROWS)
    assert all(row["source"] and row["cause"] and row["remedy"] and row["examples"] for row in ROWS)
    assert len({row["id"] for row in ROWS}) == len(ROWS)


def test_a_status_without_a_known_text_has_its_own_error() -> None:
    cases = [
        ("INVALID_ARGUMENT", errors.BadInput),
        ("OUT_OF_RANGE", errors.BadInput),
        ("FAILED_PRECONDITION", errors.TpukitError),
        ("UNAUTHENTICATED", errors.NotAuthenticated),
        ("PERMISSION_DENIED", errors.NotAllowed),
        ("NOT_FOUND", errors.NotFound),
        ("ALREADY_EXISTS", errors.NameTaken),
        ("RESOURCE_EXHAUSTED", errors.QuotaExceeded),
        ("ABORTED", errors.TpukitError),
        ("INTERNAL", errors.TpukitError),
        ("A_STATUS_OF_TOMORROW", errors.TpukitError),
    ]
    for status, kind in cases:
        error = to_error(from_body(400, body(status), {}), "do it")
        assert type(error) is kind
        assert error.what == "cannot do it: it failed"
        assert error.reason == status


def test_the_status_of_the_body_wins_over_the_status_of_http() -> None:
    assert from_body(409, body("ABORTED"), {}).status == "ABORTED"
    assert from_body(409, body("ALREADY_EXISTS"), {}).status == "ALREADY_EXISTS"


def test_a_compute_engine_error_has_no_status_and_is_known_by_its_http_status() -> None:
    failure = from_body(404, {"error": {"code": 404, "message": "gone", "errors": []}}, {})
    assert failure.status == "NOT_FOUND"
    assert failure.message == "gone"


def test_details_of_aip_193_are_read() -> None:
    details = [
        detail("ErrorInfo", reason="QUOTA", metadata={"limit": "1"}),
        detail("RetryInfo", retryDelay="2.5s"),
        detail("Help", links=[{"url": "https://example.com/a"}, {"url": "javascript:alert(1)"}]),
    ]
    failure = from_body(429, body("RESOURCE_EXHAUSTED", details=details), {})
    assert failure.reason == "QUOTA"
    assert failure.retry_after == 2.5
    assert failure.links == ("https://example.com/a",)


def test_the_header_names_the_delay_where_the_body_does_not() -> None:
    assert from_body(503, None, {"retry-after": "7"}).retry_after == 7.0
    assert from_body(503, None, {"retry-after": "Wed, 21 Oct 2015"}).retry_after is None
    noon = {"date": "Wed, 21 Oct 2015 12:00:00 GMT"}
    for date, seconds in (
        ("Wed, 21 Oct 2015 12:01:30 GMT", 90.0),
        ("Wed, 21 Oct 2015 11:00:00 GMT", 0.0),
    ):
        assert from_body(503, None, {**noon, "retry-after": date}).retry_after == seconds


def test_an_error_says_for_how_long_the_api_asks_to_wait() -> None:
    error = to_error(from_body(429, None, {"retry-after": "86400"}), "create slice demo")
    assert (error.exit_code, error.reason) == (6, "RESOURCE_EXHAUSTED, asks to wait 86400 s")


@pytest.mark.parametrize("http", [200, 302, 404, 503])
def test_a_web_page_is_told_as_one(http: int) -> None:
    page = b"<!DOCTYPE html><title>Sign in</title>"
    with scripted(Reply(http, page, {"Content-Type": "text/html"})) as server:
        session = Session(AccessTokens(None, FakeClock()), FakeClock(), retry_seconds=0.0)
        with pytest.raises(TpukitError, match="a web page came in place of the API's answer") as it:
            session.rest("list slices", "GET", f"{server.url}/x")
    assert it.value.exit_code == 1
    assert str(it.value.fix) == "tpukit config explain"


GARBAGE = [None, [], "text", 7, {}, {"error": None}, {"error": "no"}, {"error": []}]


def test_a_body_that_is_no_error_document_is_said_to_be_none() -> None:
    for garbage in GARBAGE:
        for http in [400, 403, 404, 409, 429, 500, 502, 503]:
            failure = from_body(http, garbage, {})
            assert failure.message == f"answer {http} without an error document"
            assert isinstance(to_error(failure, "do it"), errors.TpukitError)


def test_a_page_with_404_is_not_taken_for_a_slice_that_is_not_there() -> None:
    for garbage in GARBAGE:
        error = to_error(from_body(404, garbage, {}), "read slice demo")
        assert type(error) is errors.TpukitError


def test_fields_of_a_wrong_type_are_passed_over() -> None:
    for value in [None, 7, "text", [7], ["x"], {"a": 1}, [[]], [{"@type": 7}]]:
        shapes = [
            body("NOT_FOUND", details=value),
            body("NOT_FOUND", details=[detail("Help", links=value)]),
            body("NOT_FOUND", details=[detail("Help", links=[{"url": value}])]),
            body("NOT_FOUND", details=[detail("ErrorInfo", reason=value, metadata=value)]),
            body("NOT_FOUND", details=[detail("RetryInfo", retryDelay=value)]),
        ]
        for shape in shapes:
            assert from_body(404, shape, {}).status == "NOT_FOUND"
        assert from_body(404, {"error": {"status": value, "message": value}}, {})


def test_whatever_comes_with_a_refusal_it_stays_one() -> None:
    for value in [None, 7, "text", [7], [[]], {"a": 1}, [{"@type": []}]]:
        for shape in (body("PERMISSION_DENIED", details=value), {"error": {"details": value}}):
            assert type(to_error(from_body(403, shape, {}), "do it")) is errors.NotAllowed


def test_only_the_beginning_of_a_long_message_is_shown() -> None:
    details = [detail("ErrorInfo", reason="r" * 9000), detail("Help", links=[{"url": "u" * 9000}])]
    found = to_error(from_body(400, body("INTERNAL", "m" * 9_000_000, details=details), {}), "do")
    assert len("".join(found.lines())) < 5000


def test_an_error_tells_when_the_same_may_succeed() -> None:
    cases = [
        (Failure("", "reset"), "same-zone"),
        (Failure("UNAVAILABLE", "busy", http=503), "same-zone"),
        (Failure("ABORTED", "another operation is in progress", http=409), "same-zone"),
        (Failure("RESOURCE_EXHAUSTED", "slow down", http=429), "same-zone"),
        (
            Failure("RESOURCE_EXHAUSTED", "Quota 'TPUX' exhausted. Limit 1 in zone z", 429),
            "after-fix",
        ),
        (Failure("INTERNAL", 'There is no more capacity in the zone "z"'), "other-zone"),
        (Failure("PERMISSION_DENIED", "no", http=403), ""),
    ]
    for failure, retry in cases:
        error = to_error(failure, "create it")
        assert error.retry == retry
        assert error.document().get("retry", "") == retry
        assert errors.from_document(error.document()).retry == retry


def test_a_failed_operation_is_read_by_its_code() -> None:
    for name, number in Code.items():
        assert from_operation({"code": number}, capacity=False).status == name
    assert from_operation({"code": 999, "message": "?"}, capacity=False).status == "UNKNOWN"
    assert from_operation({}, capacity=False).status == "UNKNOWN"


def test_each_library_s_exceptions_are_read() -> None:
    cases = [
        (requests.ConnectionError("refused"), "", True),
        (requests.ReadTimeout("slow"), "", True),
        (requests.exceptions.ChunkedEncodingError("cut"), "", True),
        (google.auth.exceptions.TransportError("no route"), "", True),
        (google.auth.exceptions.RefreshError("revoked"), "UNAUTHENTICATED", False),
        (google.auth.exceptions.RefreshError("busy", {}, retryable=True), "", True),
        (google.auth.exceptions.DefaultCredentialsError("none"), "UNAUTHENTICATED", False),
        (ValueError("no JSON"), UNREADABLE, False),
        (RestFailure(Failure("NOT_FOUND", "gone", http=404)), "NOT_FOUND", False),
    ]
    for exception, status, transient in cases:
        failure = from_exception(exception)
        assert failure is not None
        assert (failure.status, failure.transient) == (status, transient)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("invalid_grant: revoked", {"error": "invalid_grant"}), "invalid_grant: revoked"),
        (("Failed to load", ValueError("no PEM")), "Failed to load: no PEM"),
        (("Unable", '{"error": {"code": 403, "message": "may not"}}'), "Unable: may not"),
        (("Unable", "{not json"), "Unable: {not json"),
        ((), "RefreshError"),
    ],
)
def test_what_google_auth_says_is_no_python(arguments: tuple[object, ...], said: str) -> None:
    failure = from_exception(google.auth.exceptions.RefreshError(*arguments))
    assert failure is not None
    assert failure.message == said


def test_a_defect_of_ours_is_no_failure_of_a_call() -> None:
    assert from_exception(ZeroDivisionError()) is None
    assert from_exception(AttributeError("x")) is None


def test_an_open_outcome_is_doubtful_where_the_caller_reads_back() -> None:
    cases = [
        (Failure("", "reset"), True),
        (Failure(UNREADABLE, "html"), True),
        (Failure("UNAVAILABLE", "busy", http=503), True),
        (Failure("ABORTED", "busy", http=409), True),
        (Failure("RESOURCE_EXHAUSTED", "busy", http=429), False),
        (Failure("INVALID_ARGUMENT", "no", http=400), False),
        (Failure("ALREADY_EXISTS", "no", http=409), False),
    ]
    for failure, doubtful in cases:
        assert isinstance(to_error(failure, "create it", reading_back=True), Doubtful) is doubtful
        assert not isinstance(to_error(failure, "create it"), Doubtful)


def test_not_found_stays_not_found_whatever_its_text() -> None:
    text = "The resource 'projects/p/global/networks/default' was not found"
    assert type(to_error(Failure("NOT_FOUND", text, http=404), "x")) is errors.NotFound


def test_who_is_not_authenticated_is_told_how_to_log_in() -> None:
    error = to_error(Failure("UNAUTHENTICATED", "no token", http=401), "list slices")
    assert str(error.fix).startswith("gcloud auth application-default login")


def test_a_hostile_message_is_shown_on_one_harmless_line() -> None:
    failure = Failure("INTERNAL\nfix: c", "a\x1b[2J\nerror: b", http=500, reason="d\ne")
    error = to_error(failure, "do it")
    assert error.lines()[0] == "error: cannot do it: a\\x1b[2J error: b (INTERNAL fix: c, d e)"
