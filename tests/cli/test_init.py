"""`tpukit init` and `tpukit config`: the settings of a first day, on a terminal and without one."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from support.local_cloud import PROJECT, ZONE, Cloud

from cli.conftest import Run

pytestmark = pytest.mark.process


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def environment(prompt_cloud: Cloud) -> dict[str, str]:
    """The environment of somebody with credentials, and without a project and a zone."""
    given = prompt_cloud.environment()
    return {
        name: value
        for name, value in given.items()
        if name not in ("CLOUDSDK_CORE_PROJECT", "CLOUDSDK_COMPUTE_ZONE")
    }


def config(environment: dict[str, str]) -> Path:
    return Path(environment["TPUKIT_HOME"]) / "config/config.toml"


def test_flags_are_written_and_later_commands_use_them(
    run: Run, environment: dict[str, str]
) -> None:
    done = run("init", "--project", PROJECT, "--zone", ZONE, environment=environment)
    assert done.status == 0, done.out + done.err
    assert config(environment).read_text() == f'zone = "{ZONE}"\nproject = "{PROJECT}"\n'
    assert run("list", environment=environment).status == 0
    again = run("init", environment=environment)
    assert again.status == 0
    assert "config.toml" in again.err


def test_without_a_terminal_everything_that_is_missing_is_named_at_once(
    run: Run, environment: dict[str, str]
) -> None:
    environment.pop("CLOUDSDK_AUTH_ACCESS_TOKEN_FILE")
    told = run("init", environment=environment).says(2).err
    assert all(f"no {what}" in told for what in ("project", "zone", "credentials"))
    assert not config(environment).exists()


def test_on_a_terminal_only_what_is_missing_is_asked(
    run: Run, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", Terminal(f"{ZONE}\n"))
    done = run("init", "--project", PROJECT, environment=environment)
    assert done.status == 0, done.err
    assert "zone for your TPUs" in done.err
    assert "project for your TPUs" not in done.err
    assert f'zone = "{ZONE}"' in config(environment).read_text()


def test_without_credentials_the_settings_are_written_and_the_login_is_named(
    run: Run, environment: dict[str, str]
) -> None:
    environment.pop("CLOUDSDK_AUTH_ACCESS_TOKEN_FILE")
    done = run("init", "--project", PROJECT, "--zone", ZONE, environment=environment)
    assert done.status == 1
    assert "gcloud auth application-default login" in done.err
    assert config(environment).exists()


def test_config_sets_shows_and_removes_a_value(run: Run, environment: dict[str, str]) -> None:
    assert run("config", "set", "zone", ZONE, environment=environment).status == 0
    assert run("config", "get", "zone", environment=environment).out == f"{ZONE}\n"
    assert run("config", "unset", "zone", environment=environment).status == 0
    nothing = run("config", "get", "zone", environment=environment)
    assert (nothing.status, nothing.out) == (1, "")
    path = run("config", "path", environment=environment).out
    assert path == f"{config(environment)}\n"
    assert "no setting" in run("config", "get", "colour", environment=environment).says(2).err


def test_the_emulator_needs_no_settings(run: Run, environment: dict[str, str]) -> None:
    assert "no settings" in run("--local", "init", environment=environment).says(2).err
