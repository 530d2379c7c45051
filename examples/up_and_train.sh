#!/usr/bin/env bash
# Bring a slice up, train on every worker, delete the slice whatever happens.
#
#   examples/up_and_train.sh v3-8                   on Cloud TPU
#   TPUKIT_LOCAL=1 examples/up_and_train.sh v4-16   on the emulator
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
type=${1:-v3-8}
name="train-$type-$$"

finish() {
    status=$? # of what ended the script: a delete that fails must not hide it
    tpukit delete "$name" --yes --missing-ok >/dev/null || echo "look for $name: tpukit list" >&2
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

tpukit up "$type" "$name" >&2
tpukit cp "$here/train.py" "$name:"
tpukit run "$name" --with jax -- python train.py --steps 20
