--- Sending to actors that live, that have ended and that never were.

local ffi = require "ffi"
local helper = require "spec.helper"
local troupe = require "troupe"

-- A pid whose actor has ended.
local function ended()
  local pid = troupe.spawn(function() end)
  helper.ended(pid)
  return pid
end

describe("troupe.send", function()
  helper.actor("returns true", function()
    assert.is_true(troupe.send(troupe.self(), 1))
    assert.is_true(troupe.self():send(2))
    assert.equal(1, (helper.receive(0)))
    assert.equal(2, (helper.receive(0)))
  end)

  helper.actor("returns nil, \"noproc\" for an actor that has ended", function()
    local pid = ended()
    assert.same({ nil, "noproc" }, { troupe.send(pid, 1) })
    assert.same({ nil, "noproc" }, { pid:send { 1 } })
  end)

  helper.actor("never reaches a later actor in the same place", function()
    local old = {}
    for i = 1, 50 do
      old[i] = ended()
    end
    local me = troupe.self()
    for _ = 1, 200 do
      troupe.spawn(function()
        local m = troupe.receive(0.05)
        troupe.send(me, m == nil)
      end)
    end
    for i = 1, 50 do
      assert.same({ nil, "noproc" }, { troupe.send(old[i], "stray") })
    end
    for _ = 1, 200 do
      assert.is_true((helper.receive()))
    end
  end)

  helper.actor("does not wait for the receiver", function()
    local pid = troupe.spawn(function(parent)
      troupe.receive_match { last = true }
      troupe.send(parent, "done")
    end, troupe.self())
    for i = 1, 10000 do
      troupe.send(pid, { i })
    end
    troupe.send(pid, { last = true })
    assert.equal("done", (helper.receive()))
  end)

  helper.actor("names the argument that is not right", function()
    for _, bad in ipairs { 1, true, {}, newproxy(), function() end } do
      assert.matches("argument #1 to 'send'", helper.misuse("send", bad, 1), 1, true)
    end
    assert.matches("argument #1 to 'send'", helper.misuse("send", nil, 1), 1, true)
    assert.matches("argument #2 to 'send'", helper.misuse("send", troupe.self()), 1, true)
  end)

  helper.actor("refuses cdata pointers as pids", function()
    local ok = pcall(troupe.send, ffi.cast("void *", 1), 1)
    assert.is_false(ok)
  end)

  helper.actor("passes a token around a ring of 1,000", function()
    local me = troupe.self()
    local first = me
    for _ = 1, 1000 do
      local next_pid = first
      first = troupe.spawn(function()
        while true do
          troupe.send(next_pid, troupe.receive() + 1)
        end
      end)
    end
    troupe.send(first, 0)
    assert.equal(1000, (helper.receive()))
  end)

  helper.actor("goes back and forth 20,000 times", function()
    local echo = troupe.spawn(function()
      while true do
        local m, from = troupe.receive()
        troupe.send(from, m)
      end
    end)
    for i = 1, 20000 do
      troupe.send(echo, i)
      assert(troupe.receive() == i)
    end
  end)
end)
