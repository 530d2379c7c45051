"""Values that cannot be are refused, and credentials go over https or stay on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpukit.errors import BadInput, SecurityRefusal
from tpukit.settings.resolution import Settings
from tpukit.settings.table import check_endpoint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("project", "Project"),
        ("project", "123456789012"),
        ("project", "short"),
        ("project", "a/../b-project"),
        ("project", "p" * 31),
        ("zone", "us-central1"),
        ("zone", "US-CENTRAL1-A"),
        ("zone", "us-central1-a/nodes"),
        ("zone", "us-central１-a"),
        ("zone", "us-central1-a\n"),
        ("user", "Ada"),
        ("user", "-oProxyCommand=x"),
        ("user", "a b"),
        ("user", "a" * 33),
        ("network", "../n"),
        ("source_ranges", "everybody"),
        ("keep_hints", "maybe"),
        ("silence", "0"),
        ("silence", "soon"),
        ("source_ranges", "203.0.113.7/24"),
        ("credentials_file", "~/key.json"),
        ("quota_project", "Nobody"),
        ("quota_project", "current_project"),
        ("impersonate_service_account", "a@b,"),
        ("account", "a b"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_origin(
    tmp_path: Path, name: str, value: str
) -> None:
    variable = f"TPUKIT_{name.upper()}"
    with pytest.raises(BadInput) as refused:
        Settings.load({}, {"HOME": str(tmp_path), variable: value}, tmp_path)
    assert refused.value.reason.startswith(variable)
    assert refused.value.fix
    assert all(line.isprintable() for line in refused.value.lines())


def test_an_endpoint_is_https_or_this_machine() -> None:
    cases = [
        "https://tpu.googleapis.com/",
        "https://us-central1-tpu.example.com:8443/path/",
        "http://127.0.0.1:8085/",
        "http://127.77.3.4:1/",
        "http://localhost:8085",
        "http://[::1]:8085/",
    ]
    for url in cases:
        assert check_endpoint(url) == url


def test_credentials_never_go_over_http_to_elsewhere() -> None:
    cases = [
        "http://tpu.googleapis.com/",
        "http://127.0.0.1.example.com/",
        "http://localhost.example.com/",
        "http://10.0.0.1/",
        "http://0.0.0.0:8085/",
        "HTTP://example.com/",
    ]
    for url in cases:
        with pytest.raises(SecurityRefusal, match="over http"):
            check_endpoint(url)


def test_what_is_no_plain_url_is_no_endpoint() -> None:
    cases = [
        "",
        "tpu.googleapis.com",
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "https://",
        "https://:8085/",
        "http://127.0.0.1@example.com/",
        "http://127.0.0.1\\@example.com/",
        "http://127.0.0.1:8085/?x=1",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:port/",
        "http://[::1/",
        "http://127.0.0.1/\nHost: x",
        "https://tpu.exämple.com/",
    ]
    for url in cases:
        with pytest.raises(BadInput):
            check_endpoint(url)
