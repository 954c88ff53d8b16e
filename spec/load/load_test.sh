#!/usr/bin/env bash
#
# load_test.sh - troupe_load against servers that are right and ones that are
# wrong: it counts what happened, and ends.
set -euo pipefail
load=${TROUPE_LOAD:-build/load/troupe_load}
work=$(mktemp -d)
failed=0
port='' server='' control='' result='' status=0
# The machine may be slow, or stop for seconds; options that follow override.
patient=(--timeout 100 --connect-timeout 100 --deadline 400)

stop() {
    if [[ -n $server ]]; then
        exec {control}>&- # the end of its standard input ends it
        wait "$server" || say "the server failed"
        server=
    fi
}
trap 'stop; rm -rf "$work"' EXIT

say() {
    echo "load_test: $*"
    failed=1
}

# start <kind> [options...]: a server; its port in $port.
start() {
    stop
    rm -f "$work/in" "$work/out"
    mkfifo "$work/in" "$work/out"
    "$load" --duration 1000 --serve "$@" <"$work/in" >"$work/out" &
    server=$!
    exec {control}>"$work/in"
    read -r port <"$work/out"
}

# run <options...>: the generator; its JSON in $result, its status in $status.
run() {
    status=0
    what="$*"
    result=$(timeout 500 "$load" "${patient[@]}" "$@" 2>"$work/stderr") ||
        status=$?
}

# is <name> <value>, least <name> <value>: a whole number of the result.
is() {
    [[ $result =~ \"$1\":([0-9]+) && ${BASH_REMATCH[1]} == "$2" ]] ||
        say "$what: $1 is not $2: $result"
}
least() {
    [[ $result =~ \"$1\":([0-9]+) && ${BASH_REMATCH[1]} -ge $2 ]] ||
        say "$what: $1 is less than $2: $result"
}
good() {
    [[ $status == 0 ]] || say "$what: status $status: $result"
    is all 0
    is lost 0
    [[ $result =~ \"sent\":([0-9]+) ]] && is received "${BASH_REMATCH[1]}"
}
bad() { [[ $status == 1 ]] || say "$what: status $status: $result"; }

# -- right servers --------------------------------------------------------------

start echo
run --port "$port" --connections 10 --count 1000
good
is requests 1000
is verified 64000
is opened 10
run --port "$port" --connections 3 --count 50 --size 1000003 --pipeline 4
good
is verified 50000150
run --port "$port" --connections 20 --duration 0.3 --pipeline 16 --size 1
good
least requests 1
# Open loop: as many as were planned, also those that were late.
run --port "$port" --connections 7 --rate 1000 --duration 0.3
good
is requests 301
run --port "$port" --connections 7 --rate 100000 --count 500
good
is requests 500
run --port "$port" --connections 300 --mode idle --duration 0.2
good
is requests 600
grep -q "300 connections are open" "$work/stderr" || say "$what: says nothing"
run --port "$port" --connections 30 --mode idle --size 0 --duration 0.2
good
is opened 30
for end in close half reset; do
    run --port "$port" --connections 50 --mode churn --requests 3 \
        --duration 0.3 --end $end --sources 4
    good
    least opened 50
done
run --port "$port" --connections 50 --mode churn --count 1000 --end half
good
is requests 1000
# The connections that were opened before the first answer count, too.
run --port "$port" --connections 10 --duration 0.2 --warmup 0.1
good

start echo --unix "$work/socket"
run --unix "$work/socket" --connections 10 --count 100
good

if [[ -e /proc/net/if_inet6 ]] && grep -q ' lo$' /proc/net/if_inet6; then
    start echo --host ::1
    run --host ::1 --port "$port" --connections 10 --count 100
    good
fi

for kind in http chunked close; do
    start $kind
    run --port "$port" --mode http --connections 10 --count 300
    is all 0
    is requests 300
    run --port "$port" --mode http --connections 10 --rate 1000 --count 100
    is all 0
    is requests 100
done
start http
run --port "$port" --mode http --connections 3 --count 300 --pipeline 16
is all 0
is requests 300

# No coordinated omission. A server that takes 20 ms for each request is asked
# every 10 ms: the last one waits at least for what all the others are late.
start slow
run --port "$port" --count 20
is all 0
run --port "$port" --rate 100 --count 40
is all 0
least max 400000

# -- wrong servers ----------------------------------------------------------------

start drop
run --port "$port" --connections 10 --count 1000
bad
is requests 0
is closed 10
is unanswered 10
is lost 640
run --port "$port" --connections 5 --mode churn --duration 0.2
bad
least closed 5
run --port "$port" --connections 5 --rate 1000 --count 100
bad
is unanswered 100
run --port "$port" --connections 5 --mode idle --duration 0.1
bad
is closed 5

start short
run --port "$port" --connections 10 --count 1000
bad
is lost 10
is verified 630

start garbage
run --port "$port" --connections 10 --count 1000
bad
is mismatch 10
is verified 630
run --port "$port" --connections 1 --mode http
bad
is malformed 1

start extra
run --port "$port" --connections 10 --duration 5
bad
least all 10 # extra, or a mismatch of the next answer

start silent
run --port "$port" --connections 10 --timeout 0.1
bad
is timeout 10
is unanswered 10
run --port "$port" --connections 10 --deadline 0.2
bad
is deadline 1
run --port "$port" --connections 10 --mode http --timeout 0.1
bad
is timeout 10

start deaf
run --port "$port" --connections 10 --connect-timeout 0.2 --timeout 0.2
bad
least connect_timeout 5

stop
run --port "$port" --connections 10
bad
is connect 10
run --port "$port" --connections 10 --mode churn --duration 0.2
bad
least connect 10
run --unix "$work/nothing"
bad
is connect 1

# No descriptors: an error for each connection, no crash.
start echo
result=$( (ulimit -n 40 && exec "$load" --port "$port" --connections 100 \
    --mode idle --duration 0.1) 2>/dev/null) && say "EMFILE is no error"
what="EMFILE"
least connect 50

# -- wrong options ------------------------------------------------------------------

for wrong in "" "--port 1 --unix x" "--port x" "--port 70000" "--port 1 x" \
    "--port 1 --mode x" "--port 1 --size 0" "--port 1 --rate nan" \
    "--port 1 --mode churn --rate 5" "--port 1 --connections 0" "--no-such" \
    "--unix $(printf 'x%.0s' {1..200})"; do
    # shellcheck disable=SC2086
    run $wrong
    [[ $status == 2 ]] || say "$wrong: status $status"
done

exit "$failed"
