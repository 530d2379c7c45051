"""Google's own names over TLS: who is answered, with what, and who cannot be."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import certifi
import grpc
import pytest

from emulator.conftest import PLACE, Api, Emulators
from tpukit.emulator.api.exchange import GOOGLE_NAMES
from tpukit.emulator.api.http_server import MOST_STRANGERS
from tpukit.emulator.api.tls import identity
from tpukit.emulator.api.tls_listener import MOST_GRPC


@pytest.fixture
def names(api: Api) -> dict[str, Any]:
    status, found = api.call("POST", "/_emulator/v1/impersonation", {"port": 0})
    assert status == 200, found
    return found


@contextmanager
def secured(
    names: dict[str, Any], name: str, alpn: tuple[str, ...] = (), trusted: str = "bundle"
) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=names[trusted])
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default since Python 3.13
    if alpn:
        context.set_alpn_protocols(list(alpn))
    with (
        socket.create_connection((names["address"], names["port"]), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=name, suppress_ragged_eofs=False) as secure,
    ):
        yield secure


def ask(names: dict[str, Any], name: str, verb: str, path: str, body: str = "", token: str = ""):
    """Return status and JSON document of an answer to who calls a name of Google's."""
    with secured(names, name) as secure:
        connection = HTTPSConnection(name)
        connection.sock = secure
        kind = {"Content-Type": "application/x-www-form-urlencoded" if body else ""}
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(verb, path, body, {**headers, **kind})
        answer: HTTPResponse = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_every_name_is_vouched_for_by_the_emulator_s_authority_and_by_no_public_one(names):
    assert names["names"] == list(GOOGLE_NAMES)
    for name in names["names"]:
        for trusted in ("authority", "bundle"):
            with secured(names, name, trusted=trusted) as secure:
                assert secure.version() in ("TLSv1.2", "TLSv1.3")
    public = {"public": certifi.where(), **names}
    with (
        pytest.raises(ssl.SSLCertVerificationError),
        secured(public, "tpu.googleapis.com", trusted="public"),
    ):
        pass
    with pytest.raises(ssl.SSLCertVerificationError), secured(names, "example.com"):
        pass
    # Clients that read one file alone still reach everybody else.
    assert Path(certifi.where()).read_bytes() in Path(names["bundle"]).read_bytes()


def test_it_listens_on_this_machine_alone_where_no_worker_is_and_until_the_end(emulators):
    first = emulators.start().call("POST", "/_emulator/v1/impersonation", {"port": 0})[1]
    assert first["address"].startswith("127.77.255.")
    with socket.create_connection((first["address"], first["port"])):
        emulators.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((first["address"], first["port"]))


def test_the_address_is_the_same_after_a_restart_and_two_emulators_have_two(emulators, tmp_path):
    body = {"port": _free_port()}
    others = Emulators(tmp_path / "others")
    one, two = (
        started.start().call("POST", "/_emulator/v1/impersonation", body)[1]
        for started in (emulators, others)
    )
    assert one["address"] != two["address"]
    others.stop()
    emulators.stop()
    again = emulators.start().call("POST", "/_emulator/v1/impersonation", body)[1]
    assert again == one


def is_ended(connection: socket.socket) -> bool:
    """Read until the other end closes the connection; raise TimeoutError if it does not."""
    with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
        while connection.recv(1000):
            pass
    return True


def test_strangers_who_say_nothing_keep_nobody_out_of_tls_or_grpc(api, names):
    """Some stop before the handshake, some after it: with HTTP/1.1 as with HTTP/2."""
    plain = api.call("POST", "/_emulator/v1/grpc", {})[1]["address"].split(":")
    with contextlib.ExitStack() as opened:
        for _ in range(100):
            opened.enter_context(socket.create_connection(plain, timeout=60))
            silent = (names["address"], names["port"])
            opened.enter_context(socket.create_connection(silent, timeout=60))
        host = "tpu.googleapis.com"
        for protocol, most in (("http/1.1", MOST_STRANGERS), ("h2", MOST_GRPC)):
            oldest, *_ = [
                opened.enter_context(secured(names, host, (protocol,), "authority"))
                for _ in range(most + 1)
            ]
            oldest.settimeout(5)  # before its silence ends it
            assert is_ended(oldest)
        path = f"/v2/{PLACE}/nodes"
        assert ask(names, host, "GET", path, token="secret")[0] == 200
        channel = opened.enter_context(grpc.insecure_channel(":".join(plain)))
        grpc.channel_ready_future(channel).result(timeout=60)


@pytest.mark.full_size
def test_who_says_nothing_is_let_go_in_seconds_and_the_owner_stays(api, names):
    plain = api.server.url.removeprefix("http://")
    remote = api.call("POST", "/_emulator/v1/grpc", {})[1]["address"]
    with contextlib.closing(HTTPConnection(plain, timeout=60)) as owner:
        owner.connect()
        own = owner.sock.getsockname()
        for _ in range(2):
            owner.request("GET", "/v2/projects", headers={"Authorization": "Bearer secret"})
            assert owner.getresponse().read()
            assert owner.sock.getsockname() == own, "it was closed, and connected anew"
            with contextlib.ExitStack() as opened:
                tls = f"{names['address']}:{names['port']}"
                silent = [
                    opened.enter_context(socket.create_connection(at.split(":"), timeout=40))
                    for at in (plain, remote, tls)
                ]
                silent[0].sendall(b"GET / HTTP/1.1\r\n")
                assert all(map(is_ended, silent))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_the_token_is_given_to_who_shows_it_in_the_credentials_and_to_nobody_else(api, names):
    path = Path(names["credentials"])
    assert path.stat().st_mode & 0o777 == 0o600
    credentials = json.loads(path.read_text())
    assert credentials["type"] == "authorized_user"
    form = {"grant_type": "refresh_token", "refresh_token": credentials["refresh_token"]}
    status, answer = ask(names, "oauth2.googleapis.com", "POST", "/token", urlencode(form))
    assert (status, answer["token_type"]) == (200, "Bearer")
    listed = ask(
        names, "tpu.googleapis.com", "GET", f"/v2/{PLACE}/nodes", token=answer["access_token"]
    )
    assert listed == (200, {})
    for wrong in ({}, {"refresh_token": ""}, {"refresh_token": "x"}, {"refresh_token": "é"}):
        status, answer = ask(names, "oauth2.googleapis.com", "POST", "/token", urlencode(wrong))
        assert (status, answer["error"]) == (400, "invalid_grant"), wrong
        assert api.token not in json.dumps(answer)
    assert ask(names, "tpu.googleapis.com", "GET", f"/v2/{PLACE}/nodes")[0] == 401


