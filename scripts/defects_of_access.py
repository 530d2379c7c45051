"""What gcloud does wrong with keys, tunnels, and the slices that it asks for."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from comparison import NAME, PATIENCE, Comparison, Did, Finished, until

_V3 = ("--accelerator-type=v3-8", "--runtime-version=tpu-ubuntu2204-base")


def key_expiry(comparison: Comparison) -> None:
    """A flag that limits a key's life: kept, or refused, but never dropped without a word."""

    def judge(done: Finished) -> Did:
        kept = "expireOn" in comparison.described(NAME)["metadata"]["ssh-keys"]
        refused = done.returncode == 2 and "--ssh-key-expire-after" in done.stderr
        note = "kept" if kept else "says that there is no such flag" if refused else "dropped"
        return Did(f"exit {done.returncode}, {note}", kept or refused)

    flag = "--ssh-key-expire-after"
    key = f"--ssh-key-file={comparison.scratch('key')}"
    comparison.both(
        flag,
        lambda: judge(comparison.gcloud(f"{flag}=2m", key, "--worker=0", "--command=true")),
        lambda: judge(comparison.tpukit("ssh", NAME, flag, "2m", "--", "true")),
    )


def os_login(comparison: Comparison) -> None:
    """Where OS Login is on, no key of the metadata lets anybody in."""
    made = ("--accelerator-type=v3-8", "--version=tpu-ubuntu2204-base")
    comparison.any_gcloud("create", "login", *made, "--metadata=enable-oslogin=TRUE")
    comparison.arrange("firewall", "apply", "login")

    def judge(run: Callable[[], Finished]) -> Did:
        before = comparison.described("login")["metadata"]
        done = run()
        written = comparison.described("login")["metadata"] != before
        names = "OS Login" in done.stderr
        note = "gets in" if not done.returncode else "says why" if names else "does not say why"
        key = "a key in the metadata all the same" if written else "no key in the metadata"
        return Did(f"{note}, {key}", not written and (done.returncode == 0 or names))

    comparison.both(
        "a slice with OS Login",
        lambda: judge(lambda: comparison.any_gcloud("ssh", "login", "--command=true")),
        lambda: judge(lambda: comparison.tpukit("ssh", "login", "--timeout", "15s", "--", "true")),
    )


def tunnel(comparison: Comparison) -> None:
    """gcloud's help promises that %TPU% becomes the worker's address; tpukit needs no address."""

    def with_gcloud() -> Did:
        done = comparison.gcloud("--dry-run", "--ssh-flag=-L 8080:%TPU%:80")
        address = comparison.described(NAME)["networkEndpoints"][0]["accessConfig"]["externalIp"]
        right = f"8080:{address}:80" in done.stdout
        left = "%TPU% is left as it is" if "%TPU%" in done.stdout else f"exit {done.returncode}"
        return Did("an address is put in" if right else left, right)

    def with_tpukit() -> Did:
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=_greet, args=(server,), daemon=True).start()
            answer = _through_a_tunnel(comparison, server.getsockname()[1])
        return Did("led there" if answer == b"hello" else "led nowhere", answer == b"hello")

    comparison.both("a tunnel to a port of a worker", with_gcloud, with_tpukit)


def newer_generation(comparison: Comparison) -> None:
    """Four chips: by --type and --topology, which are gcloud's words for it, and by v6e-4."""

    def judge(done: Finished, name: str) -> Did:
        if done.returncode:
            return Did(f"exit {done.returncode}", False)
        got = comparison.described(name)["acceleratorType"]
        return Did(f"exit 0, {got}", got == "v6e-4")

    asked = ("--type=v6e", "--topology=2x2", "--version=v2-alpha-tpuv6e")
    comparison.both(
        "a slice of v6e by its generation",
        lambda: judge(comparison.any_gcloud("create", "newer-gcloud", *asked), "newer-gcloud"),
        lambda: judge(comparison.tpukit("create", "v6e-4", "newer-tpukit"), "newer-tpukit"),
    )


