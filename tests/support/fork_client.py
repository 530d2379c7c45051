"""A program in a shell that is a fork of a server: see fork_server.py.

    fork_client.py SOCKET PREFIXES VARIABLES PYTHON WORD…

Where variables that begin with one of PREFIXES are other than VARIABLES, a JSON object, a server
has not started with them: then it is PYTHON -P -m tpukit. Signals are passed on, and the status is
that of the command.
"""

import json
import os
import signal
import socket
import sys

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def run(address, words, variables):
    """Run a command of the server to its end, and end as it does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        request = json.dumps([words, variables, os.getcwd(), "group"]).encode()
        socket.send_fds(server, [request], [0, 1, 2])
        server.recv(16)
        for each in SIGNALS:
            if signal.getsignal(each) is not signal.SIG_IGN:
                signal.signal(each, lambda number, _: server.send(b"%d" % number))
        status = os.waitstatus_to_exitcode(int(server.recv(16) or 256))
    if status < 0:
        if -status in SIGNALS:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def main(address, prefixes, variables, python, *words):
    begins = tuple(json.loads(prefixes))
    if {key: value for key, value in os.environ.items() if key.startswith(begins)} != json.loads(
        variables
    ):
        os.execv(python, [python, "-P", "-m", "tpukit", *words])
    run(address, words, dict(os.environ))


if __name__ == "__main__":
    main(*sys.argv[1:])
