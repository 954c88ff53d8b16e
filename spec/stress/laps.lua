-- Actors that work at once, all results checked:
-- troupe run spec/stress/laps.lua [seconds [actors]]
-- Says now and then what is resident: that must level off.
local troupe = require "troupe"
local mixed = dofile "spec/stress/mixed.lua"

local PATIENCE, ROUNDS = 60, 10

local seconds = tonumber(troupe.args[1]) or 1
local actors = tonumber(troupe.args[2]) or 200
local start = troupe.now()
local due = 0
local laps = mixed.laps(actors, ROUNDS, seconds, PATIENCE, function(laps, kib)
  local now = troupe.now() - start
  if now >= due then
    print(("%5d laps, %7d KiB resident, %6.1f s"):format(laps, kib, now))
    due = now + seconds / 10
  end
end)
local preempted = 0
for _, scheduler in ipairs(troupe.stats().schedulers) do
  preempted = preempted + scheduler.preemptions
end
print(("%d results, all right, %d preemptions, %.1f s"):format(laps * actors, preempted,
  troupe.now() - start))
