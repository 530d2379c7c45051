"""An access token is kept between commands, for its owner alone, until it ends or is refused."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.oauth2.credentials import Credentials as GooglesCredentials
from support.google_accounts import ROBOT, id_token, service_account, token_reply
from support.local_cloud import (
    TOKEN,
    Cloud,
    FakeClock,
    Reply,
    ScriptedServer,
    bare_environment,
    json_reply,
    scripted,
)

from tpukit.errors import NotAllowed, NotAuthenticated, TpukitError
from tpukit.google.access_tokens import AccessTokens, KeptTokens
from tpukit.google.credentials import (
    Credentials,
    Token,
    find_credentials,
    quota_project,
    vm_credentials,
)
from tpukit.google.failures import RestFailure
from tpukit.google.retrying_session import Session
from tpukit.google.tpu import CloudTpu


@pytest.fixture
def endpoint() -> Iterator[ScriptedServer]:
    """A token endpoint that gives `first`, then `second` for ever."""
    with scripted(token_reply("first"), token_reply("second")) as server:
        yield server


@pytest.fixture
def robot(tmp_path: Path, endpoint: ScriptedServer) -> Credentials:
    path = service_account(tmp_path / "key.json", endpoint.url)
    return find_credentials("", str(path), tmp_path / "none")


@pytest.fixture
def now() -> FakeClock:
    """A clock that starts where the machine's is: google-auth knows no other."""
    clock = FakeClock()
    clock.now = time.time()
    return clock


def sent(tokens: AccessTokens) -> str:
    return tokens.headers()["authorization"].removeprefix("Bearer ")


def test_a_token_is_asked_for_once_and_kept_for_its_owner_alone(
    tmp_path: Path, robot: Credentials, endpoint: ScriptedServer, now: FakeClock
) -> None:
    kept = KeptTokens(tmp_path / "tokens")
    assert [sent(AccessTokens(robot, now, kept=kept)) for _ in range(3)] == ["first"] * 3
    assert len(endpoint.seen) == 1
    (path,) = (tmp_path / "tokens").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "first" not in path.name


def test_a_token_is_not_used_in_its_last_five_minutes(
    tmp_path: Path, robot: Credentials, now: FakeClock
) -> None:
    kept = KeptTokens(tmp_path / "tokens")
    tokens = AccessTokens(robot, now, kept=kept)
    assert sent(tokens) == "first"
    now.now += 3600 - 310
    assert sent(AccessTokens(robot, now, kept=kept)) == "first"
    now.now += 20
    assert sent(AccessTokens(robot, now, kept=kept)) == "second"
    assert sent(tokens) == "second"


def test_a_token_from_the_future_is_not_used(
    tmp_path: Path, robot: Credentials, now: FakeClock
) -> None:
    kept = KeptTokens(tmp_path / "tokens")
    assert sent(AccessTokens(robot, now, kept=kept)) == "first"
    now.now -= 13 * 3600  # the clock was turned back
    assert sent(AccessTokens(robot, now, kept=kept)) == "second"


def test_nothing_is_kept_where_that_is_turned_off(
    tmp_path: Path, robot: Credentials, now: FakeClock
) -> None:
    assert sent(AccessTokens(robot, now)) == "first"
    assert sent(AccessTokens(robot, now)) == "second"
    assert {path.name for path in tmp_path.iterdir()} == {"key.json"}


def loosen(path: Path) -> None:
    path.chmod(0o640)


def link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def garble(path: Path) -> None:
    path.write_text("[]")


def poison(path: Path) -> None:
    document = {**json.loads(path.read_text()), "value": "x\r\nInjected: 1"}
    path.write_text(json.dumps(document))


def confuse(path: Path) -> None:
    path.write_text('{"value": 7, "expires": "never", "account": null}')


def take_away(path: Path) -> None:
    path.write_text('{"value": "x"}')


@pytest.mark.parametrize("spoil", [loosen, link, garble, poison, confuse, take_away])
def test_a_file_that_others_could_have_written_is_not_read(
    tmp_path: Path, robot: Credentials, now: FakeClock, spoil: Any
) -> None:
    kept = KeptTokens(tmp_path / "tokens")
    assert sent(AccessTokens(robot, now, kept=kept)) == "first"
    (path,) = (tmp_path / "tokens").iterdir()
    spoil(path)
    assert sent(AccessTokens(robot, now, kept=kept)) == "second"
    assert sent(AccessTokens(robot, now, kept=kept)) == "second"


