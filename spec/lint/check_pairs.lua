--- Atomics say what they order, and with whom. --doc prints docs/design/ordering.md.
--
-- Every atomic_x_explicit (and every fence) in core/ and bindings/ has a comment
-- right above it, or above the statement that it is part of, with
--   MBX-1 release: why          for each order that is not relaxed
--   relaxed: why                when all its orders are relaxed
-- A tag stands on both sides: at least one operation that acquires and one that
-- releases; or it is one acq_rel that says "Both sides are this". Implicit orders,
-- compiler builtins and volatile are refused.

package.path = (arg[0]:match("^(.*/)") or "./") .. "?.lua;" .. package.path
local source = require "source"

local report = source.report("check_pairs")

local ORDERS = {
  relaxed = {},
  consume = { acquire = true },
  acquire = { acquire = true },
  release = { release = true },
  acq_rel = { acquire = true, release = true },
  seq_cst = { acquire = true, release = true },
}
-- Words that may follow the order in a tag: "IDLE-1 seq_cst rmw: ...".
local KINDS = { rmw = true, load = true, store = true, fence = true }
-- What one written order answers for: a stronger success covers the failure.
local COVERS = {
  acquire = { "acquire", "consume" },
  release = { "release" },
  consume = { "consume" },
  acq_rel = { "acq_rel", "acquire", "release", "consume" },
  seq_cst = { "seq_cst", "acq_rel", "acquire", "release", "consume" },
  relaxed = { "relaxed" },
}

local tags = {} -- name -> { operations... }

-- The arguments of the call whose "(" is at `open`, and the end of the call.
local function arguments(code, open)
  local whole = code:match("^%b()", open) or ""
  return whole, open + #whole - 1
end

