"""Disks, read through the Compute Engine API."""

from __future__ import annotations

from typing import Self

from tpukit.clock import Deadline
from tpukit.errors import NotFound
from tpukit.google.failures import reading
from tpukit.google.firewall_rules import project_url
from tpukit.google.provider import DiskProvider
from tpukit.google.retrying_session import Session


class ComputeDisks(DiskProvider):
    """The disks that the session's account may read, in any project."""

    def __init__(self, session: Session, endpoint: str) -> None:
        self._session = session
        self._endpoint = endpoint

    def within(self, deadline: Deadline) -> Self:
        return type(self)(self._session.within(deadline), self._endpoint)

    def unused(self, source: str) -> int | None:
        # https://cloud.google.com/compute/docs/reference/rest/v1/disks/get
        _, project, place = source.split("/", 2)
        doing, url = f"read disk {source}", f"{project_url(self._endpoint, project)}/{place}"
        try:
            answer = self._session.rest(doing, "GET", url)
        except NotFound:
            return None
        with reading(doing):
            return None if answer.get("users") else int(answer["sizeGb"])
