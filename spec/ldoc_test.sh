#!/usr/bin/env bash
#
# ldoc_test.sh - LDoc renders the Lua modules without a warning.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd docs
status=0
ldoc -d "$work" . >"$work/log" 2>&1 || status=$?
if ((status != 0)) || grep -v -e '^reading configuration' -e '^output written' "$work/log"; then
    cat "$work/log"
    exit 1
fi
ls "$work/modules"
