"""A model that is split over the devices, and a batch too: one mesh with two axes.

Runs on each worker: `tpukit run NAME --with jax -- python3 jax_sharded.py`. Only the shardings say
where things are; XLA puts in the sums and exchanges between devices that they need.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

WIDTH, HIDDEN, ROWS, STEPS, RATE = 32, 128, 256, 40, 0.02
Parameters = dict[str, jax.Array]


def main() -> None:
    if int(os.environ.get("TPUKIT_WORKERS", "1")) > 1:  # `tpukit run` says it
        jax.distributed.initialize()
    devices = jax.devices()
    split = 2 if len(devices) % 2 == 0 else 1
    mesh = Mesh(np.array(devices).reshape(-1, split), ("data", "model"))

    def sharding(*axes: str | None) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*axes))

    # Made where they are to be: no device ever holds them whole.
    shardings = {"up": sharding(None, "model"), "down": sharding("model", None)}
    parameters = jax.jit(initial, out_shardings=shardings)(jax.random.key(0))
    draw = jax.jit(
        lambda key: jax.random.normal(key, (ROWS, WIDTH)), out_shardings=sharding("data", None)
    )

    first = None
    for number in range(STEPS):
        parameters, loss = step(parameters, draw(jax.random.key(number)))
        first = first or float(loss)
    if jax.process_index() == 0:
        part = parameters["up"].addressable_shards[0].data.shape
        print(f"{len(devices)} devices as {dict(mesh.shape)}: each has {part} of {(WIDTH, HIDDEN)}")
        print(f"loss {first:.3f} -> {float(loss):.3f}")


def initial(key: jax.Array) -> Parameters:
    up, down = jax.random.split(key)
    return {
        "up": jax.random.normal(up, (WIDTH, HIDDEN)) / WIDTH**0.5,
        "down": jax.random.normal(down, (HIDDEN, WIDTH)) / HIDDEN**0.5,
    }


@jax.jit
def step(parameters: Parameters, inputs: jax.Array) -> tuple[Parameters, jax.Array]:
    """Learn to sort each row, a little."""

    def loss(parameters: Parameters) -> jax.Array:
        hidden = jax.nn.relu(inputs @ parameters["up"])
        return jnp.mean(jnp.sum((hidden @ parameters["down"] - jnp.sort(inputs)) ** 2, axis=1))

    value, gradients = jax.value_and_grad(loss)(parameters)
    return jax.tree.map(lambda old, gradient: old - RATE * gradient, parameters, gradients), value


if __name__ == "__main__":
    main()
