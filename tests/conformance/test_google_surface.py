"""Every method of google-cloud-tpu: v2 over REST, gRPC, TLS and asyncio, v2alpha1 over gRPC."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2, tpu_v2alpha1
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport, TpuRestTransport
from google.cloud.tpu_v2alpha1.services.tpu.transports import (
    TpuGrpcTransport as AlphaTransport,
)
from google.oauth2.credentials import Credentials

from conformance.required import ALPHA, ASYNC, GRPC, REST, SECURE

pytestmark = pytest.mark.process

PARENT = "projects/p/locations/us-central1-a"


class Tallied:
    """A client whose calls are noted by the names of their RPCs."""

    def __init__(self, client: Any, name: str, tally: Any) -> None:
        self._client, self._name, self._tally = client, name, tally

    def __getattr__(self, method: str) -> Callable[..., Any]:
        found = getattr(self._client, method)

        def call(*arguments: Any, **given: Any) -> Any:
            answer = found(*arguments, **given)
            self._tally.note(self._name, "".join(word.title() for word in method.split("_")))
            return answer

        return call


@dataclass
class Google:
    """A client, the types of its API version, and a name that makes resources its own."""

    client: Any
    types: ModuleType
    name: str
    emulator: Any

    @property
    def own(self) -> str:
        return re.sub(r"\W+", "-", self.name.lower()).removeprefix("google-cloud-tpu-")

    def node(self, **given: Any) -> Any:
        given = {"accelerator_type": "v3-8", "runtime_version": "tpu-ubuntu2204-base", **given}
        return self.types.Node(**given)

    def create(self, name: str, **given: Any) -> Any:
        node_id = f"{name}-{self.own}"
        return self.client.create_node(parent=PARENT, node_id=node_id, node=self.node(**given))

    def end(self, operation: Any) -> None:
        """Wait for the end of the deletion of a queued resource.

        The service answers Empty, which the client of v2alpha1 takes for a mistake, because its own
        types promise a QueuedResource: GoogleCloudPlatform/java-docs-samples#9600.
        """
        if self.types is tpu_v2:
            operation.result(timeout=120)
            return
        with pytest.raises(TypeError, match=r"google\.protobuf\.Empty"):
            operation.result(timeout=120)

    def ask(self, name: str, **given: Any) -> Any:
        """Ask the queue for two nodes."""
        several = "multi_node_params" if self.types is tpu_v2alpha1 else "multislice_params"
        count = {"node_count": 2, "node_id_prefix": f"{name}-{self.own}"}
        spec = {"parent": PARENT, "node": self.node(), several: count}
        wanted = self.types.QueuedResource(tpu={"node_spec": [spec]}, **given)
        return self.client.create_queued_resource(
            parent=PARENT, queued_resource_id=f"{name}-{self.own}", queued_resource=wanted
        )


class _Bearer(grpc.UnaryUnaryClientInterceptor):
    """Shows the token: gRPC sends credentials of its own over TLS alone."""

    def __init__(self, token: str) -> None:
        self._metadata = [("authorization", f"Bearer {token}")]

    def intercept_unary_unary(self, proceed: Any, details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or ()), *self._metadata]
        return proceed(details._replace(metadata=metadata), request)


@pytest.fixture(scope="module")
def plain(emulator: Any) -> Iterator[Any]:
    address = emulator.control("grpc", {})["address"]
    channel = grpc.insecure_channel(address)
    yield grpc.intercept_channel(channel, _Bearer(emulator.token))
    channel.close()


@pytest.fixture(scope="module")
def secure(emulator: Any) -> Iterator[dict[str, Any]]:
    """What a client needs that brings its own channel: an address; it trusts by environment."""
    shown = emulator.control("grpc", {"secure": True})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", shown["authority"])
        credentials = Credentials(emulator.token)
        yield {"credentials": credentials, "client_options": {"api_endpoint": shown["address"]}}


@pytest.fixture(params=[REST, GRPC, SECURE, ALPHA])
def google(request: Any, emulator: Any, tally: Any) -> Google:
    name = request.param
    if name == REST:
        emulator = request.getfixturevalue("readable_over_rest")
    if name == SECURE:
        client = tpu_v2.TpuClient(**request.getfixturevalue("secure"))
    elif name == REST:
        host, credentials = emulator.url.removeprefix("http://"), Credentials(emulator.token)
        transport = TpuRestTransport(host=host, url_scheme="http", credentials=credentials)
        client = tpu_v2.TpuClient(transport=transport)
    elif name == GRPC:
        channel = request.getfixturevalue("plain")
        client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
    else:
        channel = request.getfixturevalue("plain")
        client = tpu_v2alpha1.TpuClient(transport=AlphaTransport(channel=channel))
    types = tpu_v2alpha1 if name == ALPHA else tpu_v2
    return Google(Tallied(client, name, tally), types, name, emulator)


def until(google: Google, name: str, wanted: str) -> Any:
    """Return a queued resource once it is in a state; the emulator's clock decides when."""
    for _ in range(3000):
        slice_ = google.client.get_queued_resource(name=name)
        if slice_.state.state.name == wanted:
            return slice_
        asyncio.run(asyncio.sleep(0.02))
    raise AssertionError(f"{slice_.state.state.name}, not {wanted}")


