"""One core or all: the same training step, and what has to grow with the number of devices.

Runs on each worker: `tpukit run NAME --with jax -- python3 jax_one_and_all.py [--one]`. JAX uses
only what it is told to: an array without a sharding lives on the first device alone.
"""

import argparse

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

ROWS_PER_DEVICE, WIDTH, RATE_PER_DEVICE = 64, 32, 0.125


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", action="store_true", help="the first device alone")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()

    if not arguments.one:
        jax.distributed.initialize()  # on Cloud TPU it finds the slice's workers by itself
    devices = jax.local_devices()[:1] if arguments.one else jax.devices()
    mesh = Mesh(devices, ("data",))
    by_rows, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))

    # Each device keeps its share, so that the batch grows with their number; the learning rate
    # grows with the batch (Goyal et al. 2017), up to where the loss no longer falls.
    rows = len(devices) * ROWS_PER_DEVICE
    rate = RATE_PER_DEVICE * min(len(devices), 8)

    def batch(key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (rows, WIDTH))

    draw = jax.jit(batch, out_shardings=by_rows)
    weights = jax.device_put(jnp.zeros((WIDTH, WIDTH)), everywhere)

    @jax.jit
    def step(weights: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(weights: jax.Array) -> jax.Array:
            return jnp.mean(jnp.sum((inputs @ weights - 3 * inputs) ** 2, axis=1))

        value, gradient = jax.value_and_grad(loss)(weights)
        # XLA adds the sum over all devices by itself: the weights are wanted whole everywhere.
        return weights - rate / 2 * gradient, value

    for number in range(arguments.steps):
        weights, loss = step(weights, draw(jax.random.key(number)))
    if jax.process_index() == 0:
        print(f"{len(devices)} devices, batch {rows}, rate {rate}: loss {float(loss):.6f}")


if __name__ == "__main__":
    main()
