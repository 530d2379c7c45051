"""Whose calls a command makes, which is the owner of what is made; and whom a file may commit."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest
from support.google_accounts import ROBOT, service_account, token_reply
from support.local_cloud import (
    PROJECT,
    TOKEN,
    ZONE,
    Cloud,
    ScriptedServer,
    bare_environment,
    json_reply,
    scripted,
)

from cli.conftest import Run
from tpukit.cli.toolkit.identity import Identity
from tpukit.clock import SystemClock
from tpukit.google.retrying_session import Session
from tpukit.paths import Paths
from tpukit.settings.resolution import Settings
from tpukit.slices import naming

pytestmark = pytest.mark.process

GCLOUD = "home/.config/gcloud/configurations/config_default"


@pytest.fixture
def endpoint() -> Iterator[ScriptedServer]:
    with scripted(token_reply(TOKEN)) as server:
        yield server


@pytest.fixture
def as_robot(prompt_cloud: Cloud, endpoint: ScriptedServer, tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has a service account's key."""
    environment = prompt_cloud.environment()
    del environment["CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"]
    path = service_account(tmp_path / "key.json", endpoint.url)
    return {**environment, "GOOGLE_APPLICATION_CREDENTIALS": str(path)}


def gcloud_says(cloud: Cloud, text: str) -> None:
    path = cloud.directory / GCLOUD
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_the_owner_is_the_account_of_the_credentials(
    run: Run, prompt_cloud: Cloud, as_robot: dict[str, str]
) -> None:
    assert run("create", "v3-8", environment=as_robot).out == "robot-v3-8\n"
    found = prompt_cloud.tpu.get(ZONE, "robot-v3-8")
    assert naming.owner(found).startswith("robot_demo-project-iam-gserviceaccount-com-")
    told = run("delete", "robot-v3-8", "--yes", environment=prompt_cloud.environment()).says(4).err
    assert f"belongs to {naming.owner(found)} (you are ada)" in told
    assert run("delete", "robot-v3-8", "--yes", environment=as_robot).status == 0


def test_a_second_command_asks_for_no_token(
    run: Run, as_robot: dict[str, str], endpoint: ScriptedServer
) -> None:
    for _ in range(3):
        assert run("list", environment=as_robot).status == 0
    assert len(endpoint.seen) == 1
    assert run("list", environment={**as_robot, "TPUKIT_KEEP_TOKENS": "no"}).status == 0
    assert len(endpoint.seen) == 2


