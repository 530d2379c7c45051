"""`tpukit doctor --bundle`: enough for a bug report, without what is secret or names somebody."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import warm_tpukit
from support.local_cloud import PROJECT, TOKEN, Cloud, running_cloud

from tpukit.doctor.bundle import Redaction, names_of
from tpukit.paths import Paths
from tpukit.ssh.keys import ensure_key_pair

pytestmark = pytest.mark.process

#: Made up, in the forms that Google and OpenSSH give them.
ACCESS = "ya29.a0AfB_byC-abcdefgh-0123456789"
REFRESH = "1//0gAbCdEfGhIjKlMnOpQrStUvWxYz"
WEB_TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6"
PRIVATE = (
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n"
    "-----END OPENSSH PRIVATE KEY-----"
)


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with running_cloud(tmp_path, create_seconds=0.0) as cloud:
        yield cloud


def files(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        assert {member.mode for member in members} == {0o600}
        opened = {member.name: archive.extractfile(member) for member in members}
        return {name: file.read().decode() for name, file in opened.items() if file}


def test_a_bundle_has_the_report_the_versions_the_settings_and_the_last_logs(
    cloud: Cloud, tmp_path: Path
) -> None:
    environment = cloud.environment()
    environment["TPUKIT_SOURCE_RANGES"] = "203.0.113.7/32"
    environment["HTTPS_PROXY"] = "http://ada:hunter2@198.51.100.9:1"
    environment["NO_PROXY"] = "127.0.0.1"
    paths = Paths.from_environment(environment)
    public = ensure_key_pair(paths.key_directory).public
    secrets = {
        "account": "ada.lovelace@example.com",
        "label": "owner ada-lovelace-example-com",
        "token": f"Authorization: Bearer {ACCESS}",
        "refresh": f'{{"refresh_token": "{REFRESH}"}}',
        "key": PRIVATE,
        "line": public,
        "address": "worker 0 at 203.0.113.77 and 2001:db8::8a2e:370:7334",
        "home": f"{environment['HOME']}/train.py",
    }
    paths.logs.mkdir(parents=True)
    for number in range(7):
        (paths.logs / f"slice-{number}.log").write_text("\n".join(secrets.values()))
    (paths.state / "crash-1.log").write_text("Traceback: KeyError")
    bundle = tmp_path / "bundle.tar.gz"
    words = ["doctor", "--bundle", str(bundle)]
    environment["CLOUDSDK_CORE_ACCOUNT"] = "ada.lovelace@example.com"
    done = warm_tpukit.run(words, env=environment)
    assert bundle.stat().st_mode & 0o777 == 0o600
    found = files(bundle)
    assert {"report.json", "versions.json", "settings.json", "logs/crash-1.log"} <= {*found}
    assert len([name for name in found if name.startswith("logs/slice-")]) == 5
    report = json.loads(found["report.json"])["findings"]
    assert {row["check"] for row in report} >= {"project", "Cloud TPU API", "roles", "quota"}
    settings = json.loads(found["settings.json"])
    assert settings["zone"]["value"] == environment["CLOUDSDK_COMPUTE_ZONE"]
    assert settings["project"] == {"value": "set", "origin": "CLOUDSDK_CORE_PROJECT"}
    assert json.loads(found["versions.json"])["tpukit"]
    assert "KeyError" in found["logs/crash-1.log"]
    whole = "\n".join(found.values())
    for kept_out in (
        *("lovelace", "example.com", ACCESS, REFRESH, TOKEN, "hunter2", PROJECT, "b3BlbnNzaC1"),
        *(public.split()[1], "203.0.113", "198.51.100", "2001:db8", environment["HOME"]),
    ):
        assert kept_out not in whole, kept_out
    again = warm_tpukit.run(words, env=environment)
    assert (done.returncode, again.returncode) == (0, 2), done.stdout
    assert "exists" in again.stderr


def test_a_bundle_in_no_folder_is_refused_before_the_checks(cloud: Cloud, tmp_path: Path) -> None:
    bundle = tmp_path / "none" / "bundle.tar.gz"
    done = warm_tpukit.run(["doctor", "--bundle", str(bundle)], env=cloud.environment())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"error: {bundle} is in no existing folder",
        "fix: name another file",
    ]
    assert cloud.control("GET", "log")["requests"] == []


def test_settings_that_cannot_be_read_are_in_a_bundle_of_their_own(
    cloud: Cloud, tmp_path: Path
) -> None:
    environment = cloud.environment()
    config = Paths.from_environment(environment).config_file
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text("zone = us-central1-a\n")
    bundle = tmp_path / "bundle.tar.gz"
    done = warm_tpukit.run(["doctor", "--bundle", str(bundle)], env=environment)
    assert done.returncode == 2, done.stderr
    written = files(bundle)
    assert config.name in written["report.json"]
    assert "Traceback" not in done.stderr
    assert set(written) == {"report.json", "versions.json", "settings.json"}
    assert str(tmp_path) not in "".join(written.values())


def test_each_kind_of_secret_is_replaced_and_the_rest_stays() -> None:
    redaction = Redaction(names_of(["ada@example.com", ""], ["my-project"], "ada"), "/home/ada")
    for text, left in (
        (f"token={ACCESS}; retry", "token=SECRET retry"),
        (f"a {ACCESS} b", "a SECRET b"),
        (f"got {REFRESH}", "got SECRET"),
        (f"got {WEB_TOKEN}.", "got SECRET"),
        ("Authorization: bearer abc.def", "Authorization: SECRET"),
        ("'authorization: token ghp_abcdefgh12'", "'authorization: SECRET"),
        ("sent bearer abc.def", "sent Bearer SECRET"),
        ("login('hf_abcdefgh12')", "login('SECRET')"),
        ("run --token abc --password x", "run --token SECRET --password SECRET"),
        ("{'token': 'abc', 'b': 1}", "{'token': 'SECRET', 'b': 1}"),
        ("api-key: abc", "api-key: SECRET"),
        ("AKIAABCDEFGHIJKLMNOP", "SECRET"),
        (
            "p @ https://s.example/p.whl?X-Sig=5f3a&b=c end",
            "p @ https://s.example/p.whl?SECRET end",
        ),
        (PRIVATE.partition("\n")[2] + "\ny", "KEY\ny"),
        ('"client_secret": "abc"', '"client_secret": "SECRET"'),
        ("HF_TOKEN=hf_abc python", "HF_TOKEN=SECRET python"),
        ("https://ada:pw@proxy:1/", "https://LOGIN@proxy:1/"),
        (f"{PUBLIC} ada@laptop\nnext", "KEY\nnext"),
        (f"x\n{PRIVATE}\ny", "x\nKEY\ny"),
        (PRIVATE.partition("\n-----END")[0], "KEY"),
        ("eve@other.example.org made it", "ACCOUNT made it"),
        ("10.1.2.3:22 and 10.1.2.3/32", "ADDRESS:22 and ADDRESS/32"),
        ("at fe80::1 and ::1 and 2001:db8:0:0:1:2:3:4", "at ADDRESS and ADDRESS and ADDRESS"),
        ("/home/ada/x of ada-v3-8 in my-project", "~/x of USER-v3-8 in PROJECT"),
        ("label ada-example-com, user ada_example_com", "label ACCOUNT, user ACCOUNT"),
        ("projects/123456789012/locations", "projects/NUMBER/locations"),
        # These are no secrets.
        ("jax 0.8.1 at 12:30:45, v2-alpha-tpuv5, adapter", None),
        ("std::vector, 1.2.3, exit 137", None),
    ):
        assert redaction.of(text) == (text if left is None else left), text
