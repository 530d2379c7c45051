"""Connections to workers: they check the host key, then offer one key, then run commands.

The first connection imports `transport`, and with it paramiko, which takes 135 ms.
"""

from __future__ import annotations

import ipaddress
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tpukit.clock import Clock, Deadline, polls
from tpukit.errors import DeadlinePassed, HostKeyMismatch, TransportFailed
from tpukit.ssh.channel import Exchange, OnOutput
from tpukit.ssh.dial import LOOPBACK, Dial, direct
from tpukit.ssh.handshake import no_answer, pins, seconds
from tpukit.ssh.keys import KeyPair
from tpukit.ssh.target import Completed, Target
from tpukit.ssh.watchdog import WatchedSocket
from tpukit.text import counted, one_line, quote

#: The most handshakes at the same time: more would only compete for this machine's processors.
HANDSHAKES = 32
#: Receives a file on standard input and moves it into place only if it is complete: `cat` cannot
#: tell a lost connection from the end of the file.
_RECEIVE = (
    'umask 077; new="$1.$$"; mkdir -p -- "$(dirname -- "$1")" && cat >"$new" '
    '&& [ "$(wc -c <"$new")" -eq "$2" ] && mv -f -- "$new" "$1" || { rm -f -- "$new"; exit 1; }'
)

AfterFailure = Callable[[Target, TransportFailed | HostKeyMismatch], Target]


def try_again(target: Target, error: TransportFailed | HostKeyMismatch) -> Target:
    """Return the same target; raise a `HostKeyMismatch` again."""
    if isinstance(error, HostKeyMismatch):
        raise error
    return target


