--- Monitors: one message about an end, and the true reason.

local helper = require "spec.helper"
local troupe = require "troupe"

local function idle()
  troupe.receive()
end

describe("troupe.monitor", function()
  helper.actor("sends one down with reference, pid and reason", function()
    local pid = troupe.spawn(idle)
    local ref = troupe.monitor(pid)
    assert.is_number(ref)
    troupe.exit(pid, { "why" })
    local m, from = helper.receive()
    assert.same({ type = "down", ref = ref, pid = pid, reason = { "why" } }, m)
    assert.equal(pid, from)
    helper.silence(0.005)
  end)

  helper.actor("tells of a normal end, of an error and of a kill", function()
    assert.equal("normal", helper.reason_of(function() end))
    assert.equal("error", helper.reason_of(function() error "x" end).kind)
    local pid, ref = troupe.spawn_monitor(idle)
    pid:kill()
    assert.equal("killed", helper.down(ref))
  end)

  helper.actor("gives \"noproc\" at once for the dead", function()
    local dead = troupe.spawn(function() error "x" end)
    helper.ended(dead)
    local ref = dead:monitor()
    assert.same({ type = "down", ref = ref, pid = dead, reason = "noproc" }, (helper.receive(0)))
    ref = troupe.monitor "a name of nobody"
    assert.same({ type = "down", ref = ref, reason = "noproc" }, (helper.receive(0)))
    helper.silence()
  end)

  helper.actor("counts each time, also for one actor", function()
    local pid = troupe.spawn(idle)
    local a, b, c = troupe.monitor(pid), troupe.monitor(pid), troupe.monitor(pid)
    assert.is_true(a ~= b and b ~= c and a ~= c)
    assert.is_true(troupe.demonitor(b))
    pid:kill()
    local seen = {}
    for _ = 1, 2 do
      seen[helper.receive().ref] = true
    end
    assert.same({ [a] = true, [c] = true }, seen)
    helper.silence(0.005)
  end)

  helper.actor("keeps the true reason whoever else wants the end", function()
    for i = 1, 200 do
      local pid, ref = troupe.spawn_monitor(function()
        troupe.exit "own"
      end)
      for _ = 1, i % 3 do
        troupe.yield()
      end
      troupe.exit(pid, "asked")
      troupe.kill(pid)
      local reason = helper.down(ref)
      assert.is_true(reason == "own" or reason == "asked" or reason == "killed", tostring(reason))
      helper.silence()
    end
  end)

  helper.actor("of a name stays with the actor that had it", function()
    local first = troupe.spawn_opt({ name = "monitored" }, idle)
    local ref = troupe.monitor "monitored"
    first:kill()
    helper.ended(first)
    local second = assert(troupe.spawn_opt({ name = "monitored" }, idle))
    assert.same({ type = "down", ref = ref, pid = first, reason = "killed" }, (helper.receive()))
    local again = troupe.monitor "monitored"
    second:kill()
    assert.same({ type = "down", ref = again, pid = second, reason = "killed" },
      (helper.receive()))
    helper.silence()
  end)

  helper.actor("of a name that moves to another actor tells of the first only", function()
    local first, second = troupe.spawn(idle), troupe.spawn(idle)
    assert(troupe.register("moving", first))
    local ref = troupe.monitor "moving"
    troupe.unregister "moving"
    assert(troupe.register("moving", second))
    second:kill()
    helper.ended(second)
    helper.silence()
    first:kill()
    assert.equal(first, helper.receive().pid)
    assert.is_false(troupe.demonitor(ref))
  end)

  helper.actor("finds the name free and the mailbox closed when it tells", function()
    for _ = 1, 50 do
      local pid, ref = troupe.spawn_opt({ name = "in order", monitor = true }, idle)
      pid:kill()
      helper.down(ref)
      assert.is_nil(troupe.whereis "in order")
      assert.is_false(pid:alive())
      assert.same({ nil, "noproc" }, { troupe.send(pid, 1) })
      assert.is_true(troupe.register "in order")
      troupe.unregister "in order"
    end
  end)

  helper.actor("ends with the actor that monitors", function()
    local target = troupe.spawn(idle)
    for _ = 1, 50 do
      helper.ended(troupe.spawn(function() troupe.monitor(target) end))
    end
    target:kill()
    helper.ended(target)
    helper.silence()
  end)

  helper.actor("can be of oneself", function()
    helper.ended(troupe.spawn(function() troupe.monitor(troupe.self()) end))
  end)
end)

describe("troupe.demonitor", function()
  helper.actor("is true where the end had not come, and then no down comes", function()
    local pid = troupe.spawn(idle)
    local ref = troupe.monitor(pid)
    assert.is_true(troupe.demonitor(ref))
    assert.is_false(troupe.demonitor(ref))
    pid:kill()
    helper.ended(pid)
    helper.silence(0.005)
  end)

  helper.actor("drops a down that is queued", function()
    local pid, ref = troupe.spawn_monitor(function() end)
    local other = troupe.monitor(pid)
    helper.ended(pid)
    assert.is_false(troupe.demonitor(ref))
    assert.equal(other, helper.receive().ref)
    helper.silence()
    -- Also for receive_match, and one that has been looked at.
    pid, ref = troupe.spawn_monitor(function() end)
    helper.ended(pid)
    assert.is_nil((troupe.receive_match({ type = "something else" }, 0)))
    troupe.demonitor(ref)
    assert.is_nil((troupe.receive_match({ type = "down" }, 0)))
  end)

  helper.actor("knows nothing of what was never a monitor", function()
    for _, ref in ipairs { 0, -1, 1e300, 0 / 0, 1e15, 0.5 } do
      assert.is_false(troupe.demonitor(ref))
    end
    assert.matches("#1 to 'demonitor'", helper.misuse("demonitor", "x"))
    assert.matches("#1 to 'demonitor'", helper.misuse("demonitor"))
  end)

  helper.actor("does not end the monitors of another actor", function()
    local pid = troupe.spawn(idle)
    local ref = troupe.monitor(pid)
    helper.elsewhere(function()
      assert(troupe.demonitor(ref) == false)
    end)
    pid:kill()
    assert.equal("killed", helper.down(ref))
  end)
end)

describe("troupe.spawn_monitor", function()
  helper.actor("leaves no moment in which the child's end is missed", function()
    for i = 1, 200 do
      local _, ref = troupe.spawn_monitor(function() troupe.exit(i) end)
      assert.equal(i, helper.down(ref))
    end
    helper.silence()
  end)
end)

describe("troupe.await_down", function()
  helper.actor("gives the reason and leaves other messages alone", function()
    local me = troupe.self()
    troupe.send(me, 1)
    local _, ref = troupe.spawn_monitor(function()
      troupe.send(me, 2)
      troupe.exit { 7 }
    end)
    assert.same({ 7 }, troupe.await_down(ref, helper.DEADLINE))
    assert.equal(1, (helper.receive()))
    assert.equal(2, (helper.receive()))
    helper.silence()
  end)

  helper.actor("times out and can be tried again", function()
    local pid, ref = troupe.spawn_monitor(idle)
    for _, t in ipairs { 0, -1, 0.005 } do
      assert.same({ nil, "timeout" }, { troupe.await_down(ref, t) })
    end
    pid:kill()
    assert.equal("killed", troupe.await_down(ref))
    assert.is_nil((troupe.await_down(ref))) -- it was told
    assert.is_nil((troupe.await_down(0)))
  end)
end)