def test_a_token_belongs_to_what_the_credentials_file_says(
    tmp_path: Path, robot: Credentials, endpoint: ScriptedServer, now: FakeClock
) -> None:
    kept = KeptTokens(tmp_path / "tokens")
    assert sent(AccessTokens(robot, now, kept=kept)) == "first"
    path = service_account(tmp_path / "key.json", endpoint.url, "other@p.iam.gserviceaccount.com")
    other = find_credentials("", str(path), tmp_path / "none")
    acted_as = find_credentials("", str(path), tmp_path / "none", impersonate=ROBOT)
    elsewhere = find_credentials(
        *("", str(path), tmp_path / "none"), impersonate=ROBOT, iam_endpoint="https://iam.example"
    )
    assert len({robot.key, other.key, acted_as.key, elsewhere.key}) == 4
    assert sent(AccessTokens(other, now, kept=kept)) == "second"


def test_a_credentials_file_that_is_replaced_meanwhile_changes_nobody_s_token(
    tmp_path: Path, robot: Credentials, endpoint: ScriptedServer, now: FakeClock
) -> None:
    kept = KeptTokens(tmp_path / "tokens")
    with scripted(token_reply("somebody else's")) as other:
        service_account(tmp_path / "key.json", other.url, "other@p.iam.gserviceaccount.com")
        assert sent(AccessTokens(robot, now, kept=kept)) == "first"


@pytest.mark.parametrize("wrap", [lambda info: info, lambda info: {"source_credentials": info}])
def test_the_token_of_a_workload_whose_identity_is_elsewhere_is_not_kept(
    tmp_path: Path, wrap: Any
) -> None:
    path = tmp_path / "adc.json"
    source = {"environment_id": "aws1"}  # AWS_PROFILE decides
    path.write_text(json.dumps(wrap({"type": "external_account", "credential_source": source})))
    assert find_credentials("", str(path), tmp_path / "none").key == ""


def test_tokens_that_nobody_uses_any_more_are_removed(
    tmp_path: Path, robot: Credentials, now: FakeClock
) -> None:
    (tmp_path / "tokens").mkdir()
    for name, hours in (("old", 13), ("recent", 11)):
        (tmp_path / "tokens" / name).touch()
        os.utime(tmp_path / "tokens" / name, (0, time.time() - hours * 3600))
    AccessTokens(robot, now, kept=KeptTokens(tmp_path / "tokens")).headers()
    left = {path.name for path in (tmp_path / "tokens").iterdir()}
    assert left == {"recent", f"{robot.key}.json"}


def test_a_token_that_cannot_be_kept_is_used_all_the_same(
    tmp_path: Path, robot: Credentials, now: FakeClock
) -> None:
    (tmp_path / "tokens").write_text("a file where the directory should be")
    assert sent(AccessTokens(robot, now, kept=KeptTokens(tmp_path / "tokens"))) == "first"


def test_a_refused_token_is_replaced_once(cloud: Cloud, tmp_path: Path) -> None:
    with scripted(token_reply("revoked"), token_reply(TOKEN)) as endpoint:
        path = service_account(tmp_path / "key.json", endpoint.url)
        credentials = find_credentials("", str(path), tmp_path / "none")
        kept = KeptTokens(tmp_path / "tokens")
        cloud.clock.now = time.time()  # type: ignore[attr-defined]
        for _ in range(2):
            session = Session(AccessTokens(credentials, cloud.clock, kept=kept), cloud.clock)
            assert CloudTpu(session, "demo-project", cloud.url).list("-").slices == ()
    assert len(endpoint.seen) == 2
    assert len(cloud.calls("nodes.list")) == 2


def test_a_token_file_is_read_again_where_its_token_was_refused(
    tmp_path: Path, clock: FakeClock
) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    tokens = AccessTokens(find_credentials(str(path), "", tmp_path / "none"), clock)
    refused = tokens.headers()
    with pytest.raises(RestFailure, match="refuses the token"):
        tokens.renew(refused)
    path.write_text("new")
    tokens.renew(refused)
    assert sent(tokens) == "new"
    tokens.renew(refused)  # another thread's call, refused for the old one
    assert sent(tokens) == "new"


