"""Start, find and stop the emulator of a directory; every command can import this module."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tpukit.emulator.core.operation_metadata import DEFAULT, OPERATION_METADATA, VARIABLE
from tpukit.emulator.core.places import PROJECT, ZONE
from tpukit.emulator.process.home import ENGINES, READY, EmulatorHome, RunningEmulator, exclusively
from tpukit.errors import BadInput, Fix, NotFound, TpukitError, from_document
from tpukit.text import one_line

if TYPE_CHECKING:
    import psutil

#: gcloud's names of the services that its TPU commands use, besides Compute Engine.
_SERVICES = ("TPU", "OSLOGIN", "CLOUDRESOURCEMANAGER", "SERVICEUSAGE", "CLOUDQUOTAS", "IAM")
#: The variables that name trusted certificates for Python's libraries (requests, ssl, httplib2),
#: curl, gRPC and gcloud.
_BUNDLE_VARIABLES = (
    *("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "HTTPLIB2_CA_CERTS", "CURL_CA_BUNDLE"),
    *("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE"),
)
#: The variables that list hosts to reach without a proxy: programs read one spelling or the other.
_EXCEPTIONS = ("no_proxy", "NO_PROXY")
_ANSWER_SECONDS = 10.0
#: Seconds for an emulator to end before it is killed, and then to disappear.
STOP_SECONDS = 30.0
#: The longest duration of a create, in seconds.
LONGEST_CREATE = 86400.0
#: The most bytes of a starting emulator's report: `READY`, or the document of its error.
_LONGEST_REPORT = 1 << 16


@dataclass(frozen=True)
class Owner:
    """A program with an emulator that ends when the program ends, in whatever way."""

    descriptor: int  #: reaches its end when the owner is gone
    directory: Path  #: the directory to remove then


def start(
    directory: Path,
    create_seconds: float = 2.0,
    port: int = 0,
    timeout: float = 120.0,
    engine: str = "auto",
    owner: Owner | None = None,
    operation_metadata: str = "",
    answer_seconds: float = _ANSWER_SECONDS,
) -> RunningEmulator:
    """Return the directory's emulator; start it in the background unless it runs already.

    Nodes are CREATING for `create_seconds`, at most a day. `port` 0 takes a free port. `engine` is
    one of `home.ENGINES`. With an `owner`, the emulator ends when its owner ends.
    `operation_metadata` is one of `OPERATION_METADATA`; by default the environment variable
    TPUKIT_EMULATOR_OPERATION_METADATA decides, and without it `DEFAULT`.

    Raises `BadInput` for other values, and `TpukitError` with the last lines of the log if the
    emulator does not start within `timeout` seconds, or runs but does not answer within
    `answer_seconds`.
    """
    _check_number("create_seconds", create_seconds, LONGEST_CREATE, float)
    _check_number("port", port, 65535, int)
    if engine not in ENGINES:
        raise BadInput(
            f"unknown engine: {one_line(engine)}", fix=Fix(note=f"--engine {'|'.join(ENGINES)}")
        )
    kind = operation_metadata or os.environ.get(VARIABLE) or DEFAULT
    if kind not in OPERATION_METADATA:
        raise BadInput(
            f"unknown operation metadata: {one_line(kind)}",
            fix=Fix(note=f"--operation-metadata {'|'.join(OPERATION_METADATA)}"),
        )
    home = EmulatorHome(directory)
    home.create()
    options = ["--create-seconds", str(create_seconds), "--port", str(port)]
    options += ["--engine", engine, "--operation-metadata", kind]
    with exclusively(home.path / "start.lock"):
        return running(directory, answer_seconds) or _spawn(home, options, timeout, owner)


def running(directory: Path, answer_seconds: float = _ANSWER_SECONDS) -> RunningEmulator | None:
    """Return the directory's emulator, or None if none runs.

    Raises `TpukitError` if one runs but does not answer within `answer_seconds`.
    """
    home = EmulatorHome(directory)
    give_up_at = time.monotonic() + answer_seconds
    while home.is_locked():  # an emulator that starts soon answers; one that ends soon unlocks
        emulator = home.published()
        if emulator and _answers(emulator, answer_seconds):
            return emulator
        if time.monotonic() >= give_up_at:
            raise _silent(home)
        time.sleep(0.05)
    return None


def _silent(home: EmulatorHome) -> TpukitError:
    """Return the error for a home with an emulator that runs but does not answer."""
    processes = " and ".join(str(pid) for pid in home.holder())
    note = "asks again; `tpukit emulator stop` ends its workers' processes and keeps its slices"
    return TpukitError(
        f"the emulator in {one_line(str(home.path))} runs but does not answer",
        reason=f"process {processes}" if processes else "",
        why=_log_tail(home),
        fix=Fix.command("tpukit", "emulator", "status", note=note),
    )


def stop(directory: Path) -> bool:
    """End the directory's emulator and its workers' processes; return True if one ran.

    Its nodes stay in the directory for the next start. Raises `TpukitError` if it survives KILL.
    """
    home = EmulatorHome(directory)
    emulator = home.published()
    if not home.is_locked():
        _clean_up(home)  # after an emulator that was killed together with its guardian
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _live_pids(home, emulator):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if _gone(home, emulator, STOP_SECONDS):
            _clean_up(home)
            return True
    raise TpukitError(f"the emulator in {home.path} does not end", why=_log_tail(home))


def stop_all(
    directory: Path, mine: Callable[[psutil.Process], bool] | None = None
) -> tuple[list[Path], int]:
    """End every emulator of this user, and the leftover processes of killed emulators.

    Returns the directories of the emulators that ran, and the number of leftover processes. It
    checks `directory` in any case; `mine` selects the processes to consider.
    """
    from tpukit.emulator.workers import processes

    mine = mine or processes.of_this_user
    stopped = [place for place in _directories(directory, mine) if stop(place)]
    left = [process for process in processes.marked_by_any() if mine(process)]
    processes.end(lambda: [process for process in processes.marked_by_any() if mine(process)])
    return stopped, len(left)


def all_running(
    directory: Path, mine: Callable[[psutil.Process], bool] | None = None
) -> list[Path]:
    """Return the directories of the emulators that `stop_all` would end."""
    from tpukit.emulator.workers import processes

    places = _directories(directory, mine or processes.of_this_user)
    return [place for place in places if EmulatorHome(place).is_locked()]


def _directories(directory: Path, mine: Callable[[psutil.Process], bool]) -> list[Path]:
    from tpukit.emulator.workers import processes

    return sorted({directory.absolute(), *processes.emulator_directories(mine)})


def environment(
    directory: Path,
    emulator: RunningEmulator | None = None,
    around: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return the variables that point gcloud and tpukit at the directory's running emulator.

    Without `emulator`, look for it. If `around`, the present environment, names proxies, the
    variables keep clients from asking them. Raises `NotFound` if no emulator runs.
    """
    emulator = emulator or expected(directory)
    return {
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{emulator.url}/compute/v1/",
        **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": f"{emulator.url}/" for name in _SERVICES},
        **_gcloud_settings(directory),
        **_past_proxies(around, ["127.0.0.1"]),
    }


