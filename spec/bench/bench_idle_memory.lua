-- Memory of an actor that waits for a message, all in: growth of resident
-- memory and page tables, divided by the number of actors (first argument).
-- Afterwards each must answer, which proves that all were alive at once.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local COUNT = tonumber((...)) or 100000

local function idle(root)
  troupe.send(root, "ready")
  troupe.receive()
  troupe.send(root, "alive")
end

local root = troupe.self()
local pids = {}
collectgarbage()
local before = measure.resident()

while #pids < COUNT do
  local batch = math.min(1000, COUNT - #pids)
  for _ = 1, batch do pids[#pids + 1] = troupe.spawn(idle, root) end
  for _ = 1, batch do troupe.receive() end
end
troupe.sleep(0.2)
collectgarbage()
local bytes = (measure.resident() - before) / COUNT

local alive = 0
for i = 1, COUNT do troupe.send(pids[i], "answer") end
while alive < COUNT and troupe.receive(10) do alive = alive + 1 end

measure.report("idle_memory", bytes, "bytes", { "actors", COUNT, "alive", alive })
