-- A supervisor with 10,000 children: seconds to start them and to stop them in
-- order, milliseconds to start one anew; the same for a dynamic supervisor; and
-- what so many actors take without a supervisor, which is most of it.
local troupe = require "troupe"
local dynamic_supervisor = require "troupe.dynamic_supervisor"
local supervisor = require "troupe.supervisor"
local measure = dofile "spec/bench/measure.lua"

local COUNT, RESTARTS = tonumber(troupe.args[1]) or 10000, 100

local function child()
  troupe.receive()
end

local function seconds(fn, ...)
  local begun = troupe.now()
  local result, err = fn(...)
  assert(result, err)
  return troupe.now() - begun, result
end

local plain = {}
measure.report("plain_start", (seconds(function()
  for i = 1, COUNT do plain[i] = assert(troupe.spawn(child)) end
  return true
end)), "s", { "children", COUNT })
measure.report("plain_stop", (seconds(function()
  for i = 1, COUNT do
    local ref = troupe.monitor(plain[i])
    troupe.exit(plain[i], "shutdown")
    troupe.await_down(ref)
  end
  return true
end)), "s")

local children = {}
for i = 1, COUNT do children[i] = { id = i, start = child } end
local took, sup = seconds(supervisor.start_link,
  { children = children, intensity = { max = 2 * RESTARTS, period = 1 } })
measure.report("supervisor_start", took, "s", { "children", COUNT })

troupe.sleep(1) -- all of them have run

-- From the kill to the moment when the supervisor has a new one.
local list = supervisor.which_children(sup)
local times = {}
for i = 1, RESTARTS do
  local old = list[math.random(COUNT)]
  local pid = old.pid
  local begun = troupe.now()
  local ref = troupe.monitor(pid)
  troupe.kill(pid)
  troupe.await_down(ref)
  -- Asked for after the exit: answered after the restart.
  local _, _, running = supervisor.restart_child(sup, old.id)
  times[i] = troupe.now() - begun
  assert(running and running ~= pid)
  old.pid = running
end
table.sort(times)
measure.report("supervisor_restart", measure.percentile(times, 0.5) * 1e3, "ms",
  { "p99", measure.percentile(times, 0.99) * 1e3 })
measure.report("supervisor_stop", (seconds(supervisor.stop, sup)), "s")

local dyn = assert(dynamic_supervisor.start_link { child = { start = child } })
measure.report("dynamic_supervisor_start", (seconds(function()
  for _ = 1, COUNT do assert(dynamic_supervisor.start_child(dyn)) end
  return true
end)), "s", { "children", COUNT })
measure.report("dynamic_supervisor_stop", (seconds(dynamic_supervisor.stop, dyn)), "s")
