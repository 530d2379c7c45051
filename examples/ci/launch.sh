#!/usr/bin/env bash
# The script under test: makes a spot slice, also where capacity is short or the slice was lost.
# usage: launch.sh NAME
set -euo pipefail
name=$1

status=0
for try in 1 2 3 4 5; do
    status=0
    tpukit create v3-8 "$name" --spot --quiet || status=$?
    case $status in
        0) echo "try $try: $name is ready"; break ;;
        6) echo "try $try: no capacity"; sleep "${PAUSE:-60}" ;;
        7) echo "try $try: $name was lost"; tpukit delete "$name" --yes --quiet ;;
        *) break ;;
    esac
done
exit "$status"
