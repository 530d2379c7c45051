#!/usr/bin/env bash
# What a CI job does with the emulator: test the team's own script without an account or a cloud.
# The script under test asks for a slice and asks again when there is no capacity.
set -euo pipefail

work=$(mktemp -d)
export TPUKIT_HOME="$work/tpukit" CLOUDSDK_CONFIG="$work/gcloud"
cleanup() {
    tpukit --quiet emulator stop >/dev/null
    rm -rf "$work"
}
trap cleanup EXIT

tpukit --quiet emulator start --create-seconds 0.5 >/dev/null
eval "$(tpukit emulator env)"

control() { # VERB PATH [BODY]
    curl --silent --show-error --fail --request "$1" \
        --header "Authorization: Bearer $(cat "$CLOUDSDK_AUTH_ACCESS_TOKEN_FILE")" \
        ${3:+--data "$3"} "${CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU}_emulator/v1/$2"
}

ask() { # with whichever client the team uses
    if [ "${CLIENT:-}" = gcloud ]; then
        gcloud compute tpus tpu-vm create ci --accelerator-type v3-8 --version tpu-ubuntu2204-base
    else
        tpukit create v3-8 ci --timeout 60s
    fi
}

# The first two creates are accepted and then fail as a stockout does.
control POST faults '{"preset": "stockout", "times": 2}' >/dev/null
tries=1
until ask >"$work/log" 2>&1; do
    echo "try $tries: $(grep -o 'no more capacity' "$work/log" | head -n 1)"
    tries=$((tries + 1))
    [ "$tries" -le 5 ]
done
echo "try $tries: created"
tpukit list
tpukit delete ci --yes