@dataclass(eq=False)
class Connector(AbstractContextManager["Connector"]):
    """Makes connections with one key; `close` closes them all.

    `private_keys` has the loaded keys by file.
    """

    key: KeyPair
    clock: Clock
    attempt_seconds: float = 10.0
    silence_seconds: float = 30.0
    dial: Dial = direct
    private_keys: dict[Path, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.closed = False  #: True since `close`: what is lost from then on is no news
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._handshakes = threading.Semaphore(HANDSHAKES)

    def connect(
        self, target: Target, deadline: Deadline, after_failure: AfterFailure = try_again
    ) -> Connection:
        """Return an authenticated connection; try until the deadline.

        Retries are safe, because no command has run yet. They are needed, because sshd starts late,
        and firewall rules and new keys take effect late (a key about 25 s after it is written to
        the metadata). After each failed attempt, `after_failure` returns the next target, or
        raises.

        Raises:
            SecurityRefusal: no host key is pinned.
            HostKeyMismatch: at once, before our key is used.
            AuthenticationFailed: the worker still refused our key at the deadline.
            TransportFailed: nothing answered by the deadline; the reason is the last cause.
        """
        _check_address(target)
        started, attempts = self.clock.monotonic(), 0
        for remaining in polls(deadline):
            if attempts and (not remaining or self.closed):
                break
            attempts += 1
            try:
                return self.connect_once(target, deadline)
            except (TransportFailed, HostKeyMismatch) as error:
                last = error
                target = after_failure(target, error)
        if isinstance(last, HostKeyMismatch):
            raise last
        spent = self.clock.monotonic() - started
        raise type(last)(
            last.what,
            reason=last.reason,
            why=f"{counted(attempts, 'attempt')} in {spent:.0f} s",
            fix=last.fix,
            details={"worker": target.worker, "address": target.address, "attempts": attempts},
        ) from last

    def connect_once(self, target: Target, deadline: Deadline) -> Connection:
        """Return an authenticated connection after one attempt, or raise as `connect` does."""
        from tpukit.ssh import transport

        _check_address(target)
        pinned, private = pins(target), self._private(target.identity_file)
        try:
            connected = self.dial(target, deadline)
        except OSError as error:
            raise no_answer(target, error) from error
        watched = WatchedSocket(connected, self.silence_seconds)
        # The dial comes before the limit on handshakes, so that dead workers do not use it up.
        if not self._handshakes.acquire(timeout=seconds(deadline)):
            watched.close()
            raise no_answer(target, TimeoutError())
        try:
            attempt = deadline.within(self.attempt_seconds)
            session = transport.authenticated(watched, target, pinned, private, attempt)
        except BaseException:
            watched.close()
            raise
        finally:
            self._handshakes.release()
        if not pinned:
            shown = session.get_remote_server_key()
            line = f"{shown.get_name()} {shown.get_base64()}"
            target = replace(target, host_keys=(line,), accept_new=False)
        connection = Connection(target, session, watched)
        with self._lock:
            self._connections.add(connection)
        if self.closed:
            connection.close()
        return connection

    def close(self) -> None:
        """Close every connection; running commands raise `TransportFailed`."""
        with self._lock:
            self.closed = True
            connections = list(self._connections)
        for connection in connections:
            connection.close()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def unlock(self, ask: Callable[[Path], str]) -> None:
        """Load the user's own key, from an agent or its file; do nothing for tpukit's key.

        `ask` returns the passphrase of a file, and may be called three times. Raises
        `AuthenticationFailed` if the key cannot be used, and the errors of `ask`.
        """
        from tpukit.ssh import private_keys

        if self.key.users_own and self.key.private_path not in self.private_keys:
            self.private_keys[self.key.private_path] = private_keys.own_key(
                self.key, ask, self.attempt_seconds
            )

    def unlocked(self) -> bytes:
        """Return the user's own key without its passphrase; b"" if `unlock` has asked for none."""
        from tpukit.ssh import private_keys

        loaded = self.private_keys.get(self.key.private_path)
        return private_keys.unlocked(self.key, loaded) if self.key.users_own and loaded else b""

    def _private(self, identity_file: str) -> Any:
        """Return the private key of a file, or the connector's key; load each once."""
        from tpukit.ssh import private_keys

        path = Path(identity_file or self.key.private_path)
        with self._lock:
            if path not in self.private_keys:
                self.private_keys[path] = private_keys.private_key(path)
            return self.private_keys[path]


@dataclass(eq=False)
class Connection(AbstractContextManager["Connection"]):
    """An authenticated connection to one worker. Several threads may run commands over it."""

    target: Target
    _transport: Any
    _socket: WatchedSocket

    @property
    def label(self) -> str:
        return self.target.label

    @property
    def alive(self) -> bool:
        """True unless the connection is known to be lost."""
        return bool(self._transport.is_active())

    def run(
        self,
        command: str,
        *,
        stdin: bytes | Iterable[bytes] = b"",
        on_output: OnOutput | None = None,
        deadline: Deadline,
        keep: int = 4 << 20,
    ) -> Completed:
        """Run a shell command at most once and return its result.

        `on_output` gets each chunk as `("stdout" | "stderr", bytes)`, unsanitized. The result keeps
        the last `keep` bytes of each stream.

        Raises:
            TransportFailed: the connection broke. The command may have run, unless the error denies
                it.
            DeadlinePassed: the session was closed; the command may still run.
        """
        deadline.check(f"no time is left for a command on {self.label}")
        what, refused = f"{self.label} did not start the command", "it allows no further session"
        with self._asking(what, refused, why="nothing has run"):
            session = self._transport.open_session(timeout=seconds(deadline))
        exchange = Exchange(session, on_output, keep)
        status = exchange.run(command, stdin, deadline)
        if status is None:
            raise DeadlinePassed(
                f"a command on {self.label} did not end in time",
                why="its session was closed; the command may still be running",
            )
        if status < 0:
            raise TransportFailed(
                f"lost {self.label} while a command ran",
                reason=self._cause("no exit status came"),
                why="the command may have run, and may still be running",
            )
        out, err, dropped = exchange.stdout, exchange.stderr, exchange.dropped
        return Completed(status, bytes(out), bytes(err), dropped["stdout"], dropped["stderr"])

    def upload(self, data: bytes, path: str, *, deadline: Deadline) -> None:
        """Write a private file on the worker, completely or not at all, and create its folder.

        `path` is absolute or relative to the home folder; `~` is not expanded.

        Raises:
            TransportFailed: the connection broke, or the worker could not write the file.
            DeadlinePassed: the file is not written yet.
        """
        command = quote(["sh", "-c", _RECEIVE, "sh", path, str(len(data))])
        done = self.run(command, stdin=data, deadline=deadline)
        if not done.ok:
            what = f"could not write {one_line(path)} on {self.label}"
            raise TransportFailed(what, reason=done.reason)

    def dial(self, place: tuple[str, int], deadline: Deadline) -> Any:
        """Return a stream (a paramiko channel) from the worker to an (address, port).

        Raises `TransportFailed` if nothing answers there, or the connection broke.
        """
        what = f"{self.label} does not connect to {one_line('{}:{}'.format(*place))}"
        with self._asking(what, refused="nothing answers there"):
            origin, limit = (LOOPBACK, 0), seconds(deadline)
            return self._transport.open_channel("direct-tcpip", place, origin, timeout=limit)

    def close(self) -> None:
        """Close the connection at once; everything that waits on it fails."""
        self._socket.abort("it was closed here")
        self._transport.close()
        self._socket.close()

    def __exit__(self, *raised: object) -> None:
        self.close()

    @contextmanager
    def _asking(self, what: str, refused: str, why: str = "") -> Iterator[None]:
        """Raise failures of the block as `TransportFailed`."""
        from tpukit.ssh.transport import FAILURES

        try:
            yield
        except FAILURES as error:
            code = getattr(error, "code", 0)  # of a refused channel: RFC 4254, section 5.1
            known = {0: "no answer came in time", 1: "the worker does not allow it"}
            cause = self._cause(known.get(code, refused))
            raise TransportFailed(what, reason=cause, why=why) from error

    def _cause(self, otherwise: str) -> str:
        # Channels notice a broken connection a moment before the transport's thread ends.
        self._transport.join(0.2)
        return self._socket.fault or (otherwise if self.alive else "the connection broke")


def _check_address(target: Target) -> None:
    """Raise `TransportFailed` for a host name: a resolver must not decide the destination."""
    try:
        ipaddress.ip_address(target.address)
    except ValueError:
        address = one_line(target.address)
        raise TransportFailed(f"{target.label} has no IP address", reason=address) from None
