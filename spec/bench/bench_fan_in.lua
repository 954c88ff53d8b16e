-- Eight actors send to one: messages per second. In each round the receiver
-- tells every sender to send WINDOW messages and takes them all, so that the
-- mailbox stays bounded.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local SENDERS, WINDOW = 8, 1000

local function sender(root)
  while true do
    for i = 1, troupe.receive() do troupe.send(root, i) end
  end
end

local senders = {}
for s = 1, SENDERS do senders[s] = troupe.spawn(sender, troupe.self()) end

local function fan(rounds)
  for _ = 1, rounds do
    for s = 1, SENDERS do troupe.send(senders[s], WINDOW) end
    for _ = 1, SENDERS * WINDOW do troupe.receive() end
  end
end

measure.report("fan_in", measure.rate(SENDERS * WINDOW, fan), "messages/s")
