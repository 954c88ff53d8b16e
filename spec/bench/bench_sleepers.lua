-- 100,000 actors asleep at once, each to wake at a random moment of the same
-- second: how late they wake. The second begins when all are asleep (LEAD), so
-- that timers are measured and not the start of 100,000 actors.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local COUNT, LEAD = 100000, 3

local function sleeper(root)
  troupe.send(root, "ready")
  local due = troupe.receive()
  local begun = troupe.now()
  troupe.sleep(due - begun)
  troupe.send(root, { late = troupe.now() - due, slept = due - begun })
end

local pids = {}
while #pids < COUNT do
  for _ = 1, 1000 do pids[#pids + 1] = troupe.spawn(sleeper, troupe.self()) end
  for _ = 1, 1000 do troupe.receive() end
end

math.randomseed(1)
local start = troupe.now() + LEAD
for i = 1, COUNT do troupe.send(pids[i], start + math.random()) end

local late, shortest = {}, math.huge
for i = 1, COUNT do
  local woken = troupe.receive()
  late[i] = woken.late * 1000
  shortest = math.min(shortest, woken.slept)
end
assert(shortest > 0, "a sleeper was told too late; raise LEAD")
table.sort(late)

measure.report("sleepers", measure.percentile(late, 0.99), "ms", {
  "actors", COUNT, "p50", measure.percentile(late, 0.5), "p99", measure.percentile(late, 0.99),
  "max", late[COUNT], "earliest", late[1],
})
