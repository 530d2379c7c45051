"""`tpukit doctor` in worlds with one thing broken: the finding names it, and nothing else fails."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from support import warm_tpukit
from support.local_cloud import PROJECT, TOKEN, ZONE, Cloud, running_cloud

from tpukit.accelerators import all_types
from tpukit.access.ssh_config import SshConfig
from tpukit.clock import SystemClock
from tpukit.doctor.findings import Finding
from tpukit.doctor.project_checks import ProjectChecks
from tpukit.emulator import EmulatorClient
from tpukit.emulator.compute_service.projects import fingerprint
from tpukit.google.login_profiles import OsLogin
from tpukit.models import QueuedResource, QueuedResourceList, SliceList
from tpukit.paths import Paths, private_directory
from tpukit.settings.resolution import Settings
from tpukit.ssh.keys import ensure_key_pair

pytestmark = pytest.mark.slow


@dataclass
class World:
    """A cloud, and the environment of somebody who uses it."""

    cloud: Cloud
    environment: dict[str, str]
    folder: Path

    def doctor(self, *words: str) -> tuple[int, list[Mapping[str, Any]]]:
        done = warm_tpukit.run(["doctor", *words, "--json"], env=self.environment)
        return done.returncode, json.loads(done.stdout)["findings"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running_cloud(tmp_path, create_seconds=0.0) as cloud:
        cloud.close_network()
        yield World(cloud, cloud.environment(), tmp_path)


def bad(findings: list[Mapping[str, Any]]) -> list[tuple[str, str]]:
    outcomes = ("warning", "failure")
    return [(row["check"], row["outcome"]) for row in findings if row["outcome"] in outcomes]


def test_in_a_healthy_world_every_check_is_ok(world: World) -> None:
    status, findings = world.doctor()
    assert (status, bad(findings)) == (0, []), findings
    assert {row["check"] for row in findings} >= {"project", "account", "zone", "Cloud TPU API"}
    unseen = {row["check"] for row in findings if row["outcome"] == "not checked"}
    assert unseen == {"clock", "SSH key"}, "the emulator's clock is its own, and no key exists"


Break = Callable[[World], object]


def setting(name: str, value: str) -> Break:
    return lambda world: world.environment.__setitem__(name, value)


def without(name: str) -> Break:
    return lambda world: world.environment.pop(name)


def fault(**rule: Any) -> Break:
    return lambda world: world.cloud.fault(**rule)


def without_api(name: str) -> Break:
    path = f"/v1/projects/{PROJECT}/services/{name}.googleapis.com:disable"
    return lambda world: post(world.cloud, path, {})


def without_quota(*names: str, limit: int = 0, ways: tuple[bool, ...] = (False, True)) -> Break:
    """Set the quotas of these types, or of all types, in the zone."""

    def limit_all(world: World) -> None:
        emulator = EmulatorClient(world.cloud.url, TOKEN)
        for name in names or [kind.name for kind in all_types() if ZONE in kind.facts.zones]:
            for spot in ways:
                emulator.set_quota(name, ZONE, limit, spot)

    return limit_all


def os_login(key: bool) -> Break:
    """Turn OS Login on, for somebody with a key that it does not know, or without a key."""

    def turn_on(world: World) -> None:
        path = f"/compute/v1/projects/{PROJECT}"
        world.cloud.session.rest(
            "turn OS Login on",
            "POST",
            f"{world.cloud.url}{path}/setCommonInstanceMetadata",
            body={
                "items": [{"key": "enable-oslogin", "value": "TRUE"}],
                "fingerprint": fingerprint([]),
            },
        )
        if key:
            ensure_key_pair(Paths.from_environment(world.environment).key_directory)

    return turn_on


def stale_hosts(world: World) -> None:
    """Leave OpenSSH's hosts of a slice that is gone, and those of another project."""
    folder = private_directory(Paths.from_environment(world.environment).ssh)
    blocks = [
        f"# slice {name} {project} {ZONE}\nHost tpu.{name}\n  Port 22\n# end\n"
        for name, project in (("gone", PROJECT), ("hers", "other-project"))
    ]
    (folder / "config").write_text("\n".join(blocks))
    (folder / "known_hosts.gone").write_text("")


