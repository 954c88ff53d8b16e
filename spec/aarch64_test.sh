#!/usr/bin/env bash
#
# aarch64_test.sh - context switch and stacks of the other CPU, under an
# emulator.
#
# Skipped (status 77) where the cross compiler or qemu is missing.
set -euo pipefail
cc=$(command -v aarch64-linux-gnu-gcc) || cc=
emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) || emulator=
if [[ -z $cc || -z $emulator || ! -e /usr/aarch64-linux-gnu/include/stdio.h ]]; then
    echo "no aarch64 cross compiler or no qemu: skipped"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for checked in "" -DTROUPE_CHECKED; do
    "$cc" -std=c11 -O2 -g -Wall -Wextra -static $checked -I core -I core/include \
        spec/unit/fiber_smoke.c core/ctx/fiber.c core/ctx/switch_aarch64.S \
        core/base/{sys,lockrank,mutex}.c -pthread -o "$work/smoke"
    "$emulator" "$work/smoke"
    "$cc" -std=c11 -O2 -g -Wall -Wextra -static $checked -I core -I core/include \
        spec/unit/stack_smoke.c core/mem/stack.c core/base/{sys,lockrank,mutex}.c \
        -pthread -o "$work/stack"
    "$emulator" "$work/stack"
done
