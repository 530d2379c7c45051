"""Slices, workers, rules and requests as frozen values, without Google's JSON and without views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

#: The labels of slices that tpukit made: that it did, for whom, and in which call.
MANAGED, OWNER, NONCE = "tpukit-managed", "tpukit-owner", "tpukit-nonce"
#: The label of slices of Compute Engine with several workers: their number, which a group's
#: template does not have.
HOSTS = "tpukit-hosts"
#: The tiers of capacity that only a queued resource can get.
QUEUE_ONLY = ("best-effort", "flex-start")
#: States from which a slice cannot recover: delete it and create another one. HIDING and HIDDEN are
#: not lost: the API can show the slice again (UNHIDING; Cloud TPU API, `Node.State`).
LOST_STATES = frozenset({"PREEMPTED", "TERMINATED"})
#: States in which a queued resource yields nothing more, but uses quota until it is deleted.
DEAD_STATES = frozenset({"FAILED", "SUSPENDED"})


class Documented:
    """A dataclass with a public JSON value: its first field, derived values, its other fields."""

    _derived: ClassVar[tuple[str, ...]] = ()
    _hidden: ClassVar[tuple[str, ...]] = ()

    def document(self) -> dict[str, Any]:
        """Return the public JSON value."""
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        first, *rest = (name for name in names if name not in self._hidden)
        return {name: _plain(name, getattr(self, name)) for name in (first, *self._derived, *rest)}


@dataclass(frozen=True)
class Worker(Documented):
    """One TPU VM of a slice; `index` counts from 0 in the order of `networkEndpoints`."""

    index: int
    internal_address: str
    external_address: str = ""

    @property
    def address(self) -> str:
        """The address to connect to: the external one if there is one."""
        return self.external_address or self.internal_address


@dataclass(frozen=True)
class DataDisk(Documented):
    """A disk beside the boot disk: `projects/…/zones/…/disks/…`."""

    source: str
    read_only: bool = False

    @property
    def name(self) -> str:
        """The last part of `source`."""
        return self.source.rpartition("/")[2]


@dataclass(frozen=True)
class UnusedDisk(Documented):
    """A disk that no machine has attached. `slice` is the name of the last slice that had it."""

    source: str
    size_gb: int
    slice: str

    @property
    def name(self) -> str:
        """The last part of `source`."""
        return self.source.rpartition("/")[2]

    @property
    def zone(self) -> str:
        """The disk's zone, or the region of a regional disk."""
        return self.source.split("/")[3]


@dataclass(frozen=True)
class Slice(Documented):
    """A slice as the cloud describes it. `state` and `health` are the API's words.

    `external_addresses` is True if they were requested; the workers get them a little later.
    """

    _hidden = ("metadata", "network_project", "operation")  # metadata can carry secrets
    name: str
    project: str
    zone: str
    accelerator_type: str
    runtime_version: str
    state: str
    id: str = ""  #: `Node.id`, unique among all slices of all times
    health: str = ""
    health_description: str = ""
    topology: str = ""
    #: "on-demand", "spot", "preemptible", "reserved", one of `QUEUE_ONLY`, or a newer word
    provisioning: str = "on-demand"
    reservation: str = ""  #: the name of the reservation, if the API says it
    network: str = ""
    network_project: str = ""  #: the host project of a Shared VPC, or "" for the slice's project
    subnetwork: str = ""
    workers: tuple[Worker, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)  #: sorted by key
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    created: str = ""  #: RFC 3339, as the API gives it
    queued_resource: str = ""
    service_account: str = ""
    external_addresses: bool = False
    data_disks: tuple[DataDisk, ...] = ()
    api: str = "tpu"  #: its API, because two APIs may have slices of the same name
    unreadable: tuple[str, ...] = ()  #: the API's names of unreadable fields
    operation: str = ""  #: that makes it, if the API keeps this in the slice itself

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", dict(sorted(self.labels.items())))

    @property
    def ready(self) -> bool:
        """Whether it is READY and all workers have the requested addresses."""
        return self.state == "READY" and not self.unaddressed

    @property
    def unaddressed(self) -> str:
        """A text that names the workers without a requested address, or "" if all have theirs."""
        if not self.workers:
            unknown = "networkEndpoints" in self.unreadable
            return "its workers could not be read" if unknown else "it has no workers yet"
        kind = "external" if self.external_addresses else "internal"
        lacking = [
            worker.index for worker in self.workers if not getattr(worker, f"{kind}_address")
        ]
        return f"{worker_names(lacking)} without {kind} address yet" if lacking else ""

    @property
    def lost(self) -> bool:
        return self.state in LOST_STATES

    @property
    def request(self) -> SliceRequest:
        """The request for a slice like this one: the inverse of `SliceRequest.expected`."""
        same = {field.name: getattr(self, field.name) for field in fields(SliceRequest)}
        host, region = self.network_project, self.zone.rpartition("-")[0]
        if host and host != self.project:
            same["network"] = f"projects/{host}/global/networks/{self.network}"
            if self.subnetwork:
                same["subnetwork"] = (
                    f"projects/{host}/regions/{region}/subnetworks/{self.subnetwork}"
                )
        return SliceRequest(**{**same, "network": same["network"] or "default"})