def impersonation(directory: Path) -> dict[str, Any]:
    """Return address, names and files of the listener for Google's names: `Impersonation.show`.

    Raises `NotFound` if no emulator runs, or if it has no such listener.
    """
    from tpukit.emulator.control_client import EmulatorClient

    running = expected(directory)
    listener = EmulatorClient(running.url, running.token).impersonation()
    if not listener:
        raise NotFound(
            "the emulator does not answer by Google's names",
            fix=Fix.command("tpukit", "emulator", "start", "--impersonate"),
        )
    return listener


def real_name_environment(
    directory: Path, around: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables for clients that call the directory's emulator by Google's names.

    `around` has the same meaning as for `environment`. Raises `NotFound` like `impersonation`.
    """
    listener = impersonation(directory)
    return {
        **dict.fromkeys(_BUNDLE_VARIABLES, str(listener["bundle"])),
        "NODE_EXTRA_CA_CERTS": str(listener["authority"]),
        "GOOGLE_APPLICATION_CREDENTIALS": str(listener["credentials"]),
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        **_gcloud_settings(directory),
        **_past_proxies(around, ["127.0.0.1", *listener["names"]]),
    }


def _past_proxies(around: Mapping[str, str], hosts: Sequence[str]) -> dict[str, str]:
    """Return the variables that keep clients from using a proxy for these hosts.

    They are {} if no proxy is set. A proxy cannot reach this machine's loopback, and would see the
    token.
    """
    named = {name for name in around if name.lower().endswith("_proxy") and around[name]}
    if not named - {*_EXCEPTIONS}:
        return {}
    known = next((around[name] for name in _EXCEPTIONS if name in named), "").strip()
    if known == "*":  # "*" alone means every host
        return dict.fromkeys(_EXCEPTIONS, known)
    exceptions = ",".join(dict.fromkeys([*filter(None, map(str.strip, known.split(","))), *hosts]))
    return dict.fromkeys(_EXCEPTIONS, exceptions)


def _gcloud_settings(directory: Path) -> dict[str, str]:
    return {
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(EmulatorHome(directory).token_file),
        "CLOUDSDK_CORE_PROJECT": PROJECT,
        "CLOUDSDK_COMPUTE_ZONE": ZONE,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
    }


def expected(directory: Path) -> RunningEmulator:
    """Return the directory's emulator; raise `NotFound` if none runs."""
    emulator = running(directory)
    if emulator is None:
        raise NotFound(
            f"no emulator runs in {one_line(str(directory))}",
            fix=Fix.command("tpukit", "emulator", "start"),
        )
    return emulator


def _spawn(
    home: EmulatorHome, options: Sequence[str], timeout: float, owner: Owner | None
) -> RunningEmulator:
    ready, theirs = os.pipe()
    # -P: never import a file such as random.py from the user's current directory.
    words = [sys.executable, "-P", "-m", "tpukit.emulator", "--directory", str(home.path)]
    words += [*options, "--ready-descriptor", str(theirs)]
    inherited = [theirs]
    if owner is not None:
        words += ["--owner-descriptor", str(owner.descriptor)]
        words += ["--owned-directory", str(owner.directory)]
        inherited.append(owner.descriptor)
    log = home.open_log()
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=inherited,
            start_new_session=True,
        )
    finally:
        os.close(theirs)
        os.close(log)
    report = os.read(ready, _LONGEST_REPORT) if select.select([ready], [], [], timeout)[0] else b""
    os.close(ready)
    emulator = home.published() if report == READY else None
    if emulator is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise _refusal(report) or TpukitError(
            "the emulator did not start",
            why=_log_tail(home) or "it could not even write to its log: the disk may be full",
            fix=Fix.command("less", str(home.log)),
        )
    # The emulator outlives this process; this keeps Popen from warning about that.
    process.returncode = 0
    return emulator


