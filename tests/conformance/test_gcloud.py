"""The real gcloud, beyond its surface: pages, refusals, batches and fingerprints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import warm_gcloud

from tpukit.emulator import EmulatorClient

pytestmark = [pytest.mark.process, pytest.mark.gcloud]

GCLOUD = shutil.which("gcloud")
CREATE = ("--accelerator-type=v3-8", "--version=tpu-ubuntu2204-base")

Finished = subprocess.CompletedProcess[str]
Gcloud = Callable[..., Finished]


@pytest.fixture(scope="module")
def run(emulator: Any, tmp_path_factory: pytest.TempPathFactory) -> Gcloud:
    """Return a function that runs `gcloud compute …` and checks its exit status."""
    if GCLOUD is None:
        pytest.skip("gcloud is not installed: conformance with gcloud is NOT checked by this run")
    home = tmp_path_factory.mktemp("gcloud")
    environment = {
        "PATH": os.environ["PATH"],
        **warm_gcloud.environment(),
        "HOME": str(home),
        "CLOUDSDK_CONFIG": str(home / "config"),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{emulator.url}/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{emulator.url}/compute/v1/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER": f"{emulator.url}/",
        **{
            f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": f"{emulator.url}/"
            for name in ("IAM", "SERVICEUSAGE", "CLOUDQUOTAS")
        },
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(emulator.token_file),
        "CLOUDSDK_CORE_PROJECT": "tpukit-local",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_COMPUTE_ZONE": "us-central1-a",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
    }

    def call(*words: str, status: int = 0, group: str = "compute") -> Finished:
        command = [GCLOUD, *([group] if group else []), *words]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == status, f"{words}\n{done.stdout}\n{done.stderr}"
        return done

    return call


@pytest.fixture(scope="module")
def node(run: Gcloud) -> str:
    """A READY v3-8 that the tests of this module share."""
    done = run("tpus", "tpu-vm", "create", "shared", *CREATE, "--labels=owner=ada", "--tags=tpu")
    assert "Created tpu [shared]." in done.stderr
    return "shared"


def described(run: Gcloud, *words: str) -> Any:
    return json.loads(run(*words, "--format=json").stdout)


def vm(run: Gcloud, *words: str, **given: Any) -> Finished:
    return run("tpus", "tpu-vm", *words, **given)


def test_a_list_follows_pages(run, node):
    vm(run, "create", "second", *CREATE, "--async")
    names = vm(run, "list", "--page-size=1", "--format=value(name)").stdout.split()
    assert {"shared", "second"} <= {name.rsplit("/", 1)[-1] for name in names}


def test_type_and_topology_stand_for_an_accelerator_type(run):
    shape = ("--type=v3", "--topology=2x2", "--version=tpu-ubuntu2204-base", "--async")
    vm(run, "create", "shaped", *shape)
    assert described(run, "tpus", "tpu-vm", "describe", "shaped")["acceleratorType"] == "v3-8"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("shared", *CREATE), "ALREADY_EXISTS: Resource 'projects/tpukit-local/"),
        (("Bad", *CREATE), "INVALID_ARGUMENT: Cloud TPU received a bad request."),
        (("x", CREATE[1], "--accelerator-type=v4-8"), "was not found in zone us-central1-a"),
        (("x", CREATE[0], "--version=none"), 'Runtime version "none" was not found'),
        (("x", *CREATE, "--zone=us-nowhere1-a"), "PERMISSION_DENIED"),
    ],
)
def test_a_refusal_is_shown_in_the_service_s_words(run, node, words, text):
    assert text in vm(run, "create", *words, status=1).stderr


def test_a_stockout_fails_the_create_and_leaves_nothing(run, emulator):
    emulator.control("faults", {"preset": "stockout", "name": "scarce"})
    done = vm(run, "create", "scarce", *CREATE, status=1)
    error = json.loads(done.stderr[done.stderr.index("{") :])
    assert error["code"] == 8
    assert error["message"].startswith('There is no more capacity in the zone "us-central1-a"')
    assert "NOT_FOUND" in vm(run, "describe", "scarce", status=1).stderr


def test_the_networks_are_listed(run):
    assert "default" in run("networks", "list").stdout
    assert "autoCreateSubnetworks: true" in run("networks", "describe", "default").stdout


def test_subnetworks_are_made_listed_described_and_deleted(run):
    run("networks", "create", "custom", "--subnet-mode=custom")
    place = "--region=us-central1"
    own = ("--network=custom", "--range=10.7.0.0/24")
    run("networks", "subnets", "create", "own", *own, place)
    listed = run("networks", "subnets", "list", "--format=value(name,region.basename())").stdout
    assert {"own\tus-central1", "default\tus-central1"} <= set(listed.splitlines())
    assert "10.7.0.0/24" in run("networks", "subnets", "describe", "own", place).stdout
    run("networks", "subnets", "delete", "own", place)
    assert "was not found" in run("networks", "subnets", "describe", "own", place, status=1).stderr


def test_regions_instances_projects_and_service_accounts_are_listed(run):
    assert "us-central1" in run("regions", "list", "--format=value(name)").stdout.split()
    described = run("regions", "describe", "us-central1", "--format=value(quotas.metric)").stdout
    assert "IN_USE_ADDRESSES" in described
    assert "Listed 0 items." in run("instances", "list").stderr
    projects = run("projects", "list", "--format=value(projectId)", group="").stdout.split()
    assert "tpukit-local" in projects
    accounts = run("iam", "service-accounts", "list", "--format=value(email)", group="").stdout
    assert accounts.strip().endswith("-compute@developer.gserviceaccount.com")


def test_firewall_rules_live_and_two_are_deleted_in_one_batch(run, emulator):
    rule = ("--allow=tcp:22", "--source-ranges=203.0.113.7/32", "--target-tags=tpu")
    for name in ("one", "two"):
        run("firewall-rules", "create", name, *rule)
    again = run("firewall-rules", "create", "one", *rule, status=1).stderr
    assert "The resource 'projects/tpukit-local/global/firewalls/one' already exists" in again
    names = run("firewall-rules", "list", "--format=value(name)").stdout.split()
    assert {"one", "two"} <= set(names)
    only = run("firewall-rules", "list", "--filter=name=one", "--format=value(name)").stdout
    assert only.split() == ["one"]
    run("firewall-rules", "delete", "one", "two")
    log = emulator.control("log")["requests"]
    assert [entry["method"] for entry in log[-4:]] == [
        "firewalls.delete",
        "firewalls.delete",
        "globalOperations.wait",
        "globalOperations.wait",
    ]
    gone = run("firewall-rules", "delete", "one", status=1).stderr
    assert "was not found" in gone


def test_project_metadata_is_added_with_its_fingerprint(run):
    run("project-info", "add-metadata", "--metadata=a=b")
    run("project-info", "add-metadata", "--metadata=c=d")
    found = described(run, "project-info", "describe")
    items = {item["key"]: item["value"] for item in found["commonInstanceMetadata"]["items"]}
    assert items == {"a": "b", "c": "d"}


def control(emulator: Any) -> EmulatorClient:
    return EmulatorClient(emulator.url, emulator.token)


def test_quotas_are_listed_by_their_names_with_the_limit_of_each_zone(run, emulator):
    name = "TPUV5PPerProjectPerZoneForTPUAPI"
    control(emulator).set_quota("v5p-8", "us-east5-a", 128)
    about = ("--service=tpu.googleapis.com", "--project=tpukit-local", "--format=json")
    infos = json.loads(run("alpha", "quotas", "info", "list", *about, group="").stdout)
    (info,) = [info for info in infos if info["quotaId"] == name]
    exact, others = info["dimensionsInfos"]
    assert (exact["dimensions"], exact["details"]["value"]) == ({"zone": "us-east5-a"}, "128")
    assert others["details"]["value"] == "-1"
    one = run("alpha", "quotas", "info", "describe", name, *about, group="")
    assert json.loads(one.stdout) == info


def test_an_api_is_disabled_and_enabled_again(run):
    run("services", "disable", "tpu.googleapis.com", "--force", group="")
    off = vm(run, "list", status=1).stderr
    assert "Cloud TPU API has not been used in project tpukit-local before" in off
    run("services", "enable", "tpu.googleapis.com", group="")
    vm(run, "list")


def test_a_role_that_is_taken_away_is_missed_by_the_call(run, emulator):
    control(emulator).add_fault(
        {"kind": "roles", "permissions": "tpu.nodes.list compute.firewalls.*"}
    )
    try:
        assert "Permission 'tpu.nodes.list' denied on" in vm(run, "list", status=1).stderr
        rules = run("firewall-rules", "list", status=1).stderr
        assert "Required 'compute.firewalls.list' permission for" in rules
    finally:
        control(emulator).clear_faults()
    vm(run, "list")


def test_a_stolen_endpoint_without_the_token_is_refused(run, emulator):
    """gcloud with another token is refused in the words of Google's front end."""
    path = Path(emulator.token_file)
    path.write_text("other")
    try:
        assert "invalid authentication credentials" in vm(run, "list", status=1).stderr
    finally:
        path.write_text(emulator.token)


