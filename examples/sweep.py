"""Train one small model per chip, each with its own learning rate, and print the results.

    tpukit cp sweep.py NAME:
    tpukit run NAME --with jax --per-chip -- python sweep.py

Each process sees only its own chip and prints one line.
"""

import os

import jax
import jax.numpy as jnp

WIDTH, ROWS, STEPS = 64, 256, 20
RATES = [0.5 * 2**power for power in range(16)]


def trained(rate: float) -> float:
    """Return the loss after training y = 3x by gradient descent with this learning rate."""
    inputs = jax.random.normal(jax.random.key(0), (ROWS, WIDTH))

    def loss(weights):
        return jnp.mean((inputs @ weights - 3 * inputs) ** 2)

    @jax.jit
    def step(weights):
        return weights - rate * jax.grad(loss)(weights)

    weights = jnp.zeros((WIDTH, WIDTH))
    for _ in range(STEPS):
        weights = step(weights)
    return float(loss(weights))


def main() -> None:
    # tpukit numbers the workers from 0, and the chips of each worker.
    worker, chips, chip = (
        int(os.environ[f"TPUKIT_{name}"]) for name in ("WORKER", "CHIPS", "CHIP")
    )
    trial = worker * chips + chip
    rate = RATES[trial % len(RATES)]
    print(f"trial {trial}: rate {rate:g}, loss {trained(rate):.4f}, devices: {jax.device_count()}")


if __name__ == "__main__":
    main()
