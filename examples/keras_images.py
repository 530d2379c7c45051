"""Image classification with Keras on JAX: augmented images are made once, so that no step waits.

Runs on one worker: `tpukit run NAME --with keras -- python3 keras_images.py --cache FILE.npz`.

- Augmentation on the host starves a TPU. Here it makes a few copies of the data set, once, and
  keeps them in a file; each epoch takes the next copy. The price is less variety.
- The copies stay in memory as bytes, and are scaled to floats on the devices.
- The batch and the learning rate grow with the number of devices.
"""

import argparse
from pathlib import Path

import jax
import keras
import numpy as np

SIDE, ROWS, COPIES, EPOCHS, ROWS_PER_DEVICE, RATE_PER_DEVICE = 16, 1024, 3, 6, 8, 0.0005
KINDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path("augmented.npz"))
    arguments = parser.parse_args()

    keras.utils.set_random_seed(0)
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    count = jax.device_count()
    images, kinds = pictures(np.random.default_rng(0))
    copies = cached(arguments.cache, images)
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1), dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(KINDS),
        ]
    )
    model.compile(
        keras.optimizers.Adam(RATE_PER_DEVICE * count),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    # Every batch is full: the rows divide evenly, so that there is one shape to compile.
    size = ROWS_PER_DEVICE * count
    for epoch in range(EPOCHS):
        model.fit(copies[epoch % COPIES], kinds, batch_size=size, verbose=0)
    fresh, wanted = pictures(np.random.default_rng(1))
    _, accuracy = model.evaluate(fresh, wanted, batch_size=size, verbose=0)
    print(f"{count} devices, batch {size}: accuracy {accuracy:.3f}")


def pictures(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy stripes across, stripes down and checks, and which of them each one is."""
    kinds = random.integers(0, KINDS, ROWS)
    rows, columns = np.indices((SIDE, SIDE)) // 4 % 2
    plain = np.stack([rows, columns, rows ^ columns])[kinds]
    images = 80 + 60 * plain + random.normal(0, 30, plain.shape)
    return images.clip(0, 255).astype(np.uint8)[..., None], kinds


def cached(path: Path, images: np.ndarray) -> np.ndarray:
    """Return augmented copies of the images from the file, which is made if it is not there."""
    if path.exists():
        print(f"the augmented images come from {path}")
        return np.load(path)["copies"]
    random = np.random.default_rng(2)
    copies = np.stack([augmented(images, random) for _ in range(COPIES)])
    np.savez(path, copies=copies)
    return copies


def augmented(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return each image moved, perhaps mirrored, and a little brighter or darker."""
    moved = [
        np.roll(image[:, :: random.choice((1, -1))], random.integers(0, SIDE, 2), (0, 1))
        for image in images
    ]
    light = random.uniform(0.8, 1.2, (len(images), 1, 1, 1))
    return (moved * light).clip(0, 255).astype(np.uint8)


if __name__ == "__main__":
    main()
