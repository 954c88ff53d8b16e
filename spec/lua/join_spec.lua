--- Waiting for an actor's end.

local helper = require "spec.helper"
local troupe = require "troupe"

describe("troupe.join", function()
  helper.actor("returns true for a normal end", function()
    local pid = troupe.spawn(function() troupe.sleep(0.01) end)
    assert.is_true(troupe.join(pid))
  end)

  helper.actor("returns nil and the reason for any other", function()
    assert.equal("why", helper.reason_of(function() troupe.exit "why" end))
    assert.equal("error", helper.reason_of(function() error "x" end).kind)
  end)

  helper.actor("tells how an actor ended that has ended already", function()
    local pid, ref = troupe.spawn_monitor(function() end)
    troupe.receive_match({ type = "down", ref = ref }, helper.DEADLINE)
    assert.same({ true }, { troupe.join(pid) })
    assert.same({ true }, { troupe.join(pid, 0) })
    pid, ref = troupe.spawn_monitor(function() troupe.exit("shutdown") end)
    troupe.receive_match({ type = "down", ref = ref }, helper.DEADLINE)
    assert.same({ nil, "shutdown" }, { troupe.join(pid) })
  end)

  helper.actor("returns nil, \"noproc\" once the reason is forgotten", function()
    local pid, ref = troupe.spawn_monitor(function() troupe.exit { "a value is not kept" } end)
    troupe.receive_match({ type = "down", ref = ref }, helper.DEADLINE)
    assert.same({ nil, "noproc" }, { troupe.join(pid) })
  end)

  helper.actor("returns nil, \"timeout\" and can be tried again", function()
    local pid = troupe.spawn(function() troupe.receive() end)
    for _, t in ipairs { 0, -1, 0.005 } do
      assert.same({ nil, "timeout" }, { troupe.join(pid, t) })
    end
    troupe.send_after(0.01, pid, "end")
    assert.is_true(troupe.join(pid, helper.DEADLINE))
    helper.silence()
  end)

  helper.actor("leaves the messages alone", function()
    local me = troupe.self()
    troupe.send(me, 1)
    local pid = troupe.spawn(function()
      troupe.send(me, 2)
      troupe.sleep(0.01)
      troupe.send(me, 3)
    end)
    assert.is_true(troupe.join(pid, helper.DEADLINE))
    for i = 1, 3 do
      assert.equal(i, (helper.receive(0)))
    end
    helper.silence()
  end)

  helper.actor("tells each of many who wait", function()
    local me = troupe.self()
    local pid = troupe.spawn(function() troupe.receive() end)
    for _ = 1, 100 do
      troupe.spawn(function() troupe.send(me, { joined = troupe.join(pid, helper.DEADLINE) }) end)
    end
    troupe.sleep(0.01)
    troupe.send(pid, "end")
    for _ = 1, 100 do
      local m = helper.receive()
      assert.is_true(m.joined == true or m.joined == nil)
    end
  end)

  helper.actor("works for 1,000 actors one after the other", function()
    local pids = {}
    for i = 1, 1000 do
      pids[i] = troupe.spawn(function() troupe.sleep((i % 10) / 1000) end)
    end
    for i = 1, 1000 do
      helper.ended(pids[i])
      assert.is_false(pids[i]:alive())
    end
  end)

  helper.actor("names what is not right", function()
    assert.matches("argument #1 to 'join'", helper.misuse("join", 1), 1, true)
    assert.matches("argument #1 to 'join'", helper.misuse("join"), 1, true)
    assert.matches("argument #1 to 'join'", helper.misuse("join", troupe.self()), 1, true)
    assert.matches("argument #2 to 'join'", helper.misuse("join",
      troupe.spawn(function() end), "soon"), 1, true)
  end)
end)
