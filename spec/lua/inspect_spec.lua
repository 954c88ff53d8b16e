local helper = require "spec.helper"
local troupe = require "troupe"

local eventually = helper.eventually

describe("troupe.info", function()
  helper.actor("shows an actor that waits", function()
    local pid = troupe.spawn_opt({ memory_limit = 2 ^ 21, name = "inspected",
      stack = { reserve = 100000 } }, function() troupe.trap_exit(true)
        troupe.receive() troupe.receive() end)
    troupe.link(pid)
    troupe.send(pid, "go")
    local i
    eventually(function()
      i = troupe.info(pid)
      return i.state == "parked" and i.trap_exit
    end)
    assert.equal(pid, i.pid)
    assert.equal(troupe.self(), i.parent)
    assert.equal(1, i.links)
    assert.same({ "inspected" }, i.names)
    assert.equal(2 ^ 21, i.memory_limit)
    assert.is_true(i.memory > 10000 and i.memory < i.memory_limit)
    assert.equal(102400, i.stack.reserve) -- whole pages
    assert.is_true(i.stack.high_water > 0 and i.stack.high_water < 102400)
    assert.matches("inspect_spec.lua", i.source, 1, true)
    assert.is_true(i.started_at <= troupe.now())
    troupe.unlink(pid)
    troupe.kill(pid)
  end)

  helper.actor("is nil, \"noproc\" for the dead", function()
    local pid, ref = troupe.spawn_monitor(function() end)
    troupe.receive_match({ type = "down", ref = ref }, helper.DEADLINE)
    assert.same({ nil, "noproc" }, { troupe.info(pid) })
  end)

  helper.actor("counts the slices of a loop that were cut short", function()
    local loops = {} -- more than schedulers: one always waits for its turn
    for i = 1, 3 do
      loops[i] = troupe.spawn(function() while true do end end)
    end
    eventually(function() return troupe.info(loops[1]).overruns > 3 end)
    eventually(function() return not troupe.info(loops[1]).in_c end)
    for _, pid in ipairs(loops) do
      troupe.kill(pid)
      helper.ended(pid)
    end
  end)

  helper.actor("names the argument that is wrong", function()
    assert.has_error(function() troupe.info(1.5) end)
    assert.has_error(function() troupe.info() end)
  end)
end)

describe("troupe.stats", function()
  helper.actor("has a line per scheduler and the process's totals", function()
    local s = troupe.stats()
    assert.equal(1, s.format_version)
    assert.is_truthy(({ signal = true, hook = true, off = true })[s.preemption])
    assert.is_true(s.actors >= 1)
    assert.is_true(#s.schedulers >= 1)
    local before = s.schedulers[1].switches
    for _ = 1, 100 do troupe.yield() end
    local switches = 0
    for _, w in ipairs(troupe.stats().schedulers) do switches = switches + w.switches end
    assert.is_true(switches >= before + 100)
  end)
end)
