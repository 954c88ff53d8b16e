-- A mutex that nobody else wants: seconds for one `with` of a number, and of a
-- small table; and turns per second of eight actors that all want it.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local function add(v) return v + 1 end
local number = troupe.mutex(0)
local per_second = measure.rate(1, function(rounds)
  for _ = 1, rounds do number:with(add) end
end)
measure.report("mutex_with", 1e9 / per_second, "ns")

local function add_to_table(v)
  v.n = v.n + 1
  return v
end
local record = troupe.mutex { n = 0, name = "record" }
per_second = measure.rate(1, function(rounds)
  for _ = 1, rounds do record:with(add_to_table) end
end)
measure.report("mutex_with_table", 1e9 / per_second, "ns")

local ACTORS = 8
local shared = troupe.mutex(0)
local root = troupe.self()
local actors = {}
for i = 1, ACTORS do
  actors[i] = troupe.spawn(function()
    while true do
      for _ = 1, (troupe.receive()) do shared:with(function(v) return v + 1 end) end
      troupe.send(root, true)
    end
  end)
end
measure.report("mutex_turns", measure.rate(ACTORS, function(rounds)
  for i = 1, ACTORS do actors[i]:send(rounds) end
  for _ = 1, ACTORS do troupe.receive() end
end), "turns/s")
