-- Start 100 empty actors, wait until all of them have ended: actors per
-- second, and CPU time (os.clock: the whole process) for each.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local BATCH = 100
local actors, cpu = 0, 0

local function empty() end

local function batches(rounds)
  local start = os.clock()
  for _ = 1, rounds do
    local pids = {}
    for i = 1, BATCH do pids[i] = troupe.spawn(empty) end
    for i = 1, BATCH do troupe.join(pids[i]) end
  end
  cpu = cpu + os.clock() - start
  actors = actors + rounds * BATCH
end

measure.report("spawn_exit", measure.rate(BATCH, batches), "actors/s")
measure.report("spawn_exit_cpu", cpu / actors * 1e6, "us")
