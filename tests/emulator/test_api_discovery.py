"""Requests and answers against Google's discovery documents, over HTTP."""

from __future__ import annotations

import json

import pytest
from support.answers import misfits

from emulator.conftest import PLACE, ZONE

NODES = f"/v2/{PLACE}/nodes"
DISK = "projects/p/zones/us-central1-a/disks/d"
#: A request id without its last digit.
UUID = "7f3c9a52-5f0f-4c7f-9f2e-2f6a8d9b1c3"
SPEC = {
    "parent": PLACE,
    "nodeId": "m",
    "node": {"acceleratorType": "v3-8", "runtimeVersion": "tpu-vm-base"},
}
RULE = {"name": "r", "allowed": [{"IPProtocol": "tcp"}]}
CONFIG = {"type": "V3", "topology": "2x2"}
NODE = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}


def refusal(answered):
    status, document = answered
    assert status == 400, document
    error = document["error"]
    assert error["status"] == "INVALID_ARGUMENT"
    return error


def violations(error):
    assert error["details"][0]["@type"] == "type.googleapis.com/google.rpc.BadRequest"
    return error["details"][0]["fieldViolations"]


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        (
            {"schedulingConfig": {"spott": True}},
            "node.scheduling_config",
            "Invalid JSON payload received. Unknown name \"spott\" at 'node.scheduling_config': "
            "Cannot find field.",
        ),
        (
            {"schedulingConfig": {"spot": "yes"}},
            "node.scheduling_config.spot",
            "Invalid value at 'node.scheduling_config.spot' (TYPE_BOOL), \"yes\"",
        ),
        (
            {"dataDisks": [{}, {"foo": 1}]},
            "node.data_disks[1]",
            "Invalid JSON payload received. Unknown name \"foo\" at 'node.data_disks[1]': "
            "Cannot find field.",
        ),
        (
            {"dataDisks": [5]},
            "node.data_disks[0]",
            "Invalid value at 'node.data_disks[0]' "
            "(type.googleapis.com/google.cloud.tpu.v2.AttachedDisk), 5",
        ),
        (
            {"dataDisks": [{"mode": "SIDEWAYS"}]},
            "node.data_disks[0].mode",
            "Invalid value at 'node.data_disks[0].mode' "
            '(type.googleapis.com/google.cloud.tpu.v2.AttachedDisk.Mode), "SIDEWAYS"',
        ),
        (
            {"description": "\ud800"},
            "node.description",
            "Invalid value at 'node.description' (TYPE_STRING), \"\\ud800\"",
        ),
        (
            {"metadata": {"a": "b", "c": 1}},
            "node.metadata[1].value",
            "Invalid value at 'node.metadata[1].value' (TYPE_STRING), 1",
        ),
        (
            {"networkConfig": {"queueCount": 2**31}},
            "node.network_config.queue_count",
            "Invalid value at 'node.network_config.queue_count' (TYPE_INT32), 2147483648",
        ),
        (
            {"serviceAccount": {"email": 5}},
            "node.service_account.email",
            "Invalid value at 'node.service_account.email' (TYPE_STRING), 5",
        ),
    ],
)
def test_what_a_message_has_not_is_refused_in_google_s_words(api, body, field, words):
    error = refusal(api.call("POST", f"{NODES}?nodeId=n", {**NODE, **body}))
    assert error["message"] == words
    assert violations(error) == [{"field": field, "description": words}]
    assert api.call("GET", NODES) == (200, {})


def test_every_fault_of_a_request_is_named_at_once(api):
    body = {**NODE, "spott": 1, "schedulingConfig": {"spot": 1}}
    error = refusal(api.call("POST", f"{NODES}?nodeID=n", body))
    fields = [violation.get("field") for violation in violations(error)]
    assert fields == [None, "node", "node.scheduling_config.spot"]
    assert error["message"].splitlines()[0] == (
        'Invalid JSON payload received. Unknown name "nodeID": Cannot bind query parameter. '
        "Field 'nodeID' could not be found in request message."
    )