def gcloud(text: str) -> Break:
    def write(world: World) -> None:
        folder = world.folder / "gcloud/configurations"
        folder.mkdir(parents=True)
        (folder / "config_default").write_text(text)
        world.environment["CLOUDSDK_CONFIG"] = str(folder.parent)

    return write


def preempted(world: World) -> None:
    world.cloud.tpu.create(world.cloud.request("demo"))
    assert world.cloud.tpu.get(ZONE, "demo").ready
    world.cloud.change("demo", state="PREEMPTED")


def open_world(world: World) -> None:
    body = {
        "name": "default-allow-ssh",
        "network": f"projects/{PROJECT}/global/networks/default",
        "sourceRanges": ["0.0.0.0/0"],
        "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
    }
    path = f"/compute/v1/projects/{PROJECT}/global/firewalls"
    post(world.cloud, path, body)


def post(cloud: Cloud, path: str, body: Mapping[str, Any]) -> None:
    headers = {"Authorization": f"Bearer {cloud.token_file.read_text()}"}
    headers |= {"Content-Type": "application/json"}
    with urlopen(Request(f"{cloud.url}{path}", json.dumps(body).encode(), headers)) as answer:
        assert answer.status == 200


def key(mode: int | None) -> Break:
    def write(world: World) -> None:
        path = world.folder / "id_ed25519"
        if mode is not None:
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
            subprocess.run(words, check=True)
            path.chmod(mode)
        world.environment["TPUKIT_SSH_KEY"] = str(path)

    return write


def stopped(world: World) -> None:
    world.environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"] = "http://127.0.0.1:1/"


def token(text: str) -> Break:
    def write(world: World) -> None:
        path = world.folder / "another-token"
        path.write_text(text)
        world.environment["CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"] = str(path)

    return write


TPU, COMPUTE = "Cloud TPU API", "Compute Engine API"
DENIED = {"kind": "status", "status": "PERMISSION_DENIED", "message": "Permission denied"}
WORLDS: dict[str, tuple[Break, str, str, str]] = {
    "no project": (without("CLOUDSDK_CORE_PROJECT"), "project", "failure", "no project"),
    "all zones as the zone": (setting("CLOUDSDK_COMPUTE_ZONE", "-"), "zone", "failure", "zone"),
    "no zone": (without("CLOUDSDK_COMPUTE_ZONE"), "zone", "warning", "no zone is set"),
    "a mistyped zone": (
        setting("CLOUDSDK_COMPUTE_ZONE", "us-central1-q"), "zone", "failure", "perhaps us-central1"
    ),
    "no credentials": (
        without("CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"), "account", "failure", "no credentials"
    ),
    "a token file that is missing": (
        setting("CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", "/none"), "account", "failure", "/none"
    ),
    "a refused token": (token("stale"), TPU, "failure", "UNAUTHENTICATED"),
    "the API is off": (fault(preset="api-disabled"), TPU, "failure", "not been used"),
    "no permission": (
        fault(method="nodes.list", times=9, **DENIED), TPU, "failure", "PERMISSION_DENIED"
    ),
    "Compute Engine is off": (
        fault(preset="compute-api-disabled", times=9), COMPUTE, "failure", "Compute Engine API"
    ),
    "no permission for rules": (
        fault(method="firewalls.list", times=9, **DENIED), COMPUTE, "failure", "PERMISSION_DENIED"
    ),
    "no permission for requests": (
        fault(method="queuedResources.list", times=9, **DENIED),
        "queued resources", "failure", "PERMISSION_DENIED",
    ),
    "no permission for types": (
        fault(method="acceleratorTypes.list", times=9, **DENIED),
        "zone", "failure", "PERMISSION_DENIED",
    ),
    "an API that is not there": (stopped, TPU, "failure", "nothing listens there"),
    "a preempted slice": (preempted, "slices", "warning", "until deleted: demo"),
    "port 22 open to the world": (open_world, "firewall", "warning", "default-allow-ssh"),
    "another network than there is": (
        setting("TPUKIT_NETWORK", "lab"), "network", "failure", "no network lab"
    ),
    "a key that others can read": (key(0o644), "SSH key", "failure", "others can read"),
    "a key that is missing": (key(None), "SSH key", "failure", "cannot be read"),
    "no OpenSSH": (setting("PATH", "/nowhere"), "ssh", "warning", "no program ssh"),
    "gcloud's other project": (
        gcloud("[core]\nproject = other-project\n"), "gcloud", "warning", "other-project"
    ),
    "gcloud's other zone": (
        gcloud("[compute]\nzone = europe-west4-a\n"), "gcloud", "warning", "europe-west4-a"
    ),
    "an API that somebody disabled": (
        without_api("tpu"), TPU, "failure", "not been used in project demo-project"
    ),
    "no role that creates slices": (
        fault(kind="roles", permissions="tpu.nodes.create"),
        "roles", "failure", "it lacks tpu.nodes.create",
    ),
    "no role that makes rules": (
        fault(kind="roles", permissions="compute.firewalls.create compute.networks.update*"),
        "roles", "warning", "compute.firewalls.create, compute.networks.updatePolicy",
    ),
    "no role for the workers' account": (
        fault(kind="roles", permissions="iam.*"), "roles", "warning", "iam.serviceAccounts.actAs"
    ),
    "roles that cannot be read": (
        without_api("cloudresourcemanager"), "roles", "not checked", "Resource Manager API has not"
    ),
    "quotas that cannot be read": (
        without_api("cloudquotas"), "quota", "not checked", "Cloud Quotas API has not been used"
    ),
    "no quota": (without_quota(), "quota", "failure", "every TPU quota in us-central1-a is 0"),
    "OS Login that does not know the key": (
        os_login(key=True), "OS Login", "failure", "does not know your key"
    ),
    "OS Login before the first key": (os_login(key=False), "OS Login", "warning", "it is on"),
    "hosts of a slice that is gone": (stale_hosts, "ssh-config", "warning", "gone: gone"),
    "a broken gcloud configuration": (gcloud("[core\n"), "settings", "failure", "config_default"),
}  # fmt: skip


