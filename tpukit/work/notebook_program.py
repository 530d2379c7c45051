"""Serve Jupyter on this worker's loopback for as long as somebody renews the lease.

    python -I notebook.py SECONDS      in a job, by the interpreter that has Jupyter

Says "tpukit-notebook absent" where there is no Jupyter, else "tpukit-notebook PORT" once Jupyter
answers. The lease is a file in the job's folder, renewed by touching it. It has run out when that
has not been seen for SECONDS in which this worker ran, whatever its clock was set to.
JUPYTER_TOKEN in the environment is what Jupyter asks for:
jupyter-server/jupyter_server:jupyter_server/auth/identity.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time

#: The fullest first; each can be run as a module.
SERVERS = ("jupyterlab", "notebook", "jupyter_server")
LOOPBACK = "127.0.0.1"
LOOK_SECONDS = 0.25
GRACE_SECONDS = 8.0


def main(seconds):
    server = next((name for name in SERVERS if importlib.util.find_spec(name)), None)
    if server is None:
        print("tpukit-notebook absent", flush=True)
        return 69
    lease = os.path.join(os.environ["TPUKIT_JOB"], "lease")
    open(lease, "w").close()
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", server, *options(port)])
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    return serve(process, port, lease, seconds)


def options(port):
    own = {"ip": LOOPBACK, "port": port, "port_retries": 0, "open_browser": False}
    # It refuses to run as root unless it is told to; some images log in as root.
    own["allow_root"] = os.geteuid() == 0
    return [f"--ServerApp.{name}={value}" for name, value in own.items()]


def serve(process, port, lease, seconds):
    """Wait until Jupyter has ended and return its status; end it when the lease has run out."""
    announced, touched, limit = False, 0, 0.0
    while process.poll() is None:
        if (found := os.stat(lease).st_mtime_ns) != touched:
            touched, limit = found, time.monotonic() + seconds
        if time.monotonic() > limit:
            print("tpukit-notebook: nobody has been there for too long", flush=True)
            # It ends its kernels, which have sessions of their own.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
            process.kill()
            process.wait()
        if not announced and answers(port):
            print(f"tpukit-notebook {port}", flush=True)
            announced = True
        time.sleep(LOOK_SECONDS)
    status = process.returncode
    return status if status >= 0 else 128 - status


def free_port():
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 1.0):
        return True
    return False


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
