"""The existing instances: their states, which the clock changes, and their workers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from tpukit.accelerators import AcceleratorType
from tpukit.emulator.compute_service.compute_operations import ComputeOperations
from tpukit.emulator.compute_service.instance_request import valid_seconds
from tpukit.emulator.core.api_errors import Json, invalid
from tpukit.emulator.core.emulator_clock import timestamp
from tpukit.emulator.core.service_context import Call, ServiceContext
from tpukit.emulator.workers.worker_host import WorkerHost, WorkerRecord, bounds_of
from tpukit.errors import TpukitError

_NO_ROOM = (TpukitError, OSError, RuntimeError)
#: Steps of a plan that are no states: the instance is deleted, or its `maxRunDuration` ends.
_GONE, _END = "GONE", "END"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SlicePlace:
    """The place of an instance in a slice: its number among the hosts with these short names.

    `group` is the full name of the managed instance group whose policy joins several hosts.
    """

    kind: AcceleratorType
    names: tuple[str, ...]
    index: int = 0
    group: str = ""


class InstanceStore:
    """Instances by their full names.

    A record has the instance, its worker, the names of its slice's instances if these are several,
    and a plan: pairs of a time and the next state.
    """

    #: The discovery document on Instance.status, those that the emulator reaches.
    states = ("PENDING", "PROVISIONING", "STAGING", "RUNNING", "STOPPING", "TERMINATED")

    def __init__(
        self, context: ServiceContext, operations: ComputeOperations, host: WorkerHost
    ) -> None:
        self._context = context
        self._records = context.state.instances
        self._operations = operations
        self._host = host

    def __contains__(self, name: str) -> bool:
        return name in self._records

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def instance(self, name: str) -> Json:
        document: Json = self._records[name]["instance"]
        return document

    def status(self, name: str) -> str:
        return str(self.instance(name)["status"]) if name in self else _GONE

    def worker(self, name: str) -> WorkerRecord:
        return WorkerRecord(**self._records[name]["workers"][0])

    def workers(self) -> list[WorkerRecord]:
        """Return the workers of all instances."""
        return [self.worker(name) for name in self]

    def guest_attributes(self, name: str) -> Mapping[str, str]:
        return self._host.guest_attributes(self.worker(name))

    def add(
        self, call: Call, name: str, instance: Json, place: SlicePlace, error: Json | None = None
    ) -> Json:
        """Begin to create an instance, and return the API's operation."""
        timing, now = self._context.timing, self._context.now()
        short = name.rsplit("/", 1)[1]
        metadata = {item["key"]: item.get("value", "") for item in instance["metadata"]}
        metadata |= tpu_items(place, name)
        instance = {
            **instance,
            "id": self._context.number(),
            "creationTimestamp": self._context.stamp(),
            "metadata": [{"key": key, "value": value} for key, value in metadata.items()],
        }
        flexible = instance["scheduling"]["provisioningModel"] == "FLEX_START"
        waits = max(timing.queue, call.delay) if flexible else 0.0
        self._records[name] = {
            "instance": {**instance, "status": "PENDING" if flexible else "PROVISIONING"},
            "id": instance["id"],
            "accelerator_type": place.kind.name,
            "workers": [
                asdict(replace(worker, index=place.index))
                for worker in self._host.allocate(name, 1, short)
            ],
            "plan": [],
            **({"group": place.group, "peers": [*place.names]} if place.group else {}),
        }
        self._make_disks(name)
        if error:
            seconds = min(call.delay, valid_seconds(call)) or timing.refusal
            self._records.change(name, plan=[[now + seconds, _GONE]])
        else:
            seconds = waits + timing.create
            self._records.change(name, plan=self._boot_plan(now + waits))
        return self._operations.begin(call, "insert", name, seconds, error)

    def start(self, call: Call, name: str) -> Json:
        """Begin to start a TERMINATED instance; its files are those of the last run."""
        timing = self._context.timing
        if call.failure is None:
            self.change(name, status="PROVISIONING")
            self._records.change(name, plan=self._boot_plan(self._context.now()))
        return self._operations.begin(call, "start", name, timing.create)

    def stop(self, call: Call, name: str) -> Json:
        self._wind_down(name, "TERMINATED")
        return self._operations.begin(call, "stop", name, self._context.timing.change)

    def remove(self, call: Call, name: str) -> Json:
        """Begin to delete an instance, and end its other operations."""
        self._operations.end(name, _cancelled())
        self._wind_down(name, _GONE)
        return self._operations.begin(call, "delete", name, self._context.timing.change)

    def preempt(self, name: str) -> None:
        """Preempt an instance, and with it all hosts of its slice.

        Each stops or is deleted, as its termination action says. The operation's name is from
        Compute Engine's documentation on Spot VMs.
        """
        _, project, _, zone, *_ = name.split("/")
        call = Call({"project": project, "zone": zone})
        for host in filter(self.__contains__, self.peers(name)):
            self._operations.end(host, _cancelled())
            self._operations.begin(call, "compute.instances.preempted", host)
            self._wind_down(host, self._last_state(host))

    def peers(self, name: str) -> list[str]:
        """Return the full names of a slice's instances in their order, given one of them."""
        place, _, short = name.rpartition("/")
        return [f"{place}/{peer}" for peer in self._records[name].get("peers", [short])]

    def put(self, name: str, status: str) -> None:
        """Put an instance in a state, which it keeps until a call or an event changes it."""
        self._records.change(name, plan=[])
        if status == "RUNNING":
            self._boot(name)
        else:
            self._host.halt(name)
            self.change(name, status=status)

    def vanish(self, name: str) -> None:
        self.drop(name)

    def set_health(self, name: str, health: str) -> None:
        raise invalid(f"An instance has no {health}; its states are {', '.join(self.states)}.")

    def change(self, name: str, **fields: object) -> None:
        """Replace fields of an instance."""
        self._records.change(name, instance={**self.instance(name), **fields})

    def advance(self) -> None:
        """Take all steps that are due, each at its own time."""
        for name in list(self._records):
            while name in self and (plan := self._records[name]["plan"]):
                (due, step), *rest = plan
                if due > self._context.now():
                    break
                self._records.change(name, plan=rest)
                with self._context.moment(due):
                    self._take(name, step)

    def boot_running(self) -> None:
        """Boot the workers again after a restart of the emulator, elsewhere if necessary."""
        for name in [name for name in self if self.status(name) == "RUNNING"]:
            try:
                self._start(name)
            except _NO_ROOM as error:
                _log.warning("%s: %s; trying another address", name, error)
                moved = self._host.move(name, [self.worker(name)])
                self._records.change(name, workers=[asdict(worker) for worker in moved])
                self._boot(name, again=True)

    def drop(self, name: str) -> Json | None:
        """Remove an instance and its worker at once; return the error if the worker remains."""
        try:
            self._host.discard(name)
        except (TpukitError, OSError) as error:
            self.change(name, status="TERMINATED")
            return _broken(f"the worker cannot be removed: {error}")
        for disk in self.instance(name)["disks"]:
            if disk["autoDelete"]:
                self._context.state.disks.pop(disk["source"], None)
        del self._records[name]
        return None

    def node(self, name: str) -> Json:
        """Return an instance in the form of a Cloud TPU node."""
        return as_node(name, self._records[name])

    def _take(self, name: str, step: str) -> None:
        if step == "RUNNING":
            self._boot(name)
        elif step == _GONE:
            if error := self.drop(name):
                _log.error("%s: %s", name, error["message"])
        elif step == _END:
            self._wind_down(name, self._last_state(name))
        else:
            self.change(name, status=step)

    def _boot(self, name: str, again: bool = False) -> None:
        try:
            self._start(name)
        except _NO_ROOM as error:
            self.change(name, status="TERMINATED")
            self._operations.fail_last(name, _broken(f"the worker cannot start: {error}"))
            return
        self.change(name, status="RUNNING")
        if again:
            return
        now = self._context.now()
        self.change(name, lastStartTimestamp=timestamp(now))
        if duration := self.instance(name)["scheduling"].get("maxRunDuration"):
            end = now + int(duration.get("seconds", 0))
            self.change(name, terminationTimestamp=timestamp(end))
            self._records.change(name, plan=[[end, _END]])

    def _start(self, name: str) -> None:
        """Start an instance's worker, which knows the workers of its whole slice."""
        own = self.worker(name)
        peers = enumerate(self.peers(name))
        workers = [self.worker(n) if n in self else replace(own, index=i) for i, n in peers]
        self._host.boot(self.node(name), workers, own.index)

    def _boot_plan(self, begin: float) -> list[list[object]]:
        seconds = self._context.timing.create
        steps: list[list[object]] = [[begin + seconds / 2, "STAGING"], [begin + seconds, "RUNNING"]]
        return [[begin, "PROVISIONING"], *steps]

    def _last_state(self, name: str) -> str:
        """Return the end of an instance that Compute Engine ends."""
        action = self.instance(name)["scheduling"].get("instanceTerminationAction")
        return _GONE if action == "DELETE" else "TERMINATED"

    def _wind_down(self, name: str, last: str) -> None:
        self._host.halt(name)
        self.change(name, status="STOPPING")
        self._records.change(name, plan=[[self._context.now() + self._context.timing.change, last]])

    def _make_disks(self, name: str) -> None:
        """Record the disks that the insert asks for, so that disks.list has them."""
        kept = []
        for disk in self.instance(name)["disks"]:
            made = disk.get("made")
            kept.append({key: value for key, value in disk.items() if key != "made"})
            if made is not None:
                self._context.state.disks[disk["source"]] = {
                    "name": disk["source"].rsplit("/", 1)[1],
                    "sizeGb": disk["diskSizeGb"],
                    "type": self._context.compute_base + made["type"],
                    "physicalBlockSizeBytes": "4096",
                    "id": self._context.number(),
                    "creationTimestamp": self._context.stamp(),
                }
                if "family" in made:
                    self.change(name, family=made["family"])
        self.change(name, disks=kept)


