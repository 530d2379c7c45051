"""Runs in gcloud's own Python: loads gcloud's modules and becomes gcloud in each fork.

Its arguments are the descriptors of the socket that it listens on and of its lock. The first
command tells where gcloud's program is: then it is loaded. What gcloud reads as it is loaded is
read again in the fork: the active configuration, and what the streams are. The variables that
Python reads as it starts are the server's.
"""

import atexit
import contextlib
import gc
import importlib
import os
import runpy
import socket
import sys
import threading
import traceback

import fork_server

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


PROGRAM = {}


def become(words, variables):
    """Be gcloud to its end."""
    unbuffered = bool(variables.get("PYTHONUNBUFFERED"))
    sys.stdin = os.fdopen(0)
    sys.stdout.reconfigure(line_buffering=os.isatty(1), write_through=unbuffered)
    sys.argv = words
    from googlecloudsdk.core import log
    from googlecloudsdk.core.configurations import named_configs

    named_configs.ActivePropertiesFile.Invalidate()
    log.Reset()
    status = 0
    try:
        PROGRAM["main"]()
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


def load(words):
    """Define what gcloud's program does, with its modules loaded."""
    # as Python does for a program that it is given
    sys.path[0] = os.path.dirname(os.path.realpath(words[0]))
    PROGRAM.update(runpy.run_path(words[0], run_name="gcloud"))
    PROGRAM["_import_gcloud_main"]()
    for name in LAZY:
        with contextlib.suppress(ImportError):  # another release of gcloud
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a fork shares what is not touched


if __name__ == "__main__":
    own_socket, own_lock = map(int, sys.argv[1:])
    fork_server.serve(socket.socket(fileno=own_socket), [own_lock], load, become)
