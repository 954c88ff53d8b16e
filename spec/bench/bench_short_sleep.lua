-- One actor sleeps 500 microseconds, 200 times, and nothing else runs: how long
-- a sleep really takes.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local COUNT = 200
local took = {}
troupe.sleep(0.1)
for i = 1, COUNT do
  local start = troupe.now()
  troupe.sleep(0.0005)
  took[i] = (troupe.now() - start) * 1000
end
table.sort(took)

measure.report("short_sleep", took[COUNT], "ms", {
  "median", measure.percentile(took, 0.5), "p99", measure.percentile(took, 0.99),
  "max", took[COUNT],
})
