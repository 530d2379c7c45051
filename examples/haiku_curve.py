"""A curve fitted with Haiku on every device: a function becomes `init` and `apply`.

Runs on each worker: `tpukit run NAME --with haiku -- python3 haiku_curve.py`. Its README
advises new projects to take Flax.
"""

import haiku as hk
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

ROWS_PER_DEVICE, STEPS, RATE = 64, 400, 0.01


def main() -> None:
    jax.distributed.initialize()  # on Cloud TPU it finds the slice's workers by itself
    mesh = Mesh(jax.devices(), ("data",))
    rows = ROWS_PER_DEVICE * mesh.size
    by_rows, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    inputs = jax.jit(lambda: jnp.linspace(-3, 3, rows)[:, None], out_shardings=by_rows)()
    wanted = jnp.sin(inputs)
    network = hk.without_apply_rng(
        hk.transform(lambda rows: hk.nets.MLP([32, 32, 1], activation=jnp.tanh)(rows))
    )
    weights = jax.device_put(network.init(jax.random.key(0), jnp.ones((1, 1))), everywhere)
    optimizer = optax.adam(RATE)

    @jax.jit
    def step(weights, state):
        def loss(weights):
            return jnp.mean((network.apply(weights, inputs) - wanted) ** 2)

        value, gradient = jax.value_and_grad(loss)(weights)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(weights, updates), state, value

    weights, state, first = step(weights, optimizer.init(weights))
    for _ in range(STEPS):
        weights, state, loss = step(weights, state)
    if jax.process_index() == 0:
        print(f"{mesh.size} devices, {rows} rows: loss {float(first):.3f} -> {float(loss):.5f}")


if __name__ == "__main__":
    main()