def test_a_second_command_imports_no_library_of_google_s(as_robot: dict[str, str]) -> None:
    program = (
        "import sys\n"
        "from tpukit.cli.main import status\n"
        "code = status(['list'])\n"
        "heavy = ('google', 'requests', 'urllib3', 'cryptography')\n"
        "print(code, *[each for each in heavy if each in sys.modules])\n"
    )
    words = [sys.executable, "-c", program]
    first, second = (
        subprocess.run(words, env=as_robot, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert (first.split()[:2], second.split()) == (["0", "google"], ["0"])


def test_no_token_and_no_key_is_in_any_output(run: Run, as_robot: dict[str, str]) -> None:
    for words in (("list", "--verbose"), ("config", "explain"), ("describe", "none", "-v")):
        result = run(*words, environment=as_robot)
        assert TOKEN not in result.out + result.err
        assert "PRIVATE" not in result.out + result.err


def test_another_account_than_gcloud_s_is_said(
    run: Run, prompt_cloud: Cloud, as_robot: dict[str, str]
) -> None:
    gcloud_says(prompt_cloud, "[core]\naccount = ada@example.com\n")
    told = run("list", environment=as_robot).err
    assert f"acting as {ROBOT} (credentials file " in told
    assert "not as ada@example.com (gcloud configuration 'default')" in told
    same = {**as_robot, "CLOUDSDK_CORE_ACCOUNT": ROBOT}
    assert run("list", environment=same).err == ""


def test_gcloud_s_impersonation_is_honoured_and_said(
    run: Run, prompt_cloud: Cloud, as_robot: dict[str, str]
) -> None:
    chief = "chief@demo-project.iam.gserviceaccount.com"
    gcloud_says(prompt_cloud, f"[auth]\nimpersonate_service_account = {chief}\n")
    answer = json_reply(200, {"accessToken": TOKEN, "expireTime": "2100-01-01T00:00:00Z"})
    with scripted(answer) as iam:
        environment = {**as_robot, "CLOUDSDK_API_ENDPOINT_OVERRIDES_IAMCREDENTIALS": iam.url}
        result = run("create", "v3-8", environment=environment)
    assert result.out == "chief-v3-8\n"
    assert f"acting as {chief}, impersonated (gcloud configuration 'default')" in result.err
    assert iam.seen[0][1] == f"/v1/projects/-/serviceAccounts/{chief}:generateAccessToken"


def test_an_impersonation_that_is_not_allowed_is_said_as_such(
    run: Run, as_robot: dict[str, str]
) -> None:
    message = "Permission 'iam.serviceAccounts.getAccessToken' denied on resource."
    denied = json_reply(403, {"error": {"code": 403, "message": message}})
    with scripted(denied) as iam:
        environment = {
            **as_robot,
            "CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT": f"chief-{ROBOT}",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_IAMCREDENTIALS": iam.url,
        }
        told = run("list", environment=environment).says(4).err
    assert "auth/impersonate_service_account" in told
    assert "fix: tpukit config explain" in told
    assert "{" not in told


def test_disabled_credentials_are_neither_read_nor_sent(
    run: Run, as_robot: dict[str, str], endpoint: ScriptedServer
) -> None:
    with scripted(json_reply(200, {})) as server:
        environment = {
            **as_robot,
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "True",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{server.url}/",
            "GOOGLE_APPLICATION_CREDENTIALS": "/none",
        }
        assert run("list", environment=environment).status == 0
        assert [header.get("authorization") for header in server.headers] == [None]
    assert not endpoint.seen


def test_an_api_that_wants_credentials_says_that_they_are_disabled(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = {**prompt_cloud.environment(), "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1"}
    told = run("list", environment=environment).says(4).err
    assert "auth/disable_credentials" in told
    assert "fix: tpukit config explain" in told


@pytest.mark.parametrize(
    ("word", "sent"),
    [("CURRENT_PROJECT", None), ("LEGACY", None), ("who-pays", "who-pays")],
)
def test_gcloud_s_words_for_the_quota_project_stop_no_command(
    run: Run, as_robot: dict[str, str], word: str, sent: str | None
) -> None:
    with scripted(json_reply(200, {})) as server:
        environment = {
            **as_robot,
            "CLOUDSDK_BILLING_QUOTA_PROJECT": word,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{server.url}/",
        }
        assert run("list", environment=environment).status == 0
    assert [header.get("x-goog-user-project") for header in server.headers] == [sent]


def test_config_explain_shows_the_identity_without_asking(
    run: Run, as_robot: dict[str, str], endpoint: ScriptedServer, tmp_path: Path
) -> None:
    document = run("config", "explain", "--json", environment=as_robot).document
    assert document["identity"] == {
        "account": ROBOT,
        "origin": f"credentials file {tmp_path / 'key.json'}",
    }
    home = bare_environment(tmp_path)
    adc = tmp_path / ".config/gcloud/application_default_credentials.json"
    adc.parent.mkdir(parents=True)
    adc.write_text(json.dumps({"type": "authorized_user", "account": ""}))
    unknown = run("config", "explain", "--json", environment=home).document["identity"]
    assert unknown["account"] == ""
    assert str(adc) in unknown["origin"]
    assert "unknown account" in unknown["origin"]
    adc.unlink()
    nobody = run("config", "explain", environment=home)
    assert nobody.out.splitlines()[0] == "identity\t\tno credentials for Google Cloud"
    told = run("list", environment={**home, "CLOUDSDK_CORE_ACCOUNT": "ada@example.com"}).says(2).err
    assert "only gcloud can use its login as ada@example.com" in told
    disabled = {**home, "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "on"}
    shown = run("config", "explain", environment=disabled).out.splitlines()[0]
    assert shown == "identity\t\tdisabled, CLOUDSDK_AUTH_DISABLE_CREDENTIALS"
    assert not endpoint.seen


def test_all_that_is_missing_is_said_in_one_run(run: Run) -> None:
    for verb in ("up", "create"):
        told = run(verb, "v3-8").says(2).err
        assert "error: 3 things are missing" in told
        for what in ("there is no project", "there is no zone", "no credentials for Google Cloud"):
            assert what in told
        for way in ("fix: gcloud auth application-default login", "--project", "--zone"):
            assert way in told


def test_all_that_is_wrong_is_said_in_one_run(run: Run) -> None:
    told = run("list", "--project", "12", "--zone", "us-central1").says(2).err
    assert '"12" is not a project id (flag --project' in told
    assert '"us-central1" is not a zone (flag --zone' in told


EMPTY = [
    ("list", "--zone", ""),
    ("list", "--zone="),
    ("--project=", "list"),
    ("--project", "", "list"),
    ("create", "v3-8", "--runtime-version", ""),
    ("create", "v3-8", "--network="),
    ("up", "v3-8", "--labels", ""),
    ("firewall", "apply", "demo", "--source-range="),
]


@pytest.mark.parametrize("words", EMPTY)
def test_an_empty_value_of_a_flag_is_refused_and_nothing_is_made(
    run: Run, prompt_cloud: Cloud, words: tuple[str, ...]
) -> None:
    told = run(*words, environment=prompt_cloud.environment()).says(2).err
    assert "is empty" in told
    assert prompt_cloud.nodes() == []


def test_empty_words_of_a_remote_command_are_its_own(run: Run, prompt_cloud: Cloud) -> None:
    words = ("run", "none", "--", "echo", "--zone", "", "--x=")
    assert "no slice none" in run(*words, environment=prompt_cloud.environment()).says(3).err


PROJECT_FILE = f"""
project = "{PROJECT}"
zone = "{ZONE}"
source_ranges = ["0.0.0.0/1", "128.0.0.0/1"]
"""


@pytest.fixture
def cloned(prompt_cloud: Cloud, tmp_path: Path) -> dict[str, str]:
    """A working directory with a tpukit.toml that chooses who pays, and no project of one's own."""
    (tmp_path / "tpukit.toml").write_text(PROJECT_FILE)
    environment = prompt_cloud.environment()
    del environment["CLOUDSDK_CORE_PROJECT"], environment["CLOUDSDK_COMPUTE_ZONE"]
    return environment


def test_a_project_file_chooses_who_pays_once_it_is_trusted(
    run: Run, cloned: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "tpukit.toml"
    told = run("list", environment=cloned).says(9).err
    assert f"error: {file} is not trusted to set project (it says {PROJECT})" in told
    assert f"fix: tpukit config trust {file}" in told
    trusted = run("config", "trust", environment=cloned)
    assert trusted.out == f"project\t{PROJECT}\nsource_ranges\t0.0.0.0/1,128.0.0.0/1\n"
    assert run("list", environment=cloned).status == 0
    store = Path(cloned["TPUKIT_HOME"]) / "state/trusted.json"
    assert store.stat().st_mode & 0o777 == 0o600
    file.write_text(PROJECT_FILE.replace(PROJECT, "somebody-else"))
    assert "somebody-else" in run("list", environment=cloned).says(9).err
    assert run("config", "trust", str(tmp_path), environment=cloned).status == 0
    run("config", "trust", "--remove", environment=cloned)
    run("list", environment=cloned).says(9)
    assert run("config", "trust", "--remove", environment=cloned).out == ""


def test_a_recipe_of_a_project_is_known_once_it_is_trusted(
    run: Run, cloned: dict[str, str], tmp_path: Path
) -> None:
    run("config", "trust", environment=cloned)
    recipe = tmp_path / "tpukit-recipes/mine.toml"
    recipe.parent.mkdir()
    recipe.write_text('name = "mine"\ndescription = "of this project"\nextends = "jax"\n')
    for words in (("provision", "demo", "mine"), ("smoke", "demo", "--with", "mine")):
        told = run(*words, environment=cloned).says(9).err
        assert f"fix: tpukit config trust {recipe}" in told
    assert run("config", "trust", str(recipe), environment=cloned).out == "mine\tof this project\n"
    run("provision", "demo", "mine", environment=cloned).says(3)
    near = run("provision", "demo", "mind", environment=cloned).says(2).err
    assert "did you mean mine?" in near
    recipe.write_text(recipe.read_text() + 'packages = ["evil"]\n')
    run("provision", "demo", "mine", environment=cloned).says(9)


def test_a_project_file_may_say_what_harms_nobody_and_what_is_overruled(
    run: Run, cloned: dict[str, str], tmp_path: Path
) -> None:
    words = ("--project", PROJECT)
    assert run("list", *words, environment=cloned).status == 0
    document = run("config", "explain", *words, "--json", environment=cloned).document["settings"]
    assert document["zone"] == {"value": ZONE, "origin": str(tmp_path / "tpukit.toml")}
    assert document["source_ranges"]["origin"] == f"{tmp_path / 'tpukit.toml'}, not trusted"


def test_a_project_file_does_not_choose_who_may_come_in(
    run: Run, prompt_cloud: Cloud, cloned: dict[str, str]
) -> None:
    words = ("firewall", "apply", "demo", "--project", PROJECT)
    prompt_cloud.tpu.create(naming.labelled(prompt_cloud.request(), "ada", "nonce"))
    assert "source_ranges" in run(*words, environment=cloned).says(9).err
    assert prompt_cloud.firewall.list() == ()


def test_nothing_is_trusted_that_sends_credentials_elsewhere(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tpukit.toml").write_text('tpu_endpoint = "https://evil.example.com/"')
    run("config", "trust").says(9)
    (tmp_path / "tpukit.toml").unlink()
    run("config", "trust").says(2)
    (tmp_path / "there").write_text('project = "some-project"')
    (tmp_path / "tpukit.toml").symlink_to(tmp_path / "there")
    run("config", "trust", str(tmp_path / "tpukit.toml"))
    assert "not trusted" not in run("config", "explain").out
    (tmp_path / "tpukit.toml").unlink()
    run("config", "trust", str(tmp_path)).says(2)


def test_a_wrong_clock_is_told_where_the_api_is_not_of_this_machine(
    tmp_path: Path, prompt_cloud: Cloud
) -> None:
    late = formatdate(time.time() - 50 * 3600, usegmt=True)
    with scripted(json_reply(200, {}, Date=late)) as server:
        for endpoint, wanted in (
            ({}, ["this machine's clock is 2 d ahead of the API's; tpukit uses the API's"]),
            (prompt_cloud.environment(), []),
        ):
            environment = {**bare_environment(tmp_path), **endpoint}
            settings = Settings.load({}, environment, tmp_path, None)
            told: list[str] = []
            paths = Paths.from_environment(environment)
            identity = Identity(settings, paths, environment, SystemClock(), told.append)
            session = Session(
                prompt_cloud.tokens, identity.clock, on_difference=identity.say_difference
            )
            session.rest("look", "GET", f"{server.url}/x")
            for _ in range(2):
                assert session.now() == pytest.approx(time.time() - 50 * 3600, abs=60)
            assert told == wanted
