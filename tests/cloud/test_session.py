"""Every API call: timeouts, retries, and credentials without their traps."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.emulated_workers import eventually
from support.local_cloud import (
    TOKEN,
    ZONE,
    Cloud,
    FakeClock,
    Reply,
    bare_environment,
    json_reply,
    scripted,
)

from tpukit.cloud.firewall_rules import ComputeFirewall
from tpukit.cloud.provider import Doubtful
from tpukit.cloud.session import Session, load_credentials, on_compute_engine
from tpukit.cloud.tpu import CloudTpu
from tpukit.errors import (
    BadInput,
    NameTaken,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    QuotaExceeded,
    TpukitError,
)

BUSY = json_reply(503, {"error": {"status": "UNAVAILABLE", "message": "busy"}})
EMPTY = json_reply(200, {})


def session(cloud: Cloud, **given: Any) -> Session:
    return Session(cloud.credentials, cloud.clock, **given)


@pytest.mark.parametrize("kind", ["status", "reset"])
def test_a_passing_fault_is_waited_out(cloud: Cloud, clock: FakeClock, kind: str) -> None:
    cloud.fault(method="nodes.list", kind=kind, times=3)
    assert cloud.tpu.list("-").slices == ()
    assert cloud.served() == 3
    assert clock.slept == [0.5, 1.0, 2.0]


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
    assert eventually(lambda: cloud.served() == 1)


def test_a_refused_connection_is_an_error_that_names_no_python(cloud: Cloud) -> None:
    with scripted(EMPTY) as server:
        url = server.url
    with pytest.raises(TpukitError) as caught:
        CloudTpu(cloud.session, "demo-project", url).list("-")
    assert caught.value.reason == "no answer"


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


def test_a_token_file_is_sent_as_it_is_read(cloud: Cloud, tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_text(f"\n  {TOKEN}\n")
    given = load_credentials(str(path), "", tmp_path / "none", "")
    assert CloudTpu(Session(given, cloud.clock), "demo-project", cloud.url).list("-").slices == ()


def test_a_token_that_the_server_refuses_is_not_authenticated(cloud: Cloud, tmp_path: Path) -> None:
    path = tmp_path / "wrong"
    path.write_text("some-other-token")
    given = load_credentials(str(path), "", tmp_path / "none", "")
    with pytest.raises(NotAuthenticated):
        CloudTpu(Session(given, cloud.clock), "demo-project", cloud.url).list("-")


def as_missing(path: Path) -> None:
    """Leave nothing there."""


def as_directory(path: Path) -> None:
    path.mkdir()


def as_empty(path: Path) -> None:
    path.write_text(" \n")


def as_two_lines(path: Path) -> None:
    path.write_text("token\nInjected: header")


def as_bytes(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")


@pytest.mark.parametrize("make", [as_missing, as_directory, as_empty, as_two_lines, as_bytes])
def test_a_token_file_without_a_token_is_bad_input(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "token")
    with pytest.raises(BadInput, match="access token file"):
        load_credentials(str(tmp_path / "token"), "", tmp_path / "none", "")


USER = {
    "type": "authorized_user",
    "client_id": "id",
    "client_secret": "secret",
    "refresh_token": "refresh",
}
ACCOUNT = {
    "type": "service_account",
    "client_email": "a@p.iam.gserviceaccount.com",
    "token_uri": "https://oauth2.googleapis.com/token",
    "private_key": "-----BEGIN PRIVATE KEY-----\nbm8=\n-----END PRIVATE KEY-----\n",
    "project_id": "p",
}


def test_an_authorised_user_s_file_is_used(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = tmp_path / "adc.json"
    path.write_text(json.dumps(USER))
    credentials: Any = load_credentials("", "", path, "quota-project")
    assert credentials.refresh_token == "refresh"
    assert credentials.quota_project_id == "quota-project"
    assert not [each for each in recwarn.list if each.category is not DeprecationWarning]


def test_a_named_file_wins_over_the_well_known_one(tmp_path: Path) -> None:
    for name in ("named", "known"):
        (tmp_path / name).write_text(json.dumps({**USER, "refresh_token": name}))
    credentials: Any = load_credentials("", str(tmp_path / "named"), tmp_path / "known", "")
    assert credentials.refresh_token == "named"


BROKEN_FILES = {
    "no JSON": "{",
    "empty": "",
    "a list": "[]",
    "a text": '"x"',
    "null": "null",
    "a number": "7",
    "no type": "{}",
    "an unknown type": '{"type": "of tomorrow"}',
    "a type of a wrong type": '{"type": []}',
    "an incomplete user": '{"type": "authorized_user"}',
    "a service account with a broken key": json.dumps(ACCOUNT),
    "a service account with no key": '{"type": "service_account"}',
    "a service account whose key is a number": json.dumps({**ACCOUNT, "private_key": 7}),
    "an impersonation of a wrong type": '{"type": "impersonated_service_account"}',
    "an external account of a wrong type": '{"type": "external_account", "audience": 7}',
}


@pytest.mark.parametrize("name", BROKEN_FILES)
@pytest.mark.parametrize("place", ["named", "well known"])
def test_a_credentials_file_that_cannot_be_used_is_not_authenticated(
    tmp_path: Path, name: str, place: str
) -> None:
    path = tmp_path / "adc.json"
    path.write_text(BROKEN_FILES[name])
    named, known = (str(path), tmp_path / "none") if place == "named" else ("", path)
    with pytest.raises(NotAuthenticated, match="cannot use the credentials") as caught:
        load_credentials("", named, known, "")
    assert caught.value.why
    assert "\n" not in caught.value.why
    assert "gcloud auth" in str(caught.value.fix)


@pytest.mark.parametrize("make", [as_missing, as_directory, as_bytes])
def test_a_named_file_that_cannot_be_read_is_not_authenticated(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "adc.json")
    with pytest.raises(NotAuthenticated):
        load_credentials("", str(tmp_path / "adc.json"), tmp_path / "none", "")


def test_whether_this_is_a_google_vm_is_read_from_its_product_name(tmp_path: Path) -> None:
    product = tmp_path / "product_name"
    assert not on_compute_engine(product)
    product.write_text("Google Compute Engine\n")
    assert on_compute_engine(product)
    product.write_bytes(b"\xff\xfeVirtualBox")
    assert not on_compute_engine(product)


def test_without_credentials_nothing_is_waited_for_and_no_gcloud_is_run(tmp_path: Path) -> None:
    """A gcloud that leaves a mark when it runs, and a metadata server that never answers."""
    mark = tmp_path / "mark"
    gcloud = tmp_path / "gcloud"
    gcloud.write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    gcloud.chmod(0o755)
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tpukit.cloud.session import load_credentials\n"
        "from tpukit.errors import NotAuthenticated\n"
        "try:\n"
        "    load_credentials('', '', Path(sys.argv[1]), '')\n"
        "except NotAuthenticated as error:\n"
        "    print(error.what)\n"
    )
    environment = bare_environment(tmp_path)
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    with socket.create_server(("127.0.0.1", 0)) as metadata:
        address = f"127.0.0.1:{metadata.getsockname()[1]}"
        environment |= {"GCE_METADATA_HOST": address, "GCE_METADATA_IP": address}
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "none")],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        metadata.setblocking(False)
        with pytest.raises(BlockingIOError):
            metadata.accept()
    assert done.stdout == "no credentials for Google Cloud\n"
    assert not mark.exists()
