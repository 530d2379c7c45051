"""An ordinary user of this machine, as a TPU VM has: bash, a .bashrc that prints, sudo.

Only root can make one. Elsewhere the tests log in as whoever runs them, and say so.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import secrets
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

#: What every bash prints before it looks whether a person is there, as some images do: a line, and
#: a title for the terminal's window, which ends no line.
GREETING = "greetings from .bashrc"
TITLE = "\033]0;worker\007"
_BASHRC = f"""\
echo '{GREETING}'
printf '{TITLE.encode("unicode_escape").decode()}'
case $- in *i*) ;; *) return ;; esac
PS1='\\u@\\h:\\w\\$ '
"""
#: As Ubuntu has it: a shell that somebody logs in to reads .bashrc too.
_PROFILE = """\
[ -z "$BASH_VERSION" ] || [ ! -f "$HOME/.bashrc" ] || . "$HOME/.bashrc"
[ ! -d "$HOME/.local/bin" ] || PATH="$HOME/.local/bin:$PATH"
"""


@dataclass(frozen=True)
class Account:
    """Who logs in, and whether that is an ordinary user with sudo that the tests have made."""

    name: str
    made: bool

    @contextmanager
    def sudoing(self, rules: str) -> Iterator[None]:
        """Let sudo have other rules for the account, or none: its name stands for `{}` in them."""
        file = Path("/etc/sudoers.d", self.name)
        before = file.read_text()
        file.write_text(rules.format(self.name))
        try:
            yield
        finally:
            file.write_text(before)

    def furnish(self, home: Path) -> None:
        """Make a home; a made account gets Ubuntu's, with a talkative .bashrc, and root's files."""
        home.mkdir(exist_ok=True)
        if not self.made:
            return
        (home / ".bashrc").write_text(_BASHRC)
        (home / ".profile").write_text(_PROFILE)
        home.chmod(0o750)
        entry = pwd.getpwnam(self.name)
        for path in (home, home / ".bashrc", home / ".profile"):
            os.chown(path, entry.pw_uid, entry.pw_gid)
        (home / "by-root").mkdir()
        for name in ("secret", "by-root/secret"):
            (home / name).write_text("only root reads this\n")
            (home / name).chmod(0o600)


@contextmanager
def login_account(home: Path) -> Iterator[Account]:
    """Make an ordinary user for a test, and remove it with its processes; or be oneself."""
    lacking = [name for name in ("useradd", "userdel", "sudo", "bash") if not shutil.which(name)]
    if os.geteuid() or lacking:
        why = f"{', '.join(lacking)} missing" if lacking else "not root"
        warnings.warn(
            f"no ordinary user can be made ({why}): what a TPU VM's bash, .bashrc and sudo do "
            "with tpukit is NOT checked by this run",
            stacklevel=2,
        )
        yield Account(getpass.getuser(), made=False)
        return
    name = f"tpukit{secrets.token_hex(4)}"
    # No password is not a locked account, to which sshd admits nobody.
    own = ("--password", "*", "--no-create-home", "--home-dir", str(home), "--shell", "/bin/bash")
    subprocess.run(["useradd", *own, name], check=True, capture_output=True)
    sudoers = Path("/etc/sudoers.d", name)
    try:
        # A terminal of its own for each command is Ubuntu's default, and a session with it.
        sudoers.write_text(f"Defaults:{name} use_pty\n{name} ALL=(ALL) NOPASSWD:ALL\n")
        sudoers.chmod(0o440)
        yield Account(name, made=True)
    finally:
        sudoers.unlink(missing_ok=True)
        _end_processes(pwd.getpwnam(name).pw_uid)
        subprocess.run(["userdel", name], check=True, capture_output=True)


def _end_processes(user: int) -> None:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if user in process.uids():
                process.kill()
                process.wait(10)