@pytest.mark.parametrize("query", ["pageSize=many", "prettyPrint=perhaps", "alt=xml", "filter=a"])
def test_a_query_that_a_method_has_not_is_refused(api, query):
    error = refusal(api.call("GET", f"{NODES}?{query}"))
    assert query.split("=")[0] in error["message"].replace("page_size", "pageSize")


@pytest.mark.parametrize(
    "query",
    [
        "page_size=5",
        "pageSize=",
        "%24alt=json%3Benum-encoding%3Dint",
        "key=k&quotaUser=u",
        "alt=json",
    ],
)
def test_what_the_service_has_for_every_method_passes(api, query):
    expected = 400 if query == "pageSize=" else 200
    assert api.call("GET", f"{NODES}?{query}")[0] == expected


def test_what_proto3_reads_from_json_is_read(api):
    body = {
        "accelerator_type": "v3-8",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "network_config": {"queueCount": "2", "enableExternalIps": None},
        "dataDisks": {"sourceDisk": DISK, "mode": 2},
        "description": None,
        "tags": [],
    }
    assert api.call("POST", f"{NODES}?node_id=n", body)[0] == 200
    _, node = api.call("GET", f"{NODES}/n")
    assert node["networkConfig"]["queueCount"] == 2
    assert node["dataDisks"] == [{"sourceDisk": DISK, "mode": "READ_ONLY"}]
    assert "description" not in node
    queued = f"/v2/{PLACE}/queuedResources"
    assert api.call("POST", f"{queued}?queuedResourceId=q", {"tpu": {"nodeSpec": SPEC}})[0] == 200
    (spec,) = api.call("GET", f"{queued}/q")[1]["tpu"]["nodeSpec"]
    assert spec["nodeId"] == "m"


def test_what_is_output_only_is_dropped_wherever_it_stands(api):
    body = {**NODE, "id": "5", "state": "READY", "createTime": "2020-01-01T00:00:00Z"}
    body = {**body, "health": "TIMEOUT", "networkEndpoints": [{"ipAddress": "1.2.3.4"}]}
    assert api.call("POST", f"{NODES}?nodeId=n", body)[0] == 200
    _, node = api.call("GET", f"{NODES}/n")
    assert (node["state"], "health" in node) == ("CREATING", False)
    assert node["id"] != "5"
    assert "networkEndpoints" not in node


def test_each_version_answers_its_own_fields_only(api):
    scheduling = {"provisioningModel": "SPOT", "spot": True}
    disk = {"diskSizeGb": "100", "customerEncryptionKey": {"kmsKeyName": "k"}}
    body = {**NODE, "schedulingConfig": scheduling, "bootDiskConfig": disk}
    alpha = NODES.replace("v2", "v2alpha1")
    _, begun = api.call("POST", f"{alpha}?nodeId=n", {**body, "autocheckpointEnabled": True})
    api.advance(1000)
    _, theirs = api.call("GET", f"{alpha}/n")
    assert theirs["schedulingConfig"] == scheduling
    assert theirs["bootDiskConfig"] == disk
    assert theirs["autocheckpointEnabled"] is True
    _, node = api.call("GET", f"{NODES}/n")
    assert node["schedulingConfig"] == {"spot": True}
    assert node["bootDiskConfig"] == {"customerEncryptionKey": {"kmsKeyName": "k"}}
    assert "autocheckpointEnabled" not in node
    name = begun["name"]
    _, operation = api.call("GET", f"/v2/{name}")
    assert node.pop("health") == "HEALTHY"  # which the response of a create lacks
    assert operation["response"] == {
        **node,
        "@type": "type.googleapis.com/google.cloud.tpu.v2.Node",
    }
    _, listed = api.call("GET", f"/v2/{PLACE}/operations")
    assert listed["operations"] == [operation]


