--- Numbers that actors share.

local helper = require "spec.helper"
local troupe = require "troupe"

local MAX = 2 ^ 53

describe("troupe.counter", function()
  helper.actor("adds, gets, sets and compares", function()
    local c = troupe.counter()
    assert.equal(0, c:get())
    assert.equal(1, c:add())
    assert.equal(11, c:add(10))
    assert.equal(6, c:add(-5))
    assert.equal(6, c:set(-3))
    assert.same({ true }, { c:cas(-3, 7) })
    assert.same({ false, 7 }, { c:cas(-3, 8) })
    assert.equal(7, c:get())
    assert.equal(12, troupe.counter(12):get())
    assert.equal("troupe.counter", getmetatable(c))
  end)

  helper.actor("takes whole numbers within 2^53", function()
    local c = troupe.counter(MAX)
    assert.equal(MAX, c:get())
    c:set(-MAX)
    assert.equal(-MAX, c:get())
    local text = "whole number from %-2%^53 to 2%^53 expected"
    for _, wrong in ipairs { 0.5, MAX * 2, -MAX * 2, 0 / 0, math.huge, -math.huge, "1", {} } do
      assert.matches(text, helper.misuse("counter", wrong))
      assert.matches(text, select(2, pcall(c.add, c, wrong)))
      assert.matches(text, select(2, pcall(c.set, c, wrong)))
      assert.matches(text, select(2, pcall(c.cas, c, 0, wrong)))
      assert.matches(text, select(2, pcall(c.cas, c, wrong, 0)))
    end
    assert.matches(text, select(2, pcall(c.set, c)))
    assert.matches("counter expected", select(2, pcall(c.add, {})))
    assert.equal(-MAX, c:get())
  end)

  helper.actor("is one number for all actors that have it", function()
    local c, turns = troupe.counter(), troupe.counter(0)
    local tasks = {}
    for i = 1, 8 do
      tasks[i] = troupe.task(function(mine)
        for _ = 1, 1000 do
          mine:add(1)
          local seen = turns:get()
          while not turns:cas(seen, seen + 1) do
            seen = turns:get()
          end
        end
      end, c)
    end
    assert(troupe.all(tasks, helper.DEADLINE))
    assert.equal(8000, c:get())
    assert.equal(8000, turns:get())
  end)
end)
