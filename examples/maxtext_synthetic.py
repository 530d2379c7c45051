"""MaxText's own training program on made-up data, with a model that is small enough to try.

Runs on the worker: `tpukit run NAME --with maxtext -- python3 maxtext_synthetic.py`. For a real
model, leave out the sizes, and name your data set and a folder of a bucket.
"""

import json
import os
from pathlib import Path

import jax
import maxtext
from maxtext.trainers.pre_train import train

SIZES = {
    "base_emb_dim": 32,
    "base_mlp_dim": 64,
    "base_num_decoder_layers": 1,
    "base_num_query_heads": 2,
    "base_num_kv_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
    "max_target_length": 32,
}


def main() -> None:
    emulated = "TPUKIT_EMULATED_DEVICES" in os.environ
    metrics = Path("metrics.jsonl").absolute()
    metrics.unlink(missing_ok=True)
    words = {
        **SIZES,
        "run_name": "demo",
        "base_output_directory": str(Path("maxtext-output").absolute()),
        "hardware": "cpu" if emulated else "tpu",
        "skip_jax_distributed_system": "true",  # one worker
        "attention": "dot_product",  # short texts need no flash attention
        "dataset_type": "synthetic",
        "steps": 20,
        "per_device_batch_size": 1,
        "learning_rate": 0.01,
        "enable_checkpointing": "false",
        "metrics_file": str(metrics),
    }
    base = Path(maxtext.__file__).parent / "configs/base.yml"
    train.main(["train", str(base), *(f"{key}={value}" for key, value in words.items())])
    losses = [json.loads(line)["learning/loss"] for line in metrics.read_text().splitlines()]
    print(f"{jax.device_count()} devices: loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
