"""google-cloud-tpu over REST and google-auth's session, unmodified, against the emulator."""

from __future__ import annotations

import inspect
import re

import pytest
from google.api_core import exceptions
from google.auth.transport.requests import AuthorizedSession
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuRestTransport
from google.cloud.tpu_v2.services.tpu.transports.rest_base import _BaseTpuRestTransport
from google.oauth2.credentials import Credentials
from google.protobuf.json_format import ParseError

from tpukit import emulator as tpukit_emulator
from tpukit.emulator.api.routes import find, tpu_routes
from tpukit.emulator.core.operation_metadata import metadata_type

pytestmark = pytest.mark.process

PARENT = "projects/p/locations/us-central1-a"


@pytest.fixture(scope="module")
def emulator(readable_over_rest):
    return readable_over_rest


def rest_client(emulator):
    host = emulator.url.removeprefix("http://")
    credentials = Credentials(emulator.token)
    transport = TpuRestTransport(host=host, url_scheme="http", credentials=credentials)
    return tpu_v2.TpuClient(transport=transport)


@pytest.fixture(scope="module")
def client(emulator):
    return rest_client(emulator)


@pytest.fixture
def session(emulator):
    return AuthorizedSession(Credentials(emulator.token))


def node(**given):
    given = {"accelerator_type": "v3-8", **given}
    return tpu_v2.Node(runtime_version="tpu-ubuntu2204-base", **given)


def create(client, name, **given):
    return client.create_node(parent=PARENT, node_id=name, node=node(**given))


def test_a_node_lives_from_create_to_delete(client):
    network = tpu_v2.NetworkConfig(enable_external_ips=True)
    operation = create(client, "life", network_config=network, labels={"owner": "ada"})
    assert operation.metadata.verb == "create"
    made = operation.result(timeout=120)
    assert made.state == tpu_v2.Node.State.READY
    assert made.api_version == tpu_v2.Node.ApiVersion.V2
    assert made.accelerator_config.type_ == tpu_v2.AcceleratorConfig.Type.V3
    assert made.network_endpoints[0].access_config.external_ip
    # Recorded: an operation's answer has the node without its health.
    made.health = tpu_v2.Node.Health.HEALTHY
    assert client.get_node(name=made.name) == made
    assert client.stop_node(request={"name": made.name}).result(timeout=120).state.name == "STOPPED"
    assert client.start_node(request={"name": made.name}).result(timeout=120).state.name == "READY"
    client.delete_node(name=made.name).result(timeout=120)
    with pytest.raises(exceptions.NotFound):
        client.get_node(name=made.name)


def test_the_recorded_metadata_type_cannot_be_read_over_rest():
    """Google's own library knows no google.cloud.common.OperationMetadata."""
    with tpukit_emulator.Emulator(operation_metadata="common") as recorded:
        with pytest.raises(ParseError, match=r"google\.cloud\.common\.OperationMetadata"):
            create(rest_client(recorded), "unread")
        over_grpc = recorded.tpu_client()
        made = over_grpc.get_node(name=f"{PARENT}/nodes/unread")
        deleted = over_grpc.delete_node(name=made.name)
        assert deleted.operation.metadata.type_url == metadata_type("common", "v2")
        deleted.result(timeout=120)


def test_an_update_with_a_mask_changes_what_the_mask_names(client):
    made = create(client, "update", labels={"a": "1"}, tags=["t"]).result(timeout=120)
    changed = tpu_v2.Node(name=made.name, labels={"b": "2"}, metadata={"k": "v"})
    result = client.update_node(node=changed, update_mask="labels,metadata").result(timeout=120)
    assert (dict(result.labels), dict(result.metadata), list(result.tags)) == (
        {"b": "2"},
        {"k": "v"},
        ["t"],
    )


def test_a_config_by_enum_number_is_understood(client):
    config = tpu_v2.AcceleratorConfig(type_=tpu_v2.AcceleratorConfig.Type.V2, topology="4x4")
    made = create(client, "config", accelerator_type="", accelerator_config=config)
    assert made.result(timeout=120).accelerator_type == "v2-32"


def test_a_listing_is_paged_behind_the_client_s_back(client):
    for number in range(5):
        create(client, f"page{number}")
    request = {"parent": "projects/p/locations/-", "page_size": 2}
    pages = list(client.list_nodes(request=request).pages)
    names = [found.name for page in pages for found in page.nodes]
    assert len(pages) > 2
    assert {f"{PARENT}/nodes/page{number}" for number in range(5)} <= set(names)
    assert len(names) == len(set(names))


def test_each_worker_tells_its_host_key(client):
    made = create(client, "keys", accelerator_type="v2-32").result(timeout=120)
    answer = client.get_guest_attributes(request={"name": made.name, "query_path": "hostkeys/"})
    found = [worker.query_value.items[0] for worker in answer.guest_attributes]
    assert [(item.namespace, item.key) for item in found] == [("hostkeys", "ssh-ed25519")] * 4
    assert len({item.value for item in found}) == 4


