-- monitor: ns for monitor and demonitor of a live actor. monitor_death: ms
-- until 10,000 actors, each linked to and monitoring one that ends, know it.
-- demonitor_full, cancel_full: what the pair costs with 1,000,000 messages
-- waiting, as a ratio to an empty mailbox.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local WATCHERS = 10000
local QUEUED = 1000000

local function idle() troupe.receive() end

local target = troupe.spawn(idle)
local monitor, demonitor = troupe.monitor, troupe.demonitor
local send_after, cancel, self = troupe.send_after, troupe.cancel, troupe.self()

local function monitors(rounds)
  for _ = 1, rounds do demonitor(monitor(target)) end
end

local function timers(rounds)
  for _ = 1, rounds do cancel(send_after(1000, self, 1)) end
end

local monitor_empty, timer_empty = measure.rate(1, monitors), measure.rate(1, timers)
measure.report("monitor", 1e9 / monitor_empty, "ns")

local watchers = {}
for i = 1, WATCHERS do
  watchers[i] = troupe.spawn(function(root)
    troupe.trap_exit(true)
    while true do
      local victim = troupe.receive()
      troupe.link(victim)
      troupe.monitor(victim)
      troupe.send(root, true)
      troupe.receive()
      troupe.receive()
      troupe.send(root, true)
    end
  end, self)
end

-- From the end of one that is watched to the last who was told.
local function death(n)
  local victim = troupe.spawn(idle)
  for i = 1, n do troupe.send(watchers[i], victim) end
  for _ = 1, n do troupe.receive() end
  local start = troupe.now()
  victim:kill()
  for _ = 1, n do troupe.receive() end
  return troupe.now() - start
end

local function median_death(n)
  death(n) -- warm-up
  local times = { death(n), death(n), death(n) }
  table.sort(times)
  return times[2]
end

local few, many = median_death(WATCHERS / 10), median_death(WATCHERS)
measure.report("monitor_death", many * 1000, "ms", { "watchers", WATCHERS })
-- Linear: 10; a quadratic death would give 100.
measure.report("monitor_death_growth", many / few, "times for 10 times as many")

for i = 1, QUEUED do troupe.send(self, i) end
troupe.receive_match({}, 0) -- all of them are looked at once
measure.report("demonitor_full", monitor_empty / measure.rate(1, monitors), "ratio")
measure.report("cancel_full", timer_empty / measure.rate(1, timers), "ratio")
