"""The nouns, as frozen values. They know nothing of Google's names nor of how they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

#: States from which a slice does not come back: it has to be deleted and made again. HIDING and
#: HIDDEN are none of them: the API can show a slice again (UNHIDING; Cloud TPU API, `Node.State`).
LOST_STATES = frozenset({"PREEMPTED", "TERMINATED"})
#: States in which a queued resource comes to nothing, and holds quota until it is deleted.
DEAD_STATES = frozenset({"FAILED", "SUSPENDED"})


class Documented:
    """A dataclass as a public JSON value: its first field, what it derives, its other fields."""

    _derived: ClassVar[tuple[str, ...]] = ()
    _hidden: ClassVar[tuple[str, ...]] = ()

    def document(self) -> dict[str, Any]:
        """Return the public JSON value."""
        names = [each.name for each in fields(self)]  # type: ignore[arg-type]
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
        """The address to connect to: external where there is one."""
        return self.external_address or self.internal_address


@dataclass(frozen=True)
class DataDisk(Documented):
    """A disk beside the boot disk: `projects/…/zones/…/disks/…`."""

    source: str
    read_only: bool = False

    @property
    def name(self) -> str:
        """The disk's own name."""
        return self.source.rpartition("/")[2]


@dataclass(frozen=True)
class UnusedDisk(Documented):
    """A disk that is there and that nothing has attached; `slice` is the one that had it last."""

    source: str
    size_gb: int
    slice: str

    @property
    def name(self) -> str:
        """The disk's own name."""
        return self.source.rpartition("/")[2]

    @property
    def zone(self) -> str:
        """Where it is: a zone, or a region."""
        return self.source.split("/")[3]


@dataclass(frozen=True)
class SliceTarget:
    """The one slice that a command acts on. A name may be given again, an id never is.

    `id` is the API's own (`Node.id`), or "" as long as nobody has looked.
    """

    zone: str
    name: str
    id: str = ""


@dataclass(frozen=True)
class Slice(Documented):
    """A slice as the cloud describes it. `state` and `health` are the API's own words.

    `external_addresses` is what was asked for: workers get theirs a little later.
    """

    _hidden = ("metadata", "network_project")  # metadata can carry secrets
    name: str
    project: str
    zone: str
    accelerator_type: str
    runtime_version: str
    state: str
    id: str = ""  #: the API's own, which no other slice has
    health: str = ""
    health_description: str = ""
    topology: str = ""
    #: "on-demand", "spot", "preemptible", "reserved", "flex-start", or a new word of the API's
    provisioning: str = "on-demand"
    network: str = ""
    network_project: str = ""  #: of a Shared VPC the host project; "" for the slice's own
    subnetwork: str = ""
    workers: tuple[Worker, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)  #: by key, whatever the API's order
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    created: str = ""  #: RFC 3339, as the API gives it
    queued_resource: str = ""
    service_account: str = ""
    external_addresses: bool = False
    data_disks: tuple[DataDisk, ...] = ()
    api: str = "tpu"  #: the API that it lives in: two may hold slices of the same name
    unreadable: tuple[str, ...] = ()  #: the API's names of fields that could not be read

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", dict(sorted(self.labels.items())))

    @property
    def target(self) -> SliceTarget:
        """This slice, and no other that has its name."""
        return SliceTarget(self.zone, self.name, self.id)

    @property
    def ready(self) -> bool:
        """Whether it is READY and every worker has the addresses that were asked for."""
        return self.state == "READY" and not self.unaddressed

    @property
    def unaddressed(self) -> str:
        """Which workers of a READY slice still lack an address that was asked for, or ""."""
        if not self.workers:
            unknown = "networkEndpoints" in self.unreadable
            return "its workers could not be read" if unknown else "it has no workers yet"
        kind = "external" if self.external_addresses else "internal"
        lacking = [each.index for each in self.workers if not getattr(each, f"{kind}_address")]
        return f"{worker_names(lacking)} without {kind} address yet" if lacking else ""

    @property
    def lost(self) -> bool:
        return self.state in LOST_STATES

    @property
    def request(self) -> SliceRequest:
        """What asks for such a slice: the inverse of `SliceRequest.expected`."""
        same = {each.name: getattr(self, each.name) for each in fields(SliceRequest)}
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
    """Everything that a create asks for; nothing is left to a default of the API."""

    name: str
    project: str
    zone: str
    accelerator_type: str
    runtime_version: str
    provisioning: str = "on-demand"
    network: str = "default"
    subnetwork: str = ""
    external_addresses: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    data_disks: tuple[DataDisk, ...] = ()
    service_account: str = ""

    @property
    def network_place(self) -> tuple[str, str]:
        """The host project of a shared network, "" for the request's own, and the network's name.

        The paths of a Shared VPC name it: `projects/HOST/global/networks/N`, and of a subnetwork
        `projects/HOST/regions/R/subnetworks/S`.
        """
        paths = (self.network.split("/"), self.subnetwork.split("/"))
        owners = [path[path.index("projects") + 1] for path in paths if "projects" in path[:-1]]
        return next((each for each in owners if each != self.project), ""), paths[0][-1]

    @property
    def expected(self) -> Slice:
        """The slice that this asks for: it has no state and no workers yet."""
        project, network = self.network_place
        return Slice(
            name=self.name,
            project=self.project,
            zone=self.zone,
            accelerator_type=self.accelerator_type,
            runtime_version=self.runtime_version,
            state="",
            provisioning=self.provisioning,
            network=network,
            network_project=project,
            subnetwork=self.subnetwork,
            labels=self.labels,
            tags=self.tags,
            metadata=self.metadata,
            service_account=self.service_account,
            external_addresses=self.external_addresses,
            data_disks=self.data_disks,
        )


