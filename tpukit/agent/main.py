"""Do one thing on a worker, and answer.

    python3 -I -S PROGRAM FOLDER TEMPORARY EMULATED VERB

The first line of standard input is the request, a JSON object. The verb may read more after it.
FOLDER is the user's ~/.tpukit, TEMPORARY the folder for temporary files; EMULATED is the number of
devices that an emulated worker stands in for, 0 or empty on a real worker. An answer is a line that
begins with "tpukit-agent " and holds a JSON object.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any, Dict, TextIO

#: The exit status if the request was cut short; nothing has been done.
INCOMPLETE = 75
#: The module of each verb. It has a function of the verb's name.
VERBS = {
    "change_step": "system.step_verbs",
    "compare_push": "pushed_trees",
    "end_runs": "ends",
    "fetch_upload": "relay",
    "find_holders": "ends",
    "follow_job": "job_verbs",
    "guard": "slice_guard",
    "hold_lock": "locks",
    "install_guard": "slice_guard",
    "list_jobs": "job_verbs",
    "look_at_upload": "uploads",
    "look_for_chips": "chips",
    "look_for_python": "chips",
    "read_facts": "system.step_verbs",
    "receive_upload": "uploads",
    "remove_environments": "system.recipe_environments",
    "run_per_chip": "per_chip",
    "run_service": "service_runner",
    "sample_load": "load_sample",
    "send_download": "downloads",
    "serve_notebook": "notebook",
    "serve_openai": "openai_stand_in",
    "serve_upload": "relay",
    "start_job": "job_verbs",
    "sweep_steps": "system.step_verbs",
    "undo_step": "system.step_verbs",
}

Request = Dict[str, Any]


class Home:
    """The user's home folder `path`, and in it the `folder` with all of tpukit's files.

    On an emulated worker, `emulated` is True, and files in `emulated-devices` stand in for the TPU
    devices.
    """

    def __init__(self, folder: str, temporary: str, emulated: str) -> None:
        self.folder = folder
        self.path = os.path.dirname(folder)
        self.temporary = temporary
        self.emulated_devices = int(emulated or 0)
        self.emulated = self.emulated_devices > 0


def say(answer: Request, stream: TextIO | None = None) -> None:
    """Print an answer, after a line break, because a login script may have left half a line."""
    print("\ntpukit-agent " + json.dumps(answer), file=stream, flush=True)


def main() -> None:
    """Do the verb of the command line with the request on standard input."""
    folder, temporary, emulated, verb = sys.argv[1:]
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        sys.exit(INCOMPLETE)
    module = importlib.import_module("tpukit.agent." + VERBS[verb])
    try:
        getattr(module, verb)(Home(folder, temporary, emulated), json.loads(line))
    except BrokenPipeError:  # the client is gone
        os._exit(0)
    except OSError as error:
        path = error.filename2 or error.filename  # after a rename, the target is in the way
        words = [os.fsdecode(path)] if path and not isinstance(path, int) else []
        sys.exit(": ".join([*words, error.strerror or str(error)]))
