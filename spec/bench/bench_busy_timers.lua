-- Eight actors per scheduler compute and yield without a pause, and a ticker
-- sleeps 10 ms again and again: how late it wakes.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local TICKS, PERIOD, BUSY = 200, 0.01, 8

local function busy(stop)
  local sum = 0
  while troupe.now() < stop do
    for i = 1, 5000 do sum = sum + i % 7 end
    troupe.yield()
  end
  return sum
end

local stop = troupe.now() + 0.5 + 2 * TICKS * PERIOD
local schedulers = tonumber(measure.schedulers()) or 2
for _ = 1, BUSY * schedulers do troupe.spawn(busy, stop) end
troupe.sleep(0.2)

local late = {}
for i = 1, TICKS do
  local due = troupe.now() + PERIOD
  if due > stop then break end
  troupe.sleep(PERIOD)
  late[i] = (troupe.now() - due) * 1000
end
assert(#late > 0, "no timer fired while the schedulers were busy")
table.sort(late)

measure.report("busy_timers", measure.percentile(late, 0.99), "ms", {
  "ticks", #late, "wanted", TICKS, "p50", measure.percentile(late, 0.5), "max", late[#late],
})
