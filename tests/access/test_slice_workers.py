"""The one way in: what is decided while nobody answers, or where the slice has changed."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise, repeat

import pytest
from support.access import keys_of, ready
from support.contexts import context_on
from support.local_cloud import ZONE, Cloud, FakeClock

from tpukit.access import slice_workers
from tpukit.access.context import Context
from tpukit.access.key import key_line
from tpukit.clock import Deadline
from tpukit.errors import (
    AuthenticationFailed,
    BadInput,
    HostKeyMismatch,
    NotAllowed,
    SecurityRefusal,
    SliceLost,
    TpukitError,
    TransportFailed,
)
from tpukit.models import FirewallRule, QueueRequest, Slice, WorkerIdentity
from tpukit.slices.find import find_named
from tpukit.slices.last_seen import LastSeen, naming_what_exists
from tpukit.ssh.client import Connector
from tpukit.ssh.keys import KeyPair
from tpukit.ssh.target import Target
from tpukit.ssh.worker import RemoteWorker

PATIENCE = 120.0
EVERYBODY = FirewallRule("all-ssh", "default", ("0.0.0.0/0",), ())


@dataclass
class Rules:
    """The firewall rules of the network, and how often they were read."""

    rules: tuple[FirewallRule, ...] = (EVERYBODY,)
    read: int = 0
    policies: bool = False

    def within(self, deadline: Deadline) -> Rules:
        return self

    def list(self) -> tuple[FirewallRule, ...]:
        self.read += 1
        return self.rules

    def has_policies(self, network: str) -> bool:
        return self.policies

    def of(self, project: str) -> Rules:
        return self


@dataclass
class Network:
    """Nobody answers on it; `on_dial` lets something happen at an attempt."""

    clock: FakeClock
    failure: OSError = field(default_factory=lambda: TimeoutError(110, "timed out"))
    dialled: list[tuple[float, str]] = field(default_factory=list)
    on_dial: Callable[[int], None] = lambda number: None

    def dial(self, target: Target, attempt: Deadline) -> socket.socket:
        self.dialled.append((self.clock.monotonic(), target.address))
        self.on_dial(len(self.dialled))
        raise self.failure


@pytest.fixture
def network(clock: FakeClock) -> Network:
    return Network(clock)


@pytest.fixture
def rules() -> Rules:
    return Rules()


@pytest.fixture
def context(
    cloud: Cloud, clock: FakeClock, key: KeyPair, network: Network, rules: Rules
) -> Context:
    connector = Connector(key, clock, dial=network.dial)
    return context_on(cloud, key, clock, firewall=rules, connector=connector)


def workers_of(
    context: Context, slice_: Slice, selection: str = "all", **how: object
) -> list[RemoteWorker]:
    deadline = Deadline.after(context.clock, PATIENCE)
    return slice_workers.workers(context, [slice_], selection, deadline, PATIENCE, **how)


def test_a_missing_rule_is_named_before_the_patience_is_over(
    cloud: Cloud, context: Context, network: Network, rules: Rules
) -> None:
    rules.rules = ()
    (worker,) = workers_of(context, ready(cloud))
    with pytest.raises(TransportFailed) as caught:
        worker.connect()
    assert "no firewall rule of network default admits tcp:22 from 198.51.100.9" in caught.value.why
    first, last = network.dialled[0][0], network.dialled[-1][0]
    assert 8.0 <= last - first < 15.0


def test_the_rules_are_read_once_for_each_connection(
    cloud: Cloud, context: Context, rules: Rules
) -> None:
    (worker,) = workers_of(context, ready(cloud))
    for number in (1, 2):
        with pytest.raises(TransportFailed):
            worker.connect()
        assert rules.read == number


def test_who_may_not_read_the_rules_still_learns_that_nothing_answered(
    cloud: Cloud, context: Context
) -> None:
    class Secret(Rules):
        def list(self) -> tuple[FirewallRule, ...]:
            raise NotAllowed("you may not list firewall rules")

    context = replace(context, firewall=Secret())
    (worker,) = workers_of(context, ready(cloud))
    with pytest.raises(TransportFailed) as caught:
        worker.connect()
    assert "firewall" not in caught.value.why
    assert caught.value.reason == "timed out"


@pytest.mark.parametrize(
    "answer",
    [
        ConnectionRefusedError(111, "Connection refused"),
        ConnectionResetError(104, "Connection reset by peer"),
    ],
)
def test_an_answer_shows_that_packets_arrive_and_no_firewall_is_blamed(
    cloud: Cloud, context: Context, network: Network, rules: Rules, answer: OSError
) -> None:
    rules.rules, network.failure = (), answer
    (worker,) = workers_of(context, ready(cloud))
    with pytest.raises(TransportFailed) as caught:
        worker.connect()
    assert (rules.read, caught.value.fix) == (0, None)
    assert "firewall" not in caught.value.why
    assert network.dialled[-1][0] - network.dialled[0][0] > PATIENCE / 2


def test_through_a_proxy_nobody_can_tell_and_a_missing_rule_is_a_hint_at_the_end(
    cloud: Cloud, context: Context, network: Network, rules: Rules
) -> None:
    """gcloud's tunnel answers for a worker that gets no packet."""
    rules.rules, network.failure = (), ConnectionResetError(104, "Connection reset by peer")
    (worker,) = workers_of(replace(context, proxied=True), ready(cloud))
    with pytest.raises(TransportFailed) as caught:
        worker.connect()
    assert network.dialled[-1][0] - network.dialled[0][0] > PATIENCE / 2
    assert caught.value.reason == "Connection reset by peer"
    assert "no firewall rule" in caught.value.why
    assert str(caught.value.fix).startswith("tpukit firewall apply demo")