def test_a_node_lives_from_create_to_delete(google):
    client = google.client
    made = google.create("life", labels={"a": "b"}).result(timeout=120)
    assert made.state.name == "READY"
    made.health = type(made).Health.HEALTHY  # recorded: an operation's answer does not have it
    assert client.get_node(name=made.name) == made
    assert made.name in {node.name for node in client.list_nodes(parent=PARENT)}
    changed = google.types.Node(name=made.name, labels={"c": "d"})
    update = {"node": changed, "update_mask": "labels"}
    assert dict(client.update_node(**update).result(timeout=120).labels) == {"c": "d"}
    request = {"name": made.name, "query_path": "hostkeys/"}
    attributes = client.get_guest_attributes(request=request).guest_attributes
    assert attributes[0].query_value.items[0].key == "ssh-ed25519"
    for verb, state in ((client.stop_node, "STOPPED"), (client.start_node, "READY")):
        assert verb(request={"name": made.name}).result(timeout=120).state.name == state
    client.delete_node(name=made.name).result(timeout=120)
    with pytest.raises(exceptions.NotFound):
        client.get_node(name=made.name)


def test_a_queued_resource_lives_from_create_to_delete(google):
    client = google.client
    begun = google.ask("q", spot={}).result(timeout=120)
    assert begun.state.state.name in ("ACCEPTED", "WAITING_FOR_RESOURCES")
    active = until(google, begun.name, "ACTIVE")
    assert [spec.node_id[-2:] for spec in active.tpu.node_spec] == ["-0", "-1"]
    node = client.get_node(name=f"{PARENT}/nodes/{active.tpu.node_spec[1].node_id}")
    assert (node.state.name, node.queued_resource, node.scheduling_config.spot) == (
        "READY",
        active.name,
        True,
    )
    assert active in list(client.list_queued_resources(parent=PARENT))
    reset = client.reset_queued_resource(request={"name": active.name}).result(timeout=120)
    assert reset.state.state.name == "ACTIVE"
    with pytest.raises((exceptions.FailedPrecondition, exceptions.BadRequest)):
        client.delete_queued_resource(name=active.name)
    google.end(client.delete_queued_resource(request={"name": active.name, "force": True}))
    with pytest.raises(exceptions.NotFound):
        client.get_queued_resource(name=active.name)
    with pytest.raises(exceptions.NotFound):
        client.get_node(name=node.name)


def test_a_request_that_expires_says_so(google):
    google.emulator.control(
        "faults", {"method": "queuedResources.create", "kind": "wait", "seconds": 3600}
    )
    policy = {"valid_until_duration": {"seconds": 1}}
    begun = google.ask("late", queueing_policy=policy).result(timeout=120)
    failed = until(google, begun.name, "FAILED")
    assert failed.state.failed_data.error.code == 4
    google.end(google.client.delete_queued_resource(name=begun.name))


def test_the_catalogue_is_read(google):
    client = google.client
    assert "v3-8" in {kind.type_ for kind in client.list_accelerator_types(parent=PARENT)}
    kind = client.get_accelerator_type(name=f"{PARENT}/acceleratorTypes/v3-8")
    assert kind.accelerator_configs[0].topology == "2x2"
    versions = {version.version for version in client.list_runtime_versions(parent=PARENT)}
    assert "v2-alpha-tpuv6e" in versions
    name = f"{PARENT}/runtimeVersions/v2-alpha-tpuv6e"
    assert client.get_runtime_version(name=name).version == "v2-alpha-tpuv6e"
    zones = client.list_locations({"name": "projects/p"}).locations
    assert "us-central1-a" in {zone.location_id for zone in zones}
    assert client.get_location({"name": PARENT}).location_id == "us-central1-a"
    identity = client.generate_service_identity(request={"parent": PARENT}).identity
    assert identity.email.endswith("@cloud-tpu.iam.gserviceaccount.com")


def test_operations_are_read_listed_cancelled_and_deleted(google):
    client = google.client
    done = google.create("done")
    done.result(timeout=120)
    name = done.operation.name
    assert client.get_operation({"name": name}).done
    assert name in {
        operation.name for operation in client.list_operations({"name": PARENT}).operations
    }
    client.delete_operation({"name": name})
    with pytest.raises(exceptions.NotFound):
        client.get_operation({"name": name})
    with google.emulator.standing_still():
        cancelled = google.create("cancelled")
        client.cancel_operation({"name": cancelled.operation.name})
    with pytest.raises(exceptions.Cancelled):
        cancelled.result(timeout=120)
    with pytest.raises(exceptions.NotFound):
        client.get_node(name=f"{PARENT}/nodes/cancelled-{google.own}")


