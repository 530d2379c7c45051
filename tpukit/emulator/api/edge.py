"""The path from a request to a reply: token, route, faults, then the handler, one at a time."""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Condition, Event

from tpukit.emulator.api.compute_routes import compute_routes
from tpukit.emulator.api.control_plane import ControlPlane
from tpukit.emulator.api.discovery.documents import document_asked_for, find_document
from tpukit.emulator.api.discovery.methods import ApiMethod, find_method
from tpukit.emulator.api.discovery.partial_response import select
from tpukit.emulator.api.exchange import (
    BATCH_PATH,
    ApiReply,
    ApiRequest,
    answer_batch,
    unknown_path,
)
from tpukit.emulator.api.grpc_listeners import GrpcListeners
from tpukit.emulator.api.impersonation import TOKEN_PATH, Impersonation
from tpukit.emulator.api.routes import (
    ApiRoute,
    control_routes,
    find,
    oslogin_routes,
    project_routes,
    tpu_routes,
)
from tpukit.emulator.api.service import Service
from tpukit.emulator.compute_service.project_services import require_permission
from tpukit.emulator.core.api_errors import ApiError, Json, Status, error_info
from tpukit.emulator.core.emulator_clock import timestamp
from tpukit.emulator.core.service_context import Call, project_number
from tpukit.emulator.faults.api_faults import ApiFaults, FaultRule
from tpukit.emulator.faults.presets import filled

#: Compute Engine API reference, globalOperations.wait: it answers after 2 minutes at the latest.
LONGEST_WAIT = 120.0
#: The placeholders of paths with the name of the call's resource.
_NAMES_IN_PATHS = ("node", "queued", "operation", "name")
#: The services whose calls a fault of kind "roles" can refuse.
_GUARDED = ("tpu.googleapis.com", "compute.googleapis.com")


class Edge:
    """Answers requests with one service. Safe to call from many threads.

    It calls `save` after each change of the state, before it answers. `directory` is for other
    files, such as certificates.
    """

    def __init__(
        self, service: Service, token: str | None, save: Callable[[], None], directory: Path
    ) -> None:
        self.faults = ApiFaults()
        self.grpc = GrpcListeners(self.answer, directory)
        self.impersonation = Impersonation(
            service.context.compute_base, token, self.grpc, directory
        )
        self.control = ControlPlane(service, self.faults)
        self._service = service
        self._base = service.context.compute_base.removesuffix("compute/v1/")
        self._token = token
        self._save = save
        self._lock = Condition()
        self._closed = Event()
        self.routes = (
            *tpu_routes(service),
            *compute_routes(service),
            *oslogin_routes(service),
            *project_routes(service),
            *control_routes(self.control, self.grpc, self.impersonation, service),
        )

    def answer(self, request: ApiRequest) -> ApiReply:
        """Return the reply, an error reply included. The log omits requests without the token."""
        reply = self._answer(request)
        return reply.with_links_of_google(self._base) if request.has_google_name else reply

    def _answer(self, request: ApiRequest) -> ApiReply:
        compute = request.path.startswith(("/compute/", "/batch/"))
        if request.verb == "GET" and (document := self._document(request)):
            return document
        if (request.verb, request.path) == ("POST", TOKEN_PATH):
            return self.impersonation.grant(request)
        if not self.admits(request.authorization):
            refusal = _unauthenticated(bool(_token(request.authorization)))
            return ApiReply.error(refusal.status, compute)
        try:
            if request.path == BATCH_PATH and request.verb == "POST":
                return answer_batch(request, self.answer)
            match = find(self.routes, request.verb, request.path)
            if match is None:
                return self._logged(request, "", unknown_path(request))
            route, path = match
            return self._logged(request, route.name, self._checked(route, path, request))
        except ApiError as error:
            return self._logged(request, "", ApiReply.error(error.status, compute))
        except Exception as error:  # noqa: BLE001 - a bug of the emulator becomes an answer too
            status = Status("INTERNAL", f"the emulator failed: {type(error).__name__}: {error}")
            return self._logged(request, "", ApiReply.error(status, compute))

    def tick(self) -> None:
        """Apply due changes without a request."""
        with self._lock:
            self._service.advance()
            self._commit()

    def close(self) -> None:
        """End stalls and waits, and save the time of a fast or slow clock."""
        self._closed.set()
        self.faults.end_stalls()
        with self._lock:
            self._lock.notify_all()
            with contextlib.suppress(OSError):
                if self._service.context.clock.speed != 1:
                    self._service.context.note_time()
                self._commit()

    def _document(self, request: ApiRequest) -> ApiReply | None:
        """Return the discovery document that a request asks for, or None; it needs no token."""
        name = document_asked_for(request.path, request.query.get("version", ""), request.host)
        if not name:
            return None
        document = find_document(name)
        if document is None:
            text = f"Discovery document not found for API service and version: {name}"
            return ApiReply.error(Status("NOT_FOUND", text), compute=False)
        # A client that used Google's host name goes on with it.
        real = request.has_google_name
        return ApiReply.of(document.document if real else document.at(self._base))

    def _checked(self, route: ApiRoute, path: Mapping[str, str], request: ApiRequest) -> ApiReply:
        """Serve a request; check it and its answer against the API's discovery document."""
        query, body = request.query, request.document()
        if route.is_control:
            return self._handle(route, Call(path, query, body))
        first = request.path.split("/")[1]
        method = find_method(route.verb, route.shapes[first])
        try:
            wanted = method.selection(query)
            query, body = method.read(query, body)
        except ApiError as error:
            return ApiReply.error(error.status, route.is_compute)
        if "project" in path:
            with self._lock:
                path = {**path, "project": self._service.context.project_id(path["project"])}
        version = path.get("version") or path.get("alpha") or path.get("manager", "v2")
        version = "" if request.any_version else version
        with self._lock:
            denied = self.faults.denied()
        call = Call(path, query, body, version, method=route.name, denied=denied)

        def answer(call: Call) -> Json:
            self._check_access(method, call)
            shown: Json = select(wanted, method.fit(route.handler(call)))
            return shown

        return self._serve(replace(route, handler=answer), call)

    def _check_access(self, method: ApiMethod, call: Call) -> None:
        """Raise `ApiError` if the project has the API disabled, or a fault denies the call."""
        if "project" in call.path:
            self._service.service_usage.require(call.project, method.service)
            if method.service in _GUARDED:
                require_permission(call, method.permission)

    def _serve(self, route: ApiRoute, call: Call) -> ApiReply:
        before = self._take(route, call, "before")
        if before and before.kind == "operation":
            call = replace(call, failure=_status(before, call))
        elif before and before.kind == "wait":
            call = replace(call, delay=before.seconds)
        elif before and (spoiled := self._spoil(before, route, call)):
            return spoiled
        if call.path.get("zone") == "-" or route.name.endswith(".aggregatedList"):
            with self._lock:
                call = replace(call, silent=self.faults.silent(route.name))
        reply = self._handle(route, call)
        after = self._take(route, call, "after")
        if after and after.kind == "truncate":
            return replace(reply, cut="truncate")
        return (after and self._spoil(after, route, call)) or reply

    def _handle(self, route: ApiRoute, call: Call) -> ApiReply:
        with self._lock:
            self._service.advance()
            try:
                known = route.is_control or route.name.startswith("image")  # Google's projects
                if call.path.get("project", "-") != "-" and not known:
                    self._service.firewalls.open_project(call.project)
                if route.name.endswith("Operations.wait"):
                    self._await(call)
                    self._service.advance()
                reply = ApiReply.of(route.handler(call))
            except ApiError as error:
                reply = ApiReply.error(error.status, route.is_compute)
            self._commit()
            self._lock.notify_all()
            return reply

    def _await(self, call: Call) -> None:
        """Release the lock until an operation is done, for at most `LONGEST_WAIT` seconds."""
        clock = self._service.context.clock
        latest, due = clock.time() + LONGEST_WAIT, self._service.compute_operations.due
        while (left := min(due(call), latest) - clock.time()) > 0 and not self._closed.is_set():
            self._lock.wait(clock.real_seconds(left))

    def _take(self, route: ApiRoute, call: Call, phase: str) -> FaultRule | None:
        zone, kind = call.path.get("zone", ""), _accelerator_type(call)
        with self._lock:
            return self.faults.take(route.name, _subject(call), phase, zone, kind)

    def _spoil(self, rule: FaultRule, route: ApiRoute, call: Call) -> ApiReply | None:
        """Return the fault's reply in place of the right one, or None after a stall.

        A call that stalls during a reset, or until the emulator ends, is never carried out.
        """
        if rule.kind == "stall" and not self.faults.stall(rule.seconds):
            return None
        if rule.kind in ("stall", "reset"):
            return ApiReply(0, b"", cut="reset")
        return ApiReply.error(_status(rule, call), route.is_compute)

    def _commit(self) -> None:
        if self._service.context.state.has_changed():
            self._service.context.note_time()
            self._save()

    def admits(self, authorization: str) -> bool:
        """Return True if an Authorization header holds the token, or if no token is needed."""
        given, own = _token(authorization).encode(), self._token
        return own is None or hmac.compare_digest(given, own.encode())

    def _logged(self, request: ApiRequest, name: str, reply: ApiReply) -> ApiReply:
        entry = {
            "time": timestamp(self._service.context.clock.time()),
            "verb": request.verb,
            "path": request.target,
            "method": name,
            "status": reply.status,
            "cut": reply.cut,
        }
        if not request.path.startswith("/_emulator/"):
            self.control.log.append(entry)
        return reply


