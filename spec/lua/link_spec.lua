--- Links: actors that end together, unless they trap exits.

local helper = require "spec.helper"
local troupe = require "troupe"

local function idle()
  troupe.receive()
end

-- An actor that links itself to pid, says so, and waits.
local function spawn_linked_to(pid)
  local me = troupe.self()
  local other = troupe.spawn(function()
    troupe.link(pid)
    troupe.send(me, "linked")
    troupe.receive()
  end)
  assert.equal("linked", (helper.receive()))
  return other
end

describe("troupe.link", function()
  helper.actor("ends both when one ends, with its reason", function()
    local p = troupe.spawn(idle)
    local q = spawn_linked_to(p)
    local ref = troupe.monitor(q)
    troupe.exit(p, { code = 7 })
    assert.same({ code = 7 }, helper.down(ref))

    p = troupe.spawn(idle)
    ref = troupe.monitor(p)
    q = spawn_linked_to(p)
    troupe.kill(q)
    assert.equal("killed", helper.down(ref))
  end)

  helper.actor("tells an error as the table that join gives", function()
    troupe.trap_exit(true)
    local pid = troupe.spawn_link(function() error("broken", 0) end)
    local m = helper.receive()
    assert.same({ "exit", pid, "error", "broken", "broken" },
      { m.type, m.pid, m.reason.kind, m.reason.message, m.reason.value })
    assert.matches("traceback", m.reason.traceback)
    troupe.trap_exit(false)
  end)

  helper.actor("does not end another when the end is normal", function()
    local child = troupe.spawn(idle)
    local other = spawn_linked_to(child)
    troupe.send(child, "end")
    helper.ended(child)
    troupe.sleep(0.005)
    assert.is_true(other:alive())
    other:kill()
  end)

  helper.actor("to a dead actor is an exit \"noproc\" at once", function()
    local dead = troupe.spawn(function() end)
    helper.ended(dead)
    assert.equal("noproc", helper.reason_of(function()
      troupe.link(dead)
      troupe.exit "came back"
    end))
    troupe.trap_exit(true)
    assert.is_true(troupe.link(dead))
    assert.same({ type = "exit", pid = dead, reason = "noproc" }, (helper.receive(0)))
    helper.silence()
    troupe.trap_exit(false)
  end)

  helper.actor("to a name that nobody has is one, too", function()
    troupe.trap_exit(true)
    assert.is_true(troupe.link "nobody at all")
    assert.same({ type = "exit", reason = "noproc" }, (helper.receive(0)))
    troupe.trap_exit(false)
  end)

  helper.actor("twice is once, and to oneself nothing", function()
    troupe.trap_exit(true)
    local pid = troupe.spawn(idle)
    for _ = 1, 3 do
      assert.is_true(pid:link())
      assert.is_true(troupe.link(troupe.self()))
    end
    pid:kill()
    assert.same({ type = "exit", pid = pid, reason = "killed" }, (helper.receive()))
    helper.silence(0.005)
    troupe.trap_exit(false)
  end)

  helper.actor("links and monitors do not know of each other", function()
    troupe.trap_exit(true)
    local pid, ref = troupe.spawn_monitor(idle)
    troupe.link(pid)
    pid:kill()
    assert.same({ type = "exit", pid = pid, reason = "killed" }, (helper.receive()))
    assert.same({ type = "down", pid = pid, ref = ref, reason = "killed" }, (helper.receive()))
    helper.silence()
    troupe.trap_exit(false)
  end)

  helper.actor("carries one end through 1,000 actors in a ring", function()
    local me = troupe.self()
    local ring, refs = {}, {}
    for i = 1, 1000 do
      ring[i], refs[i] = troupe.spawn_monitor(function()
        troupe.link((troupe.receive()))
        troupe.send(me, "linked")
        troupe.receive()
      end)
    end
    for i = 1, 1000 do
      troupe.send(ring[i], ring[i % 1000 + 1])
    end
    for _ = 1, 1000 do
      assert.equal("linked", (helper.receive()))
    end
    troupe.exit(ring[500], "over")
    for i = 1, 1000 do
      assert.equal("over", troupe.await_down(refs[i], helper.DEADLINE))
    end
    helper.silence()
  end)

  helper.actor("raises for what is no actor", function()
    for _, name in ipairs { "link", "unlink", "monitor" } do
      assert.matches("#1 to '" .. name .. "'.*pid or registered name", helper.misuse(name, {}))
      assert.matches("#1 to '" .. name .. "'", helper.misuse(name))
    end
  end)
end)

