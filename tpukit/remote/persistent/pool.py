"""Connections that outlive a command, each used by one command at a time."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tpukit.clock import Clock, Deadline
from tpukit.remote.connection.client import Connection, Connector
from tpukit.remote.connection.keys import KeyPair
from tpukit.remote.connection.target import Completed, Target

#: Seconds in which a worker has to begin a command: nobody knows what became of it meanwhile.
_FIRST_ANSWER_SECONDS = 5.0

#: What a listing shows of a connection's target.
_SHOWN = ("label", "address", "port", "user")

Address = tuple[str, int, str]  #: address, port, user


class Pool:
    """Hands out connections and takes them back; those that nobody used for a while are closed.

    A worker is given up after `busy_silence` seconds while a command runs on it, and after
    `idle_silence` while not.
    """

    def __init__(
        self,
        clock: Clock,
        idle_seconds: float,
        *,
        busy_silence: float = 12.0,
        idle_silence: float = 60.0,
    ) -> None:
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._busy_silence = busy_silence
        self._idle_silence = idle_silence
        self._entries: defaultdict[Address, list[_Entry]] = defaultdict(list)
        self._connectors: dict[KeyPair, Connector] = {}
        self._last_used = clock.monotonic()
        self._lock = threading.Lock()

    def acquire(self, target: Target, key: KeyPair, deadline: Deadline) -> PooledConnection:
        """Return a connection of the pool, or else a new one; closing it gives it back.

        Those to the same address with other host keys are closed: the worker was made anew. Raises
        what `Connector.connect_once` raises.
        """
        entry = self._taken(target, key) or self._connected(target, key, deadline)
        return PooledConnection(self, entry)

    def touch(self) -> None:
        """Count the idle time from now on."""
        with self._lock:
            self._last_used = self._clock.monotonic()

    def release(self, entry: _Entry) -> None:
        """Keep a connection for the next command."""
        entry.connection.allow_silence(self._idle_silence)
        with self._lock:
            entry.in_use, entry.idle_since = False, self._clock.monotonic()
            self._last_used = entry.idle_since

    def discard(self, entry: _Entry) -> None:
        """Close a connection for good."""
        with self._lock:
            self._entries[entry.address].remove(entry)
            self._last_used = self._clock.monotonic()
        entry.connection.close()

    def has(self, targets: Iterable[Target]) -> bool:
        """Tell whether there is a live connection to one of these."""
        wanted = set(targets)
        with self._lock:
            return any(each.target in wanted and each.connection.alive for each in self._all())

    def close_idle(self) -> None:
        """Close the connections that nobody has used for the idle time, and those that broke."""
        limit = self._clock.monotonic() - self._idle_seconds
        with self._lock:
            addresses = list(self._entries)
            unfit = self._removed(
                addresses, lambda each: each.idle_since < limit or not each.connection.alive
            )
        for each in unfit:
            each.connection.close()

    @property
    def idle(self) -> bool:
        """Whether there is no connection, and there was none for the idle time."""
        with self._lock:
            unused = self._clock.monotonic() - self._last_used
            return unused > self._idle_seconds and not any(self._all())

    def overview(self) -> list[dict[str, object]]:
        """Return a document for each connection."""
        now = self._clock.monotonic()
        with self._lock:
            return [
                {
                    **{name: getattr(each.target, name) for name in _SHOWN},
                    "busy": each.in_use,
                    "idle_seconds": 0.0 if each.in_use else round(now - each.idle_since, 1),
                }
                for each in self._all()
            ]

    def close(self) -> None:
        """Close every connection; whoever runs a command on one gets `TransportFailed`."""
        for connector in self._connectors.values():
            connector.close()

    def _connected(self, target: Target, key: KeyPair, deadline: Deadline) -> _Entry:
        with self._lock:
            connector = self._connectors.setdefault(
                key, Connector(key, self._clock, silence_seconds=self._busy_silence)
            )
        entry = _Entry(target, key, connector.connect_once(target, deadline))
        with self._lock:
            self._entries[entry.address].append(entry)
        return entry

    def _taken(self, target: Target, key: KeyPair) -> _Entry | None:
        """Take an idle connection that was made for exactly this; close the others."""
        address = _address(target)
        with self._lock:
            self._last_used = self._clock.monotonic()
            unfit = self._removed([address], lambda each: not each.serves(target, key))
            fit = next((each for each in self._entries[address] if not each.in_use), None)
            if fit:
                fit.in_use = True
        for each in unfit:
            each.connection.close()
        if fit:
            fit.connection.allow_silence(self._busy_silence)
        return fit

    def _removed(
        self, addresses: Iterable[Address], unfit: Callable[[_Entry], bool]
    ) -> list[_Entry]:
        """Take the idle connections that are `unfit` out of the pool, and return them."""
        found: list[_Entry] = []
        for address in addresses:
            out = [each for each in self._entries[address] if not each.in_use and unfit(each)]
            self._entries[address] = [each for each in self._entries[address] if each not in out]
            found += out
        return found

    def _all(self) -> Iterator[_Entry]:
        return (each for entries in self._entries.values() for each in entries)


@dataclass(eq=False)
class _Entry:
    """A connection of the pool, and what it was proved against."""

    target: Target
    key: KeyPair
    connection: Connection
    in_use: bool = True
    idle_since: float = 0.0

    @property
    def address(self) -> Address:
        return _address(self.target)

    def serves(self, target: Target, key: KeyPair) -> bool:
        """Tell whether it was made for exactly this: the same worker, host keys and key of ours."""
        return self.target == target and self.key == key and self.connection.alive


class PooledConnection(Connection):
    """One command's use of a connection: closed, it goes back if every command on it has ended."""

    def __init__(self, pool: Pool, entry: _Entry) -> None:
        made = entry.connection
        super().__init__(made.target, made._transport, made._socket, made._clock)
        self._pool = pool
        self._entry = entry
        self._running = 0
        self._released = False
        self._lock = threading.Lock()

    def run(self, command: str, **given: Any) -> Completed:
        """Run a command at most once, as `Connection.run` does."""
        with self._lock:
            self._running += 1
        done = super().run(command, **given)
        with self._lock:
            self._running -= 1
        return done

    def close(self) -> None:
        """Give the connection back, or close it where a command on it was not seen to end."""
        with self._lock:
            released, self._released = self._released, True
        if not released:
            (self._pool.discard if self._running else self._pool.release)(self._entry)

    def _session(self, deadline: Deadline) -> Any:
        return super()._session(deadline.within(_FIRST_ANSWER_SECONDS))


def _address(target: Target) -> Address:
    return target.address, target.port, target.user