@pytest.mark.parametrize("name", WORLDS)
def test_a_broken_world_has_its_cause_named_and_no_other_failure(world: World, name: str) -> None:
    breaks, check, outcome, said = WORLDS[name]
    breaks(world)
    status, findings = world.doctor()
    named = [row for row in findings if (row["check"], row["outcome"]) == (check, outcome)]
    assert named, findings
    assert said in named[0]["said"], named
    assert named[0]["fix"] or outcome == "failure", named
    failures = {row["check"] for row in findings if row["outcome"] == "failure"}
    without_api = {"clock", "zone", "queued resources", COMPUTE}
    assert failures <= {check} | (without_api if check == TPU else set())
    assert status == (outcome == "failure")


class Ahead(SystemClock):
    def time(self) -> float:
        return super().time() + 300.0


def test_a_clock_that_differs_from_the_api_s_is_a_failure(world: World) -> None:
    assert [row.outcome for row in _checks(world) if row.check == "clock"] == ["failure"]


class Stub:
    """A client with these methods, and those of the world's own for the rest."""

    def __init__(self, **methods: Any) -> None:
        self.__dict__.update(methods)

    def now(self) -> float:
        return SystemClock().time()

    def zones(self) -> list[str]:
        return [ZONE]

    def accelerator_types(self, zone: str) -> frozenset[str]:
        return frozenset({"v3-8"})


def _checks(
    world: World, provider: Any = None, firewall: Any = None, account: str = "ada"
) -> list[Finding]:
    given = Settings.load({}, world.environment, world.folder)
    real = replace(given.values["tpu_endpoint"], value="https://tpu.googleapis.com/")
    return ProjectChecks(
        Settings({**given.values, "tpu_endpoint": real}),
        world.environment,
        Ahead(),
        account=lambda: account,
        provider=lambda: provider or world.cloud.tpu,
        firewall=lambda: firewall or world.cloud.firewall,
        project=lambda: world.cloud.project,
        login=lambda: OsLogin(world.cloud.session, PROJECT, world.cloud.url, world.cloud.url),
        login_user=lambda: "ada_example_com",
        key=lambda: world.folder / "key",
        ssh_config=SshConfig(world.folder / "ssh"),
    ).findings()


