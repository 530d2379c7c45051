"""The step `shell`: zsh with oh-my-zsh, byobu, mosh and fastfetch."""

from __future__ import annotations

import os

from tpukit.agent.system.changed_files import Block, content
from tpukit.agent.system.commands import StepRefused, as_root, run
from tpukit.agent.system.debian_packages import install_packages, is_installed, is_known
from tpukit.agent.system.dotfiles_step import clone
from tpukit.agent.system.step import WorkerStep, user

_SHELL = "/usr/bin/zsh"
_ADDRESS = "https://github.com/ohmyzsh/ohmyzsh.git"
_SETTINGS = """\
export ZSH="$HOME/.oh-my-zsh"
ZSH_THEME="robbyrussell"
plugins=(git)
zstyle ':omz:update' mode disabled
source "$ZSH/oh-my-zsh.sh\""""


class ShellStep(WorkerStep):
    """It has no value."""

    def _look(self) -> None:
        packages = _packages()
        missing = [package for package in packages if not is_installed(package)]
        if missing:
            self.needed.append(f"install {' '.join(missing)}")
        if not os.path.exists(f"{self._framework}/oh-my-zsh.sh"):
            self.needed.append("clone oh-my-zsh to ~/.oh-my-zsh")
        if not self._settings.holds(_SETTINGS):
            self.needed.append("load it in ~/.zshrc")
        if not _is_local():
            self.notes.append("the login shell of an OS Login account is not changed")
        elif _login_shell() != _SHELL:
            self.needed.append("make zsh the login shell")
        if "fastfetch" not in packages:
            self.notes.append("no fastfetch in this image's package sources")

    def _change(self) -> None:
        install_packages(self.ledger, *_packages())
        if not os.path.exists(f"{self._framework}/oh-my-zsh.sh"):
            if os.path.exists(self._framework):
                raise StepRefused(f"{self._framework} exists, but is not oh-my-zsh", "move it away")
            fix = "give the worker a way out: an external address or Cloud NAT"
            refused = StepRefused(f"oh-my-zsh cannot be cloned from {_ADDRESS}", fix)
            clone(self, _ADDRESS, self._framework, refused, "--depth", "1")
        self._settings.put(self.ledger, _SETTINGS)
        before = _login_shell()
        if _is_local() and before != _SHELL:
            self.ledger.note("set_login_shell", before)
            set_login_shell(_SHELL)

    @property
    def _framework(self) -> str:
        return f"{self.home.path}/.oh-my-zsh"

    @property
    def _settings(self) -> Block:
        return self.block(f"{self.home.path}/.zshrc")


def set_login_shell(shell: str) -> None:
    """Set the user's login shell; the undo calls this too."""
    run(*as_root("usermod", "--shell", shell, user().pw_name))


def _packages() -> list[str]:
    optional = is_installed("fastfetch") or is_known("fastfetch")
    return ["zsh", "byobu", "mosh", "git", *(["fastfetch"] if optional else [])]


def _login_shell() -> str:
    return user().pw_shell


def _is_local() -> bool:
    """Return True if /etc/passwd has the account; OS Login stores the login shell elsewhere."""
    names = [line.partition(b":")[0] for line in (content("/etc/passwd") or b"").splitlines()]
    return user().pw_name.encode() in names