def test_where_a_firewall_policy_may_decide_a_missing_rule_is_said_and_ends_nothing(
    cloud: Cloud, context: Context, network: Network, rules: Rules
) -> None:
    """Rules of organisations are in no list of the project's: nothing is certain then."""
    lines: list[str] = []
    rules.rules, rules.policies = (), True
    (worker,) = workers_of(context, ready(cloud), on_wait=lines.append)
    with pytest.raises(TransportFailed) as caught:
        worker.connect()
    assert network.dialled[-1][0] - network.dialled[0][0] == pytest.approx(PATIENCE, abs=16.0)
    assert "does not answer" in caught.value.what
    assert caught.value.reason == "timed out"
    assert "no firewall rule" in caught.value.why
    assert str(caught.value.fix).startswith("tpukit firewall apply demo")
    assert sum("tpukit firewall apply demo" in line for line in lines) == 1


SICK = "the API says that the slice is UNHEALTHY_MAINTENANCE: its workers may be out of reach"


def set_health(cloud: Cloud, health: str) -> None:
    cloud.control("POST", f"nodes/{cloud.full_name('demo')}:setHealth", {"health": health})


@pytest.mark.parametrize(
    "failure", [TimeoutError(110, "timed out"), ConnectionRefusedError(111, "Connection refused")]
)
def test_an_unhealthy_slice_is_named_where_a_worker_is_silent(
    cloud: Cloud, context: Context, network: Network, failure: OSError
) -> None:
    lines: list[str] = []
    network.failure = failure
    (worker,) = workers_of(context, ready(cloud), on_wait=lines.append)
    set_health(cloud, "UNHEALTHY_MAINTENANCE")
    with pytest.raises(TransportFailed) as caught:
        worker.connect()
    assert SICK in caught.value.why
    assert str(caught.value.fix) == f"tpukit wait demo --zone {ZONE} --for ssh"
    assert len(lines) == 1
    assert SICK in lines[0]


def test_health_comes_before_a_firewall_that_may_be_the_cause_and_after_one_that_is(
    cloud: Cloud, context: Context, rules: Rules
) -> None:
    found = ready(cloud)
    set_health(cloud, "UNHEALTHY_MAINTENANCE")
    fixes = []
    rules.rules = ()
    for rules.policies in (True, False):
        (worker,) = workers_of(context, cloud.tpu.get(ZONE, found.name))
        with pytest.raises(TransportFailed) as caught:
            worker.connect()
        assert f"{SICK}; no firewall rule of network default" in caught.value.why
        fixes.append(str(caught.value.fix).split(" demo")[0])
    assert fixes == ["tpukit wait", "tpukit firewall apply"]


