"""SkyPilot's provisioner, its own functions: TPU slices, at once and through the queue."""

import sys

from sky.provision.gcp.instance_utils import GCPTPUVMInstance as Tpu

project, zone = sys.argv[1:]
NODE = {
    "acceleratorType": "v3-8",
    "runtimeVersion": "tpu-vm-base",
    "networkConfig": {"network": "default", "enableExternalIps": True},
    "metadata": {"ssh-keys": "sky:ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA sky"},
}


def create(cluster, **config):
    errors, names = Tpu.create_instances(
        cluster_name=cluster,
        project_id=project,
        zone=zone,
        node_config={**NODE, **config},
        labels={"skypilot-user": "ada"},
        count=2,
        total_count=2,
        include_head_node=True,
    )
    assert not errors, errors
    return [f"projects/{project}/locations/{zone}/nodes/{name}" for name in names]


def running(cluster):
    labels = {"skypilot-cluster-name": cluster}
    return sorted(Tpu.filter(project, zone, labels, [Tpu.RUNNING_STATE]))


names = create("standard", schedulingConfig={"preemptible": True})
assert running("standard") == sorted(names)
first = names[0]
Tpu.set_labels(project, zone, first, {"later": "yes"})
Tpu.add_network_tag_if_not_exist(project, zone, first, "sky")
assert Tpu.get_vpc_name(project, zone, first) == "default"
[worker] = Tpu.get_instance_info(project, zone, first)
assert worker.internal_ip, worker
assert worker.external_ip, worker
assert worker.tags["later"] == "yes", worker
Tpu.wait_for_operation(Tpu.stop(project, zone, first), project, zone=zone)
assert running("standard") == names[1:]
Tpu.start_instance(first, project, zone)
queued = create("queued", gcp_queued_resource=True)
assert running("queued") == sorted(queued)
for name in names:
    Tpu.wait_for_operation(Tpu.terminate(project, zone, name), project, zone=zone)
assert running("standard") == []
# A zone that does not exist holds nothing: SkyPilot knows that by the words of the refusal.
assert Tpu.filter(project, "mars-north1-a", None, None) == {}
