-- 06_channels.lua - workers share a queue of jobs and a channel for results.
--
--   troupe run examples/06_channels.lua
--
-- What it shows: a channel has one receiver, so a mutex lets the workers take
-- turns at a source of jobs; a channel with a capacity holds the fast ones up;
-- the end of the last sender is the end of the results; select stops early.
--
-- Expected output:
--   55 primes below 260
--   jobs left: 0
--   stopped: enough
local troupe = require "troupe"

local function is_prime(n)
  for d = 2, math.floor(math.sqrt(n)) do
    if n % d == 0 then
      return false
    end
  end
  return n > 1
end

-- Takes numbers from the mutex, from the last one down, until there is none.
local function worker(jobs, results)
  while true do
    local n
    jobs:with(function(left)
      n = left
      return left > 0 and left - 1 or nil
    end)
    if n == 0 then
      return
    end
    if is_prime(n) then
      results:send(n)
    end
  end
end

local jobs = troupe.mutex(259)
local tx, rx = troupe.channel(4)
for _ = 1, 3 do
  troupe.spawn(worker, jobs, tx)
end
tx:close() -- so that the channel closes with the last worker

local count = 0
while rx:recv() do
  count = count + 1
end
print(count .. " primes below 260")
print("jobs left: " .. jobs:lock())

-- Whatever comes first: a number, or a message that says to stop.
local numbers, source = troupe.channel()
local root = troupe.self()
troupe.spawn(function()
  for n = 1, 10 do
    numbers:send(n)
  end
  troupe.send(root, "enough")
  troupe.receive() -- keeps its sender, so the channel stays open
end)
numbers:close()
while troupe.select { source, troupe.inbox } == 1 do
  source:recv()
end
print("stopped: " .. troupe.receive())
