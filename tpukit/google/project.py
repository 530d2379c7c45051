"""A project, through Cloud Resource Manager, Service Usage and Cloud Quotas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from tpukit.clock import Deadline, polls
from tpukit.errors import DeadlinePassed
from tpukit.google.failures import from_operation, reading, to_error
from tpukit.google.node_json import field
from tpukit.google.retrying_session import Session
from tpukit.text import one_line

#: Seconds for Google to enable services; it usually takes less than a minute.
_ENABLE_SECONDS = 300.0
_TPU = "tpu.googleapis.com"
_PAGE_SIZE = 500


class GoogleProject:
    """The permissions, enabled APIs and quotas of a project, from three APIs."""

    def __init__(
        self, session: Session, project: str, *, manager: str, usage: str, quotas: str
    ) -> None:
        self._session, self._project = session, project
        self._manager, self._usage, self._quotas = (
            url.rstrip("/") for url in (manager, usage, quotas)
        )

    def permitted(self, permissions: Sequence[str], project: str = "") -> frozenset[str]:
        """Return those of up to 100 permissions that the account has on the project, or another."""
        # https://cloud.google.com/resource-manager/reference/rest/v3/projects/testIamPermissions
        doing, path = "test permissions", f"projects/{project or self._project}:testIamPermissions"
        body = {"permissions": list(permissions)}
        answer = self._session.rest(doing, "POST", f"{self._manager}/v3/{path}", body=body)
        with reading(doing):
            granted = field(answer, "permissions", list, [])
            return frozenset(map(str, granted)) & {*permissions}

    def disabled(self, services: Sequence[str]) -> tuple[str, ...]:
        """Return those services (`tpu.googleapis.com`) that the project has not enabled."""
        # https://cloud.google.com/service-usage/docs/reference/rest/v1/services/get
        return tuple(name for name in services if not self._is_enabled(name))

    def enable(self, services: Sequence[str]) -> None:
        """Enable services of the project, and return when they are.

        Raises `DeadlinePassed` if Google does not finish in time.
        """
        # https://cloud.google.com/service-usage/docs/reference/rest/v1/services/batchEnable
        doing = f"enable {', '.join(services)}"
        url = f"{self._services}:batchEnable"
        answer = self._session.rest(doing, "POST", url, body={"serviceIds": list(services)})
        deadline = Deadline.after(self._session.clock, _ENABLE_SECONDS)
        for _ in polls(deadline):
            if answer.get("done"):
                if error := answer.get("error"):
                    known = error if isinstance(error, dict) else {}
                    raise to_error(from_operation(known, capacity=False), doing)
                return
            name = one_line(str(answer.get("name", "")))
            answer = self._session.rest(doing, "GET", f"{self._usage}/v1/{name}", named=False)
        raise DeadlinePassed(f"cannot {doing} in {_ENABLE_SECONDS:g} s; it may still succeed")

    def limits(self, zones: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        """Return the limits of the TPU quotas by zone, and by the quota's name; -1 is no limit.

        A quota may be of the zone or of its region.
        """
        # https://docs.cloud.google.com/docs/quotas/reference/rest/v1/projects.locations.services.quotaInfos/list
        doing, place = "read the TPU quotas", f"projects/{self._project}/locations/global"
        url = f"{self._quotas}/v1/{place}/services/{_TPU}/quotaInfos"
        limits: dict[str, dict[str, int]] = {zone: {} for zone in zones}
        for page in self._session.pages(doing, url, {"pageSize": _PAGE_SIZE}):
            with reading(doing):
                for info, zone in product(page.get("quotaInfos", []), zones):
                    if (limit := next(_limits(info, zone), None)) is not None:
                        limits[zone][one_line(str(info["quotaId"]))] = limit
        return limits

    @property
    def _services(self) -> str:
        return f"{self._usage}/v1/projects/{self._project}/services"

    def _is_enabled(self, service: str) -> bool:
        doing = f"look if {service} is enabled"
        answer = self._session.rest(doing, "GET", f"{self._services}/{service}")
        return answer.get("state") == "ENABLED"


def _limits(info: Mapping[str, Any], zone: str) -> Iterator[int]:
    """Yield the limits of a quota that apply in a zone, the most specific one first.

    An answer lists them in this order. A limit without the dimension applies to all places that
    have no limit of their own, and names them. A limit of 0 may be left out (ProtoJSON).
    """
    place = {"zone": zone, "region": zone.rpartition("-")[0]}
    if not {"zone", "region"} & {*info.get("dimensions", [])}:
        return  # such as requests a minute
    for entry in info.get("dimensionsInfos", []):
        given = entry.get("dimensions") or {}
        where = entry.get("applicableLocations") or []
        fits = all(place.get(name, "") == value for name, value in given.items())
        if fits and (given or not where or {*place.values()} & {*where}):
            yield int((entry.get("details") or {}).get("value", 0))
