-- 1,000 actors wait for a message: CPU time of the process over 5 s, and how
-- often its threads were woken. A shell outside watches, so that the watching
-- itself wakes nothing.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local COUNT = 1000
local WATCH = [[
  cpu() { awk '{print ($14 + $15) * 10}' /proc/$PPID/stat; }
  wakes() { cat /proc/$PPID/task/*/status | awk '/^voluntary/ {n += $2} END {print n}'; }
  sleep 1; cpu; wakes; sleep 5; cpu; wakes
]]

local function idle(root)
  troupe.send(root, "ready")
  troupe.receive()
end

for _ = 1, COUNT do troupe.spawn(idle, troupe.self()) end
for _ = 1, COUNT do troupe.receive() end

local watch = assert(io.popen(WATCH))
troupe.sleep(7)
local cpu0, wakes0, cpu1, wakes1 = watch:read("*n", "*n", "*n", "*n")
watch:close()

measure.report("idle_cpu", cpu1 - cpu0, "ms", {
  "actors", COUNT, "seconds", 5, "wakeups", wakes1 - wakes0,
})
