"""Jupyter on this worker's loopback, which ends when its lease is no longer renewed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import site
import socket
import subprocess
import sys
import time

from tpukit.agent.loopback import LOOPBACK, free_ports
from tpukit.agent.main import Home, Request, say

#: Jupyter's servers, the most complete first; each can run as a module.
_SERVERS = ("jupyterlab", "notebook", "jupyter_server")
_LOOK_SECONDS = 0.25
_GRACE_SECONDS = 8.0


def serve_notebook(home: Home, request: Request) -> None:
    """Run Jupyter with this interpreter's packages, in a job; end with its status.

    Answers `port` when Jupyter accepts connections there, or `absent` if there is no Jupyter. The
    lease is a file in the job's folder; touching the file renews it. It expires after `seconds`
    without a touch, by the monotonic clock. JUPYTER_TOKEN in the environment is the token for
    Jupyter: jupyter-server/jupyter_server, auth/identity.py.
    """
    site.main()  # the agent starts without the environment's packages
    server = next((name for name in _SERVERS if importlib.util.find_spec(name)), None)
    if server is None:
        say({"absent": True})
        return
    lease = os.path.join(os.environ["TPUKIT_JOB"], "lease")
    open(lease, "w").close()
    (port,) = free_ports(1)
    process = subprocess.Popen([sys.executable, "-m", server, *_options(port)])
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    sys.exit(_serve(process, port, lease, request["seconds"]))


def _options(port: int) -> list[str]:
    own = {
        "ip": LOOPBACK,
        "port": port,
        "port_retries": 0,
        "open_browser": False,
        # By default Jupyter refuses to run as root, but some images log in as root.
        "allow_root": os.geteuid() == 0,
    }
    return [f"--ServerApp.{name}={value}" for name, value in own.items()]


def _serve(process: subprocess.Popen[bytes], port: int, lease: str, seconds: float) -> int:
    """Wait until Jupyter ends and return its status; end it when the lease expires."""
    announced, touched, limit = False, 0, 0.0
    while process.poll() is None:
        if (touch := os.stat(lease).st_mtime_ns) != touched:
            touched, limit = touch, time.monotonic() + seconds
        if time.monotonic() > limit:
            print("the lease has expired", flush=True)
            # On TERM, Jupyter also ends its kernels, which have separate sessions.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
            process.kill()
            process.wait()
        if not announced and _answers(port):
            say({"port": port})
            announced = True
        time.sleep(_LOOK_SECONDS)
    status: int = process.returncode
    return status if status >= 0 else 128 - status


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 1.0):
        return True
    return False
