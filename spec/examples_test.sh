#!/usr/bin/env bash
#
# examples_test.sh - each example prints what its header says.
#
# The header of an example has the line "-- Expected output:"; what follows, up
# to the end of the comment, is its standard output, indented by two blanks.
# examples/wordcount.lua has a test of its own.
set -euo pipefail
troupe=${TROUPE_BIN:-build/troupe}
luajit=${LUAJIT:-luajit}
failed=0

expected() {
    sed -n '/^-- Expected output:/,/^[^-]/ { s/^--   //p }' "$1"
}

for file in examples/*.lua; do
    name=${file##*/}
    if [[ $name == wordcount.lua ]]; then
        continue
    fi
    command=("$troupe" run "$file")
    if [[ $name == plain_luajit.lua ]]; then
        command=("$luajit" "$file")
    fi
    want=$(expected "$file")
    if [[ -z $want ]]; then
        echo "$name: its header has no expected output"
        failed=1
        continue
    fi
    status=0
    got=$("${command[@]}" 2>"${TMPDIR:-/tmp}/troupe-example.$$") || status=$?
    if [[ $status != 0 || $got != "$want" ]]; then
        echo "$name: status $status; expected (-) and printed (+):"
        diff -u <(echo "$want") <(echo "$got") | tail -n +3 || true
        cat "${TMPDIR:-/tmp}/troupe-example.$$"
        failed=1
    else
        echo "$name: ok"
    fi
    rm -f "${TMPDIR:-/tmp}/troupe-example.$$"
done
exit "$failed"
