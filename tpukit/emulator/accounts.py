"""Who people and services are: the TPU service's own account, and OS Login profiles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256

from tpukit.emulator.catalogue import Catalogue
from tpukit.emulator.context import Call, Context, project_number
from tpukit.emulator.errors import Json, invalid

#: OS Login documentation: user names are at most 32 characters long.
_LONGEST_NAME = 32


class Accounts:
    """Accounts exist once they are asked for."""

    def __init__(self, context: Context, catalogue: Catalogue) -> None:
        self._context = context
        self._catalogue = catalogue

    def generate_service_identity(self, call: Call) -> Json:
        """Answer the project's service agent, whose name the Cloud TPU documentation gives."""
        self._catalogue.check_zone(call)
        agent = f"service-{project_number(call.project)}@cloud-tpu.iam.gserviceaccount.com"
        return {"identity": {"email": agent}}

    def get_login_profile(self, call: Call) -> Json:
        return self._profile(call.path["user"])

    def import_ssh_public_key(self, call: Call) -> Json:
        """Add a key, `{"key": "ssh-rsa …"}`, to a user's profile."""
        user, key = call.path["user"], call.body.get("key")
        if not isinstance(key, str) or len(key.split()) < 2 or "\n" in key.strip():
            raise invalid("Invalid value at 'ssh_public_key.key'")
        record = self._context.state.logins.get(user, {"keys": {}})
        fingerprint = sha256(key.split()[1].encode()).hexdigest()
        keys = {**record["keys"], fingerprint: {"key": key.strip(), "fingerprint": fingerprint}}
        self._context.state.logins[user] = {"keys": keys}
        self._context.changed = True
        return {"loginProfile": self._profile(user)}

    def keys(self) -> Iterator[tuple[str, str]]:
        """Yield (POSIX user name, public key line) of every profile."""
        for user, record in list(self._context.state.logins.items()):
            for entry in record["keys"].values():
                yield _posix_name(user), entry["key"]

    def _profile(self, user: str) -> Json:
        name = _posix_name(user)
        number = str(int.from_bytes(sha256(user.encode()).digest()[:3]) + 10**9)
        account = {
            "primary": True,
            "username": name,
            "uid": number,
            "gid": number,
            "homeDirectory": f"/home/{name}",
            "shell": "/bin/bash",
            "operatingSystemType": "LINUX",
            "accountId": "emulator",
        }
        keys = self._context.state.logins.get(user, {"keys": {}})["keys"]
        return {"name": user, "posixAccounts": [account], "sshPublicKeys": keys}


def _posix_name(user: str) -> str:
    """Return the name OS Login makes of an e-mail address: what is no letter or digit becomes _."""
    return re.sub(r"[^a-z0-9]", "_", user.lower())[:_LONGEST_NAME]