def test_a_healthy_slice_is_no_cause_of_its_workers_silence(cloud: Cloud, context: Context) -> None:
    (worker,) = workers_of(context, ready(cloud))
    with pytest.raises(TransportFailed) as caught:
        worker.connect()
    assert "the API says" not in caught.value.why


def test_a_connection_is_tried_for_as_long_as_was_asked_and_said_once(
    cloud: Cloud, context: Context, network: Network
) -> None:
    lines: list[str] = []
    (worker,) = workers_of(context, ready(cloud), on_wait=lines.append)
    with pytest.raises(TransportFailed):
        worker.connect()
    assert network.dialled[-1][0] - network.dialled[0][0] == pytest.approx(PATIENCE, abs=8.0)
    assert len(lines) == 1
    assert "demo worker 0" in lines[0]


@pytest.mark.parametrize("state", ["PREEMPTED", "DELETING"])
def test_a_slice_lost_meanwhile_ends_the_wait_as_lost(
    cloud: Cloud, context: Context, network: Network, state: str
) -> None:
    (worker,) = workers_of(context, ready(cloud))
    cloud.change("demo", state=state)
    with pytest.raises(SliceLost):
        worker.connect()
    assert network.dialled[-1][0] - network.dialled[0][0] < 20.0


def test_a_slice_lost_meanwhile_is_noticed_by_the_shortest_patience_too(
    cloud: Cloud, context: Context
) -> None:
    found = ready(cloud)
    deadline = Deadline.after(context.clock, PATIENCE)
    (worker,) = slice_workers.workers(context, [found], "all", deadline, patience=2.0)
    cloud.change("demo", state="PREEMPTED")
    with pytest.raises(SliceLost):
        worker.connect()


def test_a_slice_that_vanished_meanwhile_is_lost_and_nothing_is_said_to_be_left(
    cloud: Cloud, context: Context
) -> None:
    slice_ = ready(cloud)
    (worker,) = workers_of(context, slice_)
    cloud.vanish("demo")
    with (
        pytest.raises(SliceLost, match="demo is gone") as caught,
        naming_what_exists(LastSeen("demo", ZONE, slice_.state)),
    ):
        worker.connect()
    assert (caught.value.exists, caught.value.fix) == ((), None)


class Provider:
    """The cloud's provider, but for the answers that a test gives."""

    def __init__(self, cloud: Cloud, **answers: Callable[..., object]) -> None:
        self._cloud = cloud
        self.__dict__.update(answers)

    def within(self, deadline: Deadline) -> Provider:
        return self

    def once(self) -> Provider:
        return self

    def only(self, api: str) -> Provider:
        return self

    def __getattr__(self, name: str) -> object:
        return getattr(self._cloud.tpu, name)


def test_a_worker_that_has_moved_is_tried_where_it_is_now(
    cloud: Cloud, context: Context, network: Network
) -> None:
    found = ready(cloud, {"ssh-keys": key_line("ada", context.key)})
    moved = replace(found, workers=(replace(found.workers[0], external_address="198.51.100.77"),))
    context = replace(context, provider=Provider(cloud, get=lambda zone, name: moved))
    (worker,) = workers_of(context, found)
    assert worker.target
    with pytest.raises(TransportFailed):
        worker.connect()
    addresses = [address for _, address in network.dialled]
    assert addresses[0] == worker.target.address != "198.51.100.77"
    assert addresses[-1] == "198.51.100.77"


def test_an_api_that_does_not_answer_ends_no_wait(
    cloud: Cloud, context: Context, network: Network
) -> None:
    (worker,) = workers_of(context, ready(cloud))
    cloud.fault(method="nodes.get", status="UNAVAILABLE", message="down", probability=1.0)
    with pytest.raises(TransportFailed, match="worker 0"):
        worker.connect()
    assert network.dialled[-1][0] - network.dialled[0][0] > PATIENCE / 2


