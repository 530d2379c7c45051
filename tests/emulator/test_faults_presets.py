"""Every preset, met by Google's own clients: what they report, and what is counted."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.auth.transport.requests import AuthorizedSession
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuRestTransport
from google.oauth2.credentials import Credentials

from emulator.conftest import Api, Emulators
from tpukit.emulator.faults.presets import PRESETS

PARENT = "projects/p/locations/us-central1-a"
GCLOUD = shutil.which("gcloud")


@dataclass(frozen=True)
class Google:
    """Google's client of the TPU API, and google-auth's session for the firewall API."""

    api: Api

    @property
    def tpu(self) -> tpu_v2.TpuClient:
        host = self.api.server.url.removeprefix("http://")
        credentials = Credentials(self.api.token)
        return tpu_v2.TpuClient(
            transport=TpuRestTransport(host=host, url_scheme="http", credentials=credentials)
        )

    def create(self) -> Any:
        node = tpu_v2.Node(accelerator_type="v3-8", runtime_version="tpu-ubuntu2204-base")
        operation = self.tpu.create_node(parent=PARENT, node_id="demo", node=node)
        return operation.result(timeout=120)

    def delete(self) -> Any:
        return self.tpu.delete_node(name=f"{PARENT}/nodes/demo").result(timeout=120)

    def get(self) -> Any:
        return self.tpu.get_node(name=f"{PARENT}/nodes/demo")

    def list(self) -> Any:
        return list(self.tpu.list_nodes(parent=PARENT))

    def queue(self) -> Any:
        node = tpu_v2.Node(accelerator_type="v3-8", runtime_version="tpu-ubuntu2204-base")
        spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=PARENT, node_id="demo", node=node)
        request = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]))
        return self.tpu.create_queued_resource(
            parent=PARENT, queued_resource_id="demo", queued_resource=request
        ).result(timeout=120)

    def queued(self) -> tpu_v2.QueuedResource:
        return self.tpu.get_queued_resource(name=f"{PARENT}/queuedResources/demo")

    def delete_queued(self) -> Any:
        request = tpu_v2.DeleteQueuedResourceRequest(
            name=f"{PARENT}/queuedResources/demo", force=True
        )
        return self.tpu.delete_queued_resource(request=request).result(timeout=120)

    def open_firewall(self) -> Any:
        url = f"{self.api.server.url}/compute/v1/projects/p/global/firewalls"
        rule = {"name": "ssh", "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}
        answer = AuthorizedSession(Credentials(self.api.token)).post(url, json=rule, timeout=120)
        if answer.status_code != 200:
            raise exceptions.from_http_response(answer)
        return answer.json()


@pytest.fixture
def google(emulators: Emulators) -> Google:
    """An emulator in which nothing takes time, and Google's clients."""
    return Google(emulators.start(create_seconds=0.0, operation_metadata="tpu"))


@dataclass(frozen=True)
class Meeting:
    """What a client asks for, and the error that it gets."""

    ask: Callable[[Google], Any]
    error: type[exceptions.GoogleAPICallError]
    text: str
    details: frozenset[str] = frozenset()
    before: Callable[[Google], Any] | None = None


