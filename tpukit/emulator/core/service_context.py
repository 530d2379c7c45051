"""The context of every service (state, clock, randomness), a call, and pages of lists."""

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
    """The seconds that the service takes for each kind of change."""

    create: float = 2.0
    change: float = 1.0  #: delete, stop, reset
    update: float = 0.2  #: node updates and every Compute Engine operation
    queue: float = 0.6  #: how long a queued resource waits for capacity
    refusal: float = 2.0  #: until a create that cannot be fulfilled fails
    maintenance: float = 10.0  #: how long a simulated maintenance event lasts

    @classmethod
    def for_create(cls, seconds: float) -> Timing:
        """Return times in proportion to a create of `seconds`."""
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
        """Return times like those that users of the real service report.

        A stockout is reported 31 to 71 s after the call: hashicorp/terraform-provider-google#21243,
        thevasudevgupta/gsoc-wav2vec2#11. The other times are round estimates.
        """
        return cls(create=120, change=60, update=15, queue=60, refusal=50, maintenance=600)


@dataclass(frozen=True)
class Call:
    """One request, without its protocol.

    Some fields are injected faults: the operation or request that this call starts ends with
    `failure`, a list of all zones reports the zones in `silent` as unreachable, and the caller
    lacks the permissions that match a pattern in `denied`.
    """

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Json = field(default_factory=dict)
    version: str = "v2"
    failure: Status | None = None
    delay: float = 0.0  #: seconds without capacity, an injected fault too
    silent: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    method: str = ""  #: its name in the API

    @property
    def project(self) -> str:
        return self.path["project"]

    @property
    def parent(self) -> str:
        return f"projects/{self.project}/locations/{self.path['zone']}"