def test_the_catalogue_is_read(client):
    types = {type_.type_ for type_ in client.list_accelerator_types(parent=PARENT)}
    assert "v3-8" in types
    name = f"{PARENT}/acceleratorTypes/v3-8"
    config = client.get_accelerator_type(name=name).accelerator_configs[0]
    assert config.topology == "2x2"
    versions = {version.version for version in client.list_runtime_versions(parent=PARENT)}
    assert "v2-alpha-tpuv6e" in versions
    version = f"{PARENT}/runtimeVersions/v2-alpha-tpuv6e"
    assert client.get_runtime_version(name=version).version == "v2-alpha-tpuv6e"
    zones = client.list_locations({"name": "projects/p"}).locations
    assert "us-central1-a" in {zone.location_id for zone in zones}
    assert client.get_location({"name": PARENT}).location_id == "us-central1-a"


def alpha_node(emulator, session, name):
    """Make a node as gcloud alpha does, with fields that v2 and its client do not know."""
    fields = {"autocheckpointEnabled": True, "schedulingConfig": {"provisioningModel": "STANDARD"}}
    body = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-vm-base", **fields}
    url = f"{emulator.url}/v2alpha1/{PARENT}/nodes?nodeId={name}"
    made = session.post(url, json=body)
    assert made.status_code == 200, made.text


def test_operations_are_read_listed_and_deleted(client, emulator, session):
    alpha_node(emulator, session, "alpha")
    made = create(client, "operations")
    made.result(timeout=120)
    name = made.operation.name
    assert f"{PARENT}/nodes/alpha" in {found.name for found in client.list_nodes(parent=PARENT)}
    assert client.get_operation({"name": name}).done
    assert name in {
        operation.name for operation in client.list_operations({"name": PARENT}).operations
    }
    client.delete_operation({"name": name})
    with pytest.raises(exceptions.NotFound):
        client.get_operation({"name": name})


@pytest.mark.parametrize(
    ("parent", "name", "given", "kind", "status"),
    [
        (PARENT, "Bad", {}, exceptions.BadRequest, "INVALID_ARGUMENT"),
        (PARENT, "x", {"accelerator_type": "v4-8"}, exceptions.BadRequest, "INVALID_ARGUMENT"),
        ("projects/p/locations/no-where1-a", "x", {}, exceptions.Forbidden, "PERMISSION_DENIED"),
    ],
)
def test_a_refusal_has_google_s_class_and_status(client, parent, name, given, kind, status):
    with pytest.raises(kind) as caught:
        client.create_node(parent=parent, node_id=name, node=node(**given))
    assert caught.value.response.json()["error"]["status"] == status


def test_a_name_that_is_taken_is_a_conflict(client):
    create(client, "taken")
    with pytest.raises(exceptions.Conflict) as caught:
        create(client, "taken")
    assert caught.value.response.json()["error"]["status"] == "ALREADY_EXISTS"


def test_a_stockout_fails_the_operation_with_its_status(client, emulator):
    emulator.control("faults", {"preset": "stockout", "name": "scarce"})
    with pytest.raises(exceptions.ResourceExhausted) as caught:
        create(client, "scarce").result(timeout=120)
    assert "There is no more capacity in the zone" in caught.value.message


def test_a_rate_limit_carries_its_delay(client, emulator):
    emulator.control("faults", {"preset": "rate-limit", "name": "hasty"})
    with pytest.raises(exceptions.TooManyRequests) as caught:
        create(client, "hasty")
    assert caught.value.reason == "RATE_LIMIT_EXCEEDED"
    assert {"retryDelay": "1s"}.items() <= caught.value.details[1].items()


def test_firewall_rules_live_through_google_auth_s_session(session, emulator):
    base = f"{emulator.url}/compute/v1/projects/p/global"
    rule = {"name": "r1", "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}
    operation = session.post(f"{base}/firewalls", json=rule).json()
    done = session.post(f"{operation['selfLink']}/wait").json()
    assert done["status"] == "DONE"
    json = session.get(done["targetLink"]).json()
    assert json["name"] == "r1"
    patched = session.patch(f"{base}/firewalls/r1", json={"sourceRanges": ["203.0.113.7/32"]})
    assert patched.json()["operationType"] == "patch"
    assert session.get(f"{base}/firewalls/r1").json()["sourceRanges"] == ["203.0.113.7/32"]
    assert session.delete(f"{base}/firewalls/r1").status_code == 200
    assert session.get(f"{base}/firewalls/r1").json()["error"]["errors"][0]["reason"] == "notFound"


def google_methods():
    """Return (RPC, verb, example path) of every method of google-cloud-tpu's REST transport."""
    for name, found in inspect.getmembers(_BaseTpuRestTransport, inspect.isclass):
        if name.startswith("_Base"):
            for option in found._get_http_options():
                path = re.sub(r"\{[^=}]+=([^}]*)\}", r"\1", option["uri"]).replace("*", "x")
                yield name.removeprefix("_Base"), option["method"].upper(), path


def test_every_method_of_google_s_client_has_a_route_of_its_own(emulator):
    routes = tpu_routes(emulator.server.service)
    found = {rpc: find(routes, verb, path) for rpc, verb, path in google_methods()}
    assert len(found) > 20
    assert [rpc for rpc, route in found.items() if route is None] == []
    names = [route[0].name for route in found.values() if route]
    assert len(names) == len(set(names))
