"""What clients ask about a project before they use it: services, number, permissions."""

from __future__ import annotations

import re
from uuid import UUID

from tpukit.emulator.core.api_errors import ApiError, Json, error_info, invalid, not_found
from tpukit.emulator.core.emulator_clock import timestamp
from tpukit.emulator.core.service_context import Call, ServiceContext, listing, project_number

#: The services of the emulator, which are enabled in every project, by their titles.
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
#: google.api.serviceusage.v1, in the `@type` of what operations end with.
_PACKAGE = "type.googleapis.com/google.api.serviceusage.v1."
#: IAM reference, "Permissions": `service.resource.verb`.
_PERMISSION = re.compile(r"[a-z][a-zA-Z0-9]*(\.[a-zA-Z0-9]+){2,}")


class ServiceUsage:
    """Service Usage: what is enabled in a project. What is not served here has no effect."""

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
        """Return an operation that enables services; it is done when somebody asks for it."""
        name = f"operations/{call.path['operation']}"
        for project, record in self._context.state.projects.items():
            if found := record.get("enabling", {}).get(name):
                return self._done(project, name, found["kind"], found["services"])
        raise not_found(name)

    def _enable(self, call: Call, names: list[str], kind: str) -> Json:
        """Return an operation to ask for, or one that is done if all are enabled already."""
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
    """Cloud Resource Manager. Every project that is asked for exists, and everything is allowed."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def get(self, call: Call) -> Json:
        return _project(call.project, call.version)

    def list(self, call: Call) -> Json:
        """Return the projects that have been asked for by now."""
        known = {name: _project(name, "v1") for name in self._context.projects}
        return listing(call, "projects", known, 500)

    def test_permissions(self, call: Call) -> Json:
        """Answer which of `{"permissions": […]}` the caller has, which are all that there are."""
        asked = call.body.get("permissions", [])
        for permission in asked:
            if not _PERMISSION.fullmatch(permission):
                raise invalid(f"Permission {permission} is not valid for this resource.")
        return {"permissions": asked}


def _project(project: str, version: str) -> Json:
    """Return a project in the words of v1 and of v3; each version answers its own."""
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
    """Return the name of a service; raise for what can be none."""
    if not _SERVICE.fullmatch(name):
        text = f"Not found or permission denied for service(s): {name}."
        reason = error_info("SERVICE_CONFIG_NOT_FOUND_OR_PERMISSION_DENIED", services=name)
        raise ApiError("PERMISSION_DENIED", text, [reason])
    return name
