-- A small integer goes to another actor and comes back: round trips per second.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local function echo(root)
  while true do troupe.send(root, (troupe.receive())) end
end

local partner = troupe.spawn(echo, troupe.self())

local function ping(rounds)
  for i = 1, rounds do
    troupe.send(partner, i)
    troupe.receive()
  end
end

measure.report("ping_pong", measure.rate(1, ping), "round_trips/s")
