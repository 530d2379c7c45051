"""A tiny training run on every device of a slice: fits y = 3x by gradient descent.

Runs on each worker of a slice, as `tpukit run NAME -- .tpukit/venvs/jax/bin/python train.py`.
"""

import argparse

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

WIDTH, ROWS_PER_DEVICE = 64, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps

    # Without arguments: on Cloud TPU, JAX finds the slice's workers by itself.
    jax.distributed.initialize()
    devices = jax.devices()
    if jax.process_index() == 0:
        print(f"{len(devices)} {devices[0].platform} devices on {jax.process_count()} workers")

    by_rows = NamedSharding(Mesh(devices, ("rows",)), PartitionSpec("rows"))
    shape = (len(devices) * ROWS_PER_DEVICE, WIDTH)
    inputs = jax.jit(lambda key: jax.random.normal(key, shape), out_shardings=by_rows)(
        jax.random.key(0)
    )
    weights = jnp.zeros((WIDTH, WIDTH))

    @jax.jit
    def step(weights, inputs):
        def loss(weights):
            return jnp.mean((inputs @ weights - 3 * inputs) ** 2)

        value, gradient = jax.value_and_grad(loss)(weights)
        return weights - 8.0 * gradient, value

    for number in range(steps):
        weights, loss = step(weights, inputs)
        if jax.process_index() == 0 and number in (0, steps - 1):
            print(f"step {number}: loss {float(loss):.4f}")


if __name__ == "__main__":
    main()
