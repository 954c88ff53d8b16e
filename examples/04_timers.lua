-- 04_timers.lua - sleeping, being woken later, waiting no longer than so long.
--
--   troupe run examples/04_timers.lua
--
-- What it shows: send_after, send_every and cancel; a receive with a timeout;
-- sleep, which stops one actor and no thread. All times are in seconds.
--
-- Expected output:
--   tick 1
--   tick 2
--   tick 3
--   done
--   cancelled in time: true
--   nothing more: timeout
--   100 actors slept 0.1 s each, all at once
local troupe = require "troupe"
local me = troupe.self()

-- A tick each 20 ms, and one message to end it. They are in one mailbox.
local ticker = troupe.send_every(0.02, me, "tick")
local ticks = 0
while ticks < 3 do
  troupe.receive_match(function(m) return m == "tick" end)
  ticks = ticks + 1
  print("tick " .. ticks)
end
troupe.cancel(ticker)
troupe.send_after(0.03, me, "done")
print((troupe.receive_match(function(m) return m == "done" end)))

-- cancel says whether it was faster than the timer.
local late = troupe.send_after(3600, me, "too late")
print("cancelled in time: " .. tostring(troupe.cancel(late)))

-- What is still in the mailbox is a tick at most; after that comes nothing.
local message, err
repeat
  message, err = troupe.receive(0.05)
until message ~= "tick"
print("nothing more: " .. err)

local start, sleepers = troupe.now(), {}
for i = 1, 100 do
  sleepers[i] = troupe.spawn(function() troupe.sleep(0.1) end)
end
for _, pid in ipairs(sleepers) do
  troupe.join(pid)
end
local seconds = troupe.now() - start
assert(seconds >= 0.1 and seconds < 5)
print("100 actors slept 0.1 s each, all at once")