def test_links_lead_where_the_client_already_is(api, names):
    rule = json.dumps({"name": "r", "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]})
    path, token = "/compute/v1/projects/p/global/firewalls", api.token
    status, begun = ask(names, "compute.googleapis.com", "POST", path, rule, token)
    assert status == 200
    assert begun["selfLink"].startswith("https://www.googleapis.com/compute/v1/projects/p/global/")
    api.advance(10)
    _, resource = ask(names, "www.googleapis.com", "GET", f"{path}/r", token=token)
    assert resource["selfLink"] == f"https://www.googleapis.com{path}/r"
    assert api.call("GET", f"{path}/r")[1]["selfLink"] == f"{api.server.url}{path}/r"
    # What came from a link goes back as one.
    network = json.dumps(
        {"name": "s", "network": resource["network"], "allowed": [{"IPProtocol": "tcp"}]}
    )
    assert ask(names, "compute.googleapis.com", "POST", path, network, token)[0] == 200


def test_discovery_at_a_service_s_own_name_is_that_service_s(names):
    at = "/$discovery/rest?version="
    for name, version in (("tpu", "v2alpha1"), ("compute", "v1"), ("oslogin", "v1")):
        host = f"{name}.googleapis.com"
        status, document = ask(names, host, "GET", f"{at}{version}")
        assert (status, document["id"]) == (200, f"{name}:{version}")
        assert document["rootUrl"] == f"https://{host}/"
        assert document["auth"]["oauth2"]["scopes"]


@pytest.mark.process
def test_who_can_speak_http_1_gets_it_and_who_speaks_http_2_alone_gets_grpc(api, names):
    for offered, chosen in (
        (("h2", "http/1.1"), "http/1.1"),
        (("http/1.1",), "http/1.1"),
        (("h2",), "h2"),
    ):
        with secured(names, "tpu.googleapis.com", offered) as secure:
            assert secure.selected_alpn_protocol() == chosen
    program = (
        "import sys, grpc\n"
        "from google.cloud.tpu_v2.types import ListNodesRequest, ListNodesResponse\n"
        "address, name, bundle, token = sys.argv[1:]\n"
        "trusted = grpc.ssl_channel_credentials(open(bundle, 'rb').read())\n"
        "options = [('grpc.ssl_target_name_override', name)]\n"
        "with grpc.secure_channel(address, trusted, options) as channel:\n"
        "    call = channel.unary_unary('/google.cloud.tpu.v2.Tpu/ListNodes',\n"
        "        ListNodesRequest.serialize, ListNodesResponse.deserialize)\n"
        f"    asked = ListNodesRequest(parent='{PLACE}')\n"
        "    print(len(call(asked, metadata=[('authorization', f'Bearer {token}')]).nodes))\n"
    )
    api.create("n")
    address = f"{names['address']}:{names['port']}"
    words = [program, address, "tpu.googleapis.com", names["bundle"], api.token]
    done = subprocess.run([sys.executable, "-c", *words], capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr


@pytest.mark.parametrize("kind", ["reset", "truncate"])
def test_an_answer_that_is_cut_is_cut_here_too(api, names, kind):
    api.fault(method="nodes.list", kind=kind)
    request = (
        f"GET /v2/{PLACE}/nodes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.token}\r\n\r\n"
    )
    with secured(names, "tpu.googleapis.com") as secure:
        secure.sendall(request.encode())
        got = b""
        try:
            while data := secure.recv(65536):
                got += data
            ended = "closed"
        except (ConnectionResetError, ssl.SSLEOFError):  # which of them is OpenSSL's choice
            ended = "reset"
    if kind == "reset":
        assert (got, ended) == (b"", "reset")
    else:
        head, _, body = got.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        assert (0 < len(body) < length, ended) == (True, "closed")


def test_an_identity_that_lacks_a_name_is_made_anew(tmp_path, monkeypatch):
    from tpukit.emulator.api import tls

    with monkeypatch.context() as older:
        older.setattr(tls, "GOOGLE_NAMES", ("tpu.googleapis.com",))
        before = identity(tmp_path / "tls").certificate.read_bytes()
    assert identity(tmp_path / "tls").certificate.read_bytes() != before


def test_a_port_that_cannot_be_had_says_what_it_takes(api):
    for body in ({"port": "443"}, {"port": -1}, {"port": 65536}, {"port": True}):
        assert api.call("POST", "/_emulator/v1/impersonation", body)[0] == 400
    with socket.create_server(("0.0.0.0", 0)) as everywhere:
        port = everywhere.getsockname()[1]
        status, answer = api.call("POST", "/_emulator/v1/impersonation", {"port": port})
    assert (status, f"Port {port} is in use" in answer["error"]["message"]) == (400, True)
    assert api.call("GET", "/_emulator/v1/impersonation") == (200, {})
