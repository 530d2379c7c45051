"""Projects with their metadata; accounts and OS Login profiles."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from hashlib import sha256

from tpukit.emulator.compute_service.compute_operations import ComputeOperations
from tpukit.emulator.core.api_errors import ApiError, Json, invalid
from tpukit.emulator.core.emulator_clock import timestamp
from tpukit.emulator.core.service_context import (
    Call,
    ServiceContext,
    default_account,
    listing,
    project_number,
)
from tpukit.emulator.tpu_service.catalogue import Catalogue
from tpukit.emulator.tpu_service.node_fields import check_metadata


class Projects:
    """Projects and their common metadata. Every project id exists."""

    def __init__(self, context: ServiceContext, operations: ComputeOperations) -> None:
        self._context = context
        self._operations = operations

    def get(self, call: Call) -> Json:
        project = call.project
        items = self.metadata_items(project)
        metadata: Json = {"kind": "compute#metadata", "fingerprint": fingerprint(items)}
        number = project_number(project)
        return {
            "kind": "compute#project",
            "id": number,
            "name": project,
            "creationTimestamp": timestamp(0),
            "commonInstanceMetadata": {**metadata, **({"items": items} if items else {})},
            "defaultServiceAccount": default_account(project),
            "defaultNetworkTier": "PREMIUM",
            "selfLink": f"{self._context.compute_base}projects/{project}",
        }

    def set_common_instance_metadata(self, call: Call) -> Json:
        """Replace the metadata if the caller sends its current fingerprint."""
        items = checked_items(call.body)
        check_fingerprint(call.body.get("fingerprint"), self.metadata_items(call.project))
        record = self._context.state.projects.get(call.project, {})
        self._context.state.projects[call.project] = {**record, "items": items}
        return self._operations.begin(call, "setMetadata", f"projects/{call.project}")

    def get_host(self, call: Call) -> Json:
        """Return the host project of a service project, or an empty project."""
        host = self._context.host_project(call.project)
        return self.get(Call({"project": host})) if host else {"kind": "compute#project"}

    def attach(self, call: Call) -> Json:
        """Attach the project to a host project, `{"host": PROJECT}`; an empty host detaches it."""
        host = call.body.get("host")
        if not isinstance(host, str):
            raise invalid("host must be a project.")
        record = self._context.state.projects.get(call.project, {"items": []})
        self._context.state.projects[call.project] = {**record, "host": host}
        return {"project": call.project, "host": host}

    def metadata_items(self, project: str) -> list[Json]:
        record = self._context.state.projects.get(project)
        return list(record["items"]) if record else []


def checked_items(metadata: Json) -> list[Json]:
    """Return the items of a Metadata; raise `ApiError` for a bad key, value or size."""
    items: list[Json] = metadata.get("items") or []
    if not all(item.get("key") for item in items):
        raise invalid("Invalid value for field 'metadata.items': every item needs a key.")
    keys = [item["key"] for item in items]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise invalid(f"Invalid value for field 'metadata.items': the key {twice[0]} is twice.")
    check_metadata("metadata.items", ((item["key"], item.get("value", "")) for item in items))
    return items


def check_fingerprint(given: str | None, value: list[Json] | Json, field: str = "metadata") -> None:
    """Raise `ApiError` if a caller's fingerprint is not that of the present value."""
    if given != fingerprint(value):
        raise ApiError(
            "FAILED_PRECONDITION",
            f"Supplied fingerprint does not match current {field} fingerprint.",
            http=412,
            reason="conditionNotMet",
        )


def fingerprint(value: list[Json] | Json) -> str:
    """Return a fingerprint in base64, because clients decode it."""
    return base64.b64encode(sha256(json.dumps(value).encode()).digest()[:8]).decode()


#: OS Login documentation: user names are at most 32 characters long.
_LONGEST_NAME = 32


class Accounts:
    """Service accounts, and users' OS Login profiles. Every account exists."""

    def __init__(self, context: ServiceContext, catalogue: Catalogue) -> None:
        self._context = context
        self._catalogue = catalogue

    def generate_service_identity(self, call: Call) -> Json:
        """Return the project's service agent, by its name in the Cloud TPU documentation."""
        self._catalogue.check_zone(call)
        agent = f"service-{project_number(call.project)}@cloud-tpu.iam.gserviceaccount.com"
        return {"identity": {"email": agent}}

    def list_service_accounts(self, call: Call) -> Json:
        """Return the project's only account: the default service account of its workers."""
        account = _service_account(call.project)
        return listing(call, "accounts", {account["name"]: account}, 100)

    def get_login_profile(self, call: Call) -> Json:
        return self._profile(call.path["user"])

    def import_ssh_public_key(self, call: Call) -> Json:
        """Add a key, `{"key": "ssh-rsa …"}`, to a user's profile."""
        user, key = call.path["user"], call.body.get("key", "")
        if len(key.split()) < 2 or "\n" in key.strip():
            raise invalid("Invalid value at 'ssh_public_key.key'")
        record = self._context.state.logins.get(user, {"keys": {}})
        fingerprint = sha256(key.split()[1].encode()).hexdigest()
        keys = {**record["keys"], fingerprint: {"key": key.strip(), "fingerprint": fingerprint}}
        self._context.state.logins[user] = {"keys": keys}
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


def _service_account(project: str) -> Json:
    email = default_account(project)
    return {
        "name": f"projects/{project}/serviceAccounts/{email}",
        "projectId": project,
        "uniqueId": project_number(email),
        "email": email,
        "displayName": "Compute Engine default service account",
        "oauth2ClientId": project_number(email),
    }


def _posix_name(user: str) -> str:
    """Return OS Login's name for an e-mail address: only letters and digits, others become _."""
    return re.sub(r"[^a-z0-9]", "_", user.lower())[:_LONGEST_NAME]
