--- An actor that has used much CPU is to be compiled when it waits. LuaJIT refuses that within a
-- finalizer, which then failed with "bad action while in __gc metamethod".

local helper = require "spec.helper"
local troupe = require "troupe"

describe("a finalizer of a hot actor", function()
  helper.actor("that wants to wait is told that it cannot", function()
    local me = troupe.self()
    local pid = troupe.spawn(function()
      local keep = newproxy(true)
      getmetatable(keep).__gc = function()
        local _, err = pcall(troupe.sleep, 1)
        troupe.send(me, err)
      end
      local start = os.clock()
      while os.clock() - start < 0.05 do
        local _ = tostring(start)
      end
      _G.keep = keep
    end)
    assert.matches("finalizer cannot wait", (helper.receive()), 1, true)
    helper.ended(pid)
  end)

  helper.actor("that runs while the actor lives may wait", function()
    local me = troupe.self()
    local pid = troupe.spawn(function()
      getmetatable(newproxy(true)).__gc = function()
        local ok, err = pcall(troupe.sleep, 0.001)
        troupe.send(me, ok or err)
      end
      local start = os.clock()
      while os.clock() - start < 0.05 do end
      collectgarbage()
      collectgarbage()
    end)
    assert.equal(true, (helper.receive()))
    helper.ended(pid)
  end)
end)
