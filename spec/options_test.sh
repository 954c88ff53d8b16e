#!/usr/bin/env bash
#
# options_test.sh - cmake refuses builds that cannot be or would check nothing.
#
# usage: options_test.sh <scratch folder>
set -u
scratch=$1
failed=0

# refused <words in the message> <options...>
refused() {
    local words=$1 out
    shift
    rm -rf "$scratch"
    if out=$(cmake -S . -B "$scratch" -DTROUPE_CORE_ONLY=ON "$@" 2>&1); then
        echo "accepted: $*"
        failed=1
    elif ! tr -s '\n ' ' ' <<<"$out" | grep -qF "$words"; then
        echo "refused without saying \"$words\": $* ($out)"
        failed=1
    fi
}

refused "choose address, thread or undefined" -DTROUPE_SANITIZE=memory
refused "exclude each other" '-DTROUPE_SANITIZE=address,thread'
refused "choose one of" -DTROUPE_RUNQ=fifo
refused "would assert nothing" -DTROUPE_MODEL=ON
refused "would see nothing" -DTROUPE_MODEL=ON -DTROUPE_CHECKED=ON \
    -DTROUPE_SANITIZE=thread
refused "installs what users run" -DTROUPE_ROCK=ON
rm -rf "$scratch"
exit $failed
