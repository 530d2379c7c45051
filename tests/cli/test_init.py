"""`tpukit init` and `tpukit config`: the settings of a first day, on a terminal and without one."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from support.local_cloud import PROJECT, TOKEN, ZONE, Cloud

from cli.conftest import Run
from tpukit.emulator import EmulatorClient

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


def disable(cloud: Cloud, *names: str) -> None:
    for name in names:
        path = f"v1/projects/{PROJECT}/services/{name}.googleapis.com:disable"
        cloud.session.rest("disable it", "POST", f"{cloud.url}/{path}", body={})


def test_apis_that_are_off_are_missing_like_the_zone_and_enabled_with_a_flag(
    run: Run, environment: dict[str, str], prompt_cloud: Cloud
) -> None:
    disable(prompt_cloud, "tpu", "compute", "cloudquotas")
    given = ("init", "--project", PROJECT, "--zone", ZONE)
    told = run(*given, environment=environment).says(2).err
    assert f"project {PROJECT} has not enabled tpu.googleapis.com, compute.googleapis.com" in told
    assert "--enable-apis" in told
    assert not config(environment).exists()
    done = run(*given, "--enable-apis", environment=environment)
    assert done.status == 0, done.err
    enabled = "tpu.googleapis.com, compute.googleapis.com, cloudquotas.googleapis.com"
    assert f"enabled in project {PROJECT}: {enabled}" in done.err
    assert run("list", environment=environment).status == 0


def test_on_a_terminal_it_asks_if_it_may_enable_apis(
    run: Run,
    environment: dict[str, str],
    prompt_cloud: Cloud,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disable(prompt_cloud, "tpu")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    given = ("init", "--project", PROJECT, "--zone", ZONE)
    for answer, status in (("n", 2), ("y", 0)):
        monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
        done = run(*given, environment=environment)
        assert done.status == status, done.err
        assert f"enable tpu.googleapis.com in project {PROJECT}? [y/N]" in done.err
    assert prompt_cloud.project.disabled(["tpu.googleapis.com"]) == ()


def test_apis_that_cannot_be_listed_do_not_stop_it(
    run: Run, environment: dict[str, str], prompt_cloud: Cloud
) -> None:
    denied = {"kind": "status", "status": "PERMISSION_DENIED", "message": "no"}
    prompt_cloud.fault(method="services.get", times=9, **denied)
    done = run("init", "--project", PROJECT, "--zone", ZONE, environment=environment)
    assert done.status == 0, done.err
    assert "APIs: cannot look if tpu.googleapis.com is enabled" in done.err


def test_a_type_shows_the_zones_that_offer_it_with_quota(
    run: Run, environment: dict[str, str], prompt_cloud: Cloud
) -> None:
    emulator = EmulatorClient(prompt_cloud.url, TOKEN)
    for spot in (False, True):
        emulator.set_quota("v3-8", ZONE, 0, spot)
        emulator.set_quota("v3-8", "europe-west4-a", 8 + 8 * spot, spot)
    given = ("init", "--project", PROJECT, "--accelerator-type", "v3-8")
    told = run(*given, environment=environment).says(2).err
    assert "there is no zone" in told
    assert "zones with v3-8 and its quota: " in told
    assert "europe-west4-a (16), us-central1-b (no limit)" in told
    assert f"{ZONE} (" not in told
    done = run(*given, "--zone", "europe-west4-a", environment=environment)
    assert "v3-8 on-demand in europe-west4-a: TPUV3sPerProjectPerZoneForTPUAPI is 8" in done.out
    wrong = run("init", "--accelerator-type", "v3-80", environment=environment).says(2)
    assert "v3-80" in wrong.err


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
