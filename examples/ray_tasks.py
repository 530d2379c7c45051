"""A task of Ray on each worker: `ray job submit --working-dir . -- python ray_tasks.py`.

`tpukit ray up` joins the workers of one or several slices to the cluster.
"""

import time

import ray

ray.init()


@ray.remote(resources={"TPU": 4}, num_cpus=1)
def where() -> str:
    """Hold the four chips of a worker for a second, and return its node."""
    time.sleep(1)
    return ray.get_runtime_context().get_node_id()


workers = int(ray.cluster_resources()["TPU"]) // 4
print("nodes", len(set(ray.get([where.remote() for _ in range(workers)]))))