@dataclass
class ServiceContext:
    """The state, clock, randomness and times that all parts of the service share."""

    state: EmulatorState
    clock: EmulatorClock
    random: Random
    timing: Timing
    compute_base: str = ""  #: start of links to Compute Engine resources, with a slash at its end
    operation_metadata: OperationMetadata = DEFAULT
    _moment: float | None = field(default=None, init=False)

    def now(self) -> float:
        return self.clock.time() if self._moment is None else self._moment

    def note_time(self) -> None:
        """Record the clock's time in the state, so that a restart goes on from there."""
        self.state.clock["clock"] = {"offset": self.clock.offset, "time": self.clock.time()}

    @contextmanager
    def moment(self, seconds: float) -> Iterator[None]:
        """Let `now` return `seconds` inside the block: the time when a change was due."""
        before, self._moment = self._moment, seconds
        try:
            yield
        finally:
            self._moment = before

    def offer(self, key: str, offered: bool, **more: object) -> None:
        """Record that a catalogue entry is offered or withdrawn; this overrides the default."""
        self.state.offers[key] = {"offered": offered, **more}

    def offers(self, key: str, otherwise: bool) -> bool:
        """Return True if a catalogue entry is offered; `otherwise` is the default."""
        return bool(self.state.offers.get(key, {"offered": otherwise})["offered"])

    def added(self, prefix: str) -> list[str]:
        """Return the keys of added catalogue entries with a prefix, without the prefix."""
        return [
            key.removeprefix(prefix)
            for key, record in self.state.offers.items()
            if key.startswith(prefix) and record["offered"]
        ]

    def has_network(self, project: str, network: str) -> bool:
        """Return True if a project can use a network, `projects/P/global/networks/N`.

        VPC documentation, "Shared VPC": a project that is attached to a host project uses the host
        project's networks. In the emulator it has no other networks.
        """
        owner = network.split("/")[1]
        return self._exists(network) and owner == (self.host_project(project) or project)

    def network_of(self, subnetwork: str) -> str:
        """Return the network of `projects/P/regions/R/subnetworks/S`, or "" if it does not exist.

        VPC documentation, "Subnet creation mode": an auto mode network has a subnetwork with the
        network's name in every region.
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
        """Record a new network with its fields, or that one is gone, but no firewall rules."""
        # The project is known from now on, so its first request adds no default rules.
        self.state.projects.setdefault(network.split("/")[1], {"items": []})
        self.offer(f"networks/{network}", offered, fields=dict(fields))

    def network_fields(self, network: str) -> Json:
        """Return the fields that a network was created with."""
        return dict(self.state.offers.get(f"networks/{network}", {}).get("fields", {}))

    @property
    def projects(self) -> tuple[str, ...]:
        """The ids of the projects that calls have named, and `PROJECT`."""
        return tuple(sorted({PROJECT, *self.state.projects}))

    def project_id(self, project: str) -> str:
        """Return a project's id, given its id or its number.

        Raises `ApiError` for an unknown number: ids do not begin with a digit.
        """
        if not project.isdecimal():
            return project
        for name in self.projects:
            if project_number(name) == project:
                return name
        # Words from the Google Cloud troubleshooting page "CONSUMER_INVALID".
        text = f"Permission denied on resource project {project}."
        consumer = error_info("CONSUMER_INVALID", consumer=f"projects/{project}")
        raise ApiError("PERMISSION_DENIED", text, [consumer])

    def by_id(self, name: str) -> str:
        """Return a resource's name or link with the project's id in place of its number."""
        return _PROJECT.sub(lambda match: f"projects/{self.project_id(match[1])}", name)

    def host_project(self, project: str) -> str:
        """Return the host project of a service project, or "" if it has none."""
        return str(self.state.projects.get(project, {}).get("host", ""))

    def stamp(self) -> str:
        return timestamp(self.now())

    def number(self) -> str:
        """Return a new resource id: in both APIs a 64-bit number as a JSON string."""
        return str(self.random.randrange(10**18, 9 * 10**18))

    def bad_request(self, message: str) -> Exception:
        """Return Cloud TPU's error for a bad request: a fixed start, `message` and an event id.

        Source: skypilot-org/skypilot#1468, #3840.
        """
        event = f"[EID: 0x{self.random.getrandbits(64):x}]"
        return invalid(f"Cloud TPU received a bad request. {message} {event}")

    def given_or_random_id(self, given: str, kind: str) -> str:
        """Return the id that a create asks for, or a random one; raise `ApiError` for a bad id."""
        identifier = given or f"{kind}-{self.random.getrandbits(32):08x}"
        form = _QUEUED_RESOURCE_ID if kind == "qr" else RESOURCE_ID
        if not form.fullmatch(identifier):
            raise self.bad_request(f"the {kind} id {identifier!r} must match ^{form.pattern}$")
        return identifier

    def operation_id(self) -> str:
        """Return a new operation id in the form that both APIs use."""
        bits = self.random.getrandbits
        return f"operation-{int(self.now() * 1000)}-{bits(52):013x}-{bits(32):08x}-{bits(32):08x}"


def project_number(project: str) -> str:
    """Return a project's number: always the same for the same id."""
    return str(10**11 + int.from_bytes(sha256(project.encode()).digest()[:5]) % (9 * 10**11))


def resource_id(name: str) -> str:
    """Return an id derived from a name, for resources that exist once: 64 bits, a JSON string."""
    return str(10**18 + int.from_bytes(sha256(name.encode()).digest()[:8]) % (8 * 10**18))


def default_account(project: str) -> str:
    """Return the email address of a project's default service account for workers."""
    return f"{project_number(project)}-compute@developer.gserviceaccount.com"


class Views(Mapping[str, Json]):
    """Documents by their names, made only when they are read: a page needs few of them."""

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
    """Return one page as the answer to a list call of Cloud TPU."""
    if call.silent:
        names = (name for name in documents if name.split("/")[3] not in call.silent)
        documents = Views(names, documents.__getitem__)
    shown, token = page(call, documents, call.query.get("pageSize", ""), most)
    more: Json = {"nextPageToken": token} if token else {}
    if call.silent:
        more["unreachable"] = [f"projects/{call.project}/locations/{zone}" for zone in call.silent]
    return {key: shown, **more}


def page(call: Call, documents: Mapping[str, Json], size: str, most: int) -> tuple[list[Json], str]:
    """Return one page of the documents that a list call selects, and the token of the next page.

    The token holds the last name, so that pages stay right while resources come and go, and a
    digest of the call: AIP-158 refuses a token in another call. Without a filter and an order, only
    the documents of the page are read.
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
    """Return a digest of a call's method, path, filter and order."""
    given = [call.query.get(name, "") for name in ("filter", "orderBy")]
    return sha256(repr([call.method, sorted(call.path.items()), given]).encode()).hexdigest()[:8]
