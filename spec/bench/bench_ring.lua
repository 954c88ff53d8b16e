-- One token goes round a ring of 1,000 actors: hops per second.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local SIZE = 1000

local function node(root, next_node)
  next_node = next_node or troupe.receive()
  while true do
    local hops = troupe.receive()
    if hops == 0 then
      troupe.send(root, "done")
    else
      troupe.send(next_node, hops - 1)
    end
  end
end

local root = troupe.self()
local first = troupe.spawn(node, root)
local last = first
for _ = 2, SIZE do last = troupe.spawn(node, root, last) end
troupe.send(first, last)

local function turn(hops)
  troupe.send(first, hops)
  troupe.receive()
end

measure.report("ring", measure.rate(1, turn), "hops/s")