def test_zones_that_do_not_answer_and_requests_that_came_to_nothing_are_warnings(
    world: World,
) -> None:
    silent = SliceList((), ("us-east1-d",))
    dead = QueuedResource("dead", "p", ZONE, "FAILED")
    provider = Stub(list=lambda zone: silent, list_queued=lambda zone: QueuedResourceList((dead,)))
    seen = {row.check: row for row in _checks(world, provider=provider)}
    assert (seen["Cloud TPU API"].outcome, seen["Cloud TPU API"].said) == (
        "warning",
        "no answer from us-east1-d",
    )
    assert "dead" in seen["queued resources"].said
    assert seen["queued resources"].outcome == "warning"


def test_a_region_without_free_addresses_is_a_failure(world: World) -> None:
    firewall = Stub(list=lambda: (), has_network=lambda name: True, free_addresses=lambda _: 0)
    seen = {row.check: row for row in _checks(world, firewall=firewall)}
    assert seen["addresses"].outcome == "failure"
    assert "us-central1" in seen["addresses"].said


def test_tpukit_s_own_key_is_checked_as_soon_as_it_exists(world: World) -> None:
    folder = Paths.from_environment(world.environment).key_directory
    key = ensure_key_pair(folder).private_path
    key.chmod(0o644)
    status, findings = world.doctor()
    assert (status, bad(findings)) == (1, [("SSH key", "failure")])


def test_a_proxy_is_named_without_its_password(world: World) -> None:
    world.environment["HTTPS_PROXY"] = "http://ada:secret@proxy.example:3128"
    (proxy,) = [row for row in _checks(world) if row.check == "proxy"]
    assert "proxy.example:3128" in proxy.said
    assert "secret" not in proxy.said


def test_a_slice_that_does_not_exist_is_a_failure_with_a_fix(world: World) -> None:
    status, findings = world.doctor("nobody")
    assert status == 1
    assert bad(findings) == [("slice nobody", "failure")]


def test_a_lost_slice_is_explained(world: World) -> None:
    preempted(world)
    _, findings = world.doctor("demo", "--zone", ZONE)
    (state,) = [row for row in findings if row["check"] == "slice"]
    assert "does not come back" in state["said"]
    remade = ["up", "v3-8", "demo", "--zone", ZONE, "--recreate"]
    assert state["fix"]["arguments"][-6:] == remade


def test_a_missing_role_is_named_with_the_command_that_grants_it(world: World) -> None:
    world.cloud.fault(kind="roles", permissions="tpu.nodes.create compute.firewalls.*")
    world.cloud.fault(method="firewalls.list", times=9, **DENIED)
    said = {
        row.said: str(row.fix)
        for row in _checks(world, account="ada@example.com")
        if row.check == "roles"
    }
    assert len(said) == 2
    slices, rules = said.values()
    assert slices == (
        f"gcloud projects add-iam-policy-binding {PROJECT} --member user:ada@example.com"
        " --role roles/tpu.admin --condition None"
    )
    assert "roles/compute.securityAdmin" in rules
    robot = "ci@p.iam.gserviceaccount.com"
    fixes = [str(row.fix) for row in _checks(world, account=robot) if row.check == "roles"]
    assert f"--member serviceAccount:{robot}" in fixes[0]


def test_slices_on_compute_engine_need_permissions_of_their_own(world: World) -> None:
    world.cloud.fault(kind="roles", permissions="compute.instances.*")
    assert bad(world.doctor()[1]) == []
    world.environment["TPUKIT_APIS"] = "tpu,compute"
    status, findings = world.doctor()
    (said,) = [row["said"] for row in findings if row["check"] == "roles"]
    assert status == 1
    assert "create, read and delete slices on Compute Engine" in said
    assert "compute.instances.create" in said


