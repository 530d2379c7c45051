"""OS Login: the project's metadata that turns it on, and the profile of an account."""

from __future__ import annotations

from copy import copy
from typing import Any, Self
from urllib.parse import quote, urlencode

from tpukit.clock import Deadline
from tpukit.google.failures import reading
from tpukit.google.firewall_rules import project_url
from tpukit.google.retrying_session import Session
from tpukit.models import LoginProfile
from tpukit.text import one_line


class OsLogin:
    """OS Login of one project, through the OS Login and Compute Engine APIs."""

    def __init__(self, session: Session, project: str, compute: str, endpoint: str) -> None:
        self._session = session
        self._project = project
        self._project_url = project_url(compute, project)
        self._root = endpoint.rstrip("/")

    def within(self, deadline: Deadline) -> Self:
        """Return the same service with calls that end at most a second after the deadline."""
        other = copy(self)
        other._session = self._session.within(deadline)
        return other

    def project_metadata(self) -> dict[str, str]:
        """Return the metadata that all machines of the project share."""
        doing = "read the project's metadata"
        answer = self._session.rest(doing, "GET", self._project_url)
        with reading(doing):
            items = answer.get("commonInstanceMetadata", {}).get("items", [])
            return {str(item["key"]): str(item.get("value", "")) for item in items}

    def profile(self, account: str) -> LoginProfile:
        """Return an account's login profile; raise `NotFound` if it has none."""
        doing = f"read the login profile of {account}"
        query = urlencode({"projectId": self._project})
        url = f"{self._root}/v1/users/{quote(account, safe='')}/loginProfile?{query}"
        answer = self._session.rest(doing, "GET", url)
        with reading(doing):
            return _profile(answer, self._session.now())


def _profile(answer: dict[str, Any], now: float) -> LoginProfile:
    accounts = sorted(
        answer.get("posixAccounts", []), key=lambda account: not account.get("primary")
    )
    keys = [
        one_line(str(key.get("key", "")))
        for key in answer.get("sshPublicKeys", {}).values()
        if "expirationTimeUsec" not in key or int(key["expirationTimeUsec"] or 0) / 1e6 > now
    ]
    return LoginProfile(
        one_line(str(accounts[0].get("username", ""))) if accounts else "", tuple(keys)
    )
