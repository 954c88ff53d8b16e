-- luacheck: ignore 241 311 331 (the loops work for nothing on purpose)
-- Twice as many endless loops of one kind as schedulers; one actor shall run
-- each 10 ms, for 2 s. How late is it? One line for each kind of loop.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local PERIOD, COUNT = 0.01, 200
local LOOPS = {
  { "count", function()
    local x = 0
    while true do x = x + 1 end
  end },
  { "concat", function()
    while true do
      local x = ""
      for _ = 1, 100 do x = x .. "ten bytes " end
    end
  end },
  { "tables", function()
    while true do
      local t = {}
      for i = 1, 50 do t["k" .. i] = { i } end
    end
  end },
  { "rep", function()
    while true do local _ = ("x"):rep(1000) end
  end },
  { "pcall", function()
    while true do pcall(error, "x") end
  end },
  { "coroutine", function()
    local co = coroutine.wrap(function()
      while true do coroutine.yield() end
    end)
    while true do co() end
  end },
  { "ffi", function()
    local p = require("ffi").new "double[64]"
    while true do
      for i = 0, 63 do p[i] = p[i] * 0.5 + i end
    end
  end },
}

local workers = measure.schedulers()
workers = type(workers) == "number" and workers or 2

for _, entry in ipairs(LOOPS) do
  local name, loop = entry[1], entry[2]
  local pids, late = {}, {}
  for i = 1, 2 * workers do pids[i] = troupe.spawn(loop) end
  for i = 1, COUNT do
    local due = troupe.now() + PERIOD
    troupe.sleep(PERIOD)
    late[i] = (troupe.now() - due) * 1000
  end
  for _, pid in ipairs(pids) do troupe.kill(pid) end
  for _, pid in ipairs(pids) do troupe.join(pid) end
  table.sort(late)
  measure.report("preempt", measure.percentile(late, 0.99), "ms", { "loop", name,
    "p50", measure.percentile(late, 0.5), "p99", measure.percentile(late, 0.99),
    "max", late[COUNT] })
end
