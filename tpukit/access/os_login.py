"""Our user and key on workers if OS Login decides about access.

OS Login documentation: if it is on, workers ignore keys in metadata and use the keys and the POSIX
user name of the account's login profile. A slice's metadata overrides the project's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpukit.clock import Deadline
from tpukit.errors import Fix, NotAllowed, TpukitError
from tpukit.models import LoginProfile
from tpukit.paths import replace_file
from tpukit.ssh.keys import KeyPair

if TYPE_CHECKING:
    from tpukit.google.login_profiles import OsLogin


@dataclass(frozen=True)
class WorkerLogin:
    """Our user on workers, and the file of the private key for it."""

    user: str
    identity_file: str


@dataclass(frozen=True)
class OsLogins:
    """Finds out if OS Login is on, and our login then."""

    provider: OsLogin
    account: Callable[[], str]
    key: KeyPair
    gcloud_key: Path  #: gcloud's own private key; its public half is beside it

    def within(self, deadline: Deadline) -> OsLogins:
        """Return the same with a deadline for all API calls."""
        return replace(self, provider=self.provider.within(deadline))

    def of(self, what: str, metadata: Mapping[str, str], *, project: bool) -> WorkerLogin | None:
        """Return our login on a slice with this metadata; None if OS Login is off.

        If the slice's metadata does not decide and `project` is True, the project's metadata is
        read; if it is unreadable, OS Login counts as off. `what` names the slice in errors.

        Raises `NotAllowed` if OS Login is on and our login profile has none of our keys.
        """
        where = what
        setting = metadata.get("enable-oslogin", "")
        if not setting and project:
            where = "its project"
            with suppress(TpukitError):
                setting = self.provider.project_metadata().get("enable-oslogin", "")
        return self._login(what, where) if setting.upper() == "TRUE" else None

    def _login(self, what: str, where: str) -> WorkerLogin:
        try:
            account = self.account()
            profile = self.provider.profile(account)
        except TpukitError as error:
            raise self._refused(what, where, error.summary()) from error
        if profile.user and _has(profile, self.key.public):
            return WorkerLogin(profile.user, str(self.key.private_path))
        if profile.user and _has(profile, _public_line(self.gcloud_key)):
            return WorkerLogin(profile.user, str(self.gcloud_key))
        raise self._refused(what, where, f"the login profile of {account} has none of our keys")

    def _refused(self, what: str, where: str, why: str) -> NotAllowed:
        public = self.key.public_path
        if not self.key.users_own:
            with suppress(OSError):
                replace_file(public, f"{self.key.public}\n")
        return NotAllowed(
            f"{what} uses OS Login, which does not know your key",
            reason=f"enable-oslogin in the metadata of {where}",
            why=why,
            fix=Fix.command(
                *("gcloud", "compute", "os-login", "ssh-keys", "add", "--key-file", str(public)),
                note="once for the account",
            ),
        )


def _has(profile: LoginProfile, line: str) -> bool:
    """Return True if a profile has the key of a line, ignoring the comment."""
    return bool(line) and line.split()[:2] in [key.split()[:2] for key in profile.keys]


def _public_line(private: Path) -> str:
    try:
        return Path(f"{private}.pub").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