def _check_number(name: str, value: object, most: float, kind: type) -> None:
    fits = isinstance(value, int | kind) and not isinstance(value, bool)
    if not (fits and 0 <= value <= most):  # type: ignore[operator]
        raise BadInput(f"{name} is a number from 0 to {most:g}, not {one_line(str(value))}")


def _refusal(report: bytes) -> TpukitError | None:
    """Return the error that a starting emulator reported, or None."""
    try:
        return from_document(json.loads(report))
    except (ValueError, TypeError, KeyError):
        return None


def _answers(emulator: RunningEmulator, seconds: float) -> bool:
    """Return True if an emulator answers HTTP: a killed one may still accept connections."""
    address = urlsplit(emulator.url)
    try:
        with socket.create_connection((address.hostname, address.port), seconds) as asking:
            asking.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return asking.recv(1) == b"H"
    except OSError:
        return False


def _live_pids(home: EmulatorHome, emulator: RunningEmulator | None) -> list[int]:
    """Return the living processes of the emulator, not later ones with the same numbers.

    The lock identifies the guardian, even if `emulator.json` is unreadable.
    """
    import psutil

    living = []
    guardian = home.holder()
    for pid in {*((emulator.guardian, emulator.pid) if emulator else ()), *guardian}:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            same = guardian.get(pid) == process.create_time() or _is_emulator(process)
            if same and process.status() != psutil.STATUS_ZOMBIE:
                living.append(pid)
    return living


def _is_emulator(process: psutil.Process) -> bool:
    return "tpukit.emulator" in process.cmdline()


def _clean_up(home: EmulatorHome) -> None:
    from tpukit.emulator.workers import processes

    if home.identity_file.exists():
        processes.end(lambda: processes.marked(f"{home.identity()}/"))
    for guardian in home.holder():
        with contextlib.suppress(ChildProcessError):  # another process may have started it
            os.waitpid(guardian, os.WNOHANG)
    home.document.unlink(missing_ok=True)


def _gone(home: EmulatorHome, emulator: RunningEmulator | None, seconds: float) -> bool:
    give_up_at = time.monotonic() + seconds
    while home.is_locked() or _live_pids(home, emulator):
        if time.monotonic() >= give_up_at:
            return False
        time.sleep(0.02)
    return True


def _log_tail(home: EmulatorHome) -> str:
    try:
        lines = home.log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return "\n".join(one_line(line) for line in lines[-3:])
