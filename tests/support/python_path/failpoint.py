"""Ends the process, or fills its disk, at one of the moments before and after its calls of an API.

The product has no failpoints: it raises audit events, and only what the tests start hears them:
sitecustomize says so of each.
"""

import os
import resource
import signal

_counted = 0


def listener(wish):
    """Return who does what `NUMBER:ACTION:FILE` says at the moment of that number.

    It is told of each moment, and lists all of them in the file.
    The action is `kill`, `term` or `full`; with number 0 nothing happens.
    """
    number, action, path = wish.split(":", 2)

    def strike(event, *arguments):
        global _counted
        if event != "tpukit.call":
            return
        _counted += 1
        if path:
            line = f"{arguments[0]} {arguments[1]}\n".encode()
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(descriptor, line)
            os.close(descriptor)
        if _counted == int(number):
            _act(action)

    return strike


def _act(action):
    if action == "full":  # no file can grow any more, as where no space is left
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    else:
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "term": signal.SIGTERM}[action])
