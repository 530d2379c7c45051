"""The common part of providers that make REST calls in a session."""

from __future__ import annotations

from copy import copy
from typing import Self

from tpukit.clock import Deadline
from tpukit.google.provider import Note, SliceProvider
from tpukit.google.retrying_session import Session
from tpukit.settings.table import is_loopback

#: Addresses like the workers': of the emulator, of Google, and of the networks that Google makes in
#: new projects (VPC documentation, "Auto mode IPv4 ranges").
_LOOPBACK, _EXTERNAL, _INTERNAL = "127.0.0.1", "216.239.32.10", "10.128.0.2"


class RestProvider(SliceProvider):
    """The slices of one project in one API."""

    def __init__(self, session: Session, project: str, endpoint: str, api: str) -> None:
        self._local = is_loopback(endpoint)
        self.bills = not self._local
        self.apis = (api,)
        self._session = session
        self._project = project
        self._note: Note | None = None

    def planning(self, note: Note) -> Self:
        other = copy(self)
        other._note = note
        return other

    def now(self) -> float:
        return self._session.now()

    def once(self) -> Self:
        return self._with(self._session.once())

    def within(self, deadline: Deadline, *, patient: bool = False) -> Self:
        return self._with(self._session.within(deadline, patient=patient))

    def only(self, api: str) -> SliceProvider:
        return self

    def worker_address(self, external: bool) -> str:
        if self._local:
            return _LOOPBACK
        return _EXTERNAL if external else _INTERNAL

    def _with(self, session: Session) -> Self:
        other = copy(self)
        other._session = session
        return other
