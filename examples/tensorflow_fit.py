"""TensorFlow on the devices of one worker: `model.fit`, and a loop of one's own.

Runs on the worker: `tpukit run NAME --with tensorflow -- python3 tensorflow_fit.py [--loop]`. Every
batch has the same shape, and the data set is small enough to be cached where it is used.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if not os.environ.get("TPUKIT_EMULATED_DEVICES"):
    import libtpu  # v5e, v5p and v6e are reached through PJRT, which is told before the import

    os.environ["PJRT_DEVICE"] = "TPU"
    os.environ["NEXT_PLUGGABLE_DEVICE_USE_C_API"] = "true"
    os.environ["TF_PLUGGABLE_DEVICE_LIBRARY_PATH"] = libtpu.get_library_path()

import tensorflow as tf

ROWS, WIDTH, CLASSES, ROWS_PER_DEVICE, RATE_PER_DEVICE = 2048, 16, 4, 16, 0.002


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loop", action="store_true", help="a loop of one's own")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    strategy = all_devices()
    count = strategy.num_replicas_in_sync
    batch, rate = ROWS_PER_DEVICE * count, RATE_PER_DEVICE * count
    with strategy.scope():
        layers = [tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(CLASSES)]
        model = tf.keras.Sequential([tf.keras.Input((WIDTH,)), *layers])
        optimizer = tf.keras.optimizers.Adam(rate)
    train = own_loop if arguments.loop else fit
    train(strategy, model, optimizer, data_set(batch), arguments.epochs)
    accuracy = measured(model, data_set(batch))
    print(f"{count} devices, batch {batch}: accuracy {accuracy:.3f}")


def all_devices() -> tf.distribute.Strategy:
    """Return what spreads over the TPU's devices, or over the emulator's CPUs in their place."""
    emulated = int(os.environ.get("TPUKIT_EMULATED_DEVICES") or 0)
    if emulated:
        (processor,) = tf.config.list_physical_devices("CPU")
        logical = [tf.config.LogicalDeviceConfiguration()] * emulated
        tf.config.set_logical_device_configuration(processor, logical)
        return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(emulated)])
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def data_set(batch: int) -> tf.data.Dataset:
    """Return rows and which of their first features is the largest, the same shape each time."""
    rows = tf.random.stateless_normal((ROWS, WIDTH), seed=(0, 1))
    labels = tf.argmax(rows[:, :CLASSES], axis=1)
    shuffle = tf.data.Dataset.from_tensor_slices((rows, labels)).cache().shuffle(ROWS, seed=0)
    return shuffle.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def fit(strategy, model, optimizer, data, epochs) -> None:
    with strategy.scope():
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=optimizer, loss=loss)
    model.fit(data, epochs=epochs, verbose=0)


def own_loop(strategy, model, optimizer, data, epochs) -> None:
    with strategy.scope():
        optimizer.build(model.trainable_variables)  # a compiled step makes no variables

    @tf.function
    def step(rows: tf.Tensor, labels: tf.Tensor) -> None:
        def one_device(rows: tf.Tensor, labels: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                logits = model(rows, training=True)
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                # Divided by the whole batch: the devices' gradients are added up.
                total = tf.nn.compute_average_loss(each)
            gradients = tape.gradient(total, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        strategy.run(one_device, (rows, labels))

    for _ in range(epochs):
        for rows, labels in strategy.experimental_distribute_dataset(data):
            step(rows, labels)


def measured(model: tf.keras.Model, data: tf.data.Dataset) -> float:
    right = [tf.argmax(model(rows), axis=1) == labels for rows, labels in data]
    return float(tf.reduce_mean(tf.cast(tf.concat(right, 0), tf.float32)))


if __name__ == "__main__":
    main()