def test_workers_are_selected_before_anything_is_asked_of_them(
    cloud: Cloud, context: Context
) -> None:
    found = ready(cloud, kind="v3-32")
    answer = cloud.tpu.identities(ZONE, "demo")

    def identities(zone: str, name: str) -> list[WorkerIdentity]:
        return [replace(e, host_keys=() if e.index == 3 else e.host_keys) for e in answer]

    context = replace(context, provider=Provider(cloud, identities=identities))
    assert [worker.index for worker in workers_of(context, found, "0,2")] == [0, 2]
    with pytest.raises(SecurityRefusal, match="worker 3"):
        workers_of(context, found)


def test_a_selection_of_nobody_asks_the_cloud_nothing(cloud: Cloud, context: Context) -> None:
    found = ready(cloud)
    before = len(cloud.control("GET", "log")["requests"])
    with pytest.raises(BadInput):
        workers_of(context, found, "7")
    assert len(cloud.control("GET", "log")["requests"]) == before


def test_a_slice_that_is_lost_already_is_asked_nothing(cloud: Cloud, context: Context) -> None:
    found = replace(ready(cloud), state="PREEMPTED")
    before = len(cloud.control("GET", "log")["requests"])
    with pytest.raises(SliceLost):
        workers_of(context, found)
    assert len(cloud.control("GET", "log")["requests"]) == before


def test_our_key_is_on_the_slice_before_anybody_connects(cloud: Cloud, context: Context) -> None:
    workers_of(context, ready(cloud))
    assert key_line("ada", context.key) in keys_of(cloud)


@pytest.mark.parametrize("patience", [PATIENCE, 30.0])
def test_the_api_and_the_first_connection_are_one_wait_and_later_ones_have_their_own(
    cloud: Cloud, context: Context, network: Network, patience: float
) -> None:
    found = ready(cloud)
    deadline = Deadline.after(context.clock, PATIENCE)
    clock, pauses = context.clock, chain([20.0], repeat(0.0))

    def identities(zone: str, name: str) -> list[WorkerIdentity]:
        clock.sleep(next(pauses))
        return cloud.tpu.identities(zone, name)

    provider = Provider(cloud, identities=identities)
    (worker,) = slice_workers.workers(
        replace(context, provider=provider), [found], "all", deadline, patience
    )
    for expected in (min(patience, PATIENCE - 20.0), patience):
        network.dialled.clear()
        with pytest.raises(TransportFailed):
            worker.connect()
        assert network.dialled[-1][0] - network.dialled[0][0] == pytest.approx(expected, abs=8.0)


def test_no_connection_outlasts_the_end_of_a_longer_job(
    cloud: Cloud, context: Context, network: Network
) -> None:
    found, end = ready(cloud), Deadline.after(context.clock, PATIENCE + 30.0)
    (worker,) = workers_of(context, found, until=end)
    for _ in range(2):
        with pytest.raises(TransportFailed):
            worker.connect()
    assert network.dialled[-1][0] == pytest.approx(end.at, abs=8.0)


def test_a_missing_rule_is_named_to_the_shortest_patience_too(
    cloud: Cloud, context: Context, rules: Rules
) -> None:
    rules.rules = ()
    found = ready(cloud)
    deadline = Deadline.after(context.clock, PATIENCE)
    (worker,) = slice_workers.workers(context, [found], "all", deadline, patience=2.0)
    with pytest.raises(TransportFailed, match="worker 0 does not answer") as caught:
        worker.connect()
    assert "no firewall rule" in caught.value.why


def test_a_slice_made_anew_with_fewer_workers_has_no_such_worker_now(
    cloud: Cloud, context: Context
) -> None:
    found = ready(cloud, {"ssh-keys": key_line("ada", context.key)}, kind="v3-32")
    smaller = replace(found, workers=found.workers[:1])
    context = replace(context, provider=Provider(cloud, get=lambda zone, name: smaller))
    with pytest.raises(TransportFailed, match="slice demo has no worker 1 now"):
        workers_of(context, found, "0,1")[1].connect()