def spot(comparison: Comparison) -> None:
    """Ask for spot capacity, and for nothing else at the same time.

    tpukit makes no queued resources: it asks for the slice itself.
    """

    def judge(spot: bool, model: str) -> Did:
        asked = f"asks for {'spot' if spot else 'no spot'}"
        also = f" and {model}" if model else ""
        return Did(asked + also, spot and model in ("", "SPOT"))

    def with_gcloud() -> Did:
        queue: dict[str, Any] = {"group": "queued-resources", "track": ("alpha",)}
        comparison.any_gcloud("create", "spot-gcloud", "--node-id=spot-1", *_V3, "--spot", **queue)
        described = comparison.described("spot-gcloud", **queue)
        return judge("spot" in described, described.get("provisioningModel", ""))

    def with_tpukit() -> Did:
        comparison.tpukit("create", "v3-8", "spot-tpukit", "--spot")
        found = comparison.described("spot-tpukit", track=("alpha",))["schedulingConfig"]
        return judge(found.get("spot", False), found.get("provisioningModel", ""))

    comparison.both("--spot (gcloud: for a queued resource)", with_gcloud, with_tpukit)


def lost_slices(comparison: Comparison) -> None:
    """A command for the two slices of a queued resource, after the cloud has taken them back."""
    queue: dict[str, Any] = {"group": "queued-resources"}
    nodes = ("--node-count=2", "--node-prefix=part")
    comparison.any_gcloud("create", "queued", *_V3, *nodes, "--spot", **queue)
    if not until(lambda: _state(comparison, "queued") == "ACTIVE"):
        raise SystemExit("the queued resource does not become active")
    for name in ("part-0", "part-1"):
        comparison.arrange("firewall", "apply", name)
    every = ("--node=all", "--worker=all")

    def with_gcloud(command: str) -> Finished:
        return comparison.any_gcloud("ssh", "queued", *every, f"--command={command}", **queue)

    def with_tpukit(command: str) -> Finished:
        return comparison.tpukit("run", "part-0,part-1", "--", command)

    for run in (with_gcloud, with_tpukit):
        if (done := run("true")).returncode:
            raise SystemExit(f"the slices do not answer before they are lost: {done.stderr}")
    comparison.arrange("emulator", "preempt", "part-1")
    if not until(lambda: _state(comparison, "queued") == "SUSPENDED"):
        raise SystemExit("the queued resource is not suspended")

    def judge(run: Callable[[str], Finished]) -> Did:
        mark = comparison.scratch("ran")
        done = run(f"touch {mark}-$(hostname)")
        ran = len(list(mark.parent.iterdir()))
        note = ", a Python traceback" if "Traceback" in done.stderr else ""
        text = f"exit {done.returncode}, ran on {ran} of 2{note}"
        return Did(text, bool(done.returncode) and not note)

    comparison.both(
        "both slices of a queued resource are lost",
        lambda: judge(with_gcloud),
        lambda: judge(with_tpukit),
    )


CASES = (
    key_expiry,
    os_login,
    tunnel,
    newer_generation,
    spot,
    lost_slices,
)


def _state(comparison: Comparison, queued: str) -> str:
    state = comparison.described(queued, group="queued-resources")["state"]
    return str(state.get("state", ""))


def _greet(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"hello")


def _through_a_tunnel(comparison: Comparison, port: int) -> bytes:
    """Return what a port of worker 0 says; portable workers have this machine's ports."""
    with subprocess.Popen(
        comparison.tpukit_words("forward", NAME, f"0:{port}"),
        env=comparison.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        limit = threading.Timer(PATIENCE, process.terminate)
        limit.start()
        try:
            assert process.stdout
            line = process.stdout.readline()
            if not line:
                return b""
            here = int(line.split()[0].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", here), 60) as connection:
                return connection.recv(100)
        finally:
            limit.cancel()
            process.terminate()
