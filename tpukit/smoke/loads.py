"""The load of a slice's workers: processors, memory, disk, network, and chips."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tpukit.clock import Clock, Deadline
from tpukit.errors import TpukitError
from tpukit.ssh import agent_client
from tpukit.ssh.fan_out import Outcome, fan_out
from tpukit.ssh.worker import RemoteWorker, RetryingConnection

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


class LoadWatch(AbstractContextManager["LoadWatch"]):
    """Samples the load of workers repeatedly, over one connection each; reconnects after a loss."""

    def __init__(self, workers: Sequence[RemoteWorker], clock: Clock) -> None:
        never = Deadline.never(clock)
        self._links = {worker: RetryingConnection(worker.connect, never) for worker in workers}
        self._clock = clock

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; this also ends a sample in progress."""
        for link in self._links.values():
            link.close()

    def sample(self) -> Loads:
        """Return the load of every worker, or its error."""
        return fan_out([*self._links], self._one, window=len(self._links), cancel=self.close)

    def samples(self, seconds: float) -> Iterator[Loads]:
        """Yield samples without end, with a pause of so many seconds between them."""
        while True:
            yield self.sample()
            self._clock.sleep(seconds)

    def _one(self, worker: RemoteWorker) -> WorkerLoad:
        link, deadline = self._links[worker], Deadline.after(self._clock, _PATIENCE)
        request, failure = {"seconds": _WATCHED}, f"{worker.label} did not report its load"
        try:
            answer = agent_client.ask(
                link.connection, "sample_load", request, failure, deadline=deadline
            )
        except TpukitError:
            link.close()
            raise
        return answer.model(WorkerLoad)