def test_who_waits_learns_why(cloud: Cloud, context: Context) -> None:
    lines: list[str] = []
    (worker,) = workers_of(context, ready(cloud), on_wait=lines.append)
    with pytest.raises(TransportFailed):
        worker.connect()
    assert "timed out" in lines[0]


def test_a_slice_whose_worker_is_silent_is_looked_at_every_ten_seconds(
    cloud: Cloud, context: Context
) -> None:
    found = ready(cloud, {"ssh-keys": key_line("ada", context.key)})
    looks: list[float] = []

    def get(zone: str, name: str) -> Slice:
        looks.append(context.clock.monotonic())
        return found

    context = replace(context, provider=Provider(cloud, get=get))
    deadline = Deadline.after(context.clock, 400.0)
    (worker,) = slice_workers.workers(context, [found], "all", deadline, patience=400.0)
    looks.clear()
    with pytest.raises(TransportFailed):
        worker.connect()
    pauses = [later - earlier for earlier, later in pairwise(looks)][:-1]
    assert all(10.0 <= pause <= 15.0 for pause in pauses)
    assert len(pauses) > 20


def test_somebody_else_at_the_address_is_refused_unless_the_slice_has_moved(
    cloud: Cloud, context: Context, network: Network
) -> None:
    def impostor(number: int) -> None:
        if network.dialled[-1][1] != "198.51.100.77":
            raise HostKeyMismatch("another key")

    network.on_dial = impostor
    found = ready(cloud, {"ssh-keys": key_line("ada", context.key)})
    (worker,) = workers_of(context, found)
    with pytest.raises(HostKeyMismatch):
        worker.connect()
    assert len(network.dialled) == 1
    moved = replace(found, workers=(replace(found.workers[0], external_address="198.51.100.77"),))
    context = replace(context, provider=Provider(cloud, get=lambda zone, name: moved))
    (worker,) = workers_of(context, found)
    with pytest.raises(TransportFailed):
        worker.connect()
    assert [address for _, address in network.dialled[2:]] == ["198.51.100.77"] * (
        len(network.dialled) - 2
    )


def test_a_worker_that_moved_after_a_look_for_another_one_is_not_taken_for_a_stranger(
    cloud: Cloud, context: Context, network: Network
) -> None:
    def impostor(number: int) -> None:
        if network.dialled[-1][1] != "198.51.100.77":
            raise HostKeyMismatch("another key")

    network.on_dial = impostor
    slice_ = ready(cloud, {"ssh-keys": key_line("ada", context.key)}, kind="v3-32")
    known = [slice_]
    context = replace(context, provider=Provider(cloud, get=lambda zone, name: known[-1]))
    first, second, *_ = workers_of(context, slice_)
    second.check_slice()
    addressed = replace(slice_.workers[0], external_address="198.51.100.77")
    known.append(replace(slice_, workers=(addressed, *slice_.workers[1:])))
    with pytest.raises(TransportFailed):
        first.connect()
    assert network.dialled[-1][1] == "198.51.100.77"


def test_host_keys_that_cannot_be_read_again_end_no_wait(
    cloud: Cloud, context: Context, network: Network
) -> None:
    answers = [cloud.tpu.identities]

    def identities(zone: str, name: str) -> list[WorkerIdentity]:
        if not answers:
            raise TpukitError("the API is down")
        return answers.pop()(zone, name)

    context = replace(context, provider=Provider(cloud, identities=identities))
    (worker,) = workers_of(context, ready(cloud))
    with pytest.raises(TransportFailed, match="worker 0"):
        worker.connect()
    assert network.dialled[-1][0] - network.dialled[0][0] > PATIENCE / 2