#: Texts and codes: the sources beside each preset. Over REST a 429 is `TooManyRequests`, whose
#: class is that of `ResourceExhausted`; an operation's error has the class of its code.
MEETINGS = {
    "stockout": Meeting(
        Google.create, exceptions.ResourceExhausted, "no more capacity in the zone"
    ),
    "stockout-reserved": Meeting(
        Google.create, exceptions.FailedPrecondition, "Insufficient reserved capacity"
    ),
    "stockout-internal": Meeting(
        Google.create, exceptions.InternalServerError, "an internal error has occurred"
    ),
    "quota": Meeting(
        Google.create,
        exceptions.TooManyRequests,
        "Quota limit 'TPUV2sPodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone",
        frozenset({"QuotaFailure"}),
    ),
    "rate-limit": Meeting(
        Google.create,
        exceptions.TooManyRequests,
        "Maximum number of CreateNode requests per minute",
        frozenset({"ErrorInfo", "RetryInfo"}),
    ),
    "permission-denied": Meeting(
        Google.create,
        exceptions.Forbidden,
        "Permission 'tpu.nodes.create' denied on 'projects/p/locations/us-central1-a'",
        frozenset({"ErrorInfo"}),
    ),
    "firewall-permission-denied": Meeting(
        Google.open_firewall,
        exceptions.Forbidden,
        "Required 'compute.firewalls.create' permission for 'projects/p/global/firewalls/ssh'",
    ),
    "api-disabled": Meeting(
        Google.list,
        exceptions.Forbidden,
        "Cloud TPU API has not been used in project p before or it is disabled",
        frozenset({"ErrorInfo"}),
    ),
    "compute-api-disabled": Meeting(
        Google.open_firewall,
        exceptions.Forbidden,
        "Compute Engine API has not been used in project p before or it is disabled",
        frozenset({"ErrorInfo"}),
    ),
    "delete-fails": Meeting(
        Google.delete,
        exceptions.InternalServerError,
        "an internal error has occurred",
        before=Google.create,
    ),
    "not-found-yet": Meeting(
        Google.get,
        exceptions.NotFound,
        f"Resource '{PARENT}/nodes/demo' was not found",
        before=Google.create,
    ),
    "external-ip-policy": Meeting(
        Google.create,
        exceptions.FailedPrecondition,
        "Constraint constraints/compute.vmExternalIpAccess violated for project p",
    ),
    "unavailable": Meeting(
        Google.list, exceptions.ServiceUnavailable, "The service is currently unavailable"
    ),
    "queued-delete-fails": Meeting(
        Google.delete_queued,
        exceptions.FailedPrecondition,
        "cannot be deleted now",
        before=Google.queue,
    ),
}
#: A queued resource is accepted and fails later, by the service, which its state shows.
QUEUED = {
    "queued-stockout-internal": (13, "an internal error has occurred"),
    "queue-closed": (7, "User does not have permission to submit requests into this queue"),
}


def served(google: Google) -> list[int]:
    return [rule["served"] for rule in google.api.call("GET", "/_emulator/v1/faults")[1]["faults"]]


def test_every_preset_is_met_here() -> None:
    assert MEETINGS.keys() | QUEUED.keys() == PRESETS.keys()


@pytest.mark.parametrize("preset", MEETINGS)
def test_googles_client_reports_what_the_real_service_says(google: Google, preset: str) -> None:
    meeting = MEETINGS[preset]
    if meeting.before:
        meeting.before(google)
    google.api.fault(preset=preset)
    with pytest.raises(meeting.error) as caught:
        meeting.ask(google)
    assert type(caught.value) is meeting.error
    assert meeting.text in str(caught.value)
    # Over REST the client hands details on as they are in the body.
    kinds = {detail["@type"].rpartition(".")[2] for detail in caught.value.details}
    assert kinds == meeting.details
    assert served(google) == [1]
    # The fault is used up: the same request now gets what it asks for.
    meeting.ask(google)
    assert served(google) == [1]


@pytest.mark.parametrize("preset", QUEUED)
def test_googles_client_sees_a_queued_resource_fail(google: Google, preset: str) -> None:
    code, text = QUEUED[preset]
    google.api.fault(preset=preset)
    google.queue()
    google.api.advance(10_000)
    queued = google.queued()
    assert queued.state.state == tpu_v2.QueuedResourceState.State.FAILED
    assert queued.state.failed_data.error.code == code
    assert text in queued.state.failed_data.error.message
    assert served(google) == [1]


def test_a_refused_create_leaves_no_node_and_one_that_fails_later_neither(google: Google) -> None:
    for preset in ("quota", "stockout"):
        google.api.fault(preset=preset)
        with pytest.raises(exceptions.GoogleAPICallError):
            google.create()
    assert google.list() == []


