"""Serves a program that is loaded already: becomes it in a fork for each command.

For any Python that has one to load, with nothing but its standard library. A command comes on a
connection of its own: a JSON list of its words, variables, folder, and whether it gets a session or
a process group of its own or neither, with its three files. The answers are its process id, and the
status that wait(2) gives. What comes meanwhile is the number of a signal; a connection that is
closed ends the command.
"""

import contextlib
import json
import os
import selectors
import signal
import socket

#: Bytes of a request.
LARGEST = 200_000
#: Bytes of a number.
NUMBER = 16


def serve(listener, others, load, become):
    """Call `load(words)` for the first command, and `become(words, variables)` in a fork for each.

    Until stdin ends. Of the descriptors `others` a fork has none. What `become` needs of the
    command's folder, files and variables is set; it does not return.
    """
    loaded = False
    ended, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ready = selectors.SelectSelector()
    for each in (0, ended, listener):
        ready.register(each, selectors.EVENT_READ)
    callers = {}
    while True:
        for key, _ in ready.select():
            if key.fileobj == 0:
                return
            if key.fileobj == ended:
                os.read(ended, 4096)
                for process in list(callers):
                    _tell_end(ready, callers, process)
            elif key.fileobj == listener:
                caller = listener.accept()[0]
                request, files, _, _ = socket.recv_fds(caller, LARGEST, 3)
                if not request:
                    caller.close()
                    continue
                words, variables, cwd, own = json.loads(request)
                loaded = loaded or load(words) is None
                process = os.fork()
                if not process:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    watched = [each.fd for each in ready.get_map().values() if each.fd]
                    for each in (told, caller.detach(), *watched, *others):
                        os.close(each)
                    _begin(files, variables, cwd, own)
                    become(words, variables)
                for each in files:
                    os.close(each)
                if own == "group":
                    with contextlib.suppress(OSError):  # it has done so itself
                        os.setpgid(process, process)
                callers[process] = caller
                with contextlib.suppress(OSError):
                    caller.send(b"%d" % process)
                ready.register(caller, selectors.EVENT_READ, (process, own))
            elif key.data[0] in callers:
                _pass_on(ready, key.fileobj, *key.data)


def _begin(files, variables, cwd, own):
    for number, each in enumerate(files):
        os.dup2(each, number)
    for each in files:
        os.close(each)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(cwd)
    if own == "session":
        os.setsid()
    elif own == "group":
        os.setpgid(0, 0)


def _tell_end(ready, callers, process):
    """Tell who asked for a command the status that it has ended with, if it has."""
    ended, status = os.waitpid(process, os.WNOHANG)
    if not ended:
        return
    caller = callers.pop(process)
    with contextlib.suppress(KeyError):  # it has gone before
        ready.unregister(caller)
    with contextlib.suppress(OSError):
        caller.send(b"%d" % status)
    caller.close()


def _pass_on(ready, caller, process, own):
    """Give a command the signal that its caller got; end it where the caller has ended."""
    try:
        number = int(caller.recv(NUMBER) or 0)
    except ConnectionError:
        number = 0
    if not number:
        ready.unregister(caller)
    with contextlib.suppress(ProcessLookupError):
        if own:
            os.killpg(process, number or signal.SIGKILL)
        else:
            os.kill(process, number or signal.SIGKILL)