@dataclass(frozen=True)
class SliceRequest:
    """All parameters of a create; it uses no default of the API."""

    name: str
    project: str
    zone: str
    accelerator_type: str
    runtime_version: str
    provisioning: str = "on-demand"
    reservation: str = ""  #: whose capacity a reserved slice takes; "" is any, Cloud TPU API only
    network: str = "default"
    subnetwork: str = ""
    external_addresses: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    data_disks: tuple[DataDisk, ...] = ()
    service_account: str = ""
    api: str = "tpu"  #: the API that makes it, as in `Slice`

    @property
    def queue_only(self) -> bool:
        """Whether only a queued resource can get this capacity."""
        named = self.provisioning == "reserved" and bool(self.reservation)
        return self.api == "tpu" and (named or self.provisioning in QUEUE_ONLY)

    @property
    def network_place(self) -> tuple[str, str]:
        """The host project of a Shared VPC, or "" for the request's project, and the network.

        The paths of a Shared VPC contain the host project: `projects/HOST/global/networks/N` and
        `projects/HOST/regions/R/subnetworks/S`.
        """
        paths = (self.network.split("/"), self.subnetwork.split("/"))
        owners = [path[path.index("projects") + 1] for path in paths if "projects" in path[:-1]]
        return next((owner for owner in owners if owner != self.project), ""), paths[0][-1]

    @property
    def expected(self) -> Slice:
        """The requested slice, without state and workers."""
        project, network = self.network_place
        return Slice(
            name=self.name,
            project=self.project,
            zone=self.zone,
            accelerator_type=self.accelerator_type,
            runtime_version=self.runtime_version,
            state="",
            provisioning=self.provisioning,
            reservation=self.reservation,
            network=network,
            network_project=project,
            subnetwork=self.subnetwork,
            labels=self.labels,
            tags=self.tags,
            metadata=self.metadata,
            service_account=self.service_account,
            external_addresses=self.external_addresses,
            data_disks=self.data_disks,
            api=self.api,
        )


@dataclass(frozen=True)
class SliceChange:
    """New values for parts of a slice; None leaves a part unchanged."""

    labels: Mapping[str, str] | None = None
    tags: tuple[str, ...] | None = None
    metadata: Mapping[str, str] | None = None
    data_disks: tuple[DataDisk, ...] | None = None

    @property
    def parts(self) -> dict[str, Any]:
        """The parts that change, by their field names in `Slice`."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in parts.items() if value is not None}


@dataclass(frozen=True)
class QueueRequest:
    """A request for a queued resource: `count` slices like `slice`.

    The queued resource has the name of `slice`. A single slice has this name too; several slices
    are NAME-0, NAME-1 and so on.
    """

    slice: SliceRequest
    count: int = 1
    valid_seconds: float | None = None  #: Google stops trying after this time

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the slices."""
        name = self.slice.name
        return (name,) if self.count == 1 else tuple(f"{name}-{n}" for n in range(self.count))


class SliceList(NamedTuple):
    """The listed slices, and the zones that did not answer."""

    slices: tuple[Slice, ...]
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True)
class ApiCall(Documented):
    """One call of an API: its method, its full URL, and its JSON body, if any."""

    method: str
    url: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class QueuedResource(Documented):
    """A request that waits in Google's queue and yields slices. `state` is the API's word.

    `labels` are the labels of its slices. `error` is the API's reason for its failure. `node`
    describes each of its slices, or is None if the API's description is unreadable.
    """

    _hidden = ("network_project", "node", "valid_seconds")
    name: str
    project: str
    zone: str
    state: str
    initiator: str = ""  #: of the state: "USER" or "SERVICE"
    error: str = ""
    error_code: int = 0  #: of google.rpc.Code; 0 if there is none
    slices: tuple[str, ...] = ()
    accelerator_type: str = ""
    provisioning: str = "on-demand"
    labels: Mapping[str, str] = field(default_factory=dict)
    created: str = ""  #: RFC 3339, as the API gives it
    network_project: str = ""  #: as in `Slice`
    unreadable: tuple[str, ...] = ()  #: the API's names of unreadable fields
    node: Slice | None = None
    valid_seconds: float | None = None  #: Google stops trying after this time

    @property
    def dead(self) -> bool:
        """Whether it yields nothing more; it still uses quota until it is deleted."""
        return self.state in DEAD_STATES


class QueuedResourceList(NamedTuple):
    """The listed queued resources, and the zones that did not answer."""

    requests: tuple[QueuedResource, ...]
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True)
class FirewallRule(Documented):
    """An ingress rule of a network; without targets it is for every machine in the network.

    Either `allowed` or `denied` lists its protocols and ports, such as `tcp:22`, `icmp` or `all`.
    The rule with the lower `priority` decides; if two are equal, the denying rule decides.
    """

    _hidden = ("description",)
    name: str
    network: str
    source_ranges: tuple[str, ...]
    target_tags: tuple[str, ...]
    allowed: tuple[str, ...] = ("tcp:22",)
    denied: tuple[str, ...] = ()
    target_service_accounts: tuple[str, ...] = ()
    description: str = ""
    priority: int = 1000
    disabled: bool = False


@dataclass(frozen=True)
class WorkerIdentity:
    """The identity that a worker publishes in its guest attributes.

    `host_keys` are all its OpenSSH public keys (`ssh-ed25519 AAAA…`).
    """

    index: int
    host_keys: tuple[str, ...]
    hostname: str = ""
    ssh_port: int = 22


@dataclass(frozen=True)
class LoginProfile:
    """An account in OS Login: its POSIX user name and its valid public keys."""

    user: str
    keys: tuple[str, ...] = ()


def worker_names(indices: Iterable[int]) -> str:
    """Return `worker 0`, or `workers 0, 2`."""
    numbers = [str(index) for index in indices]
    return f"worker {numbers[0]}" if len(numbers) == 1 else f"workers {', '.join(numbers)}"


def names_of_workers(places: Sequence[tuple[str, int]], *, several: bool) -> str:
    """Return the workers of (slice name, index) pairs; with slice names if `several` slices."""
    if several:
        return ", ".join(f"{name} worker {index}" for name, index in places)
    return worker_names(index for _, index in places)


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain("", item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Documented):
        return value.document()
    return round(value, 3) if name == "seconds" else value
