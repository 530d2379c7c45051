"""The smoke test's computation in TensorFlow, sent to workers before smoke_program.py."""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpukit.smoke.smoke_program import digest, operands

#: Packages; the report shows their versions. The first is the framework's.
PACKAGES = ("tensorflow-tpu", "tensorflow-cpu", "libtpu")


def prepare(emulated: int) -> None:
    """Force the platform before tensorflow is imported.

    TensorFlow uses v5e, v5p and v6e through PJRT (TPU example of keras-team/keras-rs).
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if emulated:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return
    import libtpu

    os.environ["PJRT_DEVICE"] = "TPU"
    os.environ["NEXT_PLUGGABLE_DEVICE_USE_C_API"] = "true"
    os.environ["TF_PLUGGABLE_DEVICE_LIBRARY_PATH"] = libtpu.get_library_path()


def compute(workers: int, side: int) -> dict[str, Any]:
    import numpy
    import tensorflow

    if workers > 1:
        raise SystemExit(
            "TPUStrategy with tpu='local' sees the devices of one worker: "
            "this smoke test is for slices of one worker"
        )
    strategy = _strategy(tensorflow, int(os.environ.get("TPUKIT_EMULATED_DEVICES") or 0))
    # A TPU multiplies float32 as bfloat16, in which these integers are exact, and adds float32.
    left, right = (matrix.astype(numpy.float32) for matrix in operands(side))

    @tensorflow.function(autograph=False)
    def multiply(first: object, second: object) -> object:
        return tensorflow.matmul(first, second)

    @tensorflow.function(autograph=False)
    def add_up() -> object:
        replica = tensorflow.distribute.get_replica_context()
        number = tensorflow.cast(replica.replica_id_in_sync_group + 1, tensorflow.float32)
        return replica.all_reduce(tensorflow.distribute.ReduceOp.SUM, number)

    def products() -> list[str]:
        results = strategy.experimental_local_results(strategy.run(multiply, (left, right)))
        return [digest(result.numpy()) for result in results]

    sums = {float(total) for total in strategy.experimental_local_results(strategy.run(add_up))}
    return {
        "platform": "tpu" if isinstance(strategy, tensorflow.distribute.TPUStrategy) else "cpu",
        "device_kind": "",
        "devices": len(strategy.extended.worker_devices),
        "global_devices": strategy.num_replicas_in_sync,
        "process": 0,
        "processes": 1,
        "digests": list(zip(products(), products(), strict=True)),
        "global_sum": sums.pop() if len(sums) == 1 else -1.0,
    }


def _strategy(tensorflow: Any, emulated: int) -> Any:
    """Return the strategy for all TPU devices, or for `emulated` logical CPUs."""
    if emulated:
        (processor,) = tensorflow.config.list_physical_devices("CPU")
        logical = [tensorflow.config.LogicalDeviceConfiguration()] * emulated
        tensorflow.config.set_logical_device_configuration(processor, logical)
        names = [device.name for device in tensorflow.config.list_logical_devices("CPU")]
        return tensorflow.distribute.MirroredStrategy(names)
    resolver = tensorflow.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    tensorflow.config.experimental_connect_to_cluster(resolver)
    tensorflow.tpu.experimental.initialize_tpu_system(resolver)
    return tensorflow.distribute.TPUStrategy(resolver)