@pytest.mark.parametrize("google", [ALPHA], indirect=True)
def test_what_v2alpha1_has_more_is_served(google):
    client = google.client
    node = google.create("maintained").result(timeout=120)
    request = {"name": node.name, "worker_ids": ["0"]}
    maintained = client.simulate_maintenance_event(request=request).result(timeout=120)
    assert maintained.health.name == "UNHEALTHY_MAINTENANCE"
    well = client.perform_maintenance(request={"name": node.name}).result(timeout=120)
    assert (well.state.name, well.health.name) == ("READY", "HEALTHY")
    project, zone = PARENT.split("/")[1::2]
    reservation = {"project": project, "zone": zone, "resourceType": "v3", "size": 32}
    google.emulator.control("catalogue/reservations", {"name": "r", **reservation})
    assert [r.standard.size for r in client.list_reservations({"parent": PARENT})] == [32]
    begun = google.ask("m").result(timeout=120)
    active = until(google, begun.name, "ACTIVE")
    names = [spec.node_id for spec in active.tpu.node_spec]
    request = {"name": begun.name, "node_names": names}
    client.perform_maintenance_queued_resource(request=request).result(timeout=120)


def test_a_refusal_has_google_s_class_and_reason(google):
    google.emulator.control("faults", {"preset": "rate-limit", "name": f"hasty-{google.own}"})
    with pytest.raises(exceptions.TooManyRequests) as caught:
        google.create("hasty")
    assert caught.value.reason == "RATE_LIMIT_EXCEEDED"
    google.emulator.control("faults", {"preset": "stockout", "name": f"scarce-{google.own}"})
    with pytest.raises(exceptions.ResourceExhausted, match="no more capacity"):
        google.create("scarce").result(timeout=120)


def test_a_connection_that_is_cut_is_no_answer(google):
    google.emulator.control("faults", {"method": "nodes.get", "kind": "reset", "times": 1})
    expected = (exceptions.ServiceUnavailable, ConnectionError, OSError)
    with pytest.raises(expected):
        google.client.get_node(name=f"{PARENT}/nodes/any")


def test_nobody_without_the_token_gets_in(emulator):
    channel = grpc.insecure_channel(emulator.control("grpc", {})["address"])
    client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
    with pytest.raises(exceptions.Unauthenticated):
        client.get_node(name=f"{PARENT}/nodes/any")
    channel.close()


def test_the_asynchronous_client_does_all_of_it(secure, tally):
    asyncio.run(_every_call(secure, tally))


async def _every_call(secure: dict[str, Any], tally: Any) -> None:
    client = Tallied(tpu_v2.TpuAsyncClient(**secure), ASYNC, tally)
    google = Google(client, tpu_v2, ASYNC, None)
    node = await (await google.create("life")).result(timeout=120)
    assert (await client.get_node(name=node.name)).state.name == "READY"
    assert node.name in [found.name async for found in await client.list_nodes(parent=PARENT)]
    changed = tpu_v2.Node(name=node.name, labels={"c": "d"})
    update = await client.update_node(node=changed, update_mask="labels")
    assert dict((await update.result(timeout=120)).labels) == {"c": "d"}
    attributes = await client.get_guest_attributes(request={"name": node.name})
    assert len(attributes.guest_attributes) == 1
    for verb, state in ((client.stop_node, "STOPPED"), (client.start_node, "READY")):
        operation = await verb(request={"name": node.name})
        assert (await operation.result(timeout=120)).state.name == state
    request = {"parent": PARENT}
    assert [kind async for kind in await client.list_accelerator_types(request=request)]
    assert [found async for found in await client.list_runtime_versions(request=request)]
    assert await client.get_accelerator_type(name=f"{PARENT}/acceleratorTypes/v3-8")
    assert await client.get_runtime_version(name=f"{PARENT}/runtimeVersions/tpu-vm-base")
    assert (await client.list_locations({"name": "projects/p"})).locations
    assert (await client.get_location({"name": PARENT})).location_id == "us-central1-a"
    assert (await client.generate_service_identity(request=request)).identity.email
    queued = await (await google.ask("q")).result(timeout=120)
    for _ in range(3000):
        if (await client.get_queued_resource(name=queued.name)).state.state.name == "ACTIVE":
            break
        await asyncio.sleep(0.02)
    assert [found async for found in await client.list_queued_resources(parent=PARENT)]
    reset = await client.reset_queued_resource(request={"name": queued.name})
    assert (await reset.result(timeout=120)).state.state.name == "ACTIVE"
    forced = {"name": queued.name, "force": True}
    await (await client.delete_queued_resource(request=forced)).result(timeout=120)
    deletion = await client.delete_node(name=node.name)
    await deletion.result(timeout=120)
    name = deletion.operation.name
    assert (await client.get_operation({"name": name})).done
    assert (await client.list_operations({"name": PARENT})).operations
    await client.cancel_operation({"name": name})
    await client.delete_operation({"name": name})
    with pytest.raises(exceptions.NotFound):
        await client.get_operation({"name": name})


def test_the_authority_s_key_is_nowhere(emulator, secure):
    directory = Path(emulator.control("grpc", {"secure": True})["authority"]).parent
    assert sorted(path.name for path in directory.iterdir()) == [
        "authority.pem",
        "server.key",
        "server.pem",
    ]
    assert b"PRIVATE" not in (directory / "authority.pem").read_bytes()
    assert all(path.stat().st_mode & 0o077 == 0 for path in directory.iterdir())