@dataclass(frozen=True)
class SliceChange:
    """What parts of a slice are to be instead of what they are; None leaves a part alone."""

    labels: Mapping[str, str] | None = None
    tags: tuple[str, ...] | None = None
    metadata: Mapping[str, str] | None = None
    data_disks: tuple[DataDisk, ...] | None = None

    @property
    def parts(self) -> dict[str, Any]:
        """The parts that change, by the names that `Slice` gives them."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class QueueRequest:
    """What a queued resource is asked for: `count` slices of one kind, as `slice` asks for one.

    It is called like `slice`. One slice has that name too, several are NAME-0, NAME-1 and so on.
    """

    slice: SliceRequest
    count: int = 1
    best_effort: bool = False  #: the tier below on-demand; a field of the API's v2alpha1 alone
    valid_seconds: float | None = None  #: after which Google stops trying

    @property
    def provisioning(self) -> str:
        """How the capacity is bought, best effort included."""
        return "best-effort" if self.best_effort else self.slice.provisioning

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the slices."""
        name = self.slice.name
        return (name,) if self.count == 1 else tuple(f"{name}-{n}" for n in range(self.count))


@dataclass(frozen=True)
class SliceList:
    """The slices that were seen, and the zones that did not answer."""

    slices: tuple[Slice, ...]
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True)
class ApiCall(Documented):
    """One call of an API as it is sent: the method, the whole URL, and the JSON body, if any."""

    method: str
    url: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class QueuedResource(Documented):
    """A request that waits in Google's queue and yields slices; `state` is the API's own word.

    `labels` are those of its slices, and `error` is why it failed, in the API's words. `node` is
    what it asks for each of its slices, None if that could not be read.
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
    network_project: str = ""  #: as of a slice
    unreadable: tuple[str, ...] = ()  #: the API's names of fields that could not be read
    node: Slice | None = None
    valid_seconds: float | None = None  #: after which Google stops trying

    @property
    def dead(self) -> bool:
        """Whether nothing becomes of it any more; it holds quota until it is deleted."""
        return self.state in DEAD_STATES


@dataclass(frozen=True)
class QueuedResourceList:
    """The queued resources that were seen, and the zones that did not answer."""

    requests: tuple[QueuedResource, ...]
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True)
class FirewallRule(Documented):
    """An ingress rule of a network; without targets it is for every machine there.

    Either `allowed` or `denied` holds every protocol and port that it is about, as `tcp:22`, `icmp`
    or `all`. Of two rules the one with the lower `priority` decides, of equal ones that which
    denies.
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
    """What a worker publishes through its guest attributes.

    `host_keys` are OpenSSH public keys (`ssh-ed25519 AAAA…`), all that the worker published.
    """

    index: int
    host_keys: tuple[str, ...]
    hostname: str = ""
    ssh_port: int = 22


@dataclass(frozen=True)
class LoginProfile:
    """What OS Login has of an account: its POSIX user name, and its valid public keys."""

    user: str
    keys: tuple[str, ...] = ()


def worker_names(indices: Iterable[int]) -> str:
    """Return `worker 0`, or `workers 0, 2`."""
    numbers = [str(index) for index in indices]
    return f"worker {numbers[0]}" if len(numbers) == 1 else f"workers {', '.join(numbers)}"


def names_of_workers(places: Sequence[tuple[str, int]], *, several: bool) -> str:
    """Return `worker_names` of slices and indices; of `several` slices, with each one's name."""
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
