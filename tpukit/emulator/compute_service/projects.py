"""Projects with their metadata and operations; accounts and OS Login profiles."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256

from tpukit.emulator.core.api_errors import ApiError, Json, invalid
from tpukit.emulator.core.emulator_clock import timestamp
from tpukit.emulator.core.service_context import (
    Call,
    ServiceContext,
    Views,
    default_account,
    listing,
    page,
    project_number,
    resource_id,
)
from tpukit.emulator.tpu_service.catalogue import Catalogue
from tpukit.emulator.tpu_service.node_fields import check_metadata

_UNREACHABLE = {"code": "UNREACHABLE", "message": "The scope is unreachable."}
#: The number of operations to keep; Compute Engine keeps them for some time.
KEPT = 1000


class ComputeOperations:
    """Operations, global or of a zone or region; only the clock ends them."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._records = context.state.compute_operations

    def begin(
        self,
        call: Call,
        verb: str,
        target: str,
        seconds: float | None = None,
        error: Json | None = None,
    ) -> Json:
        """Record an operation on a resource, and return it in the API's form.

        It ends after `seconds` (default: those of an update), with `error` if there is one.
        """
        now = self._context.now()
        seconds = self._context.timing.update if seconds is None else seconds
        name = f"{_operations(call)}/{self._context.operation_id()}"
        self._records[name] = {
            "id": self._context.number(),
            "targetId": self._target_id(target),
            "user": default_account(call.project),
            "request_id": call.query.get("requestId", ""),
            "operationType": verb,
            "target": target,
            "started": now,
            "due": now + seconds,
            **({"error": error} if error else {}),
        }
        for old in list(self._records)[: max(0, len(self._records) - KEPT)]:
            del self._records[old]
        return self._view(name)

    def end(self, target: str, error: Json) -> None:
        """End every operation on a target that is under way with an error."""
        now = self._context.now()
        for name, record in list(self._records.items()):
            if record["target"] == target and record["due"] > now:
                self._records[name] = {**record, "due": now, "error": error}

    def fail_last(self, target: str, error: Json) -> None:
        """Let the newest operation on a target end with an error."""
        for name in reversed(list(self._records)):
            if self._records[name]["target"] == target:
                self._records[name] = {**self._records[name], "error": error}
                return

    def repeated(self, call: Call, verb: str, target: str) -> Json | None:
        """Return the operation of an earlier call with the same request id, or None."""
        asked = call.query.get("requestId")
        for name, record in self._records.items() if asked else ():
            same = (record["operationType"], record["target"]) == (verb, target)
            if same and record.get("request_id") == asked:
                return self._view(name)
        return None

    def get(self, call: Call) -> Json:
        return self._view(self._find(call))

    def list(self, call: Call) -> Json:
        prefix = f"{_operations(call)}/"
        mine = (name for name in self._records if name.startswith(prefix))
        return {"kind": "compute#operationList", **found_page(call, Views(mine, self._view))}

    def due(self, call: Call) -> float:
        """Return the time when the operation of a `wait` call is done."""
        return float(self._records[self._find(call)]["due"])

    def _target_id(self, target: str) -> str:
        """Return the id of an operation's resource: the recorded one, else a derived one."""
        state = self._context.state
        records = [
            records[target]
            for records in (
                *(state.firewalls, state.disks, state.instances),
                *(state.policies, state.templates, state.groups),
            )
            if target in records
        ]
        return str(records[0]["id"]) if records else resource_id(target)

    def _find(self, call: Call) -> str:
        name = f"{_operations(call)}/{call.path['operation']}"
        if name not in self._records:
            raise not_found(name)
        return name

    def _view(self, name: str) -> Json:
        record, base = self._records[name], self._context.compute_base
        done = record["due"] <= self._context.now()
        started = timestamp(record["started"])
        place = name.rpartition("/operations/")[0]
        return {
            "kind": "compute#operation",
            "id": record["id"],
            "name": name.rsplit("/", 1)[1],
            "operationType": record["operationType"],
            "targetId": record.get("targetId") or resource_id(record["target"]),
            "targetLink": base + record["target"],
            "user": record.get("user") or default_account(name.split("/")[1]),
            "status": "DONE" if done else "RUNNING",
            "progress": 100 if done else 0,
            "insertTime": started,
            "startTime": started,
            **({"endTime": timestamp(record["due"])} if done else {}),
            **(_failure(record["error"]) if done and "error" in record else {}),
            "selfLink": base + name,
            **{kind: base + place for kind in _PLACES if f"/{kind}s/" in place},
        }


def _failure(error: Json) -> Json:
    """Return the fields of a failed operation; an entry of `errors` has the HTTP status too."""
    own = {key: value for key, value in error.items() if not key.startswith("http")}
    shown = {key: value for key, value in error.items() if key.startswith("http")}
    return {"error": {"errors": [own]}, **shown}


_PLACES = ("zone", "region")


def _operations(call: Call) -> str:
    """Return the collection of a call's operations: of its zone, its region, or global."""
    places = [f"{kind}s/{call.path[kind]}" for kind in _PLACES if kind in call.path]
    return f"projects/{call.project}/{[*places, 'global'][0]}/operations"


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


def not_found(name: str) -> ApiError:
    return ApiError("NOT_FOUND", f"The resource '{name}' was not found")


def found_page(call: Call, documents: Mapping[str, Json]) -> Json:
    """Return one page of a Compute Engine list of documents, which are given by name."""
    shown, token = page(call, documents, call.query.get("maxResults", ""), 500)
    return {**({"items": shown} if shown else {}), **({"nextPageToken": token} if token else {})}


def aggregated_page(
    call: Call, documents: Mapping[str, Json], places: str, collection: str
) -> Json:
    """Return one page of an aggregated list: documents by `PLACES/NAME`, or by `global`.

    Raises `ApiError` if a fault silences a zone and the call does not accept a partial success.
    """
    if call.silent:
        if call.query.get("returnPartialSuccess") != "true":
            raise ApiError("UNAVAILABLE", "The service is currently unavailable.")
        names = (name for name in documents if name.split("/")[3] not in call.silent)
        documents = Views(names, documents.__getitem__)
    shown, token = page(call, documents, call.query.get("maxResults", ""), 500)
    scopes: dict[str, Json] = {}
    for document in shown:
        name = document.get(places.removesuffix("s"), "").rpartition("/")[2]
        scope = f"{places}/{name}" if name else "global"
        scopes.setdefault(scope, {collection: []})[collection].append(document)
    for zone in call.silent:
        scopes[f"{places}/{zone}"] = {"warning": _UNREACHABLE}
    unreachable = [f"projects/{call.project}/zones/{zone}" for zone in call.silent]
    return {
        "items": scopes,
        **({"nextPageToken": token} if token else {}),
        **({"unreachables": unreachable} if unreachable else {}),
    }


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
