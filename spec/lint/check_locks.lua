--- docs/design/locks.md follows core/base/lockrank.h. --doc prints it.

package.path = (arg[0]:match("^(.*/)") or "./") .. "?.lua;" .. package.path
local source = require "source"

local report = source.report("check_locks")
local PATH = "core/base/lockrank.h"

local text = source.read(PATH)
local list = text:match("#define TP_LOCK_RANKS%(X%)(.-[^\\])\n") or ""

local out = {
  "# Lock order",
  "",
  "Generated from TP_LOCK_RANKS in core/base/lockrank.h by spec/lint/check_locks.lua;",
  "`./dev docs` writes it again, a test compares. A thread takes locks downwards in",
  "this table only; checked builds abort on anything else. No lock is held across a",
  "fiber switch or while a scheduler sleeps.",
  "",
  "| rank | lock | protects |",
  "|---|---|---|",
}
local count = 0
for name, what in list:gmatch("X%(([%w_]+),%s*\"(.-)\"%)") do
  count = count + 1
  out[#out + 1] = ("| %d | `TP_RANK_%s` | %s |"):format(count, name, what)
end
if count == 0 then
  report.add(PATH, 1, "TP_LOCK_RANKS was not found")
end
source.page(report, "docs/design/locks.md", table.concat(out, "\n") .. "\n")
report.finish(("%d ranks"):format(count))
