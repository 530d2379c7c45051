"""Checks of the account's permissions on a project."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tpukit.doctor.findings import Finding, Outcome
from tpukit.errors import Fix
from tpukit.google.project import GoogleProject
from tpukit.text import counted


@dataclass(frozen=True)
class Need:
    """The permissions for a part of tpukit's work, and a role that has all of them."""

    work: str
    role: str
    outcome: Outcome  #: if one of them is missing
    permissions: tuple[str, ...]


def _all(collection: str, verbs: str) -> tuple[str, ...]:
    return tuple(f"{collection}.{verb}" for verb in verbs.split())


#: The calls of `google/tpu.py`. The API has no permissions for queued resources. Role and names:
#: https://docs.cloud.google.com/iam/docs/roles-permissions/tpu
SLICES = Need(
    "create, read and delete slices",
    "roles/tpu.admin",
    "failure",
    (
        *_all("tpu.nodes", "create delete get list start stop update"),
        *_all("tpu.operations", "get list"),
        *("tpu.locations.list", "tpu.acceleratortypes.list", "tpu.runtimeversions.list"),
    ),
)
#: Workers run as a service account: https://docs.cloud.google.com/tpu/docs/users-roles. The
#: permission may also be granted on that account alone, which this test cannot see.
IDENTITY = Need(
    "let workers run as the project's service account",
    "roles/iam.serviceAccountUser",
    "warning",
    ("iam.serviceAccounts.actAs",),
)
#: The calls of `google/firewall_rules.py`, with the permissions of their reference pages:
#: https://cloud.google.com/compute/docs/reference/rest/v1/firewalls/insert. Without them `up`
#: still works if a rule admits the user already.
FIREWALL = Need(
    "open port 22 to your own address",
    "roles/compute.securityAdmin",
    "warning",
    (
        *_all("compute.firewalls", "create delete list update"),
        *_all("compute.networks", "get updatePolicy"),
        "compute.globalOperations.get",
    ),
)
#: The number of addresses left, and OS Login's metadata.
READING = Need(
    "read the project's addresses and metadata",
    "roles/compute.viewer",
    "warning",
    ("compute.projects.get", "compute.regions.get"),
)
#: The calls of `google/compute_instances.py`:
#: https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert
INSTANCES = Need(
    "create, read and delete slices on Compute Engine",
    "roles/compute.instanceAdmin.v1",
    "failure",
    (
        *_all("compute.instances", "create delete get list start stop"),
        *_all("compute.instances", "getGuestAttributes setLabels setMetadata setTags"),
        *("compute.disks.create", "compute.subnetworks.use", "compute.subnetworks.useExternalIp"),
        *("compute.zoneOperations.get", "compute.zoneOperations.list"),
        *("compute.zones.list", "compute.machineTypes.list"),
    ),
)
#: The further calls of `google/compute_slices.py`:
#: https://cloud.google.com/compute/docs/reference/rest/v1/instanceGroupManagers/insert
GROUPS = Need(
    "create, read and delete slices of several workers on Compute Engine",
    "roles/compute.instanceAdmin.v1",
    "warning",
    (
        *_all("compute.instanceGroupManagers", "create delete get list"),
        *_all("compute.instanceGroups", "create delete"),
        *_all("compute.instanceTemplates", "create delete get list useReadOnly"),
        *_all("compute.resourcePolicies", "create delete get use"),
        "compute.regionOperations.get",
    ),
)
_OF_THE_PROJECT, _OF_THE_NETWORK = (SLICES, IDENTITY, READING), (FIREWALL,)


def permission_findings(
    provider: GoogleProject,
    project: str,
    network: str,
    account: str,
    apis: Sequence[str] = ("tpu",),
) -> Iterator[Finding]:
    """Yield the findings on the permissions of an account.

    `network` may be in a host project (Shared VPC), which then has the firewall rules. `apis` are
    those that the user has chosen for slices.
    """
    host = network.split("/")[1] if network.startswith("projects/") else project
    of_the_apis = (INSTANCES, GROUPS) if "compute" in apis else ()
    places: dict[str, tuple[Need, ...]] = {project: (*_OF_THE_PROJECT, *of_the_apis)}
    places[host] = (*places.get(host, ()), *_OF_THE_NETWORK)
    missing = [
        finding
        for place, needs in places.items()
        for finding in _missing(provider, place, needs, account)
    ]
    number = sum(len(need.permissions) for needs in places.values() for need in needs)
    granted = f"the account has {counted(number, 'permission')} that tpukit's calls need"
    yield from missing or [Finding("roles", "ok", granted)]


def _missing(
    provider: GoogleProject, project: str, needs: tuple[Need, ...], account: str
) -> Iterator[Finding]:
    asked = [name for need in needs for name in need.permissions]
    granted = provider.permitted(asked, project)
    for need in needs:
        lacking = [name for name in need.permissions if name not in granted]
        if lacking:
            said = f"the account may not {need.work}: it lacks {', '.join(lacking)}"
            yield Finding("roles", need.outcome, said, _grant(project, account, need.role))


def _grant(project: str, account: str, role: str) -> Fix:
    """Return the command that grants a role, if the account's name is known."""
    if "@" not in account:
        return Fix(note=f"have {role} granted on project {project}")
    kind = "serviceAccount" if account.endswith("gserviceaccount.com") else "user"
    words = ("gcloud", "projects", "add-iam-policy-binding", project)
    member = ("--member", f"{kind}:{account}", "--role", role, "--condition", "None")
    return Fix.command(*words, *member, note="for an owner of the project")