describe("troupe.unlink", function()
  helper.actor("undoes a link, from either side", function()
    local me = troupe.self()
    local p = troupe.spawn_link(idle)
    assert.is_true(troupe.unlink(p))
    local q = troupe.spawn_link(function()
      troupe.unlink(me)
      troupe.exit "bad"
    end)
    p:kill()
    helper.ended(p)
    helper.ended(q)
    assert.is_true(troupe.unlink(p)) -- of the dead, and again: nothing
  end)

  -- The child dies while the parent unlinks: the signal was there before, or
  -- it never comes.
  helper.actor("is exact when it races with the exit", function()
    troupe.trap_exit(true)
    local early = 0
    for i = 1, 300 do
      local pid, ref = troupe.spawn_opt({ link = true, monitor = true }, function()
        troupe.exit "race"
      end)
      for _ = 1, i % 5 do
        troupe.yield()
      end
      troupe.unlink(pid)
      if troupe.receive_match({ type = "exit", pid = pid }, 0) then
        early = early + 1
      end
      assert.equal("race", helper.down(ref))
      assert.is_nil((troupe.receive(0)))
    end
    troupe.trap_exit(false)
  end)

  helper.actor("saves a caller that does not trap", function()
    for _ = 1, 50 do
      assert.equal("fine", helper.reason_of(function()
        local pid = troupe.spawn_link(function() troupe.receive() end)
        troupe.unlink(pid)
        troupe.exit(pid, "bad")
        troupe.join(pid)
        troupe.exit "fine"
      end))
    end
  end)
end)

describe("troupe.spawn_link", function()
  helper.actor("leaves no moment in which the child's end is missed", function()
    for _ = 1, 100 do
      assert.equal("at once", helper.reason_of(function()
        troupe.spawn_link(function() troupe.exit "at once" end)
        troupe.receive()
      end))
    end
  end)

  helper.actor("ends the child when the parent dies while it is being spawned", function()
    local me = troupe.self()
    for i = 1, 100 do
      -- Spawns until it is killed; each child that was born tells of itself.
      local parent = troupe.spawn(function()
        while true do
          troupe.spawn_link(function()
            troupe.send(me, troupe.self())
            troupe.receive()
          end)
          troupe.yield()
        end
      end)
      for _ = 1, i % 7 do
        troupe.yield()
      end
      parent:kill()
      helper.ended(parent)
      -- All that were linked end with it; none is left behind.
      repeat
        local child = troupe.receive(0.002)
        if child then
          helper.ended(child)
        end
      until not child
    end
  end)

  helper.actor("in options is the same", function()
    troupe.trap_exit(true)
    local pid, ref = troupe.spawn_opt({ link = true, monitor = true }, function()
      troupe.exit "both"
    end)
    assert.same({ type = "exit", pid = pid, reason = "both" }, (helper.receive()))
    assert.same({ type = "down", pid = pid, ref = ref, reason = "both" }, (helper.receive()))
    assert.is_nil(select(2, troupe.spawn_opt({ link = false }, function() end)))
    helper.silence(0.005)
    troupe.trap_exit(false)
    assert.matches("option 'link' must be a boolean",
      helper.misuse("spawn_opt", { link = 1 }, idle))
    assert.matches("option 'monitor' must be a boolean",
      helper.misuse("spawn_opt", { monitor = "yes" }, idle))
  end)

  helper.actor("leaves no link behind where the spawn fails", function()
    assert.is_false(pcall(troupe.spawn_link, function() end, io.stdout))
    troupe.register("taken by the root")
    assert.is_nil((troupe.spawn_opt({ name = "taken by the root", link = true }, idle)))
    troupe.unregister("taken by the root")
  end)
end)

describe("troupe.trap_exit", function()
  helper.actor("returns what it was before", function()
    assert.is_false(troupe.trap_exit(true))
    assert.is_true(troupe.trap_exit(true))
    assert.is_true(troupe.trap_exit(false))
    assert.is_false(troupe.trap_exit(false))
    assert.matches("#1 to 'trap_exit'", helper.misuse("trap_exit"))
    assert.matches("#1 to 'trap_exit'", helper.misuse("trap_exit", 1))
  end)

  helper.actor("turns exits into messages, a normal one too", function()
    troupe.trap_exit(true)
    local pid = troupe.spawn_link(function() end)
    local m, from = helper.receive()
    assert.same({ type = "exit", pid = pid, reason = "normal" }, m)
    assert.equal(pid, from)
    troupe.trap_exit(false)
  end)

  helper.actor("lets a loop of exits between two actors end", function()
    local function answer(first)
      troupe.trap_exit(true)
      if first then
        troupe.link(first)
        troupe.exit(first, "to you")
      end
      while true do
        local m = troupe.receive()
        if not troupe.exit(m.pid, "and back") or m.count == 100 then
          return
        end
      end
    end
    local p = troupe.spawn(answer)
    troupe.sleep(0.005)
    local q = troupe.spawn(answer, p)
    troupe.sleep(0.005)
    assert.is_true(p:alive() and q:alive())
    local ref = troupe.monitor(p)
    q:kill() -- p hears of it, answers, and finds nobody
    helper.down(ref)
  end)
end)