def test_no_google_auth_is_imported_where_a_token_is_kept(
    tmp_path: Path, robot: Credentials, endpoint: ScriptedServer, now: FakeClock
) -> None:
    AccessTokens(robot, now, kept=KeptTokens(tmp_path / "tokens")).headers()
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tpukit.clock import SystemClock\n"
        "from tpukit.google.access_tokens import AccessTokens, KeptTokens\n"
        "from tpukit.google.credentials import find_credentials\n"
        "home = Path(sys.argv[1])\n"
        "found = find_credentials('', str(home / 'key.json'), home / 'none')\n"
        "tokens = AccessTokens(found, SystemClock(), kept=KeptTokens(home / 'tokens'))\n"
        "print(tokens.headers()['authorization'])\n"
        "print(*[each for each in ('google', 'requests', 'urllib3') if each in sys.modules])\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    environment = bare_environment(tmp_path)
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "Bearer first\n\n"


@pytest.mark.parametrize("token", ["SECRET\nx", "SECRET€"])
def test_a_token_that_is_no_header_is_in_no_message(
    tmp_path: Path, clock: FakeClock, token: str
) -> None:
    with scripted(token_reply(token)) as server:
        path = service_account(tmp_path / "key.json", server.url)
        given = AccessTokens(find_credentials("", str(path), tmp_path / "none"), clock)
        with pytest.raises(NotAuthenticated) as caught:
            Session(given, clock).rest("list slices", "GET", f"{server.url}/x")
    assert "SECRET" not in repr(caught.value.lines())


def test_a_token_is_in_no_repr(robot: Credentials) -> None:
    assert "PRIVATE KEY" not in repr(robot)
    assert "secret" not in repr(Token("secret", 1.0, "ada@example.com"))


def test_a_person_s_account_comes_with_the_token(tmp_path: Path, now: FakeClock) -> None:
    reply = token_reply("t", id_token=id_token("ada@example.com"), refresh_token="r")
    with scripted(reply) as server:
        login = {"refresh_token": "r", "client_id": "c", "client_secret": "s"}
        person = Credentials(
            "login", lambda: GooglesCredentials(None, token_uri=server.url, **login), key="k"
        )
        kept, told = KeptTokens(tmp_path / "tokens"), list[str]()
        tokens = AccessTokens(person, now, kept=kept, on_account=told.append)
        assert tokens.account == ""
        tokens.headers()
    assert tokens.account == "ada@example.com"
    assert AccessTokens(person, now, kept=kept).account == "ada@example.com"
    assert told == ["ada@example.com"]


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "a.W10.c", "a.e30.c", None])
def test_a_token_without_an_account_leaves_it_unknown(token: str | None) -> None:
    loaded = GooglesCredentials("t", id_token=token)
    assert Credentials("login", lambda: loaded).fetch() == Token("t")


FILES = {
    "account": ({"type": "authorized_user", "account": "ada@example.com"}, "ada@example.com"),
    "no account": ({"type": "authorized_user", "account": ""}, ""),
    "service account": ({"type": "service_account", "client_email": ROBOT}, ROBOT),
    "workload": (
        {
            "type": "external_account",
            "service_account_impersonation_url": "https://iamcredentials.googleapis.com"
            f"/v1/projects/-/serviceAccounts/{ROBOT}:generateAccessToken",
        },
        ROBOT,
    ),
    "workload without an account": ({"type": "external_account"}, ""),
    "escapes": ({"type": "authorized_user", "account": "\x1b[2Jada"}, r"\x1b[2Jada"),
}


@pytest.mark.parametrize("name", FILES)
def test_the_account_that_a_file_names_is_known_without_a_call(tmp_path: Path, name: str) -> None:
    document, account = FILES[name]
    (tmp_path / "adc.json").write_text(json.dumps(document))
    found = find_credentials("", "", tmp_path / "adc.json")
    assert found.account == account
    assert os.fspath(tmp_path / "adc.json") in found.description


