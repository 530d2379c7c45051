"""The service of a slice: a detached run that answers HTTP requests on its worker's loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any

from tpukit.clock import Clock, Deadline, polls
from tpukit.errors import DeadlinePassed, Fix, NameTaken, NotFound, TpukitError, TransportFailed
from tpukit.jobs import runs
from tpukit.jobs.detached_job import DetachedJob, JobResult, LogPart
from tpukit.jobs.job_list import JobState, forget_job, list_jobs
from tpukit.jobs.shell_environment import shell_lines
from tpukit.ssh import agent_client, worker_files
from tpukit.ssh.worker import RemoteWorker
from tpukit.text import counted, one_line

#: The run of a slice's service: programs cannot share the TPU, so there is one service at most.
RUN = "service"
_ASK_SECONDS, _ANSWER_SECONDS = 30.0, 5.0
#: Seconds between two looks at the counters, and the most bytes of their text.
_LOOK_SECONDS, _MOST_BYTES = 5.0, 4 << 20


@dataclass(frozen=True)
class Address:
    """Where a service answers on its worker, and what its recipe says about it."""

    port: int  #: on the worker
    usual_port: int  #: on this machine
    stand_in: bool  #: True if the emulator's stand-in answers
    recipe: str
    metrics: str
    counters: tuple[str, str]  #: of requests and of tokens


class ServiceRun:
    """The service of a slice with one worker."""

    def __init__(self, worker: RemoteWorker, clock: Clock) -> None:
        self.worker, self._clock = worker, clock
        self._job = worker_files.record_name(RUN, worker.record)
        self._ended = threading.Event()
        self._result: list[JobResult | TpukitError] = []

    def running(self) -> JobState | None:
        """Return the state of the service if it runs."""
        with self.worker.connect() as connection:
            states = list_jobs(connection, self.worker.record, RUN, deadline=self._limit())
        return next((state for state in states if state.state == "running"), None)

    def start(
        self,
        recipe: str,
        command: str,
        table: Mapping[str, Any],
        variables: Mapping[str, str],
        folder: str = "",
    ) -> None:
        """Start a recipe's service; `table` has the words of its `[service]`, and the model.

        An emulated worker needs no environment for a stand-in. Files of a service that has ended
        are removed. Raises `NotFound` if the environment is missing, `NameTaken` if a service has
        been started meanwhile, and what `runs.start` raises.
        """
        with self.worker.connect() as connection:
            request = {"path": worker_files.venv_python(recipe)}
            failure = f"{connection.label} gave no answer whether it is provisioned"
            answer = agent_client.ask(
                connection, "look_for_python", request, failure, deadline=self._limit()
            )
            needed = not (answer.number("emulated") and table["stand_in"])
            if needed and not answer.flag("there"):
                raise NotFound(
                    f"{self.worker.slice} has no environment {recipe}",
                    fix=Fix.command("tpukit", "provision", self.worker.slice, recipe),
                )
            with self._reached_instead():
                forget_job(connection, self._job, deadline=self._limit())
        lines = shell_lines(variables, recipe if needed else "", folder)
        service = {**table, "recipe": recipe}
        with self._reached_instead():
            runs.start([self.worker], RUN, command, lines, self._clock, service=service)

    @contextmanager
    def _reached_instead(self) -> Iterator[None]:
        try:
            yield
        except NameTaken as taken:
            fix = Fix.command("tpukit", "serve", self.worker.slice, note="reaches it")
            raise NameTaken(f"{self.worker.label} already has a service", fix=fix) from taken

    def follow(self, on_line: Callable[[str], None], part: LogPart) -> None:
        """Pass the lines of the log to `on_line` from another thread, until the service ends."""

        def read() -> None:
            limit = Deadline.never(self._clock)
            job = DetachedJob(self.worker.connect, self._job, limit, on_line)
            while not self._result:
                try:
                    result = job.follow(part)
                    assert result, "the log is followed to the end"
                    self._result.append(result)
                except TransportFailed:
                    self._clock.sleep(1.0)
                except TpukitError as error:
                    self._result.append(error)
            self._ended.set()

        threading.Thread(target=read, name="tpukit-log", daemon=True).start()

    def address(self, deadline: Deadline) -> Address:
        """Wait until the service answers; `follow` must have been called.

        Raises:
            TpukitError: it has ended; the reason shows the end of its log.
            DeadlinePassed: it does not answer yet, and goes on.
        """
        line = f"cat {worker_files.JOBS}/{self._job}/service 2>/dev/null"
        for _ in polls(deadline, most=2.0):
            if self._ended.is_set():
                raise self.end()
            with suppress(TransportFailed), self.worker.connect() as connection:
                done = connection.run(line, deadline=self._limit())
                if done.ok and done.stdout:
                    return _address(self.worker.label, done.stdout)
        raise DeadlinePassed(f"the service on {self.worker.label} does not answer yet")

    def report(self, throughput: Throughput, on_line: Callable[[str], None]) -> None:
        """Pass each line about the throughput to `on_line`, until the service ends."""
        while not self._ended.wait(_LOOK_SECONDS):
            if line := throughput.line():
                on_line(line)

    @property
    def ended(self) -> bool:
        """Whether the service has ended, as far as its log says."""
        return any(isinstance(result, JobResult) for result in self._result)

    def end(self) -> TpukitError:
        """Return the error for the end of a service that nobody has asked to end."""
        (result,) = self._result
        if isinstance(result, TpukitError):
            return result
        tail = one_line(" ".join(result.tail[-3:]))[-300:]
        reason = f"status {result.status}: {tail}" if tail else f"status {result.status}"
        log = Fix.command("tpukit", "logs", self.worker.slice, RUN, note="shows all of its log")
        return TpukitError(f"the service on {self.worker.label} has ended", reason=reason, fix=log)

    def _limit(self) -> Deadline:
        return Deadline.after(self._clock, _ASK_SECONDS)


def _address(label: str, text: bytes) -> Address:
    known = agent_client.parsed(label, text)
    ports = known.number("port"), known.number("usual_port")
    if not all(0 < port < 1 << 16 for port in ports):
        raise TpukitError(f"{label} gave a service's address without valid ports")
    return Address(
        *ports,
        known.flag("stand_in"),
        one_line(known.text("recipe")),
        known.text("metrics"),
        (known.text("requests"), known.text("tokens")),
    )


class Throughput:
    """The requests and tokens of a service, read from its counters through a local port."""

    def __init__(self, port: int, address: Address, clock: Clock) -> None:
        self._port, self._address, self._clock = port, address, clock
        self._last = self._read()

    def line(self) -> str:
        """Return a line if the counters have changed since the last call, else ""."""
        last, read = self._last, self._read()
        self._last = read or last
        if not last or not read or last[1:] == read[1:]:
            return ""
        (before, _, tokens_before), (now, requests, tokens) = last, read
        rate = max(0.0, tokens - tokens_before) / max(now - before, 0.001)
        counts = counted(int(requests), "request"), counted(int(tokens), "token")
        return f"{', '.join(counts)}, {rate:.1f} tokens/s"

    def _read(self) -> tuple[float, float, float] | None:
        """Return the time with the counters of requests and tokens, or None without an answer."""
        if not self._address.metrics:
            return None
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_SECONDS)
        with suppress(OSError, ValueError, http.client.HTTPException), closing(connection):
            connection.request("GET", self._address.metrics)
            answer = connection.getresponse()
            if answer.status == 200:
                text = answer.read(_MOST_BYTES).decode("utf-8", "replace")
                requests, tokens = (_total(text, name) for name in self._address.counters)
                return self._clock.monotonic(), requests, tokens
        return None


def _total(text: str, name: str) -> float:
    """Return the sum of a counter over all of its labels."""
    total = 0.0
    for line in text.splitlines():
        if line.partition(" ")[0].partition("{")[0] == name:
            with suppress(ValueError):
                total += float(line.rpartition(" ")[2])
    return total if isfinite(total) else 0.0
