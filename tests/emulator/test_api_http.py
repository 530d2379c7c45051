from __future__ import annotations

import contextlib
import json
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from http.client import HTTPConnection, HTTPException, IncompleteRead, RemoteDisconnected

import psutil
import pytest
from support.processes import eventually
from support.stopped_state import stopped_state

from tpukit.emulator.api.http_server import (
    LARGEST_BODY,
    MOST_CONNECTIONS,
    MOST_STRANGERS,
    build_server,
)
from tpukit.emulator.core.service_context import Timing
from tpukit.emulator.workers.paper_host import PaperHost
from tpukit.errors import BadInput

pytestmark = pytest.mark.process

PLACE = "/v2/projects/p/locations/us-central1-a"
FAULTS = "/_emulator/v1/faults"
FIREWALLS = "/compute/v1/projects/p/global/firewalls"
RULE = {"name": "r1", "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}


@pytest.mark.parametrize(
    ("token", "reason"), [("", "CREDENTIALS_MISSING"), ("wrong", "ACCESS_TOKEN_TYPE_UNSUPPORTED")]
)
@pytest.mark.parametrize("path", [f"{PLACE}/nodes", "/_emulator/v1/status", FIREWALLS, "/nothing"])
def test_nobody_without_the_token_is_answered(api, token, reason, path):
    api.token = token
    status, answer = api.call("GET", path)
    assert status == 401
    assert answer["error"]["status"] == "UNAUTHENTICATED"
    assert answer["error"]["details"][0]["reason"] == reason


def test_who_has_no_token_leaves_nothing_in_the_log(api):
    api.create("n1")
    token, api.token = api.token, "wrong"
    for _ in range(3):
        assert api.call("GET", f"{PLACE}/nodes")[0] == 401
    api.token = token
    assert len(api.call("GET", "/_emulator/v1/log")[1]["requests"]) == 1


def test_a_body_is_not_waited_for_from_who_has_no_token(api):
    with socket.create_connection(api.server.url[7:].split(":"), timeout=60) as connection:
        length = "Content-Length: 1000000"
        connection.sendall(f"POST {PLACE}/nodes HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")


def answered(api):
    try:
        return api.call("GET", "/_emulator/v1/status")[0] == 200
    except (OSError, HTTPException):
        return False


def test_600_half_open_connections_of_a_stranger_keep_nobody_out(api):
    """The owner's older connection stays open too, and a new one is answered at once."""
    address = api.server.url.removeprefix("http://")
    kept = HTTPConnection(address, timeout=60)
    kept.connect()
    owner = kept.sock.getsockname()
    with contextlib.ExitStack() as opened, contextlib.closing(kept):
        assert status(kept) == 200
        opened.enter_context(half_open(address, 600))
        assert answered(api)
        assert status(kept) == 200
        assert kept.sock.getsockname() == owner, "it was closed, and connected anew"


def test_of_many_half_open_connections_the_youngest_stay(api):
    with half_open(api.server.url.removeprefix("http://"), MOST_STRANGERS + 10) as ends:
        for end in ends[:10]:
            end.settimeout(5)  # before its silence ends it
            assert end.recv(1) == b""
        ends[-1].sendall(b"\r\n")
        assert ends[-1].recv(4) == b"HTTP"


def test_more_connections_of_the_owner_than_there_are_threads_for_are_closed(api):
    address = api.server.url.removeprefix("http://")
    with contextlib.ExitStack() as opened:
        for _ in range(MOST_CONNECTIONS):
            connection = opened.enter_context(contextlib.closing(HTTPConnection(address)))
            assert status(connection) == 200
        with pytest.raises(RemoteDisconnected):
            status(HTTPConnection(address, timeout=60))
    eventually(lambda: answered(api))


@contextlib.contextmanager
def half_open(address, count):
    """Open connections that begin a request without a token and do not end it."""
    host, _, port = address.partition(":")
    with contextlib.ExitStack() as opened:
        ends = []
        for _ in range(count):
            ends.append(opened.enter_context(socket.create_connection((host, port), timeout=60)))
            ends[-1].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        yield ends


def status(connection):
    """Return the status with which a call of the owner's is answered."""
    connection.request("GET", "/_emulator/v1/status", headers={"Authorization": "Bearer secret"})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_an_emulator_without_a_token_lets_everybody_in(emulators):
    api = emulators.start(token=None)
    api.token = ""
    assert api.call("GET", f"{PLACE}/nodes") == (200, {})


def test_http_and_grpc_listen_on_the_loopback_address_alone(api):
    for secure in (False, True):
        assert api.call("POST", "/_emulator/v1/grpc", {"secure": secure})[0] == 200
    ports = {int(api.server.url.rsplit(":", 1)[1])}
    opened = api.call("GET", "/_emulator/v1/grpc")[1].values()
    ports |= {int(each["address"].rsplit(":", 1)[1]) for each in opened}
    found = psutil.Process().net_connections(kind="inet")
    listening = [result.laddr for result in found if result.status == psutil.CONN_LISTEN]
    assert {(ip.removeprefix("::ffff:"), port) for ip, port in listening if port in ports} == {
        ("127.0.0.1", port) for port in ports
    }
    assert len(ports) == 3


def test_a_path_that_is_no_method_is_a_page_and_not_a_resource_that_is_missing(api):
    status, headers, body = api.raw("POST", "/v2/projects/p/locations/z/queued<b>")
    assert (status, headers["content-type"].split(";")[0]) == (404, "text/html")
    assert b"does not serve POST" in body
    assert b"<b>" not in body


@pytest.mark.parametrize(
    "body", ["{", "[]", '"x"', '{"a":' * 50_000, "\xff".encode("latin-1"), b"\x00"]
)
def test_a_body_that_is_no_json_object_is_an_invalid_argument(api, body):
    status, _, data = api.raw("POST", f"{PLACE}/nodes?nodeId=n1", body)
    assert (status, json.loads(data)["error"]["status"]) == (400, "INVALID_ARGUMENT")


def test_a_body_without_end_is_refused_before_it_is_read(api):
    with socket.create_connection(api.server.url[7:].split(":"), timeout=60) as connection:
        length = f"Content-Length: {LARGEST_BODY + 1}"
        head = f"Host: x\r\nAuthorization: Bearer {api.token}\r\n{length}"
        connection.sendall(f"POST {PLACE}/nodes HTTP/1.1\r\n{head}\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_node_lives_through_the_api(api):
    assert api.create("n1")[0] == 200
    assert api.state_of("n1") == "CREATING"
    api.advance(1000)
    assert api.state_of("n1") == "READY"
    assert api.call("DELETE", f"{PLACE}/nodes/n1")[0] == 200
    api.advance(1000)
    assert api.state_of("n1") == "GONE"


def test_v2alpha1_is_served_by_the_same_handlers(api):
    api.create("n1")
    status, answer = api.call("GET", "/v2alpha1/projects/p/locations/-/nodes")
    assert (status, len(answer["nodes"])) == (200, 1)
    assert api.call("GET", "/v1/projects/p/locations")[1]["locations"]
    assert api.raw("GET", "/v3/projects/p/locations")[0] == 404


def test_changes_happen_by_the_server_s_own_ticks(emulators):
    api = emulators.start(create_seconds=0.05)
    api.create("n1")
    name = "projects/p/locations/us-central1-a/nodes/n1"
    limit = time.monotonic() + 60
    records = api.server.service.context.state.nodes
    while records[name]["node"]["state"] != "READY" and time.monotonic() < limit:
        threading.Event().wait(0.01)
    assert records[name]["node"]["state"] == "READY"


def test_a_state_that_cannot_be_saved_is_an_error_and_saved_later(api, emulators):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        status, answer = api.create("n1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (status, answer["error"]["status"]) == (500, "INTERNAL")
    assert api.state_of("n1") == "CREATING"
    emulators.stop()
    with stopped_state(emulators.directory) as state:
        assert [name.rpartition("/")[2] for name in state.nodes] == ["n1"]


def test_nodes_rules_and_the_clock_survive_a_restart(emulators):
    first = emulators.start()
    first.create("n1")
    first.advance(1000)
    first.call("POST", FIREWALLS, RULE)
    first.create("n2")
    before = first.call("GET", f"{PLACE}/nodes")[1]
    booted = first.host.booted
    emulators.stop()
    second = emulators.start()
    assert second.call("GET", f"{PLACE}/nodes")[1] == before
    assert second.call("GET", f"{FIREWALLS}/r1")[0] == 200
    assert second.host.booted == booted != set()
    second.advance(1000)
    assert second.state_of("n2") == "READY"


def test_a_create_goes_on_where_the_machine_s_clock_was_set_back_meanwhile(emulators):
    """The machine's is a day behind the one that this state was saved by."""
    first = emulators.start(create_seconds=10.0)
    first.create("n1")
    emulators.stop()
    with stopped_state(emulators.directory) as state:
        last = state.clock["clock"]
        assert abs(last["time"] - time.time()) < 60
        state.clock["clock"] = {**last, "time": last["time"] + 86400}
        for name, operation in state.operations.items():
            state.operations[name] = {**operation, "due": operation["due"] + 86400}
    second = emulators.start(create_seconds=10.0)
    second.advance(11)
    assert second.state_of("n1") == "READY"


def test_a_failure_of_an_operation_is_in_the_operation(api):
    api.fault(preset="stockout")
    operation = api.create("n1")[1]
    api.advance(1000)
    _, ended = api.call("GET", f"/v2/{operation['name']}")
    assert ended["error"]["code"] == 8
    assert 'There is no more capacity in the zone "us-central1-a"' in ended["error"]["message"]
    assert api.state_of("n1") == "GONE"


@pytest.mark.parametrize(("phase", "state"), [("before", "GONE"), ("after", "CREATING")])
@pytest.mark.parametrize("kind", ["status", "reset"])
def test_a_fault_strikes_before_or_after_the_commit(api, kind, phase, state):
    api.fault(method="nodes.create", kind=kind, phase=phase)
    if kind == "reset":
        with pytest.raises(ConnectionResetError) as caught:
            api.create("n1")
        assert not isinstance(caught.value, RemoteDisconnected)
    else:
        assert api.create("n1")[0] == 503
    assert api.state_of("n1") == state
    assert api.call("GET", "/_emulator/v1/faults")[1]["faults"][0]["served"] == 1


def test_a_truncated_answer_breaks_off_in_its_middle(api):
    api.fault(method="nodes.create", kind="truncate")
    with pytest.raises(IncompleteRead):
        api.create("n1")
    assert api.state_of("n1") == "CREATING"


def test_a_stall_holds_its_caller_and_nobody_else(api):
    api.fault(method="nodes.create", kind="stall", seconds=600)
    connection = HTTPConnection(api.server.url[7:], timeout=0.3)
    connection.request(
        "POST", f"{PLACE}/nodes?nodeId=n1", "{}", {"Authorization": f"Bearer {api.token}"}
    )
    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()
    assert api.state_of("n1") == "GONE"


def test_faults_that_are_cleared_strike_no_more_and_leave_their_account(api):
    api.fault(method="nodes.get", times=5, status="INTERNAL", message="boom")
    assert api.call("GET", f"{PLACE}/nodes/n1")[1]["error"]["message"] == "boom"
    assert api.call("DELETE", "/_emulator/v1/faults")[1]["faults"][0]["served"] == 1
    assert api.call("GET", f"{PLACE}/nodes/n1")[0] == 404


@pytest.mark.parametrize(
    ("preset", "status", "detail"),
    [
        ("rate-limit", 429, "RetryInfo"),
        ("quota", 429, "QuotaFailure"),
        ("permission-denied", 403, "ErrorInfo"),
        ("api-disabled", 403, "ErrorInfo"),
    ],
)
def test_a_preset_is_served_with_its_details(api, preset, status, detail):
    api.fault(preset=preset)
    found, answer = api.create("n1")
    kinds = [entry["@type"].rsplit(".", 1)[1] for entry in answer["error"]["details"]]
    assert (found, detail in kinds) == (status, True)
    assert "{" not in json.dumps(answer["error"]["message"])


def test_a_call_that_stalls_when_all_is_reset_is_never_carried_out(api):
    api.fault(method="nodes.create", kind="stall", seconds=600)
    with ThreadPoolExecutor() as pool:
        stalled = pool.submit(api.create, "late")
        eventually(lambda: api.call("GET", FAULTS)[1]["faults"][0]["served"] == 1)
        assert api.call("POST", "/_emulator/v1/reset", {})[0] == 200
        with pytest.raises((ConnectionError, HTTPException)):  # not: no answer in a minute
            stalled.result(60)
    assert api.state_of("late") == "GONE"


def test_a_compute_error_has_a_reason_and_no_status(api):
    api.fault(preset="firewall-permission-denied")
    status, answer = api.call("POST", FIREWALLS, RULE)
    assert status == 403
    assert answer["error"]["errors"][0]["reason"] == "forbidden"
    assert "status" not in answer["error"]
    assert "firewalls/r1'" in answer["error"]["message"]


def test_a_wait_answers_when_the_operation_is_done(api):
    operation = api.call("POST", FIREWALLS, RULE)[1]
    assert operation["status"] == "RUNNING"
    path = f"/compute/v1/projects/p/global/operations/{operation['name']}/wait"
    assert api.call("POST", path)[1]["status"] == "DONE"


def test_a_wait_answers_after_two_minutes_at_the_latest(emulators):
    api = emulators.start()
    api.call("POST", "/_emulator/v1/clock", {"speed": 0})
    api.server.service.context.timing = Timing(update=6000)
    operation = api.call("POST", FIREWALLS, RULE)[1]
    path = f"/compute/v1/projects/p/global/operations/{operation['name']}/wait"
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(api.call, "POST", path)
        passed = 0
        while not wait([waiting], timeout=0.2).done:
            api.advance(10)
            passed += 10
    assert 110 <= passed <= 300, "2 minutes, and what passed before the call had arrived"
    assert waiting.result()[1]["status"] == "RUNNING"


def test_others_are_served_while_one_waits(emulators):
    api = emulators.start()
    api.server.service.context.timing = Timing(update=500)
    operation = api.call("POST", FIREWALLS, RULE)[1]
    path = f"/compute/v1/projects/p/global/operations/{operation['name']}"
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(api.call, "POST", f"{path}/wait")
        assert api.call("GET", path)[1]["status"] == "RUNNING"
        assert not waiting.done()
        api.advance(500)
        assert waiting.result(60)[1]["status"] == "DONE"


def batch(api, *requests):
    """Send requests in the multipart form of Google's clients; return their bodies in order."""
    parts = "".join(
        f"--b\r\nContent-Type: application/http\r\nContent-ID: <x+{number}>\r\n\r\n"
        f"{verb} {path} HTTP/1.1\r\nContent-Type: application/json\r\n\r\n{body}\r\n"
        for number, (verb, path, body) in enumerate(requests)
    )
    headers = {"Content-Type": "multipart/mixed; boundary=b"}
    status, answered, data = api.raw("POST", "/batch/compute/v1", f"{parts}--b--", headers)
    assert (status, answered["content-type"].split(";")[0]) == (200, "multipart/mixed")
    return data.decode()


def test_a_batch_answers_each_of_its_requests_apart(api):
    text = batch(
        api,
        ("POST", FIREWALLS, json.dumps(RULE)),
        ("DELETE", f"{FIREWALLS}/none", ""),
        ("GET", f"{FIREWALLS}/r1", ""),
    )
    assert [line for line in text.splitlines() if line.startswith("HTTP/")] == [
        "HTTP/1.1 200 OK",
        "HTTP/1.1 404 Not Found",
        "HTTP/1.1 200 OK",
    ]
    assert "Content-ID: <response-x+1>" in text


def test_a_batch_that_is_none_is_refused(api):
    status, answer = api.call("POST", "/batch/compute/v1", {})
    assert (status, answer["error"]["errors"][0]["reason"]) == (400, "invalid")


def test_a_batch_cannot_carry_a_batch_without_end(api):
    text = batch(api, ("POST", "/batch/compute/v1", ""))
    assert "HTTP/1.1 400" in text


def test_a_preempted_node_says_so(api):
    api.create("n1")
    api.advance(1000)
    path = "/_emulator/v1/nodes/projects/p/locations/us-central1-a/nodes/n1:preempt"
    assert api.call("POST", path)[1]["state"] == "PREEMPTED"
    assert api.call("POST", path.replace("n1", "n2"))[0] == 404


@pytest.mark.parametrize("body", [{}, {"advance": "1"}, {"advance": -1}, {"advance": True}])
def test_the_clock_moves_forward_by_numbers_alone(api, body):
    assert api.call("POST", "/_emulator/v1/clock", body)[0] == 400


def test_the_clock_stops_before_dates_end(api):
    assert api.call("POST", "/_emulator/v1/clock", {"advance": 1e9})[0] == 200
    steps = [api.call("POST", "/_emulator/v1/clock", {"advance": 9e8})[0] for _ in range(300)]
    assert steps[0] == 200
    assert steps[-1] == 400
    assert api.create("n1")[0] == 200


def test_a_state_of_a_time_after_the_end_of_dates_is_one_of_the_last_date(emulators):
    """Python has none after the year 9999: every answer that has one would be lost."""
    emulators.start().create("n1")
    emulators.stop()
    with stopped_state(emulators.directory) as state:
        state.clock["clock"] = {**state.clock["clock"], "time": 3e11}
    api = emulators.start()
    assert api.call("GET", "/_emulator/v1/clock")[1]["time"] == "9000-01-01T00:00:00.000000Z"
    assert api.create("n2")[0] == 200
    assert api.state_of("n1") == "READY"


class _WithoutThreads(PaperHost):
    """A host on a machine that has no thread left, which Python tells by a RuntimeError."""

    def guest_attributes(self, worker):
        raise RuntimeError("can't start new thread")


def test_an_error_that_nobody_foresaw_is_an_answer_and_in_the_log(emulators):
    api = emulators.start(create_seconds=0, kind=_WithoutThreads)
    api.create("n1")
    assert api.state_of("n1") == "READY"
    status, answer = api.call("POST", f"{PLACE}/nodes/n1:getGuestAttributes", {})
    assert (status, answer["error"]["status"]) == (500, "INTERNAL")
    assert answer["error"]["message"].endswith("RuntimeError: can't start new thread")
    assert api.call("GET", "/_emulator/v1/log")[1]["requests"][-1]["status"] == 500
    assert api.state_of("n1") == "READY"


def test_the_log_shows_requests_with_their_method_and_status(api):
    api.create("n1")
    api.call("GET", f"{PLACE}/nodes/n2")
    shown = api.call("GET", "/_emulator/v1/log")[1]["requests"]
    assert [(e["verb"], e["method"], e["status"]) for e in shown] == [
        ("POST", "nodes.create", 200),
        ("GET", "nodes.get", 404),
    ]
    assert api.token not in json.dumps(shown)


def test_the_status_counts_what_there_is(api):
    api.create("n1")
    status = api.call("GET", "/_emulator/v1/status")[1]
    assert (status["nodes"], status["workers"], status["create_seconds"]) == (
        {"CREATING": 1},
        1,
        1000,
    )


def test_forty_creates_at_once_make_forty_nodes(api):
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(api.create, [f"n{number}" for number in range(40)]))
    assert {status for status, _ in answers} == {200}
    nodes = api.call("GET", f"{PLACE}/nodes")[1]["nodes"]
    assert len({node["id"] for node in nodes}) == 40


def test_of_creates_of_one_name_at_once_one_succeeds(api):
    with ThreadPoolExecutor(16) as pool:
        statuses = sorted(status for status, _ in pool.map(api.create, ["n1"] * 16))
    assert statuses == [200] + [409] * 15


def test_one_connection_carries_many_requests(api):
    connection = HTTPConnection(api.server.url[7:], timeout=60)
    for _ in range(3):
        headers = {"Authorization": f"Bearer {api.token}"}
        connection.request("GET", f"{PLACE}/nodes", headers=headers)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())) == (200, {})
    connection.close()


