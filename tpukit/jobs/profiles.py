"""Traces of running programs, captured through their profiler's server, for XProf.

`jax.profiler.start_server` of JAX and `start_server` of torch_xla start the same gRPC service
(openxla/xla: xla/tsl/profiler/rpc). It records for a while, and then writes the trace to a file on
its own machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tpukit.clock import Deadline
from tpukit.errors import DeadlinePassed, Fix, NotFound, TpukitError, TransportFailed
from tpukit.files.download import Source, download
from tpukit.files.upload import TransferContext
from tpukit.ssh.dial import LOOPBACK
from tpukit.ssh.fan_out import Outcome, fan_out
from tpukit.ssh.forwarding import Forward, Tunnels
from tpukit.ssh.programs import shell_line
from tpukit.ssh.worker import RemoteWorker, RetryingConnection
from tpukit.text import one_line

_METHOD = "/tensorflow.ProfilerService/Profile"
#: Make the folder of the file, because a program that runs as root would make one that the user
#: cannot remove. Remove traces that came too late, a day ago.
_PREPARE = """\
umask 077
mkdir -p "$tpukit/profiles/$1/$2" || exit
find "$tpukit/profiles" -mindepth 1 -maxdepth 1 -mtime +0 -exec rm -rf {} + 2>/dev/null
echo "${TPUKIT_EMULATED_DEVICES:-0}:$tpukit/profiles/$1"
"""
_PLACE = re.compile(r"^(\d{1,4}):(/.*)\n\Z", re.ASCII | re.MULTILINE)
_WHY = "the program has not started one yet, or it has ended"
_CONTAINER = Fix(note="a program in a container needs the worker's folder ~/.tpukit at its place")
_REMOVE = 'rm -rf "$tpukit/profiles/$1"\n'


@dataclass(frozen=True)
class Profile:
    """A trace to capture: its port on the workers, its length, its id, and XProf's folder here."""

    port: int
    seconds: float
    id: str
    directory: Path

    def path(self, worker: RemoteWorker) -> Path:
        """Return the path of a worker's trace, where XProf looks for it."""
        return self.directory / "plugins/profile" / self.id / f"{_host(worker)}.xplane.pb"


@dataclass(frozen=True)
class Trace:
    """The file of a worker's trace; `emulated` counts the CPU devices in place of a TPU."""

    path: Path
    emulated: int


def capture(
    profile: Profile, workers: Sequence[RemoteWorker], context: TransferContext
) -> list[Outcome[RemoteWorker, Trace]]:
    """Capture and fetch a trace from every worker at the same time.

    A worker fails if no profiler's server listens on the port, or if it is silent for longer than
    the context allows.
    """

    def one(worker: RemoteWorker) -> Trace:
        with context.connection(worker) as link:
            # A folder for each worker, because workers may share a home folder.
            words = (f"{profile.id}.{worker.record}", profile.id)
            done = link.run(shell_line(_PREPARE, words))
            place = _PLACE.search(done.text)  # a login script may have written lines before it
            if not done.ok or not place:
                what = f"{worker.label} has no place for a trace"
                raise TpukitError(what, reason=done.reason)
            emulated, folder = place.groups()
            try:
                _ask(profile, worker, link, folder, context.silence)
                link.deadline.renew()
                path = profile.path(worker)
                source = Source(f"{folder}/{profile.id}/{path.name}")
                download(link, source, path, context, into=False)
            except NotFound as error:
                if error.fix is None:
                    error.fix = _CONTAINER
                raise
            finally:
                if not link.deadline.passed():
                    with suppress(TpukitError):
                        link.run(shell_line(_REMOVE, words))
        return Trace(path, int(emulated))

    return fan_out(workers, one, window=len(workers), cancel=context.cancel)


def _ask(
    profile: Profile, worker: RemoteWorker, link: RetryingConnection, folder: str, silence: float
) -> None:
    """Have the program on a worker record, and write its trace into a folder there."""
    import grpc

    connection, limit = link.connection, Deadline.after(link.deadline.clock, silence)
    try:
        connection.dial((LOOPBACK, profile.port), limit).close()
    except TransportFailed as error:
        if limit.passed() or not connection.alive:
            raise
        what = f"no profiler's server listens on port {profile.port} of {worker.label}"
        raise NotFound(what, why=_WHY, fix=_fix(profile.port)) from error
    request = _request(profile, folder, _host(worker))
    with Tunnels(worker.connect, [Forward(0, profile.port)], limit.clock) as tunnels:
        (forward,) = tunnels.open()
        options = [("grpc.enable_http_proxy", 0)]
        with grpc.insecure_channel(f"{LOOPBACK}:{forward.listen}", options=options) as channel:
            try:
                channel.unary_unary(_METHOD)(request, timeout=profile.seconds + silence)
            except grpc.RpcError as error:
                raise _failure(profile, worker, error) from error


def _fix(port: int) -> Fix:
    return Fix(note=f"add jax.profiler.start_server({port}) at the start of the program")


def _failure(profile: Profile, worker: RemoteWorker, error: object) -> TpukitError:
    """Return the error for a failed call: gRPC's code and its text, which the program sent."""
    import grpc

    code, text = error.code(), one_line(error.details() or "")[:200]  # type: ignore[attr-defined]
    at = f"on port {profile.port} of {worker.label}"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        what = f"the program {at} has not sent its trace in time"
        note = (
            "record less (--for 1s) or wait longer (--timeout 5m), if no other program has the port"
        )
        return DeadlinePassed(what, fix=Fix(note=note))
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED):
        what = f"the program {at} is no profiler's server, or has ended"
        return TpukitError(what, reason=text, fix=_fix(profile.port))
    return TpukitError(f"the profiler {at} has failed", reason=text or code.name.lower())


def _host(worker: RemoteWorker) -> str:
    """Return the name of a worker in XProf."""
    return f"{worker.slice}-worker-{worker.index}"


def _request(profile: Profile, folder: str, host: str) -> bytes:
    """Return a ProfileRequest: tsl/profiler/protobuf/profiler_service.proto.

    The options are those of XProf's own dialog: what programs annotate and what XLA does, without
    each call of a Python function. The length is sent twice, because older servers read the first.
    """
    milliseconds = round(profile.seconds * 1000)
    version, host_level, device_level, hlo_proto = (5, 1), (2, 2), (3, 1), (7, 1)
    options = (version, host_level, device_level, hlo_proto, (9, milliseconds))
    fields: list[tuple[int, int | bytes]] = [
        (1, milliseconds),
        (4, _message(options)),
        (5, folder.encode("utf-8", "surrogateescape")),
        (6, profile.id.encode()),
        (7, host.encode()),
    ]
    return _message(fields)


def _message(fields: Sequence[tuple[int, int | bytes]]) -> bytes:
    """Return fields with their numbers in protobuf's encoding."""
    return b"".join(
        bytes([number << 3]) + _varint(value)
        if isinstance(value, int)
        else bytes([number << 3 | 2]) + _varint(len(value)) + value
        for number, value in fields
    )


def _varint(value: int) -> bytes:
    septets = []
    while value > 127:
        septets.append(value & 127 | 128)
        value >>= 7
    return bytes([*septets, value])