def test_a_version_without_a_word_of_an_enumeration_leaves_the_field_out(api):
    api.create("n")
    assert api.call("GET", f"{NODES}/n")[1]["apiVersion"] == "V2"
    _, node = api.call("GET", f"{NODES.replace('v2', 'v2alpha1')}/n")
    assert "apiVersion" not in node


@pytest.mark.parametrize(
    "body", [b'{"description": NaN}', b'{"description": "\xff"}', b"[" * 100_000, b"[]", b"5"]
)
def test_what_is_no_json_object_is_refused(api, body):
    status, _, data = api.raw("POST", f"{NODES}?nodeId=n", body)
    assert (status, json.loads(data)["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert "Invalid JSON payload received" in json.loads(data)["error"]["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"description": "x" * 513}, "node.description"),
        ({"metadata": {"a": "", "b": "é" * 131_073}}, "node.metadata[b]"),
        ({"cidrBlock": "hello"}, "node.cidr_block"),
    ],
)
def test_a_value_that_is_too_large_or_no_address_is_refused(api, body, field):
    error = refusal(api.call("POST", f"{NODES}?nodeId=n", {**NODE, **body}))
    assert [violation["field"] for violation in violations(error)] == [field]
    largest = {"description": "x" * 512, "metadata": {"a": "é" * 131_072}}
    assert api.call("POST", f"{NODES}?nodeId=n", {**NODE, **largest})[0] == 200


def test_a_method_without_a_message_has_no_fields(api):
    error = refusal(api.call("GET", NODES, {"pageSize": 5}))
    assert violations(error) == [{"description": error["message"]}]
    assert api.call("GET", NODES, {})[0] == 200


def test_compute_engine_refuses_in_its_own_form(api):
    path = "/compute/v1/projects/p/global/firewalls"
    rule = {"name": "r", "allowed": [{"IPProtocol": "tcp"}]}
    error = refusal(api.call("POST", path, {**rule, "direction": "SIDEWAYS"}))
    assert error["errors"][0]["reason"] == "badRequest"
    assert violations(error)[0]["field"] == "resource.direction"
    error = refusal(api.call("POST", path, {**rule, "allowed": [{"IPProtocoll": "tcp"}]}))
    assert violations(error)[0]["field"] == "resource.allowed[0]"
    assert api.call("POST", path, rule)[0] == 200
    assert api.call("PATCH", f"{path}/r", {"sourceRanges": None, "priority": "7"})[0] == 200
    assert api.call("GET", f"{path}/r")[1]["priority"] == 7


@pytest.mark.parametrize(
    ("path", "host", "identity"),
    [
        ("/$discovery/rest?version=v2", "", "tpu:v2"),
        ("/$discovery/rest", "", "tpu:v2"),
        ("/$discovery/rest", "compute.googleapis.com", "compute:v1"),
        ("/%24discovery/rest?version=v2alpha1", "", "tpu:v2alpha1"),
        ("/$discovery/rest?version=v1", "compute.googleapis.com", "compute:v1"),
        ("/discovery/v1/apis/tpu/v2/rest", "", "tpu:v2"),
        ("/discovery/v1/apis/compute/v1/rest", "", "compute:v1"),
        ("/discovery/v1/apis/oslogin/v1/rest", "", "oslogin:v1"),
    ],
)
def test_the_documents_are_served_to_everybody_and_lead_here(api, path, host, identity):
    api.token = ""
    status, _, data = api.raw("GET", path, headers={"Host": host} if host else {})
    document = json.loads(data)
    assert (status, document["id"]) == (200, identity)
    own = f"https://{host}/" if host else f"{api.server.url}/"
    assert document["rootUrl"] == own
    assert document["baseUrl"] == own + document["servicePath"]


@pytest.mark.parametrize("path", ["/$discovery/rest?version=v9", "/discovery/v1/apis/dns/v1/rest"])
def test_a_document_that_there_is_not_is_not_found(api, path):
    status, document = api.call("GET", path)
    assert (status, document["error"]["status"]) == (404, "NOT_FOUND")


