"""Ray's autoscaler, its own functions: a TPU slice from its configuration to its end."""

import sys

from ray.autoscaler._private.gcp.config import construct_clients_from_provider_config
from ray.autoscaler._private.gcp.node import GCPTPU

project, zone = sys.argv[1:]
provider = {"type": "gcp", "project_id": project, "_has_tpus": True}
_, _, compute, tpu = construct_clients_from_provider_config(provider)
resource = GCPTPU(tpu, project, zone, "cluster")
config = {
    "acceleratorType": "v3-8",
    "runtimeVersion": "tpu-vm-base",
    "schedulingConfig": {"preemptible": True},
    "metadata": {"ssh-keys": "ray:ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA ray"},
}
labels = {"ray-node-name": "head", "ray-node-type": "head"}
operation, name = resource.create_instance(config, labels)
assert operation["response"]["state"] == "READY", operation
[node] = resource.list_instances({"ray-node-type": "head"})
assert node.is_running(), node
assert node.get_external_ip(), node
assert node.get_internal_ip(), node
resource.set_labels(node, {"ray-node-status": "up-to-date"})
assert resource.get_instance(node["name"]).get_labels()["ray-node-status"] == "up-to-date"
resource.stop_instance(node["name"])
assert resource.get_instance(node["name"])["state"] == "STOPPED"
resource.start_instance(node["name"])
resource.delete_instance(node["name"])
assert resource.list_instances() == []
assert compute.projects().get(project=project).execute()["name"] == project