def as_node(name: str, record: Json) -> Json:
    """Return a record of an instance in the form of a Cloud TPU node.

    Workers, SSH keys, firewall rules and neighbours know this form alone.
    """
    instance = record["instance"]
    interface = instance["networkInterfaces"][0]
    scheduling, accounts = instance["scheduling"], instance.get("serviceAccounts") or [{}]
    return {
        "name": name,
        "id": instance["id"],
        "acceleratorType": record["accelerator_type"],
        "runtimeVersion": instance.get("family", ""),
        "schedulingConfig": {"preemptible": scheduling.get("preemptible", False)},
        "serviceAccount": {"email": accounts[0].get("email", "")},
        "metadata": {item["key"]: item.get("value", "") for item in instance["metadata"]},
        "tags": instance["tags"],
        "networkConfig": {
            "network": interface["network"],
            "enableExternalIps": bool(interface["accessConfigs"]),
        },
        "dataDisks": [
            {"sourceDisk": disk["source"], "mode": disk["mode"]}
            for disk in instance["disks"]
            if not disk["boot"]
        ],
    }


def tpu_items(place: SlicePlace, name: str) -> Mapping[str, str]:
    """Return the metadata that Compute Engine writes into a TPU instance.

    Source: the items of a real ct6e-standard-1t, ../shared/reference/compute-engine.md, 2.4. Those
    of a host among several are derived from it.
    """
    _, project, _, zone, _, _ = name.split("/")
    kind, (chips, hosts) = place.kind, bounds_of(place.kind)
    values = {
        "TPU_WORKER_ID": str(place.index),
        "CONSUMER_PROJECT_ID": project,
        "ZONE": zone,
        "NODE_ID": "0",
        "TPU_RUNTIME_METRICS_PORTS": ",".join(str(port) for port in range(8431, 8439)),
        "ENABLE_ICI_RESILIENCY": "true",
        "ENABLE_IMPROVED_REROUTE_ALLREDUCE_STRATEGY": "false",
        "INJECT_SLICE_BUILDER_FAULT": "",
        "TPU_ACCELERATOR_TYPE": kind.name,
        "TOPOLOGY": kind.topology,
        "WRAP": "false,false,false",
        "ALT": "false",
        "HOST_BOUNDS": hosts,
        "CHIPS_PER_HOST_BOUNDS": chips,
    }
    return {
        "accelerator-type": kind.name,
        "agent-worker-number": str(place.index),
        "tpu-env": "\n".join(f"{key}: '{value}'" for key, value in values.items()),
        "worker-network-endpoints": ",".join(place.names),
    }


def _broken(why: str) -> Json:
    return {"code": "INTERNAL_ERROR", "message": why}


def _cancelled() -> Json:
    return {"code": "OPERATION_CANCELED_BY_USER", "message": "The operation was canceled."}