TPU_VM = (
    "--zone=us-east5-b",
    "--machine-type=ct6e-standard-4t",
    "--image-project=ubuntu-os-accelerator-images",
    "--image-family=ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
    "--boot-disk-size=100GB",
    "--boot-disk-type=hyperdisk-balanced",
    "--maintenance-policy=TERMINATE",
)


def test_an_instance_is_made_listed_changed_stopped_started_and_deleted(run):
    place = TPU_VM[0]
    attributes = "--metadata=enable-guest-attributes=TRUE"
    made = run("instances", "create", "host", *TPU_VM, attributes, "--labels=owner=ada")
    assert "RUNNING" in made.stdout
    listed = run("instances", "list", "--filter=labels.owner=ada", "--format=value(name)").stdout
    assert listed.split() == ["host"]
    keys = run("instances", "get-guest-attributes", "host", place, "--query-path=hostkeys/").stdout
    assert "ssh-ed25519" in keys
    run("instances", "add-metadata", "host", place, "--metadata=a=b")
    run("instances", "add-labels", "host", place, "--labels=c=d")
    run("instances", "add-tags", "host", place, "--tags=tpu")
    host = described(run, "instances", "describe", "host", place)
    assert (host["labels"], host["tags"]["items"]) == ({"owner": "ada", "c": "d"}, ["tpu"])
    own = {item["key"]: item["value"] for item in host["metadata"]["items"]}
    assert (own["a"], own["accelerator-type"]) == ("b", "v6e-4")
    for verb, status in (("stop", "TERMINATED"), ("start", "RUNNING")):
        run("instances", verb, "host", place)
        assert described(run, "instances", "describe", "host", place)["status"] == status
    run("instances", "delete", "host", place)
    assert "was not found" in run("instances", "describe", "host", place, status=1).stderr


