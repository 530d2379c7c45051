"""A tiny language model of Levanter that learns to count: axes have names, and the mesh is theirs.

Runs on the worker: `tpukit run NAME --with levanter -- python3 levanter_counting.py`. Levanter's
own program for real data is `python -m levanter.main.train_lm --config_path FILE.yaml`.
"""

import equinox
import haliax
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from levanter.models.gpt2 import Gpt2Config, Gpt2LMHeadModel
from levanter.models.lm_model import LmExample

WORDS, LENGTH, ROWS_PER_DEVICE, STEPS, RATE = 16, 16, 4, 60, 0.01


def main() -> None:
    count = jax.device_count()
    rows, words = haliax.Axis("batch", ROWS_PER_DEVICE * count), haliax.Axis("vocab", WORDS)
    config = Gpt2Config(max_seq_len=LENGTH, hidden_dim=32, num_layers=1, num_heads=2)
    optimizer = optax.adam(RATE)
    # The rows of a batch are spread over the devices.
    with jax.set_mesh(Mesh(jax.devices(), ("data",))), haliax.axis_mapping({"batch": "data"}):
        model = Gpt2LMHeadModel.init(words, config, key=jax.random.key(0))
        state = optimizer.init(equinox.filter(model, equinox.is_inexact_array))

        @equinox.filter_jit
        def step(model, state, tokens):
            tokens = haliax.shard(haliax.named(tokens, (rows, config.max_Pos)))
            examples = haliax.vmap(LmExample.causal, rows)(tokens)

            def loss(model):
                return model.compute_next_token_loss(examples).scalar()

            value, gradients = equinox.filter_value_and_grad(loss)(model)
            updates, state = optimizer.update(gradients, state)
            return equinox.apply_updates(model, updates), state, value

        for number in range(STEPS):
            starts = jax.random.randint(jax.random.key(number), (rows.size, 1), 0, WORDS)
            tokens = (starts + jnp.arange(LENGTH)) % WORDS
            model, state, loss = step(model, state, tokens)
            if number == 0:
                first = loss
    print(f"{count} devices: loss {float(first):.3f} -> {float(loss):.4f}")


if __name__ == "__main__":
    main()
