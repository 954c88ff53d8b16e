#!/usr/bin/env bash
#
# install_test.sh - a rock made into a temporary tree works from any folder.
#
# Without network. The source is copied first, so that the build folder which
# luarocks makes does not end up in the tree.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

export HOME=$work/home # no configuration of the user's
mkdir -p "$HOME" "$work/src" "$work/elsewhere"
cp -r "$top"/{CMakeLists.txt,core,bindings,lua,rockspec,LICENSE} "$work/src"
# Only the new tree counts.
unset LUA_PATH LUA_CPATH LUA_INIT
export CMAKE_BUILD_PARALLEL_LEVEL=2

rock() { luarocks --lua-version=5.1 --tree "$work/tree" "$@"; }

cd "$work/src"
if ! rock make rockspec/troupe-scm-1.rockspec >"$work/log" 2>&1; then
    cat "$work/log"
    echo "luarocks make failed"
    exit 1
fi

eval "$(rock path)"
export PATH=$work/tree/bin:$PATH
rm -rf "$work/src"
cd "$work/elsewhere"

fail() {
    echo "install_test: $*"
    exit 1
}

# expect <text> <command...>: the command succeeds and prints just this.
expect() {
    local want=$1 got
    shift
    got=$("$@" 2>&1) || fail "$* failed: $got"
    [[ $got == "$want" ]] || fail "$*: got '$got', want '$want'"
}

[[ $(command -v troupe) == "$work/tree/bin/troupe" ]] || fail "no command"

expect "table" luajit -e 'print(type(require "troupe"))'
expect "$work/tree" luajit -e '
    require "troupe"
    print((package.searchpath("troupe.core", package.cpath):gsub("/lib/.*", "")))'
version=$(troupe --version)
[[ $version == *[0-9].[0-9]* ]] || fail "troupe --version: $version"

cat >app.lua <<'LUA'
local troupe = require "troupe"
local me = troupe.self()
troupe.spawn(function(to, word)
  local t = require "troupe"
  t.send(to, word)
end, me, ...)
print((troupe.receive(10)))
LUA
expect "hello" troupe run app.lua hello

cat >plain.lua <<'LUA'
local troupe = require "troupe"
print(troupe.run(function()
  local t = require "troupe"
  local pid = t.spawn(function() end)
  return t.join(pid, 10)
end))
LUA
expect "true" luajit plain.lua

rock remove troupe >"$work/log" 2>&1 || fail "remove: $(cat "$work/log")"
left=$(find "$work/tree" -name '*troupe*' -o -name core.so)
[[ -z $left ]] || fail "left behind: $left"
echo "install_test: ok"
