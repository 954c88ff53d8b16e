-- 02_ping_pong.lua - two actors that pass a number to and fro.
--
--   troupe run examples/02_ping_pong.lua [ROUNDS]
--
-- What it shows: a loop over messages, an answer to whoever asked, and a
-- message that ends the loop. Two actors that talk to each other stay on one
-- scheduler, so a round trip costs no switch between threads: try a million.
--
-- Expected output:
--   1000 round trips
--   pong has ended
local troupe = require "troupe"

local function pong()
  while true do
    local n, from = troupe.receive()
    if n == "stop" then
      return
    end
    troupe.send(from, n + 1)
  end
end

local rounds = tonumber(troupe.args[1]) or 1000
local partner = troupe.spawn(pong)
local n = 0
while n < rounds do
  partner:send(n)
  n = troupe.receive()
end
print(n .. " round trips")

partner:send("stop")
troupe.join(partner)
print("pong has ended")
