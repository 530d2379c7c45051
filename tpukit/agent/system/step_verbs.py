"""Reads the facts about this worker, applies steps, and undoes them."""

from __future__ import annotations

import contextlib
import glob
import importlib
import os
import re
import shutil
import sys
from typing import Callable, Iterator

from tpukit.agent.chips import KERNEL_LOG, size
from tpukit.agent.main import Home, Request, say
from tpukit.agent.system.commands import StepRefused
from tpukit.agent.system.ledger import LedgerFile, ledgers, ledgers_folder
from tpukit.agent.system.recipe_environments import ENVIRONMENT_STEPS, look_at_environments
from tpukit.agent.system.step import WorkerStep

#: The module of each step, and its class.
STEPS = {
    "apt": ("apt_step", "AptStep"),
    "disk": ("disk_step", "DiskStep"),
    "dotfiles": ("dotfiles_step", "DotfilesStep"),
    "gcsfuse": ("gcsfuse_step", "GcsfuseStep"),
    "limits": ("limits_step", "LimitsStep"),
    "nfs": ("nfs_step", "NfsStep"),
    "nfs-server": ("nfs_server_step", "NfsServerStep"),
    "shell": ("shell_step", "ShellStep"),
    "tcmalloc": ("tcmalloc_step", "TcmallocStep"),
}
#: The module of each word of an undo. It has a function of that name.
UNDO = {
    "bring_back": "changed_files",
    "cache_back": "disk_step",
    "export_again": "nfs_server_step",
    "give_device": "limits_step",
    "set_login_shell": "shell_step",
    "set_pages": "limits_step",
    "take_block": "changed_files",
    "take_file": "changed_files",
    "take_folder": "changed_files",
    "take_link": "changed_files",
    "take_packages": "debian_packages",
    "take_tree": "changed_files",
    "unmount": "step",
}
_REFUSED = 3


def read_facts(home: Home, request: Request) -> None:
    """Answer the facts about this worker; change nothing.

    `system` has the needs of each of the `steps`, the ledgers, and the jobs of provisioning.
    `environments` has the facts for recipes, if requested.
    """
    # Read the jobs first: then a job that ends meanwhile is joined, and not run again.
    jobs = sorted(filter(os.path.isdir, glob.glob(f"{home.folder}/jobs/provision-*")))
    ended = [os.path.basename(job) for job in jobs if os.path.exists(f"{job}/status")]
    system = {
        "steps": {step["word"]: _step(home, step).fact(step["root"]) for step in request["steps"]},
        "ledgers": {ledger["step"]: ledger for ledger in ledgers(ledgers_folder(home))},
        "ended_jobs": ended,
        "open_jobs": [os.path.basename(job) for job in jobs if os.path.basename(job) not in ended],
        "free_kilobytes": min(shutil.disk_usage(path).free for path in ("/", home.path)) // 1024,
        "kernel_log_bytes": size(KERNEL_LOG),
        "emulated": bool(os.environ.get("TPUKIT_EMULATED_DEVICES")),
    }
    environments = look_at_environments(home, ended) if request["environments"] else None
    say({"system": system, "environments": environments})


def change_step(home: Home, request: Request) -> None:
    """Apply a step."""
    with refusals_said():
        _step(home, request).take()


def undo_step(home: Home, request: Request) -> None:
    """Undo the changes in the ledger of the step, if there is one."""
    with refusals_said():
        LedgerFile(home, request).take_back(_undo)


def sweep_steps(home: Home, request: Request) -> None:
    """Remove the jobs of undone steps, and empty folders."""
    folder = ledgers_folder(home)
    for status in glob.glob(f"{home.folder}/jobs/provision-*/status"):
        job = os.path.dirname(status)
        # without the digest and the number of the attempt
        step = re.sub("-[^-]*-[^-]*$", "", os.path.basename(job))[len("provision-") :]
        if step not in ENVIRONMENT_STEPS and not os.path.exists(f"{folder}/{step}"):
            shutil.rmtree(job)
    for empty in (folder, f"{home.folder}/jobs"):
        with contextlib.suppress(OSError):
            os.rmdir(empty)
    say({})


def _step(home: Home, request: Request) -> WorkerStep:
    module, name = STEPS[request["name"]]
    kind: Callable[[Home, Request], WorkerStep]
    kind = getattr(importlib.import_module(f"tpukit.agent.system.{module}"), name)
    return kind(home, request)


def _undo(word: str, *words: str) -> None:
    if word not in UNDO:
        raise StepRefused(f"this version of tpukit cannot undo {word}", "use the one that did it")
    getattr(importlib.import_module(f"tpukit.agent.system.{UNDO[word]}"), word)(*words)


@contextlib.contextmanager
def refusals_said() -> Iterator[None]:
    """Answer a refusal in the block, and exit with a status for it."""
    try:
        yield
    except StepRefused as refusal:
        say({"refused": str(refusal), "fix": refusal.fix})
        sys.exit(_REFUSED)