def names(answer, key):
    assert answer[0] == 200, answer
    return [entry["name"].rsplit("/", 1)[1] for entry in answer[1][key]]


def test_a_filter_and_an_order_hold_on_every_list_that_has_them(api):
    types, runtimes = f"/v2/{PLACE}/acceleratorTypes", f"/v2/{PLACE}/runtimeVersions"
    found = names(
        api.call("GET", f"{types}?filter=type:v3-&orderBy=type%20desc"), "acceleratorTypes"
    )
    assert found == sorted(found, reverse=True)
    assert "v3-8" in found
    assert all(name.startswith("v3-") for name in found)
    query = "filter=acceleratorConfigs.topology%3D2x2%20AND%20acceleratorConfigs.type%3DV2"
    assert names(api.call("GET", f"{types}?{query}"), "acceleratorTypes") == ["v2-8"]
    asked = "filter=version%3Dtpu-vm-base%20OR%20version:tpuv6e"
    both = ["tpu-vm-base", "v2-alpha-tpuv6e"]
    assert names(api.call("GET", f"{runtimes}?{asked}"), "runtimeVersions") == both
    zones = api.call("GET", f"/v2/projects/p/locations?filter=locationId%3D{ZONE}")
    assert names(zones, "locations") == [ZONE]
    api.create("a")
    api.advance(1000)
    api.create("b")
    left = api.call("GET", f"/v2/{PLACE}/operations?filter=done%3Dfalse")[1]["operations"]
    assert [operation["metadata"]["target"] for operation in left] == [f"{PLACE}/nodes/b"]
    assert api.call("GET", f"{types}?orderBy=type%20up")[0] == 400
    assert api.call("GET", f"{types}?filter=type")[0] == 400


def test_pages_go_on_in_the_order_that_was_asked_for(api):
    path = f"/v2/{PLACE}/acceleratorTypes?orderBy=type%20desc&filter=type:v2&pageSize=2"
    whole = names(api.call("GET", path.replace("pageSize=2", "pageSize=100")), "acceleratorTypes")
    seen, token = [], ""
    while True:
        answer = api.call("GET", f"{path}&pageToken={token}")
        seen += names(answer, "acceleratorTypes")
        token = answer[1].get("nextPageToken", "")
        if not token:
            break
    assert seen == whole
    assert len(whole) > 2
    token = api.call("GET", path)[1]["nextPageToken"]
    others = {
        "another collection": f"/v2/{PLACE}/runtimeVersions?",
        "another zone": path.replace(ZONE, "us-central1-b") + "&",
        "another filter": path.replace("v2&", "v3&") + "&",
        "another order": path.replace("desc", "asc") + "&",
        "a collection of another service": "/compute/v1/projects/p/global/firewalls?",
    }
    assert api.call("GET", f"{path}&pageToken={token}")[0] == 200
    for what, other in others.items():
        assert api.call("GET", f"{other}pageToken={token}")[0] == 400, what


@pytest.mark.parametrize(
    ("collection", "body"),
    [
        ("nodes?nodeId=n", NODE),
        ("nodes?", NODE),
        ("queuedResources?queuedResourceId=q", {"tpu": {"nodeSpec": [SPEC]}}),
    ],
)
def test_a_request_id_makes_a_repeated_call_the_same_call(api, collection, body):
    path = f"/v2alpha1/{PLACE}/{collection}"
    status, first = api.call("POST", f"{path}&requestId={UUID}1", body)
    assert status == 200
    status, again = api.call("POST", f"{path}&requestId={UUID}1", body)  # it may be done meanwhile
    assert (status, again["name"]) == (200, first["name"])
    if not collection.endswith("?"):
        assert api.call("POST", f"{path}&requestId={UUID}2", body)[0] == 409
    name = first["metadata"]["target"]
    _, gone = api.call("DELETE", f"/v2alpha1/{name}?requestId={UUID}3")
    api.advance(1000)
    assert api.call("GET", f"/v2alpha1/{name}")[0] == 404
    status, again = api.call("DELETE", f"/v2alpha1/{name}?requestId={UUID}3")
    assert (status, again["name"], again["done"]) == (200, gone["name"], True)
    assert api.call("DELETE", f"/v2alpha1/{name}?requestId={UUID}4")[0] == 404