def test_a_service_account_is_impersonated_through_others(
    tmp_path: Path, robot: Credentials, now: FakeClock
) -> None:
    answer = json_reply(200, {"accessToken": "theirs", "expireTime": "2100-01-01T00:00:00Z"})
    with scripted(answer) as iam:
        acted_as = find_credentials(
            *("", str(tmp_path / "key.json"), tmp_path / "none"),
            impersonate="middle@p.iam.gserviceaccount.com, last@p.iam.gserviceaccount.com",
            iam_endpoint=iam.url,
        )
        tokens = AccessTokens(acted_as, now)
        assert sent(tokens) == "theirs"
    assert tokens.account == "last@p.iam.gserviceaccount.com"
    assert iam.seen[0][1].endswith("/last@p.iam.gserviceaccount.com:generateAccessToken")
    assert iam.headers[0]["Authorization"] == "Bearer first"
    assert json.loads(iam.bodies[0])["delegates"] == ["middle@p.iam.gserviceaccount.com"]


def test_a_vm_s_own_account_is_asked_for_directly(clock: FakeClock) -> None:
    email = Reply(200, ROBOT.encode(), {"Metadata-Flavor": "Google"})
    clock.now = time.time()
    with scripted(token_reply("of-the-vm"), email) as server:
        tokens = AccessTokens(vm_credentials(server.url.removeprefix("http://")), clock)
        assert sent(tokens) == "of-the-vm"
        assert sent(tokens) == "of-the-vm"
    assert tokens.account == ROBOT
    account = "/computeMetadata/v1/instance/service-accounts/default"
    assert server.seen == [("GET", f"{account}/token"), ("GET", f"{account}/email")]
    assert {header["Metadata-Flavor"] for header in server.headers} == {"Google"}


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(404, b"not found"), NotAuthenticated),
        (Reply(503, b"busy"), TpukitError),
        (Reply(200, b"<html>"), TpukitError),
        (json_reply(200, {}), TpukitError),
        (json_reply(200, []), TpukitError),
    ],
)
def test_a_vm_without_an_account_is_told_as_such(
    clock: FakeClock, reply: Reply, kind: type[TpukitError]
) -> None:
    with scripted(reply) as server:
        credentials = vm_credentials(server.url.removeprefix("http://"))
        session = Session(AccessTokens(credentials, clock), clock, retry_seconds=0.0)
        with pytest.raises(kind):
            session.rest("list slices", "GET", server.url)
    assert all("computeMetadata" in path for _, path in server.seen)


PERSON = Credentials("a person", lambda: None, person=True)
NAMED = Credentials("a person", lambda: None, person=True, quota_project="in-the-file")
SERVICE = Credentials("a service account", lambda: None)


@pytest.mark.parametrize(
    ("setting", "credentials", "expected"),
    [
        ("", PERSON, "current"),
        ("", NAMED, "in-the-file"),
        ("", SERVICE, ""),
        ("CURRENT_PROJECT", NAMED, "current"),
        ("CURRENT_PROJECT", SERVICE, ""),
        ("CURRENT_PROJECT_WITH_FALLBACK", PERSON, "current"),
        ("LEGACY", NAMED, ""),
        ("who-pays", NAMED, "who-pays"),
        ("who-pays", SERVICE, "who-pays"),
    ],
)
def test_gcloud_s_words_for_the_quota_project(
    setting: str, credentials: Credentials, expected: str
) -> None:
    assert quota_project(setting, credentials, "current") == expected


DENIED = json_reply(
    403,
    {
        "error": {
            "status": "PERMISSION_DENIED",
            "message": "Caller does not have required permission to use project p.",
            "details": [
                {
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": "USER_PROJECT_DENIED",
                    "domain": "googleapis.com",
                }
            ],
        }
    },
)


@pytest.mark.parametrize("fallback", [True, False])
def test_a_quota_project_that_may_not_be_used_is_left_out_where_falling_back_is_asked_for(
    cloud: Cloud, clock: FakeClock, fallback: bool
) -> None:
    credentials = find_credentials(str(cloud.token_file), "", cloud.directory / "none")
    tokens = AccessTokens(credentials, clock, quota_project="p", quota_fallback=fallback)
    with scripted(DENIED, json_reply(200, {})) as server:
        tpu = CloudTpu(Session(tokens, clock), "demo-project", server.url)
        if fallback:
            assert tpu.list("-").slices == ()
        else:
            with pytest.raises(NotAllowed):
                tpu.list("-")
    paying = [header.get("x-goog-user-project") for header in server.headers]
    assert paying == (["p", None] if fallback else ["p"])
