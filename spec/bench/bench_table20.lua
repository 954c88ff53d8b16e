-- A table of 20 keys (ten strings, nine numbers, a list of five) goes to
-- another actor, which sends back the copy it got: round trips per second.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local STRINGS = { "name", "title", "street", "city", "country", "email", "phone", "state",
  "currency", "note" }
local NUMBERS = { "id", "age", "level", "score", "width", "height", "weight", "price", "balance" }

local message = { tags = { 1, 2, 3, 4, 5 } }
for _, key in ipairs(STRINGS) do message[key] = "the " .. key end
for _, key in ipairs(NUMBERS) do message[key] = 1.5 * #key end

local function echo(root)
  while true do troupe.send(root, (troupe.receive())) end
end

local partner = troupe.spawn(echo, troupe.self())

local function trade(rounds)
  for _ = 1, rounds do
    troupe.send(partner, message)
    troupe.receive()
  end
end

measure.report("table20", measure.rate(1, trade), "round_trips/s")
