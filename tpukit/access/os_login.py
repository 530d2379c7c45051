"""Who we are on the workers of a slice whose metadata does not decide who may come in.

OS Login documentation: where it is on, keys in metadata are not used, but those of the account's
login profile, under its POSIX user name. A slice's own metadata comes before the project's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tpukit.clock import Deadline
from tpukit.cloud.provider import LoginProvider
from tpukit.errors import Fix, NotAllowed, TpukitError
from tpukit.models import LoginProfile
from tpukit.paths import replace_file
from tpukit.remote.connection.keys import KeyPair


@dataclass(frozen=True)
class WorkerLogin:
    """Our user on workers, and the file of the private key that it is proved with."""

    user: str
    identity_file: str


@dataclass(frozen=True)
class OsLogins:
    """What tells whether OS Login is on, and who we are then."""

    provider: LoginProvider
    account: Callable[[], str]
    key: KeyPair
    gcloud_key: Path  #: gcloud's own private key; its public half is beside it

    def within(self, deadline: Deadline) -> OsLogins:
        """Return the same, but that all its calls are over by a deadline."""
        return replace(self, provider=self.provider.within(deadline))

    def of(self, what: str, metadata: Mapping[str, str], *, project: bool) -> WorkerLogin | None:
        """Return our login on a slice with this metadata, None where OS Login is off.

        The project's metadata is read where the slice's leaves it open and `project` asks for it;
        who may not read it goes on as if it were off there. `what` names the slice in errors.

        Raises `NotAllowed` where OS Login is on, and none of our keys is in the login profile.
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
            f"{what} lets people in by OS Login, which does not know us",
            reason=f"enable-oslogin in the metadata of {where}",
            why=why,
            fix=Fix.command(
                *("gcloud", "compute", "os-login", "ssh-keys", "add", "--key-file", str(public)),
                note="once for the account",
            ),
        )


def _has(profile: LoginProfile, line: str) -> bool:
    """Tell whether a profile has the key of a line, whatever its comment."""
    return bool(line) and line.split()[:2] in [each.split()[:2] for each in profile.keys]


def _public_line(private: Path) -> str:
    try:
        return Path(f"{private}.pub").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
