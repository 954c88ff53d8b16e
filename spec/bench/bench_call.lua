-- A small integer is asked of another actor, which replies with it: calls per
-- second. Erlang: gen_server:call.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local function server()
  while true do
    local request, from = troupe.receive()
    troupe.reply(from, request)
  end
end

local pid = troupe.spawn(server)

local function calls(rounds)
  for i = 1, rounds do troupe.call(pid, i) end
end

measure.report("call", measure.rate(1, calls), "calls/s")
