"""What is said at the start of a command that keeps its checkpoints on the worker."""

from __future__ import annotations

from tpukit.watch.checkpoints import warning

TOLD = {
    "train.py --checkpoint-dir ckpt": "--checkpoint-dir ckpt is lost with the slice",
    "train.py --ckpt_path=/tmp/c --data gs://b/d": "--ckpt_path /tmp/c is lost with the slice",
    "OUTPUT_DIR=/mnt/x train.py gs://b/d": "OUTPUT_DIR /mnt/x is lost with the slice",
    "train.py model.save_dir=out gs://b": "model.save_dir out is lost with the slice",
    "./train.sh": "the command has no gs:// path",
    "it's --steps 3": "the command has no gs:// path",
}
QUIET = ("train.py --checkpoint-dir gs://b/run", "train.py --workdir=gs://b/run --steps 3")


def test_a_checkpoint_on_the_worker_is_told() -> None:
    for command, told in TOLD.items():
        assert warning(command).startswith(told), command
    for command in QUIET:
        assert warning(command) == ""
    assert warning("./train.sh", ["CKPT=gs://b/run"]) == ""