def test_a_node_whose_deletion_fails_is_there_and_ready(google: Google) -> None:
    google.create()
    google.api.fault(preset="delete-fails")
    with pytest.raises(exceptions.InternalServerError):
        google.delete()
    assert google.get().state == tpu_v2.Node.State.READY


def test_the_rate_limit_says_when_to_ask_again(google: Google) -> None:
    google.api.fault(preset="rate-limit")
    with pytest.raises(exceptions.TooManyRequests) as caught:
        google.create()
    assert [d["retryDelay"] for d in caught.value.details if "retryDelay" in d] == ["1s"]


@pytest.mark.parametrize("preset", ["stockout", "stockout-reserved", "stockout-internal"])
def test_each_disguise_of_a_stockout_can_also_refuse_at_once(google: Google, preset: str) -> None:
    google.api.fault(preset=preset, kind="status")
    status, document = google.api.create("demo")
    assert status == PRESETS[preset].status.http_code
    assert document["error"]["status"] == PRESETS[preset].status.status
    assert google.list() == []


def test_a_stockout_is_one_of_a_zone_and_a_type(google: Google) -> None:
    google.api.fault(
        preset="stockout", kind="status", zone="us-*-b", accelerator_type="v3-*", probability=1.0
    )
    body = {"runtimeVersion": "tpu-ubuntu2204-base"}
    outcomes = [
        google.api.call(
            "POST",
            f"/v2/projects/p/locations/{zone}/nodes?nodeId=demo",
            {**body, "acceleratorType": kind},
        )[0]
        for zone, kind in (
            ("us-central1-b", "v3-8"),
            ("us-central1-b", "v2-8"),
            ("us-central1-a", "v3-8"),
        )
    ]
    assert outcomes == [429, 200, 200]
    assert served(google) == [1]


@pytest.fixture
def gcloud(google: Google, tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs a gcloud command that has to fail; it returns the error."""
    if GCLOUD is None:
        pytest.skip("gcloud is not installed: its reports of faults are NOT checked by this run")
    token = tmp_path / "token"
    token.write_text(google.api.token)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{google.api.server.url}/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{google.api.server.url}/compute/v1/",
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(token),
        "CLOUDSDK_CORE_PROJECT": "p",
        "CLOUDSDK_COMPUTE_ZONE": "us-central1-a",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
    }

    def fails(*words: str) -> str:
        done = subprocess.run(
            [str(GCLOUD), "compute", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr

    return fails


CREATE = ("tpus", "tpu-vm", "create", "demo", "--accelerator-type=v3-8")


@pytest.mark.process
@pytest.mark.parametrize(
    ("preset", "words", "message"),
    [
        (
            "stockout",
            (*CREATE, "--version=tpu-ubuntu2204-base"),
            '"message": "There is no more capacity in the zone',
        ),
        (
            "quota",
            (*CREATE, "--version=tpu-ubuntu2204-base"),
            "RESOURCE_EXHAUSTED: Quota limit 'TPUV2sPodPerProjectPerZoneForTPUAPI'",
        ),
        (
            "permission-denied",
            (*CREATE, "--version=tpu-ubuntu2204-base"),
            "Permission 'tpu.nodes.create' denied on",
        ),
        (
            "firewall-permission-denied",
            ("firewall-rules", "create", "ssh", "--allow=tcp:22"),
            "Required 'compute.firewalls.create' permission for",
        ),
        (
            "not-found-yet",
            ("tpus", "tpu-vm", "describe", "demo"),
            "NOT_FOUND: Resource 'projects/p/locations/us-central1-a/nodes/demo' was not found",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value in PRESETS else "",
)
def test_gcloud_reports_what_the_real_service_says(
    google: Google, gcloud: Callable[..., str], preset: str, words: tuple[str, ...], message: str
) -> None:
    google.api.fault(preset=preset)
    assert message in gcloud(*words)
    assert served(google) == [1]
