-- Every 5 ms one actor wakes and sends to two that wait; all schedulers sleep in
-- between. How many threads went to sleep again for each round: two or three if
-- a wake concerns one scheduler, all of them if it is a herd.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local ROUNDS = 200

local function worker()
  local sum = 0
  while troupe.receive() do
    for i = 1, 20000 do sum = sum + i % 7 end
  end
end

local first, second = troupe.spawn(worker), troupe.spawn(worker)
local count = measure.sleep_counter()
troupe.sleep(0.1)
local before = count()
for _ = 1, ROUNDS do
  troupe.send(first, 1)
  troupe.send(second, 1)
  troupe.sleep(0.005)
end

measure.report("wake", (count() - before) / ROUNDS, "thread_sleeps/round", { "rounds", ROUNDS })
