"""Stands for the interpreter that gcloud's launcher starts: see warm_gcloud.py.

Its arguments are the server's socket, the interpreter that it stands for, its own name, and what
that interpreter is given. Signals are passed on, and the status is that of the command.
"""

import json
import os
import signal
import socket
import sys

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def main(address: str, python: str, name: str, *words: str) -> None:
    # What gcloud's commands see is what they see where nothing stands for their interpreter.
    variables = {key: python if value == name else value for key, value in os.environ.items()}
    variables.pop("CLOUDSDK_PYTHON")
    if not words[:1] or not words[0].endswith("/lib/gcloud.py"):
        os.execve(python, [python, *words], variables)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        request = json.dumps([words, variables, os.getcwd()]).encode()
        socket.send_fds(server, [request], [0, 1, 2])
        for each in SIGNALS:
            if signal.getsignal(each) is not signal.SIG_IGN:
                signal.signal(each, lambda number, _: server.send(b"%d" % number))
        status = int(server.recv(16) or 1)
    if status < 0:
        if -status in SIGNALS:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
