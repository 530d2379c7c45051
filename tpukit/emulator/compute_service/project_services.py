"""Clients' questions about a project before they use it: services, number, permissions."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from uuid import UUID

from tpukit.emulator.core.api_errors import ApiError, Json, error_info, invalid, not_found
from tpukit.emulator.core.emulator_clock import timestamp
from tpukit.emulator.core.service_context import Call, ServiceContext, listing, project_number

#: The emulated services with their titles. A project has them enabled until it disables them.
_SERVED = {
    "cloudquotas.googleapis.com": "Cloud Quotas API",
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
_OWN = "serviceusage.googleapis.com"
#: The name of an operation that had nothing to wait for.
_AT_ONCE = "operations/noop.DONE_OPERATION"
#: The start of the `@type` of an operation's response.
_PACKAGE = "type.googleapis.com/google.api.serviceusage.v1."
#: IAM reference, "Permissions": `service.resource.verb`.
_PERMISSION = re.compile(r"[a-z][a-zA-Z0-9]*(\.[a-zA-Z0-9]+){2,}")


class ServiceUsage:
    """Service Usage: the enabled services of a project, which answer calls.

    Enabling services that are not emulated has no effect.
    """

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def get(self, call: Call) -> Json:
        return self._view(call.project, _checked(call.path["service"]))

    def enable(self, call: Call) -> Json:
        return self._enable(call, [call.path["service"]], "EnableServiceResponse")

    def disable(self, call: Call) -> Json:
        """Disable a service, whose calls are refused from then on."""
        name = _checked(call.path["service"])
        if name == _OWN:
            raise invalid("The emulator does not disable Service Usage.")
        record = self._context.state.projects.get(call.project, {"items": []})
        left = [other for other in self._more(call.project) if other != name]
        off = sorted({*record.get("disabled", ()), name} & _SERVED.keys())
        self._context.state.projects[call.project] = {**record, "services": left, "disabled": off}
        return self._done(call.project, _AT_ONCE, "DisableServiceResponse", [name])

    def require(self, project: str, service: str) -> None:
        """Raise PERMISSION_DENIED if a project has disabled one of the emulated services.

        The text is that of public reports on several Google APIs; only the API's title differs.
        """
        if service not in self._disabled(project):
            return
        page = f"https://console.developers.google.com/apis/api/{service}/overview"
        text = (
            f"{_SERVED[service]} has not been used in project {project} before or it is disabled."
            f" Enable it by visiting {page}?project={project} then retry. If you enabled this API"
            " recently, wait a few minutes for the action to propagate to our systems and retry."
        )
        info = error_info("SERVICE_DISABLED", service=service, consumer=f"projects/{project}")
        raise ApiError("PERMISSION_DENIED", text, [info], reason="accessNotConfigured")

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
        new = {_checked(name) for name in names} - self._enabled(call.project)
        if not new:
            return self._done(call.project, _AT_ONCE, kind, names)
        record = self._context.state.projects.get(call.project, {"items": []})
        bits = self._context.random.getrandbits(128)
        name = f"operations/acf.p2-{project_number(call.project)}-{UUID(int=bits)}"
        self._context.state.projects[call.project] = {
            **record,
            "services": sorted({*self._more(call.project), *new} - _SERVED.keys()),
            "disabled": sorted(self._disabled(call.project) - new),
            "enabling": {**record.get("enabling", {}), name: {"kind": kind, "services": names}},
        }
        return {"name": name}

    def _done(self, project: str, name: str, kind: str, names: list[str]) -> Json:
        views = [self._view(project, service) for service in names]
        shown = {"services": views} if kind.startswith("Batch") else {"service": views[0]}
        return {"name": name, "done": True, "response": {"@type": f"{_PACKAGE}{kind}", **shown}}

    def _enabled(self, project: str) -> set[str]:
        return {*_SERVED, *self._more(project)} - self._disabled(project)

    def _more(self, project: str) -> list[str]:
        """Return the enabled services that are not emulated."""
        return list(self._context.state.projects.get(project, {}).get("services", ()))

    def _disabled(self, project: str) -> set[str]:
        return set(self._context.state.projects.get(project, {}).get("disabled", ()))

    def _view(self, project: str, name: str) -> Json:
        parent = f"projects/{project_number(project)}"
        return {
            "name": f"{parent}/services/{name}",
            "parent": parent,
            "config": {"name": name, "title": _SERVED.get(name, name)},
            "state": "ENABLED" if name in self._enabled(project) else "DISABLED",
        }

    def list(self, call: Call) -> Json:
        names = sorted({*_SERVED, *self._more(call.project)})
        views = (self._view(call.project, name) for name in names)
        return listing(call, "services", {view["name"]: view for view in views}, 200)


class ResourceManager:
    """Cloud Resource Manager: every project id exists. Only a fault takes permissions away."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def get(self, call: Call) -> Json:
        return _project(call.project, call.version)

    def list(self, call: Call) -> Json:
        """Return the projects that calls have named so far."""
        known = {name: _project(name, "v1") for name in self._context.projects}
        return listing(call, "projects", known, 500)

    def test_permissions(self, call: Call) -> Json:
        """Return the granted ones of `{"permissions": […]}`.

        Raises `ApiError` for a malformed one.
        """
        asked = call.body.get("permissions", [])
        for permission in asked:
            if not _PERMISSION.fullmatch(permission):
                raise invalid(f"Permission {permission} is not valid for this resource.")
        return {"permissions": [name for name in asked if not is_denied(call, name)]}


def require_permission(call: Call, permission: str) -> None:
    """Raise PERMISSION_DENIED if a fault takes a permission from the caller.

    The texts are those of public reports on both APIs.
    """
    if not is_denied(call, permission):
        return
    place = f"projects/{call.project}"
    if permission.startswith("compute."):
        text = f"Required '{permission}' permission for '{place}'"
        raise ApiError("PERMISSION_DENIED", text, reason="forbidden")
    where = f"{place}/locations/{call.path['zone']}" if "zone" in call.path else place
    text = f"Permission '{permission}' denied on '{where}' (or it may not exist)."
    info = error_info("IAM_PERMISSION_DENIED", permission=permission, resource=where)
    raise ApiError("PERMISSION_DENIED", text, [info])


def is_denied(call: Call, permission: str) -> bool:
    """Return True if a fault takes a permission from the caller."""
    return any(fnmatchcase(permission, pattern) for pattern in call.denied)


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
