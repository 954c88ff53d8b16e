#!/usr/bin/env bash
#
# wordcount_test.sh - the demo counts as tr, sort and uniq do.
#
# On a few MB: a licence many times over, and what is hard: words at the border
# of a chunk, words longer than chunks, bytes beyond ASCII, no newline at the
# end, empty files, no letters at all.
set -euo pipefail
export LC_ALL=C
troupe=${TROUPE_BIN:-build/troupe}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "wordcount_test: $*"
    exit 1
}

cat $(yes LICENSE | head -3000) >"$work/licence"
head -c 1000000 /dev/urandom >"$work/noise"
head -c 600000 /dev/zero | tr '\0' x >"$work/one-word"
{
    head -c 262143 /dev/zero | tr '\0' ' '
    printf 'Border at 256 KiB'
} >"$work/border"
printf 'Ünïcode, na\xefve' >"$work/no-newline"
printf '1 2 3\n' >"$work/no-letters"
: >"$work/empty"

files=("$work"/*)

# Each file by itself: a word does not go on in the next file.
for file in "${files[@]}"; do
    tr -cs A-Za-z '\n' <"$file"
    echo
done | tr A-Z a-z | grep . | sort | uniq -c |
    awk '{ print $1, $2 }' | sort >"$work/want"

for schedulers in 1 2 4; do
    TOP=1000000000 "$troupe" run --schedulers "$schedulers" \
        examples/wordcount.lua "${files[@]}" >"$work/out"
    grep -v ',' "$work/out" | awk '{ print $1, $2 }' | sort >"$work/got"
    cmp -s "$work/want" "$work/got" ||
        fail "counts differ: $(diff "$work/want" "$work/got" | head -5)"
    sum=$(awk '{ n += $1 } END { print n }' "$work/want")
    total="$sum words, $(wc -l <"$work/want") different ones"
    grep -q "^$total, in " "$work/out" || fail "no line '$total'"
    # The ten commonest are the first ten, in order.
    "$troupe" run examples/wordcount.lua "${files[@]}" | head -10 >"$work/ten"
    cmp -s "$work/ten" <(head -10 "$work/out") || fail "not the top ten"
done

if "$troupe" run examples/wordcount.lua "$work/absent" 2>"$work/err"; then
    fail "a missing file is no error"
fi
grep -q 'absent: No such file' "$work/err" || fail "$(cat "$work/err")"
echo "wordcount_test: ok"