def test_slices_of_several_workers_need_permissions_for_their_parts(world: World) -> None:
    world.environment["TPUKIT_APIS"] = "tpu,compute"
    world.cloud.fault(kind="roles", permissions="compute.instanceTemplates.*")
    status, findings = world.doctor()
    (row,) = [row for row in findings if row["check"] == "roles"]
    assert (status, row["outcome"]) == (0, "warning")
    assert "slices of several workers" in row["said"]
    assert "compute.instanceTemplates.useReadOnly" in row["said"]
    assert "roles/compute.instanceAdmin.v1" in str(row["fix"])


def test_the_rules_of_a_shared_network_need_permissions_in_its_host_project(world: World) -> None:
    world.environment["TPUKIT_NETWORK"] = "projects/host-project/global/networks/shared"
    assert [row.outcome for row in _checks(world) if row.check == "roles"] == ["ok"]
    asked = [call["path"] for call in world.cloud.calls("projects.testIamPermissions")]
    assert {path.split("/")[3].partition(":")[0] for path in asked} == {PROJECT, "host-project"}


def test_the_account_of_gcloud_that_is_another_one_is_a_warning(world: World) -> None:
    gcloud("[core]\naccount = eve@example.com\n")(world)
    (seen,) = [row for row in _checks(world, account="ada@example.com") if row.check == "gcloud"]
    assert (seen.outcome, "eve@example.com" in seen.said) == ("warning", True)
    assert not [row for row in _checks(world, account="Eve@example.com") if row.check == "gcloud"]


Limited = tuple[Break, list[tuple[str, str]]]
LIMITED: dict[str, Limited] = {
    "no limit": (
        lambda world: None,
        [
            ("ok", "TPUV3sPerProjectPerZoneForTPUAPI has no limit"),
            ("ok", "TPUV3sPreemptiblePerProjectPerZoneForTPUAPI has no limit"),
        ],
    ),
    "quota for spot alone": (
        without_quota("v3-8", ways=(False,)),
        [
            ("warning", "needs 8, but TPUV3sPerProjectPerZoneForTPUAPI is 0"),
            ("ok", "TPUV3sPreemptiblePerProjectPerZoneForTPUAPI"),
        ],
    ),
    "too little": (
        without_quota("v3-8", limit=7),
        [("failure", "TPUV3sPerProjectPerZoneForTPUAPI is 7"), ("failure", "is 7")],
    ),
    "just enough": (
        without_quota("v3-8", limit=8),
        [("ok", "TPUV3sPerProjectPerZoneForTPUAPI is 8"), ("ok", "is 8")],
    ),
}


@pytest.mark.parametrize("name", LIMITED)
def test_the_quotas_of_a_type_are_shown_by_their_names(world: World, name: str) -> None:
    breaks, expected = LIMITED[name]
    breaks(world)
    status, findings = world.doctor("--accelerator-type", "v3-8")
    quota = [(row["outcome"], row["said"]) for row in findings if row["check"] == "quota"]
    assert [outcome for outcome, _ in quota] == [outcome for outcome, _ in expected]
    assert all(part in said for (_, said), (_, part) in zip(quota, expected, strict=True)), quota
    assert status == ("failure" in dict(expected))


def test_fix_makes_the_safe_repairs_and_says_each_in_a_line(world: World) -> None:
    paths = Paths.from_environment(world.environment)
    private = ensure_key_pair(paths.key_directory).private_path
    private.chmod(0o644)
    stale_hosts(world)
    done = warm_tpukit.run(["doctor", "--fix"], env=world.environment)
    assert done.returncode == 0, done.stdout
    assert "only you can read" in done.stderr
    assert "removed from tpukit's OpenSSH configuration: gone" in done.stderr
    assert private.stat().st_mode & 0o777 == 0o600
    assert "hers" in (paths.ssh / "config").read_text()
    assert not (paths.ssh / "known_hosts.gone").exists()
    again = warm_tpukit.run(["doctor", "--fix"], env=world.environment)
    assert (again.returncode, "removed" in again.stderr) == (0, False)


def test_fix_changes_nothing_that_a_check_alone_does_not_name_as_safe(world: World) -> None:
    open_world(world)
    warm_tpukit.run(["doctor", "--fix"], env=world.environment)
    assert [row["check"] for row in world.doctor()[1] if row["outcome"] == "warning"] == [
        "firewall"
    ]
