"""The load of a slice's workers: processors, memory, disk, network, and chips."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tpukit.clock import Clock, Deadline
from tpukit.errors import TpukitError
from tpukit.ssh import agent_client
from tpukit.ssh.client import Connection
from tpukit.ssh.fan_out import Outcome, fan_out
from tpukit.ssh.worker import RemoteWorker

#: Seconds that one sample takes on a worker, and seconds to wait for its answer.
_WATCHED, _PATIENCE = 1.0, 30.0

Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Metric = Annotated[tuple[Annotated[float, Field(allow_inf_nan=False)], ...], Field(max_length=64)]


class WorkerLoad(BaseModel):
    """One sample, in bytes and bytes per second. `chips` has libtpu metrics, one value per chip."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    processors: Annotated[int, Field(ge=0)]
    busy: Share
    load: Amount
    memory_used: Amount
    memory_total: Amount
    disk_used: Amount
    disk_total: Amount
    received: Amount
    sent: Amount
    chips: dict[str, Metric] = {}
    emulated: int = 0

    def chip(self, metric: str) -> float | None:
        """Return the mean of a metric over the worker's chips."""
        values = self.chips.get(metric)
        return statistics.fmean(values) if values else None

    def document(self) -> dict[str, Any]:
        """Return the public JSON value."""
        return self.model_dump(mode="json")


Loads = Sequence[Outcome[RemoteWorker, WorkerLoad]]


class LoadWatch:
    """Samples the load of workers repeatedly, over one connection each; reconnects after a loss."""

    def __init__(self, workers: Sequence[RemoteWorker], clock: Clock) -> None:
        self._workers = workers
        self._clock = clock
        self._connections: dict[int, Connection] = {}

    def __enter__(self) -> LoadWatch:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; this also ends a sample in progress."""
        for connection in list(self._connections.values()):
            connection.close()

    def sample(self) -> Loads:
        """Return the load of every worker, or its error."""
        return fan_out(self._workers, self._one, window=len(self._workers), cancel=self.close)

    def samples(self, seconds: float) -> Iterator[Loads]:
        """Yield samples without end, with a pause of so many seconds between them."""
        while True:
            yield self.sample()
            self._clock.sleep(seconds)

    def _one(self, worker: RemoteWorker) -> WorkerLoad:
        place = self._workers.index(worker)
        connection = self._connections.pop(place, None) or worker.connect()
        deadline = Deadline.after(self._clock, _PATIENCE)
        try:
            failure = f"{worker.label} did not report its load"
            request = {"seconds": _WATCHED}
            answer = agent_client.ask(
                connection, "sample_load", request, failure, deadline=deadline
            )
        except TpukitError:
            connection.close()
            raise
        self._connections[place] = connection
        return answer.model(WorkerLoad)
