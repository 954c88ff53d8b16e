-- A root casts events without payload at a state machine that changes its state
-- at each: casts per second, with a call at the end of each round of 100.
local troupe = require "troupe"
local gen_statem = require "troupe.gen_statem"
local measure = dofile "spec/bench/measure.lua"

local BLOCK = 100 -- casts in one round

local Switch = gen_statem.machine {
  initial = "off",
  data = function() return { changes = 0 } end,
  on = {
    off = { cast = { press = function(data)
      data.changes = data.changes + 1
      return "on"
    end } },
    on = { cast = { press = "off" } },
    ["*"] = { call = { changes = function(data, _, cx) cx:reply(data.changes) end } },
  },
}

local pid = assert(Switch:start()).pid

local function press(rounds)
  for _ = 1, rounds do
    for _ = 1, BLOCK do gen_statem.cast(pid, "press") end
    assert(gen_statem.call(pid, "changes"))
  end
end

measure.report("statem", measure.rate(BLOCK, press), "casts/s")
troupe.kill(pid)
