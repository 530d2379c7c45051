"""A project with OS Login: refused before the create, or joined as gcloud's key and user."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from cli.conftest import Run
from tpukit.emulator.process import daemon
from tpukit.emulator.process.home import EmulatorHome
from tpukit.paths import Paths

pytestmark = pytest.mark.process


@pytest.fixture
def environment(own_emulator: dict[str, str]) -> dict[str, str]:
    """A project whose machines let people in by OS Login."""
    own_emulator["TPUKIT_KEEP_HINTS"] = "no"
    os_login(own_emulator, "TRUE")
    return own_emulator


def ask(environment: dict[str, str], verb: str, path: str, body: object = None) -> dict[str, dict]:
    """Call the emulated API as another client would."""
    home = EmulatorHome(Paths.from_environment(environment).emulator)
    running = daemon.running(home.path)
    assert running
    headers = {"Authorization": f"Bearer {home.token_file.read_text().strip()}"}
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{running.url}/{path}", data, headers, method=verb)
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)


def os_login(environment: dict[str, str], setting: str) -> None:
    """Turn OS Login of the project on or off."""
    project = "compute/v1/projects/tpukit-local"
    fingerprint = ask(environment, "GET", project)["commonInstanceMetadata"]["fingerprint"]
    items = [{"key": "enable-oslogin", "value": setting}]
    body = {"items": items, "fingerprint": fingerprint}
    ask(environment, "POST", f"{project}/setCommonInstanceMetadata", body)


def register(environment: dict[str, str], public: str) -> None:
    ask(environment, "POST", "v1/users/ada:importSshPublicKey", {"key": public})


def test_up_is_refused_before_the_create_where_os_login_does_not_know_us(
    run: Run, environment: dict[str, str]
) -> None:
    result = run("up", "v3-8", "demo", environment=environment).says(4)
    assert "slice demo uses OS Login, which does not know your key" in result.err
    assert "gcloud compute os-login ssh-keys add --key-file" in result.err
    assert run("list", "--json", environment=environment).document["slices"] == []


def test_gcloud_s_key_is_used_where_it_is_registered(
    run: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    key = Path(environment["HOME"], ".ssh", "google_compute_engine")
    key.parent.mkdir(mode=0o700)
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(key)], check=True)
    register(environment, Path(f"{key}.pub").read_text())
    environment["TPUKIT_KEEP_HINTS"] = "yes"
    for words in (
        ("create", "v3-8", "demo"),
        ("firewall", "apply", "demo"),
        ("run", "demo", "--", "true"),
        ("run", "demo", "--", "true"),
        ("ssh-config", "demo"),
    ):
        result = run(*words, environment=environment)
        assert result.status == 0, f"{words}: {result.err}"
    config = str(Paths.from_environment(environment).ssh / "config")
    subprocess.run(["ssh", "-F", config, "tpu.demo", "true"], check=True, timeout=60)


def test_a_slice_whose_project_has_os_login_since_says_why_a_key_is_refused(
    run: Run, environment: dict[str, str]
) -> None:
    register(environment, "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOther ada")
    os_login(environment, "FALSE")
    assert run("create", "v3-8", "demo", environment=environment).status == 0
    assert run("firewall", "apply", "demo", environment=environment).status == 0
    assert run("run", "demo", "--", "true", environment=environment).status == 0
    os_login(environment, "TRUE")
    result = run("run", "demo", "--", "true", environment=environment)
    assert result.status == 4, result.err
    assert "OS Login, which does not know your key" in result.err