-- All "TAG-1, TAG-2 order kind:" in a comment: { {name=, order=} }, and whether
-- "relaxed:" is there.
local function tags_of(words)
  local found = {}
  for name, after in words:gmatch("([A-Z][A-Z0-9_]*%-%d+)()") do
    local at = after
    while true do
      local next_at = words:match("^,?%s*a?n?d?%s*[A-Z][A-Z0-9_]*%-%d+()", at)
      if not next_at then
        break
      end
      at = next_at
    end
    local order, rest = words:match("^%s+([a-z_]+)([^:]*):", at)
    local kind = rest and rest:match("^%s+(%a+)$")
    if order and ORDERS[order] and (rest == "" or KINDS[kind]) then
      found[#found + 1] = { name = name, order = order }
    end
  end
  return found, words:find("%f[%w]relaxed[, %a]*:") ~= nil
end

-- The text of the comments that belong to the operation at `at`: no statement
-- ends and no block opens or closes between them and it.
local function comments_above(code, comments, at)
  local texts = {}
  local limit = at
  for i = #comments, 1, -1 do
    local c = comments[i]
    if c.last < at then
      local between = code:sub(c.last + 1, limit - 1)
      if #texts > 0 and between:find("%S") then
        break -- a second comment counts only when it touches the first
      end
      if between:find("[;{}]%s*\n") then
        break
      end
      table.insert(texts, 1, source.words(c.text))
      limit = c.first
    end
  end
  return table.concat(texts, " ")
end

local function check_operation(path, text, code, comments, at, name, open)
  local args = arguments(code, open)
  local line = source.line(text, at)
  local words = comments_above(code, comments, at)
  local found, has_relaxed = tags_of(words)
  local covered = { relaxed = has_relaxed }
  for _, tag in ipairs(found) do
    for _, order in ipairs(COVERS[tag.order]) do
      covered[order] = true
    end
  end
  covered.acq_rel = covered.acq_rel or covered.acquire or covered.release
  local orders, strong = {}, false
  for order in args:gmatch("memory_order_([a-z_]+)") do
    orders[#orders + 1] = order
    strong = strong or order ~= "relaxed"
  end
  if #orders == 0 then
    report.add(path, line, "%s: its memory order is not written in the call", name)
  end
  for _, order in ipairs(orders) do
    -- A relaxed failure of a stronger exchange may go without words.
    if not covered[order] and not (order == "relaxed" and strong) then
      report.add(path, line, order == "relaxed" and "%s: no \"relaxed: reason\" above it"
        or "%s: no \"TAG-n %s: reason\" above it", name, order)
    end
  end
  for _, tag in ipairs(found) do
    local list = tags[tag.name] or {}
    tags[tag.name] = list
    list[#list + 1] = {
      path = path, line = line, order = tag.order, operation = name,
      where = source.function_at(code, at), words = words,
    }
  end
end

local IMPLICIT = {
  "atomic_load", "atomic_store", "atomic_exchange", "atomic_compare_exchange_weak",
  "atomic_compare_exchange_strong", "atomic_fetch_add", "atomic_fetch_sub",
  "atomic_fetch_or", "atomic_fetch_xor", "atomic_fetch_and", "atomic_flag_test_and_set",
  "atomic_flag_clear",
}

local function refuse(path, text, code)
  for _, name in ipairs(IMPLICIT) do
    for at in code:gmatch("%f[%w_]()" .. name .. "%s*%(") do
      report.add(path, source.line(text, at), "%s: write its order, %s_explicit", name, name)
    end
  end
  for at, name in code:gmatch("%f[%w_]()(__[as][ty][on][mc][_%w]*)%s*%(") do
    if name:find("^__atomic_") or name:find("^__sync_") then
      report.add(path, source.line(text, at), "%s: use stdatomic.h", name)
    end
  end
  for at in code:gmatch("%f[%w_]()volatile%f[^%w_]") do
    local before = code:sub(math.max(1, at - 40), at - 1)
    local after = code:sub(at, at + 60)
    local fine = before:find("__asm__%s*$") or after:find("^volatile%s+sig_atomic_t")
      or before:find("sig_atomic_t%s+$")
    if not fine then
      report.add(path, source.line(text, at), "volatile orders nothing: use an atomic")
    end
  end
end

local function check_file(path)
  local text = source.read(path)
  local code, comments = source.split(text)
  for at, name, open in code:gmatch("%f[%w_]()(atomic_[%w_]+)%s*()%(") do
    if name:find("_explicit$") or name:find("_fence$") then
      check_operation(path, text, code, comments, at, name, open)
    end
  end
  refuse(path, text, code)
end

local function sorted_tags()
  local names = {}
  for name in pairs(tags) do
    names[#names + 1] = name
  end
  table.sort(names, function(a, b)
    local an, ai = a:match("^(.*)%-(%d+)$")
    local bn, bi = b:match("^(.*)%-(%d+)$")
    if an ~= bn then
      return an < bn
    end
    return tonumber(ai) < tonumber(bi)
  end)
  return names
end

local function check_sides(name)
  local list, sides = tags[name], {}
  -- The last of several owners: one decrement meets itself on another thread.
  if #list == 1 and list[1].order == "acq_rel" and list[1].words:find("Both sides are this") then
    return
  end
  for _, op in ipairs(list) do
    for side in pairs(ORDERS[op.order]) do
      sides[side] = true
    end
  end
  if #list < 2 or not sides.acquire or not sides.release then
    report.add(list[1].path, list[1].line, "%s stands on one side only: tag its partner", name)
  end
end

-- What the comment says of this tag: up to the next tag's own words.
local function meaning(op, name)
  local _, from = op.words:find(name, 1, true)
  local text = op.words:sub(from + 1):match(":%s*(.*)$") or ""
  local stop = text:find("%f[%w][A-Z][A-Z0-9_]*%-%d+%s+[a-z_]+[^:]-:")
    or text:find("%f[%w]relaxed:")
  text = stop and text:sub(1, stop - 1) or text
  return (text:gsub("%s+$", ""):gsub("|", "\\|"))
end

local function page(names)
  local out = {
    "# Memory ordering",
    "",
    "Generated from the comments at the operations by spec/lint/check_pairs.lua;",
    "`./dev docs` writes it again, a test compares. A tag names one hand-over: what is",
    "written before the releasing side is seen after the acquiring side. Operations",
    "that order nothing say `relaxed: why` in the source and are not listed.",
  }
  for _, name in ipairs(names) do
    out[#out + 1] = ""
    out[#out + 1] = "## " .. name
    out[#out + 1] = ""
    out[#out + 1] = "| order | where | what |"
    out[#out + 1] = "|---|---|---|"
    for _, op in ipairs(tags[name]) do
      out[#out + 1] = ("| %s | `%s`, %s | %s |"):format(op.order, op.path, op.where,
        meaning(op, name))
    end
  end
  return table.concat(out, "\n") .. "\n"
end

for _, path in ipairs(source.files({ "core", "bindings" }, { ".c", ".h" })) do
  check_file(path)
end
local names = sorted_tags()
for _, name in ipairs(names) do
  check_sides(name)
end
source.page(report, "docs/design/ordering.md", page(names))
report.finish(("%d tags, each on both sides"):format(#names))
