#!/usr/bin/env bash
#
# examples_test.sh - examples and manual print what they say they do.
#
# The header of an example has the line "-- Expected output:"; what follows, up
# to the end of the comment, is its standard output, indented by two blanks.
# examples/wordcount.lua has a test of its own. In README and guide a block
# ```lua that is followed by a block ```text is a program and its output.
set -euo pipefail
top=$PWD
troupe=${TROUPE_BIN:-$top/build/troupe}
luajit=${LUAJIT:-luajit}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# check <name> <expected output> <command...>
check() {
    local name=$1 want=$2 got status=0
    shift 2
    got=$("$@" 2>"$work/stderr") || status=$?
    if [[ -n $want && $status == 0 && $got == "$want" ]]; then
        echo "$name: ok"
        return
    fi
    failed=1
    echo "$name: status $status; expected (-) and printed (+):"
    diff -u <(echo "$want") <(echo "$got") | tail -n +3 || true
    cat "$work/stderr"
}

for file in examples/*.lua; do
    want=$(sed -n '/^-- Expected output:/,/^[^-]/ { s/^--   //p }' "$file")
    case ${file##*/} in
    wordcount.lua) ;;
    plain_luajit.lua) check "$file" "$want" "$luajit" "$file" ;;
    *) check "$file" "$want" "$troupe" run "$file" ;;
    esac
done

# The n-th program of a page goes to <work>/page/<n>.lua, its output beside it.
split_page() {
    mkdir "$work/page"
    awk -v dir="$work/page" '
        /^```lua$/ { out = dir "/" ++n ".lua"; next }
        /^```text$/ { out = dir "/" n ".want"; next }
        /^```$/ { close(out); out = ""; next }
        out != "" { print >out }
    ' "$1"
}

for page in README.md docs/guide/*.md; do
    split_page "$page"
    for want in "$work"/page/*.want; do
        [[ -e $want ]] || continue # a page without programs
        number=$(basename "$want" .want)
        # By the name that the README gives it: it is in the output.
        mv "$work/page/$number.lua" "$work/hello.lua"
        cd "$work"
        check "$page, program $number" "$(<"$want")" "$troupe" run hello.lua
        cd "$top"
    done
    rm -r "$work/page"
done

# The picture in the guide has the arrows, and their labels, of the machine.
arrows_of_text() {
    sed -n 'h; s/^  "\(.*\)" -> "\([^"]*\)".*/\1->\2/p; g; s/.*-> .*label="\([^"]*\)".*/\1/p' |
        sed 's/\\n/\n/g' | sort
}
arrows_of_svg() {
    sed -n '/class="edge"/,/<\/g>/ s/.*<\(title\|text\)[^>]*>\(.*\)<.*/\2/p' |
        sed 's/&#45;/-/g; s/&gt;/>/g; s/&#160;/ /g; s/ *$//' | sort
}
check "docs/guide/door.svg (./dev docs renders it)" \
    "$("$troupe" run examples/door.lua dot | arrows_of_text)" \
    arrows_of_svg <docs/guide/door.svg
exit "$failed"
