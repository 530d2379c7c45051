#!/usr/bin/env bash
# A CI job without an account: launch.sh has to get its slice after two stockouts and a preemption.
set -euo pipefail
cd "$(dirname "$0")"
export PAUSE=0

eval "$(tpukit emulator env --start)"
trap 'tpukit emulator stop' EXIT
tpukit emulator clock speed 20 > /dev/null

tpukit emulator fault add stockout --name ci --times 2 > /dev/null
./launch.sh ci
tpukit emulator preempt ci --quiet
./launch.sh ci

# Both faults happened, and the script asked as often as they make it ask.
expect() {
    [ "$2" = "$3" ] || { echo "$1: $2 instead of $3" >&2; tpukit emulator log >&2; exit 1; }
}
expect "stockouts" "$(tpukit emulator fault list | cut -f 6)" 2
expect "creates" "$(tpukit emulator log --method nodes.create | wc -l | tr -d ' ')" 4
expect "state" "$(tpukit list | cut -f 4)" READY
echo "launch.sh survives two stockouts and a preemption"
