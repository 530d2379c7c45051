"""A curve fitted with Equinox on every device: the model is a value, and so is its new state.

Runs on each worker: `tpukit run NAME --with equinox -- python3 equinox_curve.py`.
"""

import equinox as eqx
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
    model = eqx.nn.MLP(1, 1, 32, 2, activation=jnp.tanh, key=jax.random.key(0))
    optimizer = optax.adam(RATE)
    state = optimizer.init(eqx.filter(model, eqx.is_array))
    model, state = eqx.filter_shard((model, state), everywhere)

    @eqx.filter_jit
    def step(model, state):
        def loss(model):
            return jnp.mean((jax.vmap(model)(inputs) - wanted) ** 2)

        value, gradient = eqx.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(gradient, state)
        return eqx.apply_updates(model, updates), state, value

    model, state, first = step(model, state)
    for _ in range(STEPS):
        model, state, loss = step(model, state)
    if jax.process_index() == 0:
        print(f"{mesh.size} devices, {rows} rows: loss {float(first):.3f} -> {float(loss):.5f}")


if __name__ == "__main__":
    main()
