"""What a program writes that knows nothing of an emulator; prints what it got as JSON."""

import asyncio
import json
import sys
import time

import google.auth
from google.cloud import tpu_v2
from googleapiclient import discovery

PROJECT = google.auth.default()[1]
PARENT = f"projects/{PROJECT}/locations/us-central1-a"
NODE = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-vm-base"}


def by_discovery(version: str) -> str:
    tpu = discovery.build("tpu", version, static_discovery=False).projects().locations()
    made = {"parent": PARENT, "nodeId": f"made-by-{version}", "body": NODE}
    operation = tpu.nodes().create(**made).execute()
    while not operation.get("done"):
        time.sleep(0.1)
        operation = tpu.operations().get(name=operation["name"]).execute()
    return operation["response"]["state"]


def by_address() -> list[str]:
    address = "https://tpu.googleapis.com/$discovery/rest?version=v2"
    tpu = discovery.build("tpu", "v2", discoveryServiceUrl=address, static_discovery=False)
    nodes = tpu.projects().locations().nodes().list(parent=PARENT).execute()["nodes"]
    return sorted(node["name"].rpartition("/")[2] for node in nodes)


def compute_links() -> list[str]:
    compute = discovery.build("compute", "v1", static_discovery=False)
    rule = {"name": "r", "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}
    begun = compute.firewalls().insert(project=PROJECT, body=rule).execute()
    done = compute.globalOperations().wait(project=PROJECT, operation=begun["name"]).execute()
    execute = compute.firewalls().list(project=PROJECT, filter="name=r").execute()
    assert done["status"] == "DONE"
    return [rule["selfLink"] for rule in execute["items"]]


def by_client(transport: str) -> str:
    client = tpu_v2.TpuClient(transport=transport)
    node = tpu_v2.Node(accelerator_type="v3-8", runtime_version="tpu-vm-base")
    made = client.create_node(parent=PARENT, node=node, node_id=f"made-by-{transport}")
    return made.result(timeout=60).state.name


async def asynchronously() -> int:
    client = tpu_v2.TpuAsyncClient()
    return len([node async for node in await client.list_nodes(parent=PARENT)])


answers = {
    "project": PROJECT,
    "discovery v2": by_discovery("v2"),
    "discovery v2alpha1": by_discovery("v2alpha1"),
    "discovery by the service's own address": by_address(),
    "compute links": compute_links(),
    "grpc": by_client("grpc"),
    "rest": by_client("rest"),
    "grpc asyncio": asyncio.run(asynchronously()),
}
sys.stdout.write(json.dumps(answers))
