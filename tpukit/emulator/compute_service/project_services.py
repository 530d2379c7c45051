"""Clients' questions about a project before they use it: services, number, permissions."""

from __future__ import annotations

import re
from uuid import UUID

from tpukit.emulator.core.api_errors import ApiError, Json, error_info, invalid, not_found
from tpukit.emulator.core.emulator_clock import timestamp
from tpukit.emulator.core.service_context import Call, ServiceContext, listing, project_number

#: The emulated services with their titles; they are enabled in every project.
_SERVED = {
    "cloudresourcemanager.googleapis.com": "Cloud Resource Manager API",
    "compute.googleapis.com": "Compute Engine API",
    "iam.googleapis.com": "Identity and Access Management (IAM) API",
    "oslogin.googleapis.com": "Cloud OS Login API",
    "serviceusage.googleapis.com": "Service Usage API",
    "tpu.googleapis.com": "Cloud TPU API",
}
_SERVICE = re.compile(r"[a-z][-a-z0-9]*\.googleapis\.com")
#: Service Usage API reference, services.batchEnable.
_MOST_AT_ONCE = 20
#: The start of the `@type` of an operation's response.
_PACKAGE = "type.googleapis.com/google.api.serviceusage.v1."
#: IAM reference, "Permissions": `service.resource.verb`.
_PERMISSION = re.compile(r"[a-z][a-zA-Z0-9]*(\.[a-zA-Z0-9]+){2,}")


class ServiceUsage:
    """Service Usage: the enabled services of a project. Enabling other services has no effect."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def get(self, call: Call) -> Json:
        return self._view(call.project, _checked(call.path["service"]))

    def enable(self, call: Call) -> Json:
        return self._enable(call, [call.path["service"]], "EnableServiceResponse")

    def batch_enable(self, call: Call) -> Json:
        """Enable `{"serviceIds": […]}`, all of them or none."""
        names = call.body.get("serviceIds", [])
        if not 0 < len(names) <= _MOST_AT_ONCE:
            raise invalid(f"From 1 to {_MOST_AT_ONCE} services can be enabled at once.")
        return self._enable(call, names, "BatchEnableServicesResponse")

    def get_operation(self, call: Call) -> Json:
        """Return an operation that enables services; it is always done."""
        name = f"operations/{call.path['operation']}"
        for project, record in self._context.state.projects.items():
            if operation := record.get("enabling", {}).get(name):
                return self._done(project, name, operation["kind"], operation["services"])
        raise not_found(name)

    def _enable(self, call: Call, names: list[str], kind: str) -> Json:
        """Enable services; return an operation to poll, or a done one if all were enabled."""
        new = {_checked(name) for name in names} - {*_SERVED, *self._enabled(call.project)}
        if not new:
            return self._done(call.project, "operations/noop.DONE_OPERATION", kind, names)
        record = self._context.state.projects.get(call.project, {"items": []})
        bits = self._context.random.getrandbits(128)
        name = f"operations/acf.p2-{project_number(call.project)}-{UUID(int=bits)}"
        self._context.state.projects[call.project] = {
            **record,
            "services": sorted({*self._enabled(call.project), *new}),
            "enabling": {**record.get("enabling", {}), name: {"kind": kind, "services": names}},
        }
        return {"name": name}

    def _done(self, project: str, name: str, kind: str, names: list[str]) -> Json:
        views = [self._view(project, service) for service in names]
        shown = {"services": views} if kind.startswith("Batch") else {"service": views[0]}
        return {"name": name, "done": True, "response": {"@type": f"{_PACKAGE}{kind}", **shown}}

    def _enabled(self, project: str) -> list[str]:
        return list(self._context.state.projects.get(project, {}).get("services", ()))

    def _view(self, project: str, name: str) -> Json:
        enabled = name in _SERVED or name in self._enabled(project)
        parent = f"projects/{project_number(project)}"
        return {
            "name": f"{parent}/services/{name}",
            "parent": parent,
            "config": {"name": name, "title": _SERVED.get(name, name)},
            "state": "ENABLED" if enabled else "DISABLED",
        }

    def list(self, call: Call) -> Json:
        names = sorted({*_SERVED, *self._enabled(call.project)})
        views = (self._view(call.project, name) for name in names)
        return listing(call, "services", {view["name"]: view for view in views}, 200)


class ResourceManager:
    """Cloud Resource Manager: every project id exists, and every permission is granted."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def get(self, call: Call) -> Json:
        return _project(call.project, call.version)

    def list(self, call: Call) -> Json:
        """Return the projects that calls have named so far."""
        known = {name: _project(name, "v1") for name in self._context.projects}
        return listing(call, "projects", known, 500)

    def test_permissions(self, call: Call) -> Json:
        """Return all of `{"permissions": […]}`; raise `ApiError` for a malformed one."""
        asked = call.body.get("permissions", [])
        for permission in asked:
            if not _PERMISSION.fullmatch(permission):
                raise invalid(f"Permission {permission} is not valid for this resource.")
        return {"permissions": asked}


def _project(project: str, version: str) -> Json:
    """Return a project with the fields of v1 and v3; each version's answer keeps its own."""
    number = project_number(project)
    return {
        "name": project if version == "v1" else f"projects/{number}",
        "projectId": project,
        "projectNumber": number,
        "lifecycleState": "ACTIVE",
        "state": "ACTIVE",
        "displayName": project,
        "createTime": timestamp(0),
    }


def _checked(name: str) -> str:
    """Return a service's name; raise `ApiError` if it is malformed."""
    if not _SERVICE.fullmatch(name):
        text = f"Not found or permission denied for service(s): {name}."
        reason = error_info("SERVICE_CONFIG_NOT_FOUND_OR_PERMISSION_DENIED", services=name)
        raise ApiError("PERMISSION_DENIED", text, [reason])
    return name
