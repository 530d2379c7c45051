"""What every service gets: the context (state, clock, randomness), a call, pages of lists."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any

from tpukit.emulator.core.api_errors import ApiError, Json, Status, error_info, invalid
from tpukit.emulator.core.emulator_clock import EmulatorClock, timestamp
from tpukit.emulator.core.list_filter import filtered, ordered
from tpukit.emulator.core.operation_metadata import DEFAULT, OperationMetadata
from tpukit.emulator.core.places import PROJECT
from tpukit.emulator.core.state import EmulatorState

#: Cloud TPU API reference, projects.locations.nodes.create: ids follow RFC 1035.
RESOURCE_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
#: Discovery document of Cloud TPU, queuedResources.create, on queuedResourceId.
_QUEUED_RESOURCE_ID = re.compile(r"[A-Za-z0-9_.~+%-]+")
_PROJECT = re.compile(r"projects/([^/]+)(?=/)")


@dataclass(frozen=True)
class Timing:
    """How many seconds the service takes over each kind of change."""

    create: float = 2.0
    change: float = 1.0  #: delete, stop, reset
    update: float = 0.2  #: node updates and every Compute Engine operation
    queue: float = 0.6  #: how long a queued resource waits for capacity
    refusal: float = 2.0  #: after which a create that cannot be fulfilled says so
    maintenance: float = 10.0  #: how long a simulated maintenance event lasts

    @classmethod
    def for_create(cls, seconds: float) -> Timing:
        """Scale all changes to a create of `seconds`."""
        return cls(
            create=seconds,
            change=seconds / 2,
            update=min(0.2, seconds / 10),
            queue=seconds * 0.3,
            refusal=seconds,
            maintenance=max(10.0, seconds * 5),
        )

    @classmethod
    def realistic(cls) -> Timing:
        """Return times of the order that users of the real service report.

        A stockout is reported 31 to 71 s after the call: hashicorp/terraform-provider-google#21243,
        thevasudevgupta/gsoc-wav2vec2#11. The others are round figures around it.
        """
        return cls(create=120, change=60, update=15, queue=60, refusal=50, maintenance=600)


@dataclass(frozen=True)
class Call:
    """One request, without its protocol.

    `failure` is what the operation or request that this call starts has to end with: an injected
    fault. So are the zones that are `silent`, where a list is of all of them.
    """

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Json = field(default_factory=dict)
    version: str = "v2"
    failure: Status | None = None
    delay: float = 0.0  #: seconds without capacity, another injected fault
    silent: tuple[str, ...] = ()
    method: str = ""  #: its name in the API

    @property
    def project(self) -> str:
        return self.path["project"]

    @property
    def parent(self) -> str:
        return f"projects/{self.project}/locations/{self.path['zone']}"


@dataclass
class ServiceContext:
    """Every part of the service has this one."""

    state: EmulatorState
    clock: EmulatorClock
    random: Random
    timing: Timing
    compute_base: str = ""  #: where links to Compute Engine resources point, ends in a slash
    operation_metadata: OperationMetadata = DEFAULT
    _moment: float | None = field(default=None, init=False)

    def now(self) -> float:
        return self.clock.time() if self._moment is None else self._moment

    def note_time(self) -> None:
        """Let the state say what the clock shows: a restart goes on from there."""
        self.state.clock["clock"] = {"offset": self.clock.offset, "time": self.clock.time()}

    @contextmanager
    def moment(self, seconds: float) -> Iterator[None]:
        """Let what happens inside happen at an earlier time: when it was due, not when seen."""
        before, self._moment = self._moment, seconds
        try:
            yield
        finally:
            self._moment = before

    def offer(self, key: str, offered: bool, **more: object) -> None:
        """Note that something is offered, or no longer, whatever is by itself."""
        self.state.offers[key] = {"offered": offered, **more}
        self.changed = True

    def offers(self, key: str, otherwise: bool) -> bool:
        """Return whether something is offered; `otherwise` where nobody has changed that."""
        return bool(self.state.offers.get(key, {"offered": otherwise})["offered"])

    def added(self, prefix: str) -> list[str]:
        """Return the keys with a prefix that were added, without it."""
        found = self.state.offers.items()
        return [
            key.removeprefix(prefix) for key, _ in found if key.startswith(prefix) and _["offered"]
        ]

    def has_network(self, project: str, network: str) -> bool:
        """Return whether a project can use a network, `projects/P/global/networks/N`.

        VPC documentation, "Shared VPC": a project that is attached to a host project uses the
        networks of that one. Here it has none of its own.
        """
        owner = network.split("/")[1]
        return self._exists(network) and owner == (self.host_project(project) or project)

    def network_of(self, subnetwork: str) -> str:
        """Return the network of `projects/P/regions/R/subnetworks/S`; "" if there is no such.

        VPC documentation, "Subnet creation mode": an auto mode network has a subnetwork of its own
        name in every region.
        """
        project, name = subnetwork.split("/")[1], subnetwork.rsplit("/", 1)[1]
        if record := self.state.offers.get(f"subnetworks/{subnetwork}"):
            return str(record["fields"]["network"]) if record["offered"] else ""
        network = f"projects/{project}/global/networks/{name}"
        automatic = self.network_fields(network).get("autoCreateSubnetworks", True)
        return network if automatic and self._exists(network) else ""

    def subnetworks_of(self, network: str) -> list[str]:
        """Return the subnetworks that were created on a network."""
        prefix = "subnetworks/"
        return [
            key.removeprefix(prefix)
            for key, record in self.state.offers.items()
            if key.startswith(prefix) and record["fields"]["network"] == network
        ]

    def _exists(self, network: str) -> bool:
        return self.offers(f"networks/{network}", network.endswith("/default"))

    def offer_network(self, network: str, offered: bool, fields: Mapping[str, Any] = {}) -> None:
        """Note a network with its own fields, or that it is gone; rules it has none."""
        # Its project is known now: nothing comes to it with the first request.
        self.state.projects.setdefault(network.split("/")[1], {"items": []})
        self.offer(f"networks/{network}", offered, fields=dict(fields))

    def network_fields(self, network: str) -> Json:
        """Return the fields that a network was created with."""
        return dict(self.state.offers.get(f"networks/{network}", {}).get("fields", {}))

    @property
    def projects(self) -> tuple[str, ...]:
        """The projects that a call has named, and the one that `emulator env` names."""
        return tuple(sorted({PROJECT, *self.state.projects}))

    def project_id(self, project: str) -> str:
        """Return the id of a project that may be named by its number.

        Raises `ApiError` for a number that no project has: ids do not begin with a digit.
        """
        if not project.isdecimal():
            return project
        for name in self.projects:
            if project_number(name) == project:
                return name
        # The words are those of the Google Cloud troubleshooting page "CONSUMER_INVALID".
        text = f"Permission denied on resource project {project}."
        consumer = error_info("CONSUMER_INVALID", consumer=f"projects/{project}")
        raise ApiError("PERMISSION_DENIED", text, [consumer])

    def by_id(self, name: str) -> str:
        """Return a resource's name or link with its project by id, not by number."""
        return _PROJECT.sub(lambda match: f"projects/{self.project_id(match[1])}", name)

    def host_project(self, project: str) -> str:
        """Return the project that a service project is attached to, or ""."""
        return str(self.state.projects.get(project, {}).get("host", ""))

    def stamp(self) -> str:
        return timestamp(self.now())

    def number(self) -> str:
        """Return a new resource id: both APIs number resources with 64 bits, as a JSON string."""
        return str(self.random.randrange(10**18, 9 * 10**18))

    def bad_request(self, what: str) -> Exception:
        """Return a refusal in the words of Cloud TPU, which end in an event id.

        Source of the frame: skypilot-org/skypilot#1468, #3840.
        """
        event = f"[EID: 0x{self.random.getrandbits(64):x}]"
        return invalid(f"Cloud TPU received a bad request. {what} {event}")

    def given_or_random_id(self, given: str, kind: str) -> str:
        """Return the id that a create asks for, or one of our own; raise for one that is none."""
        found = given or f"{kind}-{self.random.getrandbits(32):08x}"
        form = _QUEUED_RESOURCE_ID if kind == "qr" else RESOURCE_ID
        if not form.fullmatch(found):
            raise self.bad_request(f"the {kind} id {found!r} must match ^{form.pattern}$")
        return found

    def operation_id(self) -> str:
        """Return an operation id of the form that both APIs use."""
        bits = self.random.getrandbits
        return f"operation-{int(self.now() * 1000)}-{bits(52):013x}-{bits(32):08x}-{bits(32):08x}"