def test_an_instance_s_refusal_and_stockout_are_shown_in_the_service_s_words(run, emulator):
    old = run("instances", "create", "old", TPU_VM[0], "--machine-type=ct5lp-hightpu-1t", status=1)
    assert "not allowed to use the machine type [ct5lp-hightpu-1t]." in old.stderr
    emulator.control("faults", {"preset": "stockout", "name": "none"})
    done = run("instances", "create", "none", *TPU_VM, status=1).stderr
    assert "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS" in done
    assert "reason: stockout" in done


def test_a_slice_of_several_hosts_is_made_of_its_parts_and_deleted(run):
    place, region = TPU_VM[0], "--region=us-east5"
    shape = ("--type=HIGH_THROUGHPUT", "--accelerator-topology=4x4")
    run("resource-policies", "create", "workload-policy", "wp", region, *shape)
    policy = described(run, "resource-policies", "describe", "wp", region)
    assert policy["workloadPolicy"]["acceleratorTopology"] == "4x4"
    run("instance-templates", "create", "it", *TPU_VM[1:], "--labels=owner=ada")
    group = ("instance-groups", "managed")
    full = "projects/tpukit-local/regions/us-east5/resourcePolicies/wp"
    run(
        *(*group, "create", "demo", place, "--size=4", "--template=it"),
        *(f"--workload-policy={full}", "--default-action-on-vm-failure=do-nothing"),
    )
    run(*group, "wait-until", "demo", place, "--stable")
    assert described(run, *group, "describe", "demo", place)["status"]["isStable"]
    assert run(*group, "list", "--format=value(name)").stdout.split() == ["demo"]
    shown = run(
        *group, "list-instances", "demo", place, "--format=value(name,instanceStatus)"
    ).stdout
    assert shown.count("RUNNING") == 4
    assert run(*group, "list-errors", "demo", place, "--format=value(error.code)").stdout == ""
    one = described(run, "instances", "describe", shown.split()[0], place)
    own = {item["key"]: item["value"] for item in one["metadata"]["items"]}
    assert (own["accelerator-type"], one["labels"]) == ("v6e-16", {"owner": "ada"})
    run(*group, "delete", "demo", place)
    run("instance-templates", "delete", "it")
    run("resource-policies", "delete", "wp", region)
    assert "Listed 0 items." in run("instances", "list").stderr


def test_machine_types_and_images_are_described(run):
    listed = run("machine-types", "list", "--zones=us-east5-b", "--format=value(name)").stdout
    assert "ct6e-standard-8t" in listed.split()
    project, family = (word.partition("=")[2] for word in TPU_VM[2:4])
    image = run("images", "describe-from-family", family, f"--project={project}").stdout
    assert f"family: {family}" in image
