-- A call to a gen_server that adds one, against troupe.call to a bare loop that
-- does the same: calls per second, and how many times more the first one takes.
local troupe = require "troupe"
local gen_server = require "troupe.gen_server"
local measure = dofile "spec/bench/measure.lua"

local Adder = gen_server.behaviour "adder"
function Adder:init() self.calls = 0 end
function Adder:handle_call(n)
  self.calls = self.calls + 1
  return n + 1
end
function Adder:handle_cast(_n) self.calls = self.calls + 1 end

local function bare()
  local calls = 0
  while true do
    local n, from = troupe.receive()
    calls = calls + 1
    troupe.reply(from, n + 1)
  end
end

local raw = troupe.spawn(bare)
local server = assert(gen_server.start(Adder))

local function calls_to(dest, call)
  return function(rounds)
    for i = 1, rounds do assert(call(dest, i) == i + 1) end
  end
end

local function casts(rounds)
  for i = 1, rounds do gen_server.cast(server, i) end
  gen_server.call(server, 0)
end

measure.report("call", measure.rate(1, calls_to(raw, troupe.call)), "calls/s")
measure.report("gen_server_call", measure.rate(1, calls_to(server, gen_server.call)), "calls/s")
measure.report("gen_server_cast", measure.rate(1, casts), "casts/s")

-- The ratio is one of CPU times, the best of many short turns: the clock on the
-- wall also counts what else the machine does.
local function cpu(work)
  local begun = os.clock()
  work(20000)
  return os.clock() - begun
end

local raw_time, server_time = math.huge, math.huge
for _ = 1, 25 do
  raw_time = math.min(raw_time, cpu(calls_to(raw, troupe.call)))
  server_time = math.min(server_time, cpu(calls_to(server, gen_server.call)))
end
measure.report("gen_server_to_call", server_time / raw_time, "times the cost")
