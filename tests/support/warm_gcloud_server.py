"""Runs in gcloud's own Python: loads gcloud's modules and becomes gcloud in each fork.

Its argument is the descriptor of the socket that it listens on; it ends where its stdin does. The
first command tells where gcloud's program is: then it is loaded. A command has a process group of
its own, which gets the signals that are passed on, and ends with who asked for it. What gcloud
reads as it is loaded is read again in the fork: the active configuration, and what the streams are.
The variables that Python reads as it starts are the server's.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback

#: What the commands for TPUs load when they need it.
LAZY = (
    "googlecloudsdk.api_lib.compute.base_classes",
    "googlecloudsdk.api_lib.compute.operations.poller",
    "googlecloudsdk.calliope.parser_completer",
    "googlecloudsdk.command_lib.compute.flags",
    "googlecloudsdk.command_lib.compute.tpus.queued_resources.ssh",
    "googlecloudsdk.command_lib.compute.tpus.tpu_vm.ssh",
    "googlecloudsdk.command_lib.compute.tpus.tpu_vm.util",
    "googlecloudsdk.command_lib.util.apis.update",
    "googlecloudsdk.command_lib.util.concepts.concept_parsers",
    "googlecloudsdk.core.credentials.requests",
    "googlecloudsdk.core.document_renderers.render_document",
    "googlecloudsdk.core.updater.update_manager",
    "googlecloudsdk.generated_clients.apis.compute.v1.compute_v1_client",
    "googlecloudsdk.generated_clients.apis.tpu.v2.tpu_v2_client",
    "googlecloudsdk.generated_clients.apis.tpu.v2alpha1.tpu_v2alpha1_client",
)
#: Bytes of a request.
LARGEST = 200_000


def serve(listener):
    """Start a fork for each request until stdin ends."""
    program = None
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
            elif key.fileobj == ended:
                os.read(ended, 4096)
                for process in list(callers):
                    tell_end(ready, callers, process)
            elif key.fileobj == listener:
                caller = listener.accept()[0]
                request, files, _, _ = socket.recv_fds(caller, LARGEST, 3)
                if request and program is None:
                    program = load(json.loads(request)[0][0])
                process = os.fork() if request else -1
                if not process:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    watched = [each.fd for each in ready.get_map().values()]
                    for each in (told, caller.detach(), *watched):
                        os.close(each)
                    become(program, files, *json.loads(request))
                for each in files:
                    os.close(each)
                if request:
                    with contextlib.suppress(OSError):  # it has done so itself
                        os.setpgid(process, process)
                    callers[process] = caller
                    ready.register(caller, selectors.EVENT_READ, process)
            elif key.data in callers:
                pass_on(ready, key.fileobj, key.data)


def tell_end(ready, callers, process):
    """Tell who asked for a command the status that it has ended with, if it has."""
    ended, status = os.waitpid(process, os.WNOHANG)
    if not ended:
        return
    caller = callers.pop(process)
    with contextlib.suppress(KeyError):  # it has gone before
        ready.unregister(caller)
    with contextlib.suppress(OSError):
        caller.send(b"%d" % os.waitstatus_to_exitcode(status))
    caller.close()


def pass_on(ready, caller, process):
    """Give a command the signal that its caller got; end it where the caller has ended."""
    try:
        number = int(caller.recv(16) or 0)
    except ConnectionError:
        number = 0
    if not number:
        ready.unregister(caller)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, number or signal.SIGKILL)


def become(program, files, words, environment, cwd):
    """Be gcloud to its end."""
    os.setpgid(0, 0)
    for number, each in enumerate(files):
        os.dup2(each, number)
    for each in files:
        os.close(each)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    sys.stdin = os.fdopen(0)
    sys.stdout.reconfigure(line_buffering=os.isatty(1), write_through=unbuffered)
    sys.argv = words
    from googlecloudsdk.core import log
    from googlecloudsdk.core.configurations import named_configs

    named_configs.ActivePropertiesFile.Invalidate()
    log.Reset()
    status = 0
    try:
        program["main"]()
    except SystemExit as error:
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        status = 1
    # As Python ends, but for the memory that it shares: to clean that up would copy it.
    threading._shutdown()
    atexit._run_exitfuncs()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def load(path):
    """Return what gcloud's program defines, with its modules loaded."""
    sys.path[0] = os.path.dirname(
        os.path.realpath(path)
    )  # as Python does for a program that it is given
    program = runpy.run_path(path, run_name="gcloud")
    program["_import_gcloud_main"]()
    for name in LAZY:
        with contextlib.suppress(ImportError):  # another release of gcloud
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a fork shares what is not touched
    return program


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