def project_number(project: str) -> str:
    """Return a stable number for a project, as the real ones have."""
    return str(10**11 + int.from_bytes(sha256(project.encode()).digest()[:5]) % (9 * 10**11))


def resource_id(name: str) -> str:
    """Return a stable id of a resource that is never made anew: 64 bits, as a JSON string."""
    return str(10**18 + int.from_bytes(sha256(name.encode()).digest()[:8]) % (8 * 10**18))


def default_account(project: str) -> str:
    """Return the address of the account that workers have unless their create names another."""
    return f"{project_number(project)}-compute@developer.gserviceaccount.com"


class Views(Mapping[str, Json]):
    """Documents by their names. Each is made when it is read: a page needs few of them."""

    def __init__(self, names: Iterable[str], view: Callable[[str], Json]) -> None:
        self._names = tuple(names)
        self._view = view

    def __getitem__(self, name: str) -> Json:
        return self._view(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def listing(call: Call, key: str, documents: Mapping[str, Json], most: int = 1000) -> Json:
    """Return one page of a Cloud TPU list call as the API answers it."""
    if call.silent:
        heard = (name for name in documents if name.split("/")[3] not in call.silent)
        documents = Views(heard, documents.__getitem__)
    shown, token = page(call, documents, call.query.get("pageSize", ""), most)
    more: Json = {"nextPageToken": token} if token else {}
    if call.silent:
        more["unreachable"] = [f"projects/{call.project}/locations/{zone}" for zone in call.silent]
    return {key: shown, **more}


def page(call: Call, documents: Mapping[str, Json], size: str, most: int) -> tuple[list[Json], str]:
    """Return one page of what a list call selects, in its order, and the token of the next one.

    The token holds the last name, so that pages stay right while resources come and go, and which
    list it is of: AIP-158 refuses it for another. Without a filter and an order, only the documents
    of the page are read.
    """
    token = call.query.get("pageToken", "")
    try:
        limit = int(size or 0)
        text = base64.b64decode(token, b"-_", validate=True).decode() if token else ""
    except (ValueError, binascii.Error) as error:
        raise invalid("Invalid page size or page token.") from error
    scope, _, after = text.partition(" ")
    if token and scope != _scope(call):
        raise invalid("The page token is of another list, filter or order.")
    if limit < 0:
        raise invalid("The page size must not be negative.")
    limit = min(limit, most) or most
    selected = filtered(documents, call.query.get("filter", ""))
    names = ordered(documents, selected, call.query.get("orderBy", ""))
    start = names.index(after) + 1 if after in names else sum(name <= after for name in names)
    shown = names[start : start + limit]
    text = f"{_scope(call)} {shown[-1]}" if len(names) > start + limit else ""
    token = base64.urlsafe_b64encode(text.encode()).decode()
    return [documents[name] for name in shown], token


def _scope(call: Call) -> str:
    """Return a digest of which list a call is about, and of what it selects in which order."""
    given = [call.query.get(name, "") for name in ("filter", "orderBy")]
    return sha256(repr([call.method, sorted(call.path.items()), given]).encode()).hexdigest()[:8]