def test_a_request_id_of_compute_engine_makes_a_repeated_call_the_same_call(api):
    path = "/compute/v1/projects/p/global/firewalls"
    _, first = api.call("POST", f"{path}?requestId={UUID}1", RULE)
    assert api.call("POST", f"{path}?requestId={UUID}1", RULE)[1]["name"] == first["name"]
    assert api.call("POST", f"{path}?requestId={UUID}2", RULE)[0] == 409
    _, gone = api.call("DELETE", f"{path}/r?requestId={UUID}3")
    assert api.call("DELETE", f"{path}/r?requestId={UUID}3")[1]["name"] == gone["name"]
    assert api.call("DELETE", f"{path}/r?requestId={UUID}4")[0] == 404


def test_v2_has_no_request_id_for_nodes(api):
    assert (
        "requestId"
        in refusal(api.call("POST", f"{NODES}?nodeId=n&requestId={UUID}1", NODE))["message"]
    )


def test_what_the_service_knows_of_its_resources_is_in_the_documents_whole(cloud):
    """Before an answer is cut to a version: what no version has is a mistake of ours."""
    node = f"/v2alpha1/{PLACE}/nodes/n"
    cloud.ready("n", version="v2alpha1", body={"networkConfig": {"enableExternalIps": True}})
    service, call = cloud.service, cloud.call(version="v2alpha1", path_node="n")
    assert misfits("GET", node, service.nodes.get(call)) == []
    body = {"tpu": {"nodeSpec": [SPEC]}, "spot": {}}
    begun = service.queued_resources.create(
        cloud.call(version="v2alpha1", body=body, query_queuedResourceId="q")
    )
    assert misfits("POST", f"/v2alpha1/{PLACE}/queuedResources", begun) == []
    service.nodes.simulate_maintenance_event(call)
    cloud.pass_time(10)
    service.nodes.simulate_maintenance_event(cloud.call(version="v2alpha1", path_node="m"))
    cloud.pass_time(1)
    service.firewalls.insert(cloud.global_call(body=RULE))
    info = service.queued_resources.get_maintenance_info(cloud.call(path_queued="q"))
    assert info["nodeUpcomingMaintenances"]
    asked = cloud.call(version="v2alpha1", path_queued="q", path_user="u")
    network = cloud.global_call(path_name="default", path_network="default")
    place, compute = f"/v2alpha1/{PLACE}", "/compute/v1/projects/p"
    handlers = {
        f"GET {place}/nodes": service.nodes.list,
        f"GET {place}/queuedResources": service.queued_resources.list,
        f"GET {place}/queuedResources/q:getMaintenanceInfo": (
            service.queued_resources.get_maintenance_info
        ),
        f"GET {place}/operations": service.operations.list,
        f"GET {place}/acceleratorTypes": service.catalogue.list_types,
        f"GET {place}/runtimeVersions": service.catalogue.list_runtime_versions,
        f"GET {place}/reservations": service.reservations.list,
        "GET /v2alpha1/projects/p/locations": service.catalogue.list_locations,
        f"POST {place}:generateServiceIdentity": service.accounts.generate_service_identity,
        "GET /v1/users/u/loginProfile": service.accounts.get_login_profile,
    }
    computes = {
        f"GET {compute}": service.projects.get,
        f"GET {compute}/getXpnHost": service.projects.get_host,
        f"GET {compute}/global/firewalls": service.firewalls.list,
        f"GET {compute}/global/operations": service.compute_operations.list,
        f"GET {compute}/global/networks": service.networks.list,
        f"GET {compute}/global/networks/default": service.networks.get,
        f"GET {compute}/global/networks/default/getEffectiveFirewalls": service.firewalls.effective,
    }
    answers = {where: handler(asked) for where, handler in handlers.items()}
    answers |= {where: handler(network) for where, handler in computes.items()}
    wrong = {where: misfits(*where.split(" "), answer) for where, answer in answers.items()}
    assert {where: found for where, found in wrong.items() if found} == {}
    attributes = service.nodes.get_guest_attributes(call)
    assert misfits("POST", f"{node}:getGuestAttributes", attributes) == []