def test_a_refused_key_is_not_blamed_on_the_firewall_nor_on_health(
    cloud: Cloud, context: Context, network: Network, rules: Rules
) -> None:
    def refuse(number: int) -> None:
        raise AuthenticationFailed("demo worker 0 does not accept our key")

    network.on_dial, rules.rules = refuse, ()
    (worker,) = workers_of(context, replace(ready(cloud), health="UNHEALTHY_MAINTENANCE"))
    with pytest.raises(AuthenticationFailed) as caught:
        worker.connect()
    assert "firewall" not in caught.value.why
    assert "UNHEALTHY" not in caught.value.why


@pytest.mark.parametrize("state", ["PREEMPTED", "DELETING"])
def test_a_slice_that_was_lost_under_a_command_is_looked_at_once_for_all_of_its_workers(
    cloud: Cloud, context: Context, state: str
) -> None:
    workers = workers_of(context, ready(cloud, kind="v3-32"))
    for each in workers:
        each.check_slice()
    cloud.change("demo", state=state)
    context.clock.sleep(6.0)
    before = len(cloud.calls("nodes.get"))
    for each in workers:
        with pytest.raises(SliceLost):
            each.check_slice()
    assert len(cloud.calls("nodes.get")) == before + 1


def test_a_loss_that_one_worker_finds_out_ends_the_wait_of_the_others(
    cloud: Cloud, context: Context, network: Network
) -> None:
    workers = workers_of(context, ready(cloud, kind="v3-32"))
    cloud.change("demo", state="PREEMPTED")
    with pytest.raises(SliceLost):
        workers[0].connect()
    network.dialled.clear()
    for worker in workers[1:]:
        with pytest.raises(SliceLost):
            worker.connect()
    assert len(network.dialled) == 3


def test_a_lost_connection_is_followed_by_a_look_at_the_slice(
    cloud: Cloud, context: Context, network: Network
) -> None:
    (worker,) = workers_of(context, ready(cloud))
    with pytest.raises(TransportFailed):
        worker.connect()
    cloud.change("demo", state="PREEMPTED")
    context.clock.sleep(6.0)
    network.dialled.clear()
    with pytest.raises(SliceLost):
        worker.connect()
    assert len(network.dialled) == 1


def test_workers_that_do_not_answer_look_at_the_slice_once_for_all(
    cloud: Cloud, context: Context
) -> None:
    found, deadline = ready(cloud, kind="v3-32"), Deadline.after(context.clock, PATIENCE)
    workers = slice_workers.workers(context, [found], "all", deadline, patience=1.0)
    before = len(cloud.calls("nodes.get"))
    for worker in workers:
        with pytest.raises(TransportFailed):
            worker.connect()
    assert len(cloud.calls("nodes.get")) == before + 1


def test_no_hint_is_left_of_a_worker_that_is_believed_once(cloud: Cloud, context: Context) -> None:
    """The next command, which did not ask for that, would believe whoever answers."""
    slice_ = ready(cloud)
    cloud.fault(
        method="nodes.getGuestAttributes", kind="status", times=1, status="PERMISSION_DENIED"
    )
    (worker,) = workers_of(replace(context, accept_new=True), slice_)
    assert worker.target
    assert worker.target.accept_new
    assert context.hints.recall(slice_.name, slice_.zone) is None
    workers_of(context, slice_)
    assert context.hints.recall(slice_.name, slice_.zone)


def test_the_workers_of_a_multislice_have_what_jax_looks_for_and_others_have_not(
    cloud: Cloud, context: Context
) -> None:
    cloud.tpu.create_queued(QueueRequest(cloud.request("pair"), 2))
    cloud.clock.sleep(600.0)
    pair = find_named(cloud.tpu, "pair")
    alone = ready(cloud)

    def known(*slices: Slice) -> list[dict[str, str]]:
        workers = slice_workers.workers(context, slices, "all", cloud.deadline(), PATIENCE)
        return [
            {name[10:]: value for name, value in worker.variables.items() if name[0] == "M"}
            for worker in workers
        ]

    first = pair[0].workers[0].internal_address
    assert known(*pair) == [
        {"COORDINATOR_ADDRESS": first, "NUM_SLICES": "2", "SLICE_ID": number} for number in "01"
    ]
    assert known(pair[0], alone) == [{}, {}]
    assert known(alone) == [{}]
