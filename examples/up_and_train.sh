#!/usr/bin/env bash
# Bring a slice up, train on every worker, delete the slice whatever happens.
#
#   examples/up_and_train.sh v3-8                   on Cloud TPU
#   TPUKIT_LOCAL=1 examples/up_and_train.sh v4-16   on the emulator
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
type=${1:-v3-8}
name="train-$type-$$"

trap 'tpukit delete "$name" --yes --missing-ok >/dev/null' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

tpukit up "$type" "$name" >&2
workers=$(tpukit describe "$name" --json |
    python3 -c 'import json, sys; print(len(json.load(sys.stdin)["slice"]["workers"]))')
for ((worker = 0; worker < workers; worker++)); do
    tpukit ssh "$name" --worker "$worker" -- 'cat > train.py' <"$here/train.py"
done
tpukit run "$name" -- .tpukit/venvs/jax/bin/python train.py --steps 20