def test_an_answer_has_the_fields_that_were_asked_for(api):
    assert api.create("n")[0] == 200
    _, whole = api.call("GET", f"{NODES}/n")
    wanted = [
        ("n?fields=name,state", {"name": whole["name"], "state": whole["state"]}),
        ("n?fields=acceleratorConfig(type)", {"acceleratorConfig": {"type": "V3"}}),
        ("n?$fields=acceleratorConfig/type", {"acceleratorConfig": {"type": "V3"}}),
        ("n?fields=*", whole),
        ("n?fields=*,state", whole),
        ("n?fields=acceleratorConfig,acceleratorConfig/type", {"acceleratorConfig": {**CONFIG}}),
        ("n?fields=acceleratorConfig/type,acceleratorConfig", {"acceleratorConfig": {**CONFIG}}),
        ("n?fields=acceleratorConfig/type,*", whole),
        (
            "n?fields=acceleratorConfig(type),acceleratorConfig.type",
            {"acceleratorConfig": {"type": "V3"}},
        ),
        ("?fields=nodes/name,nextPageToken", {"nodes": [{"name": whole["name"]}]}),
        ("?fields=nodes(acceleratorConfig(*))", {"nodes": [{"acceleratorConfig": {**CONFIG}}]}),
    ]
    for path, expected in wanted:
        separator = "" if path.startswith("?") else "/"
        assert api.call("GET", f"{NODES}{separator}{path}") == (200, expected), path
    for strange in ("nodes(nam)", "nodes/name/x(", "a b", "nodes,", "(" * 9, "a(" * 9000):
        refusal(api.call("GET", f"{NODES}?fields={strange.replace(' ', '%20')}"))
    status, document = api.call("GET", "/compute/v1/projects/p/global/firewalls?fields=item")
    assert (status, document["error"]["message"]) == (400, "Invalid field selection item")
    rules = "/compute/v1/projects/p/global/firewalls?fields=items/name"
    assert {tuple(item) for item in api.call("GET", rules)[1]["items"]} == {("name",)}


def test_a_post_can_stand_for_another_verb(api):
    def override(verb, path, body=None, kind="application/json"):
        headers = {"X-HTTP-Method-Override": verb, "Content-Type": kind}
        stands_for = "POST" if verb == "TRACE" else verb.upper()
        status, _, data = api.raw("POST", path, body, headers, stands_for)
        return status, json.loads(data)

    assert api.create("n")[0] == 200
    form = "application/x-www-form-urlencoded"
    found = override("GET", NODES, "fields=nodes/state&pageSize=1", form)
    assert found == (200, {"nodes": [{"state": "CREATING"}]})
    rules = "/compute/v1/projects/p/global/firewalls"
    assert api.call("POST", rules, RULE)[0] == 200
    api.advance(5)
    changed = override("patch", f"{rules}/r", json.dumps({"description": "new"}))
    assert (changed[0], changed[1]["operationType"]) == (200, "patch")
    assert override("DELETE", f"{rules}/r")[1]["operationType"] == "delete"
    assert override("TRACE", f"{NODES}?nodeId=m", json.dumps(NODE))[0] == 200  # a POST it stays
