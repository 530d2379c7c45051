"""The step `dotfiles`: a repository of settings, linked into the home folder."""

from __future__ import annotations

import os
import shutil

from tpukit.agent.system.changed_files import is_link, put_folder, put_link
from tpukit.agent.system.commands import StepRefused, output, run, succeeds
from tpukit.agent.system.step import WorkerStep

#: Not linked: git's own files, and the folder with the keys that may log in here.
_NOT_LINKED = (".git", ".gitignore", ".gitmodules", ".gitattributes", ".github", ".ssh")


class DotfilesStep(WorkerStep):
    """The repository's address."""

    def _look(self) -> None:
        folder = self._folder
        if not os.path.isdir(f"{folder}/.git"):
            if os.path.exists(folder):
                raise StepRefused("~/.dotfiles exists, but is not a repository", "move it away")
            self.needed.append(f"clone {self.value} to ~/.dotfiles, and link its settings")
            return
        address = output("git", "config", "-f", f"{folder}/.git/config", "remote.origin.url")
        if address != self.value:
            cause = f"~/.dotfiles was cloned from {address}"
            raise StepRefused(cause, "move it away, or undo that step")
        missing = self._missing()
        if missing:
            self.needed.append(f"link {' '.join(missing)}")

    def _change(self) -> None:
        if not shutil.which("git"):
            raise StepRefused("the worker has no git", "add the step apt:git before it")
        if not os.path.isdir(self._folder):
            fix = "see that the worker reaches it, and may read it"
            clone(
                self, self.value, self._folder, StepRefused(f"{self.value} cannot be cloned", fix)
            )
        for name in self._missing():
            path = f"{self.home.path}/{name}"
            if os.path.lexists(path):
                kept = f"{self.ledger.folder}/kept-{self.ledger.entry}"
                if os.path.lexists(f"{kept}/{name}"):  # some editors put a file in a link's place
                    cause = f"~/{name} was linked, and is another file by now"
                    raise StepRefused(cause, f"move it away: it may belong into {self._folder}")
                put_folder(self.ledger, kept)
                self.ledger.note("bring_back", f"{kept}/{name}", path)
                run("mv", path, f"{kept}/{name}")
            put_link(self.ledger, path, f"{self._folder}/{name}")

    @property
    def _folder(self) -> str:
        return f"{self.home.path}/.dotfiles"

    def _missing(self) -> list[str]:
        """Return the settings at the top of the repository that are not linked."""
        tpukit = os.path.basename(self.home.folder)
        return [
            name
            for name in sorted(os.listdir(self._folder))
            if name.startswith(".") and name not in (*_NOT_LINKED, tpukit)
            if os.path.exists(f"{self._folder}/{name}")
            and not is_link(f"{self.home.path}/{name}", f"{self._folder}/{name}")
        ]


def clone(step: WorkerStep, address: str, folder: str, refused: StepRefused, *options: str) -> None:
    """Clone a repository to a folder, completely or not at all; raise `refused` if it fails."""
    new = f"{step.home.folder}/{os.path.basename(folder)}.{os.getpid()}"
    silent = ("env", "GIT_TERMINAL_PROMPT=0", "GIT_SSH_COMMAND=ssh -o BatchMode=yes")
    if not succeeds(*silent, "git", "clone", "-q", *options, address, new):
        shutil.rmtree(new, ignore_errors=True)
        raise refused
    step.ledger.note("take_tree", folder)
    os.rename(new, folder)
