"""Connections that outlive a command, each lent to one command at a time."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tpukit.clock import Clock, Deadline
from tpukit.errors import TpukitError
from tpukit.remote.keys import KeyPair
from tpukit.remote.ssh import Connection, Connector, NotStarted
from tpukit.remote.values import Completed, Target

#: Seconds of silence after which a worker is given up: while a command runs on it, and while not.
_BUSY_SILENCE, _IDLE_SILENCE = 12.0, 60.0
#: Seconds in which a worker has to begin a command: nobody knows what became of it meanwhile.
_FIRST_ANSWER_SECONDS = 5.0
#: Seconds for another connection in place of one that broke while nobody used it.
_AGAIN_SECONDS = 10.0


Place = tuple[str, int, str]  #: address, port, user


@dataclass(eq=False)
class Kept:
    """A connection, what it was proved against, and since when nobody uses it."""

    target: Target
    key: KeyPair
    connection: Connection
    lent: bool = True
    since: float = 0.0

    @property
    def place(self) -> Place:
        return _place(self.target)

    def serves(self, target: Target, key: KeyPair) -> bool:
        """Tell whether it was made for exactly this: the same worker, host keys and key of ours."""
        return self.target == target and self.key == key and self.connection.alive


class Pool:
    """Lends connections and takes them back; those that nobody used for a while are closed."""

    def __init__(self, clock: Clock, idle_seconds: float) -> None:
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._kept: defaultdict[Place, list[Kept]] = defaultdict(list)
        self._connectors: dict[KeyPair, Connector] = {}
        self._used = clock.monotonic()
        self._lock = threading.Lock()

    def lend(self, target: Target, key: KeyPair, deadline: Deadline) -> Lent:
        """Return a connection that is kept, or else a new one; closing it gives it back.

        What is kept for the same place with other host keys is closed: the worker was made anew.
        """
        kept = self._free(target, key) or self._new(target, key, deadline)
        return Lent(self, kept, self._clock)

    def replace(self, kept: Kept) -> Kept:
        """Return a new connection in place of one that turned out to be broken."""
        self.discard(kept)
        return self._new(kept.target, kept.key, Deadline.after(self._clock, _AGAIN_SECONDS))

    def touch(self) -> None:
        """Count the idle time from now on."""
        with self._lock:
            self._used = self._clock.monotonic()

    def take_back(self, kept: Kept) -> None:
        """Keep a connection for the next command."""
        kept.connection.allow_silence(_IDLE_SILENCE)
        with self._lock:
            kept.lent, kept.since = False, self._clock.monotonic()
            self._used = kept.since

    def discard(self, kept: Kept) -> None:
        """Close a connection for good."""
        with self._lock:
            self._kept[kept.place] = [each for each in self._kept[kept.place] if each is not kept]
            self._used = self._clock.monotonic()
        kept.connection.close()

    def has(self, targets: Iterable[Target]) -> bool:
        """Tell whether a live connection to one of these is kept."""
        wanted = set(targets)
        with self._lock:
            return any(each.target in wanted and each.connection.alive for each in self._all())

    def close_idle(self) -> None:
        """Close the connections that nobody has used for the idle time, and those that broke."""
        limit = self._clock.monotonic() - self._idle_seconds
        with self._lock:
            stale = self._taken_out(
                list(self._kept), lambda each: each.since < limit or not each.connection.alive
            )
        for each in stale:
            each.connection.close()

    @property
    def idle(self) -> bool:
        """Whether nothing is kept or lent, and nothing was for the idle time."""
        with self._lock:
            unused = self._clock.monotonic() - self._used
            return unused > self._idle_seconds and not any(self._all())

    def overview(self) -> list[dict[str, object]]:
        """Return a document for each connection."""
        now = self._clock.monotonic()
        with self._lock:
            return [
                {
                    "label": each.target.label,
                    "address": each.target.address,
                    "port": each.target.port,
                    "user": each.target.user,
                    "busy": each.lent,
                    "idle_seconds": 0.0 if each.lent else round(now - each.since, 1),
                }
                for each in self._all()
            ]

    def close(self) -> None:
        """Close every connection; whoever runs a command on one hears that it is lost."""
        for connector in self._connectors.values():
            connector.close()

    def _new(self, target: Target, key: KeyPair, deadline: Deadline) -> Kept:
        with self._lock:
            connector = self._connectors.setdefault(key, Connector(key, self._clock))
        kept = Kept(target, key, connector.connect_once(target, deadline))
        with self._lock:
            self._kept[kept.place].append(kept)
        return kept

    def _free(self, target: Target, key: KeyPair) -> Kept | None:
        place = _place(target)
        with self._lock:
            self._used = self._clock.monotonic()
            stale = self._taken_out([place], lambda each: not each.serves(target, key))
            fit = next((each for each in self._kept[place] if not each.lent), None)
            if fit:
                fit.lent = True
        for each in stale:
            each.connection.close()
        if fit:
            fit.connection.allow_silence(_BUSY_SILENCE)
        return fit

    def _taken_out(self, places: Iterable[Place], unfit: Callable[[Kept], bool]) -> list[Kept]:
        """Take those that nobody uses and that are `unfit` out of the pool, and return them."""
        found: list[Kept] = []
        for place in places:
            out = [each for each in self._kept[place] if not each.lent and unfit(each)]
            self._kept[place] = [each for each in self._kept[place] if each not in out]
            found += out
        return found

    def _all(self) -> Iterator[Kept]:
        return (each for kept in self._kept.values() for each in kept)


class Lent(Connection):
    """A connection on loan: closed, it is kept if every command on it was seen to end."""

    def __init__(self, pool: Pool, kept: Kept, clock: Clock) -> None:
        self._pool = pool
        self._going = 0
        self._closed = False
        self._lock = threading.Lock()
        self._take(kept, clock)

    def run(self, command: str, **how: Any) -> Completed:
        """Run a command at most once, as `Connection.run` does.

        A connection that broke while nobody used it is replaced: nothing has run over it.
        """
        with self._lock:
            self._going += 1
        try:
            done = super().run(command, **how)
        except NotStarted as broken:
            with self._lock:
                self._replace(broken)
            done = super().run(command, **how)
        with self._lock:
            self._going -= 1
        return done

    def close(self) -> None:
        with self._lock:
            broken, self._going = self._going, 0
            closed, self._closed = self._closed, True
        if not closed:
            (self._pool.discard if broken else self._pool.take_back)(self._kept)

    def _replace(self, broken: NotStarted) -> None:
        # Another command on it can only be one that ends this one. A silent worker is not asked for
        # another connection: the ordinary way says what is wrong with it.
        if self.alive or self._closed or self._going > 1 or self._socket.fault:
            raise broken
        try:
            self._take(self._pool.replace(self._kept), self._clock)
        except TpukitError as error:
            raise broken from error

    def _session(self, deadline: Deadline) -> Any:
        return super()._session(deadline.within(_FIRST_ANSWER_SECONDS))

    def _take(self, kept: Kept, clock: Clock) -> None:
        Connection.__init__(
            self, kept.target, kept.connection._transport, kept.connection._socket, clock
        )
        self._kept = kept


def _place(target: Target) -> Place:
    return target.address, target.port, target.user
