#!/bin/bash
# Wall time of `troupe run` of an empty script: median of 20.
set -e
troupe=${TROUPE_BIN:-build/troupe}
script=$(mktemp --suffix=.lua)
trap 'rm -f "$script"' EXIT

"$troupe" run "$script"
for _ in {1..20}; do
    start=${EPOCHREALTIME/./}
    "$troupe" run "$script"
    end=${EPOCHREALTIME/./}
    echo $((end - start))
done | sort -n | awk 'NR == 10 {a = $1} NR == 11 {
    printf "{\"bench\":\"startup\",\"schedulers\":\"default\",\"value\":%.3g,\"unit\":\"ms\"}\n",
        (a + $1) / 2000 }'
