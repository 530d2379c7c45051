"""A tiny language model of EasyDeL that learns to count, on every device of one worker.

Runs on the worker: `tpukit run NAME --with easydel -- python3 easydel_counting.py`. A real model
comes from the same class: `easydel.AutoEasyDeLModelForCausalLM.from_pretrained(…)`.
"""

import easydel
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

WORDS, LENGTH, ROWS_PER_DEVICE, STEPS, RATE = 16, 16, 4, 60, 0.01


def main() -> None:
    count = jax.device_count()
    config = easydel.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
    )
    kinds = {"dtype": jnp.float32, "param_dtype": jnp.float32}
    model = easydel.LlamaForCausalLM(config, rngs=nnx.Rngs(0), **kinds).shard_model()
    by_rows = NamedSharding(config.mesh, PartitionSpec("fsdp"))
    optimizer = nnx.Optimizer(model, optax.adam(RATE), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, tokens):
        def loss(model):
            logits = model(input_ids=tokens[:, :-1]).logits
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    with config.mesh:
        for number in range(STEPS):
            rows = ROWS_PER_DEVICE * count
            starts = jax.random.randint(jax.random.key(number), (rows, 1), 0, WORDS)
            tokens = (starts + jnp.arange(LENGTH)) % WORDS
            loss = step(model, optimizer, jax.device_put(tokens, by_rows))
            if number == 0:
                first = loss
    print(f"{count} devices: loss {float(first):.3f} -> {float(loss):.4f}")


if __name__ == "__main__":
    main()