def _token(authorization: str) -> str:
    return authorization.removeprefix("Bearer ").strip()


def _subject(call: Call) -> str:
    """Return the short name of the call's resource, to compare with the `name` of fault rules."""
    ids = [call.path.get(key) for key in _NAMES_IN_PATHS]
    ids += [call.query.get("nodeId"), call.query.get("queuedResourceId"), call.body.get("name")]
    return str(next((text for text in ids if text), ""))


def _accelerator_type(call: Call) -> str:
    """Return the accelerator type or machine type in a create, or ""."""
    if machine := call.body.get("machineType"):
        return str(machine).rsplit("/", 1)[-1]
    specs = call.body.get("tpu", {}).get("nodeSpec") or [{"node": call.body}]
    return str(specs[0].get("node", {}).get("acceleratorType") or "")


def _status(rule: FaultRule, call: Call) -> Status:
    zone = call.path.get("zone", "")
    words = {
        "project": call.path.get("project", ""),
        "number": project_number(call.path.get("project", "")),
        "zone": zone,
        "region": zone.rpartition("-")[0],
        "name": _subject(call),
        "type": _accelerator_type(call),
    }
    return filled(rule.status or Status("UNAVAILABLE", ""), words)


def _unauthenticated(given: bool) -> ApiError:
    """Return the error of Google's front end for a wrong token, or for none."""
    problem = "Request had invalid authentication credentials."
    if not given:
        problem = "Request is missing required authentication credential."
    reason = "ACCESS_TOKEN_TYPE_UNSUPPORTED" if given else "CREDENTIALS_MISSING"
    hint = (
        "Expected OAuth 2 access token, login cookie or other valid authentication credential. "
        "See https://developers.google.com/identity/sign-in/web/devconsole-project."
    )
    return ApiError("UNAUTHENTICATED", f"{problem} {hint}", [error_info(reason)])
