-- A small integer goes through one channel to another actor and comes back
-- through a second one: round trips per second; the same by mailboxes, for the
-- ratio. And values that eight senders put into one channel.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local function echo(rx, tx)
  for v in function() return (rx:recv()) end do tx:send(v) end
end

local to_tx, to_rx = troupe.channel()
local back_tx, back_rx = troupe.channel()
troupe.spawn(echo, to_rx, back_tx)

local function ping(rounds)
  for i = 1, rounds do
    to_tx:send(i)
    back_rx:recv()
  end
end

local root = troupe.self()
local partner = troupe.spawn(function()
  while true do troupe.send(root, (troupe.receive())) end
end)

local function mail(rounds)
  for i = 1, rounds do
    troupe.send(partner, i)
    troupe.receive()
  end
end

local mailbox = measure.rate(1, mail)
local channel = measure.rate(1, ping)
measure.report("channel_ping_pong", channel, "round_trips/s")
measure.report("channel_to_mailbox", mailbox / channel, "times the time")

local SENDERS = 8
local sink_tx, sink_rx = troupe.channel()
local senders = {}
for i = 1, SENDERS do
  senders[i] = troupe.spawn(function(tx)
    while true do
      for n = 1, (troupe.receive()) do tx:send(n) end
    end
  end, sink_tx)
end

local function fan_in(rounds)
  for i = 1, SENDERS do senders[i]:send(rounds) end
  for _ = 1, rounds * SENDERS do sink_rx:recv() end
end

measure.report("channel_fan_in", measure.rate(SENDERS, fan_in), "values/s")
