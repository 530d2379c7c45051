"""Credentials without their traps."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.local_cloud import TOKEN, Cloud, bare_environment

from tpukit.errors import BadInput, NotAuthenticated
from tpukit.google.access_tokens import AccessTokens
from tpukit.google.credentials import find_credentials, on_compute_engine
from tpukit.google.retrying_session import Session
from tpukit.google.tpu import CloudTpu


def test_a_token_file_is_sent_as_it_is_read(cloud: Cloud, tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_text(f"\n  {TOKEN}\n")
    given = AccessTokens(find_credentials(str(path), "", tmp_path / "none"), cloud.clock)
    assert CloudTpu(Session(given, cloud.clock), "demo-project", cloud.url).list("-").slices == ()


def test_a_token_that_the_server_refuses_is_not_authenticated(cloud: Cloud, tmp_path: Path) -> None:
    path = tmp_path / "wrong"
    path.write_text("some-other-token")
    given = AccessTokens(find_credentials(str(path), "", tmp_path / "none"), cloud.clock)
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
        find_credentials(str(tmp_path / "token"), "", tmp_path / "none")


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
    credentials: Any = find_credentials("", "", path).load()
    assert credentials.refresh_token == "refresh"
    # What other tests have left open warns here too: google-auth's own is a UserWarning.
    assert not [each for each in recwarn.list if each.category is UserWarning]


def test_a_named_file_wins_over_the_well_known_one(tmp_path: Path) -> None:
    for name in ("named", "known"):
        (tmp_path / name).write_text(json.dumps({**USER, "refresh_token": name}))
    credentials: Any = find_credentials("", str(tmp_path / "named"), tmp_path / "known").load()
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
        find_credentials("", named, known).load()
    assert caught.value.why
    assert "\n" not in caught.value.why
    assert not caught.value.why.startswith("(")  # a tuple of Python's
    assert "gcloud auth" in str(caught.value.fix)


@pytest.mark.parametrize("make", [as_missing, as_directory, as_bytes])
def test_a_named_file_that_cannot_be_read_is_not_authenticated(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "adc.json")
    with pytest.raises(NotAuthenticated) as caught:
        find_credentials("", str(tmp_path / "adc.json"), tmp_path / "none")
    assert re.match("[A-Za-z]", caught.value.why)  # no number of an error


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
        "from tpukit.google.credentials import find_credentials\n"
        "from tpukit.errors import NotAuthenticated\n"
        "try:\n"
        "    find_credentials('', '', Path(sys.argv[1]))\n"
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
