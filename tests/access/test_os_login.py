"""OS Login of a slice and of its project: who we are then, or why we are refused."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from support.local_cloud import PROJECT, Cloud, json_reply, scripted
from support.openssh_server import new_key

from tpukit.access.os_login import OsLogins, WorkerLogin
from tpukit.errors import NotAllowed, TpukitError
from tpukit.google.login_profiles import OsLogin
from tpukit.models import LoginProfile
from tpukit.ssh.keys import KeyPair, own_key_pair

OTHER = "ssh-ed25519 AAAAother laptop"


@dataclass
class Directory:
    """A project and the login profile of one account; each answer may be an error."""

    metadata: dict[str, str] | TpukitError = field(default_factory=dict)
    keys: tuple[str, ...] = (OTHER,)
    asked: list[str] = field(default_factory=list)

    def project_metadata(self) -> dict[str, str]:
        self.asked.append("metadata")
        if isinstance(self.metadata, TpukitError):
            raise self.metadata
        return self.metadata

    def profile(self, account: str) -> LoginProfile:
        self.asked.append(account)
        return LoginProfile("ada_example_com", self.keys)


@pytest.fixture
def directory() -> Directory:
    return Directory()


@pytest.fixture
def logins(directory: Directory, key: KeyPair, tmp_path: Path) -> OsLogins:
    return OsLogins(directory, lambda: "ada@example.com", key, tmp_path / "google_compute_engine")


def test_a_slice_s_own_metadata_comes_before_the_project_s(
    logins: OsLogins, directory: Directory
) -> None:
    directory.metadata = {"enable-oslogin": "TRUE"}
    assert logins.of("slice demo", {"enable-oslogin": "false"}, project=True) is None
    assert logins.of("slice demo", {}, project=False) is None
    assert directory.asked == []
    with pytest.raises(NotAllowed, match="slice demo uses OS Login") as caught:
        logins.of("slice demo", {}, project=True)
    assert caught.value.reason == "enable-oslogin in the metadata of its project"


def test_who_may_not_read_the_project_goes_on(logins: OsLogins, directory: Directory) -> None:
    directory.metadata = NotAllowed("no compute.projects.get")
    assert logins.of("slice demo", {}, project=True) is None


def test_our_own_key_or_gcloud_s_is_used_under_the_posix_name(
    logins: OsLogins, directory: Directory, key: KeyPair
) -> None:
    on = {"enable-oslogin": "TRUE"}
    directory.keys = (OTHER, key.public)
    own = WorkerLogin("ada_example_com", str(key.private_path))
    assert logins.of("slice demo", on, project=False) == own
    Path(f"{logins.gcloud_key}.pub").write_text("ssh-rsa AAAAgcloud ada@laptop\n")
    directory.keys = (OTHER, "ssh-rsa AAAAgcloud")
    theirs = WorkerLogin("ada_example_com", str(logins.gcloud_key))
    assert logins.of("slice demo", on, project=False) == theirs


def test_a_profile_without_our_keys_is_refused_with_the_command_that_adds_ours(
    logins: OsLogins, key: KeyPair
) -> None:
    with pytest.raises(NotAllowed) as caught:
        logins.of("slice demo", {"enable-oslogin": "TRUE"}, project=False)
    assert caught.value.why == "the login profile of ada@example.com has none of our keys"
    assert caught.value.fix
    public = Path(caught.value.fix.arguments[-1])
    assert caught.value.fix.arguments[:5] == ("gcloud", "compute", "os-login", "ssh-keys", "add")
    assert public.read_text() == f"{key.public}\n"
    if shutil.which("ssh-keygen"):
        subprocess.run(["ssh-keygen", "-l", "-f", str(public)], check=True, capture_output=True)


def test_the_public_half_of_a_key_of_the_user_s_own_is_not_written(
    logins: OsLogins, tmp_path: Path
) -> None:
    (tmp_path / "mine.pub").write_text(f"{new_key()[1]} a comment of mine\n")
    before = (tmp_path / "mine.pub").read_text()
    own = replace(logins, key=own_key_pair(tmp_path / "mine"))
    with pytest.raises(NotAllowed) as caught:
        own.of("slice demo", {"enable-oslogin": "TRUE"}, project=False)
    assert caught.value.fix
    assert caught.value.fix.arguments[-1] == str(tmp_path / "mine.pub")
    assert (tmp_path / "mine.pub").read_text() == before


def test_the_primary_name_and_the_keys_that_are_valid_are_read(cloud: Cloud) -> None:
    profile = {
        "posixAccounts": [{"username": "second"}, {"username": "first", "primary": True}],
        "sshPublicKeys": {
            "a": {"key": "ssh-rsa AAAA"},
            "b": {"key": "ssh-rsa BBBB", "expirationTimeUsec": "1000000"},
            "c": {"key": "ssh-rsa CCCC", "expirationTimeUsec": "9000000000000000"},
        },
    }
    with scripted(json_reply(200, profile)) as server:
        directory = OsLogin(cloud.session, PROJECT, server.url, server.url)
        found = directory.profile("ada@example.com")
    assert found == LoginProfile("first", ("ssh-rsa AAAA", "ssh-rsa CCCC"))
    (asked,) = server.seen
    assert asked[1] == f"/v1/users/ada%40example.com/loginProfile?projectId={PROJECT}"


@pytest.mark.parametrize(
    "answer", [{"posixAccounts": 7}, {"sshPublicKeys": [1]}, {"posixAccounts": [1]}]
)
def test_an_answer_of_another_shape_is_an_error(cloud: Cloud, answer: object) -> None:
    with scripted(json_reply(200, answer)) as server, pytest.raises(TpukitError):
        OsLogin(cloud.session, PROJECT, server.url, server.url).profile("ada")


def test_the_metadata_that_the_project_shares_is_read(cloud: Cloud) -> None:
    items = [{"key": "enable-oslogin", "value": "TRUE"}, {"key": "empty"}]
    with scripted(json_reply(200, {"commonInstanceMetadata": {"items": items}})) as server:
        directory = OsLogin(cloud.session, PROJECT, f"{server.url}/compute/v1/", server.url)
        assert directory.project_metadata() == {"enable-oslogin": "TRUE", "empty": ""}
    assert server.seen == [("GET", f"/compute/v1/projects/{PROJECT}")]
