-- Actors that are hot at once: each is alive, has run a loop until it was
-- compiled, and waits. CPU time for each, with 4,000 and with 40,000 of them: the
-- machine code of so many states must not make each dearer.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local function hot(root)
  local x = 0
  for _ = 1, 5 do
    for i = 1, 100000 do x = x + i % 7 end
    troupe.yield()
  end
  troupe.send(root, x)
  troupe.receive()
end

local function cost(count)
  local before = os.clock()
  local pids = {}
  for i = 1, count do
    pids[i] = troupe.spawn(hot, troupe.self())
    if i % 100 == 0 then
      for _ = 1, 100 do troupe.receive() end
    end
  end
  for i = 1, count do troupe.kill(pids[i]) end
  for i = 1, count do troupe.join(pids[i]) end
  return (os.clock() - before) / count * 1e3
end

local few = cost(4000)
local many = cost(40000)
measure.report("hot_actors", many / few, "times the CPU time of each", {
  "few_ms", few, "many_ms", many,
})
