"""Text classification with Flax, in the shape that suits a TPU.

Runs on each worker: `tpukit run NAME --with flax -- python3 flax_text.py --checkpoints DIRECTORY`.

- Every text is cut or filled to one length: one compilation, not one for each length.
- The data set is made into arrays once and stays on the devices: no step waits for the host.
- The batch and the learning rate grow with the number of devices. `--find-rate` shows where the
  loss falls fastest; a one-cycle schedule rises to that rate and comes down again.
- Killed and started again it goes on from its checkpoint. On several workers the directory is one
  that all of them see, such as a bucket's.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LENGTH, VOCABULARY, WIDTH, ROWS, ROWS_PER_DEVICE = 32, 128, 64, 2048, 16
GOOD, BAD = (
    ("a fine", "a lovely", "I liked this", "what a"),
    ("a dull", "no", "I left this", "not a"),
)
THINGS = ("film", "book", "play", "song", "meal", "journey", "evening", "story")


class Classifier(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.hidden = nnx.Linear(LENGTH * WIDTH, WIDTH, rngs=rngs)
        self.out = nnx.Linear(WIDTH, 2, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        embedded = self.embedding(tokens).reshape(len(tokens), -1)
        return self.out(nnx.relu(self.hidden(embedded)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=0.004, help="for eight devices")
    parser.add_argument("--find-rate", action="store_true")
    parser.add_argument("--checkpoints", type=Path)
    arguments = parser.parse_args()

    jax.distributed.initialize()  # on Cloud TPU it finds the slice's workers by itself
    mesh = Mesh(jax.devices(), ("data",))
    tokens, labels = (on_devices(each, mesh) for each in data_set())
    size = ROWS_PER_DEVICE * mesh.size

    def train(model: Classifier, optimizer: nnx.Optimizer, number: int) -> jax.Array:
        return step(model, optimizer, tokens, labels, jax.random.key(number), size)

    if arguments.find_rate:
        find_rate(train, mesh)
        return
    rate = arguments.rate * min(1.0, mesh.size / 8)
    schedule = optax.cosine_onecycle_schedule(arguments.steps, rate)
    model, optimizer = made(schedule, mesh)
    with Checkpoints(arguments.checkpoints) as checkpoints:
        begin = checkpoints.restore(model, optimizer)
        say(f"{mesh.size} devices, batch {size}, from step {begin}")
        for number in range(begin, arguments.steps):
            loss = train(model, optimizer, number)
            if (number + 1) % 20 == 0:
                checkpoints.save(number + 1, model, optimizer)
                say(f"step {number + 1}: loss {float(loss):.4f}")
    say(f"accuracy {float(accuracy(model, tokens, labels)):.3f}")


def data_set() -> tuple[np.ndarray, np.ndarray]:
    """Return bytes as tokens, (ROWS, LENGTH), and whether each text is friendly, (ROWS,)."""
    random = np.random.default_rng(0)
    tokens, labels = np.zeros((ROWS, LENGTH), np.int32), random.integers(0, 2, ROWS)
    for row, friendly in zip(tokens, labels, strict=True):
        text = f"{random.choice(GOOD if friendly else BAD)} {random.choice(THINGS)}"
        coded = np.frombuffer(text.encode()[:LENGTH], np.uint8)
        row[: len(coded)] = coded
    return tokens, labels


def on_devices(data: np.ndarray, mesh: Mesh) -> jax.Array:
    """Return the array with its rows spread over all devices of all workers."""
    by_rows = NamedSharding(mesh, PartitionSpec("data"))
    return jax.make_array_from_callback(data.shape, by_rows, lambda index: data[index])


def made(rate: optax.ScalarOrSchedule, mesh: Mesh) -> tuple[Classifier, nnx.Optimizer]:
    """Return a new model and its optimizer, whole on every device."""
    model = Classifier(nnx.Rngs(0))
    parts = model, nnx.Optimizer(model, optax.adamw(rate), wrt=nnx.Param)
    nnx.update(parts, jax.device_put(nnx.state(parts), NamedSharding(mesh, PartitionSpec())))
    return parts


@nnx.jit(static_argnums=5)
def step(model, optimizer, tokens, labels, key, size):
    """Take one step on a random batch, drawn on the devices; return its loss."""
    chosen = jax.random.randint(key, (size,), 0, len(tokens))

    def loss(model):
        logits = model(tokens[chosen])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels[chosen]).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


@nnx.jit
def accuracy(model, tokens, labels):
    return jnp.mean(jnp.argmax(model(tokens), axis=1) == labels)


def find_rate(train, mesh: Mesh) -> None:
    """Raise the rate at each step, and say at which the loss fell fastest (Smith 2015)."""
    rates = np.geomspace(1e-5, 1.0, 40)
    model, optimizer = made(lambda number: jnp.asarray(rates)[jnp.minimum(number, 39)], mesh)
    losses = [float(train(model, optimizer, number)) for number in range(40)]
    smooth = np.convolve(losses, np.ones(5) / 5, "valid")
    say(f"the loss falls fastest at a rate of {rates[int(np.argmin(np.diff(smooth))) + 2]:.1e}")


class Checkpoints:
    """The last two states of a training in a directory, or none."""

    def __init__(self, directory: Path | None) -> None:
        options = ocp.CheckpointManagerOptions(max_to_keep=2)
        self._manager = directory and ocp.CheckpointManager(directory.absolute(), options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        if self._manager:
            self._manager.close()  # what is still being written is waited for

    def restore(self, *parts: object) -> int:
        """Bring the parts to the last state that is there; return the step to go on with."""
        last = self._manager and self._manager.latest_step()
        if not last:
            return 0
        wanted = ocp.args.StandardRestore(nnx.state(parts))
        nnx.update(parts, self._manager.restore(last, args=wanted))
        return last

    def save(self, number: int, *parts: object) -> None:
        if self._manager:
            self._manager.save(number, args=ocp.args.StandardSave(nnx.state(parts)))


def say(text: str) -> None:
    if jax.process_index() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
