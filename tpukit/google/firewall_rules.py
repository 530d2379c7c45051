"""Firewall rules, through the Compute Engine API.

google-cloud-compute is not used: importing it takes 2.6 s, and it polls operations at Google's own
endpoint even if it was given another one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

from tpukit.clock import Deadline, polls
from tpukit.errors import (
    DeadlinePassed,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    TpukitError,
)
from tpukit.google.failures import UNREADABLE, from_operation, reading, to_error
from tpukit.google.node_json import field
from tpukit.google.provider import FirewallProvider, Note, Wait
from tpukit.google.retrying_session import Session
from tpukit.models import ApiCall, FirewallRule
from tpukit.text import one_line

#: Seconds for Compute Engine to create or delete a rule; it usually takes 5 to 10.
OPERATION_SECONDS = 120.0
#: Seconds until the server answers a `wait` while the operation still runs:
#: https://cloud.google.com/compute/docs/reference/rest/v1/globalOperations/wait
HELD_SECONDS = 120.0
_REFUSALS = (NotAllowed, NotAuthenticated)


class ComputeFirewall(FirewallProvider):
    """The firewall rules of one project."""

    def __init__(
        self, session: Session, project: str, endpoint: str, note: Note | None = None
    ) -> None:
        self._session, self._own, self._endpoint = session, project, endpoint
        self._note = note
        self._project = project_url(endpoint, project)
        self._global = f"{self._project}/global"

    def once(self) -> Self:
        return self._with(self._session.once())

    def of(self, project: str) -> Self:
        return type(self)(self._session, project or self._own, self._endpoint, self._note)

    def planning(self, note: Note) -> Self:
        return type(self)(self._session, self._own, self._endpoint, note)

    def has_network(self, name: str) -> bool:
        try:
            self._session.rest("read the network", "GET", f"{self._global}/networks/{name}")
        except NotFound:
            return False
        return True

    def free_addresses(self, region: str) -> int | None:
        # https://cloud.google.com/compute/docs/reference/rest/v1/regions/get
        url = f"{self._project}/regions/{region}?fields=quotas"
        doing = "read the quotas of the region"
        answer = self._session.rest(doing, "GET", url)
        with reading(doing):
            for quota in answer.get("quotas", []):
                if quota["metric"] == "IN_USE_ADDRESSES":
                    return int(quota["limit"] - quota["usage"])
        return None

    def host_project(self) -> str:
        url = f"{self._project}/getXpnHost"
        answer = self._session.rest("read the host project", "GET", url)
        return one_line(str(answer.get("name") or ""))

    def within(self, deadline: Deadline, *, patient: bool = False) -> Self:
        return self._with(self._session.within(deadline, patient=patient))

    def list(self) -> tuple[FirewallRule, ...]:
        pages = self._session.pages(
            "list firewall rules", f"{self._global}/firewalls", {"maxResults": 500}
        )
        return tuple(rule for page in pages for rule in _rules(page))

    def get(self, name: str) -> FirewallRule | None:
        with suppress(NotFound):
            url = f"{self._global}/firewalls/{name}"
            answer = self._session.rest(f"read firewall rule {name}", "GET", url)
            return next(iter(_rules({"items": [answer]})), None)
        return None

    def has_policies(self, network: str) -> bool:
        url = f"{self._global}/networks/{network}/getEffectiveFirewalls"
        doing = "read the effective firewalls"
        answer = self._session.rest(doing, "GET", url)
        with reading(doing):
            policies = answer.get("firewallPolicys", [])
            # Every hierarchical policy ends with rules that leave the decision to the next level.
            return any(
                rule["action"] != "goto_next" for policy in policies for rule in policy["rules"]
            )

    def insert(self, rule: FirewallRule) -> Wait:
        doing = f"create firewall rule {rule.name}"
        return self._asked(doing, "POST", "firewalls", self._body(rule))

    def replace_source_ranges(self, name: str, source_ranges: Sequence[str]) -> Wait:
        body = {"sourceRanges": list(source_ranges)}
        return self._asked(f"update firewall rule {name}", "PATCH", f"firewalls/{name}", body)

    def delete(self, name: str) -> None:
        self._asked(f"delete firewall rule {name}", "DELETE", f"firewalls/{name}", None)()

    def _with(self, session: Session) -> Self:
        return type(self)(session, self._own, self._endpoint, self._note)

    def _asked(self, doing: str, method: str, path: str, body: Any) -> Wait:
        url = f"{self._global}/{path}"
        if self._note:
            self._note(ApiCall(method, url, body))
            return lambda: None
        named = method == "DELETE"
        operation = self._session.rest(doing, method, url, body=body, named=named)
        name = _operation_name(doing, operation)
        return lambda: self._wait(doing, operation, name, named)

    def _wait(self, doing: str, operation: dict[str, Any], name: str, named: bool) -> None:
        deadline = self._session.deadline(OPERATION_SECONDS)
        held, odd = self._session.holding(HELD_SECONDS, deadline), None
        wait = f"{self._global}/operations/{name}/wait"
        for _ in polls(deadline):
            try:
                if operation.get("status") != "DONE":
                    operation = held.rest(doing, "POST", wait, named=False)
            except TpukitError as error:  # an odd answer does not end the operation
                passes = error.reason.startswith((UNREADABLE, "NOT_FOUND"))
                if isinstance(error, _REFUSALS):  # a second one is no accident
                    passes = not isinstance(odd, _REFUSALS)
                if not passes:
                    raise
                odd = error
            if operation.get("status") == "DONE":
                return _raise_failed(doing, operation, named)
        late = f"cannot {doing} in time; it may still succeed"
        raise DeadlinePassed(late, why=odd.what if odd else "")

    def _body(self, rule: FirewallRule) -> dict[str, Any]:
        return {
            "name": rule.name,
            "description": rule.description,
            "network": f"{self._global}/networks/{rule.network}",
            "direction": "INGRESS",
            "priority": rule.priority,
            "sourceRanges": list(rule.source_ranges),
            "targetTags": list(rule.target_tags),
            "allowed": [_allowed(word) for word in rule.allowed],
        }


def project_url(endpoint: str, project: str) -> str:
    """Return the URL of a project in the Compute Engine API."""
    base = endpoint.rstrip("/")
    root = base if base.endswith("/compute/v1") else f"{base}/compute/v1"
    return f"{root}/projects/{project}"


def _rules(page: dict[str, Any]) -> list[FirewallRule]:
    with reading("list firewall rules"):
        return [_rule(item) for item in page.get("items", []) if _is_ingress(item)]


def _operation_name(doing: str, operation: dict[str, Any]) -> str:
    with reading(doing):
        name = field(operation, "name", str, "")
        if not re.fullmatch(r"[\w-]{1,200}", name):
            raise ValueError("an operation without a name")
        return name


def _raise_failed(doing: str, operation: dict[str, Any], named: bool) -> None:
    """Raise the error of an operation if it failed; see `Failure.named`."""
    if not operation.get("error"):
        return
    with reading(doing):
        problem = operation["error"]["errors"][0]
        code, message = str(problem.get("code", "")), str(problem.get("message", ""))
    status = {"code": 5 if "NOT_FOUND" in code else 2, "message": message}
    failure = from_operation(status, capacity=False)
    raise to_error(replace(failure, named=named), doing)


def _is_ingress(item: dict[str, Any]) -> bool:
    return bool(item.get("direction", "INGRESS") == "INGRESS")


def _allowed(word: str) -> dict[str, Any]:
    protocol, _, port = word.partition(":")
    return {"IPProtocol": protocol, **({"ports": [port]} if port else {})}


def _rule(item: dict[str, Any]) -> FirewallRule:
    return FirewallRule(
        name=one_line(item.get("name", "")),
        network=one_line(item.get("network", "")).rpartition("/")[2],
        source_ranges=_lines(item, "sourceRanges"),
        target_tags=_lines(item, "targetTags"),
        target_service_accounts=_lines(item, "targetServiceAccounts"),
        allowed=_traffic(item, "allowed"),
        denied=_traffic(item, "denied"),
        description=one_line(item.get("description", "")),
        priority=int(item.get("priority", 1000)),
        disabled=bool(item.get("disabled", False)),
    )


def _lines(item: dict[str, Any], key: str) -> tuple[str, ...]:
    return tuple(one_line(line) for line in item.get(key, []))


def _traffic(item: dict[str, Any], key: str) -> tuple[str, ...]:
    return tuple(
        f"{one_line(entry.get('IPProtocol', ''))}{':' + one_line(port) if port else ''}"
        for entry in item.get(key, [])
        for port in entry.get("ports") or [""]
    )