def test_a_port_that_is_taken_is_an_error_and_a_stopped_server_frees_its_own(emulators):
    port = int(emulators.start().server.url.rsplit(":", 1)[1])
    other = emulators.directory.with_name("other")
    with pytest.raises(BadInput, match=f"cannot listen on port {port}"):
        build_server(other, None, PaperHost, port=port)
    emulators.stop()
    server = build_server(other, None, PaperHost, port=port)
    server.shutdown()


def test_a_body_in_chunks_is_one_body(api):
    node = json.dumps({"acceleratorType": "v3-8", "runtimeVersion": "tpu-vm-base"}).encode()
    parts = [node[:7], node[7:]]
    sent = b"".join(b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in parts)
    for number, end in enumerate((b"0\r\n\r\n", b"0\r\nA-Trailer: b\r\n\r\n")):
        with _chunked(api, f"nodes?nodeId=n{number}") as connection:
            connection.sendall(sent + end)
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
            # What follows on the connection is read from where the body ends.
            head = f"GET {PLACE}/nodes HTTP/1.1\r\nAuthorization: Bearer {api.token}\r\n\r\n"
            rest = b""
            connection.sendall(head.encode())
            while b'"nodes":' not in rest:
                rest += connection.recv(65536)
    for wrong in (b"zz\r\n", b"-5\r\nab", b"5\r\nabcdefg\r\n0\r\n\r\n", b"900000\r\n"):
        with _chunked(api, "nodes?nodeId=wrong") as connection:
            connection.sendall(wrong)
            assert connection.recv(100).startswith(b"HTTP/1.1 413 "), wrong
    assert len(api.call("GET", f"{PLACE}/nodes")[1]["nodes"]) == 2


def _chunked(api, path: str) -> socket.socket:
    host, _, port = api.server.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    head = f"POST {PLACE}/{path} HTTP/1.1\r\nAuthorization: Bearer {api.token}\r\n"
    connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
    return connection
