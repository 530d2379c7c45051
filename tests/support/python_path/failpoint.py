"""Ends the process, or fills its disk, at one of the moments before and after its calls of an API.

The product has no failpoints: it raises audit events, and only what the tests start hears them.
"""

import os
import resource
import signal
import sys

_counted = 0


def install(wish):
    """Do what `NUMBER:ACTION:FILE` says at the moment with that number, and list all in the file.

    The action is `kill`, `term` or `full`; with number 0 nothing happens.
    """
    number, action, path = wish.split(":", 2)

    def strike(event, arguments):
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

    sys.addaudithook(strike)


def _act(action):
    if action == "full":  # no file can grow any more, as where no space is left
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    else:
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "term": signal.SIGTERM}[action])
