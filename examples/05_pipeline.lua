-- 05_pipeline.lua - three stages; the slow one holds up those before it.
--
--   troupe run examples/05_pipeline.lua
--
-- What it shows: a mailbox with a limit. With on_full = "block" a sender waits
-- while the mailbox is full, so a fast producer cannot fill the memory with
-- what a slow consumer has not got to yet.
--
-- Expected output:
--   the squares of 1 to 100 add up to 338350
--   the producer had to wait: true
local troupe = require "troupe"

local COUNT, PAUSE = 100, 0.002
local BOUNDED = { mailbox = { limit = 5, on_full = "block" } }

local function producer(squarer, root)
  local start = troupe.now()
  for n = 1, COUNT do
    troupe.send(squarer, n)
  end
  troupe.send(root, { producer_seconds = troupe.now() - start })
end

local function squarer(adder)
  for _ = 1, COUNT do
    local n = troupe.receive()
    troupe.send(adder, n * n)
  end
end

local function slow_adder(root)
  local sum = 0
  for _ = 1, COUNT do
    sum = sum + troupe.receive()
    troupe.sleep(PAUSE)
  end
  troupe.send(root, { sum = sum })
end

local root = troupe.self()
local adder_pid = troupe.spawn_opt(BOUNDED, slow_adder, root)
local squarer_pid = troupe.spawn_opt(BOUNDED, squarer, adder_pid)
troupe.spawn(producer, squarer_pid, root)

local result = troupe.receive_match(function(m) return m.sum end)
print(("the squares of 1 to %d add up to %d"):format(COUNT, result.sum))

-- Two mailboxes hold ten numbers; for the other ninety the adder had to be
-- done with earlier ones.
local seconds = troupe.receive().producer_seconds
print("the producer had to wait: " .. tostring(seconds > COUNT * PAUSE / 2))
