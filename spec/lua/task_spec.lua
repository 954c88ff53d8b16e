--- Tasks: work in an actor of its own, with a result.

local helper = require "spec.helper"
local troupe = require "troupe"

local function forever()
  troupe.sleep(1000)
end

describe("troupe.task", function()
  helper.actor("gives the results of its function", function()
    assert.equal(7, troupe.task(function(a, b) return a + b end, 3, 4):await())
    assert.same({ 3, 1, nil, 3 }, (function(...) return { select("#", ...), ... } end)(
      troupe.task(function() return 1, nil, 3 end):await()))
    assert.equal(0, select("#", troupe.task(function() end):await()))
    assert.same({ 2, nil, nil }, (function(...) return { select("#", ...), ... } end)(
      troupe.task(function() return nil, nil end):await()))
    helper.silence()
  end)

  helper.actor("times out, and can be awaited again", function()
    local task = troupe.task(function() return (troupe.receive()) end)
    for _, t in ipairs { 0, -1, 0.005 } do
      assert.same({ nil, "timeout" }, { task:await(t) })
    end
    troupe.send(task.pid, "done")
    assert.equal("done", task:await(helper.DEADLINE))
    assert.equal("done", task:await(0)) -- and again
    helper.silence()
  end)

  helper.actor("gives nil and the reason when it fails", function()
    local value, reason = troupe.task(function() error({ code = 5 }) end):await()
    assert.is_nil(value)
    assert.same({ "error", { code = 5 } }, { reason.kind, reason.value })
    assert.same({ nil, "why" }, { troupe.task(function() troupe.exit "why" end):await() })
    local task = troupe.task(forever)
    troupe.kill(task.pid)
    assert.same({ nil, "killed" }, { task:await() })
    assert.same({ nil, "killed" }, { task:await() })
  end)

  helper.actor("fails when its result cannot be sent", function()
    local _, reason = troupe.task(function() return 1, io.stdout end):await()
    assert.equal("error", reason.kind)
    assert.matches("task result: .*userdata", reason.message)
  end)

  helper.actor("leaves other messages alone", function()
    local me = troupe.self()
    troupe.send(me, 1)
    assert.equal("x", troupe.task(function()
      troupe.send(me, 2)
      return "x"
    end):await())
    assert.equal(1, (helper.receive(0)))
    assert.equal(2, (helper.receive(0)))
  end)

  helper.actor("is no message when it ends", function()
    local tasks = {}
    for i = 1, 4 do
      tasks[i] = troupe.task(function() return i end)
      helper.ended(tasks[i].pid)
    end
    assert.same({ nil, "timeout" }, { troupe.select({ troupe.inbox }, 0) })
    troupe.send(troupe.self(), "a message")
    assert.equal(1, troupe.select({ troupe.inbox }, 0))
    assert.same({ nil, "timeout" }, { troupe.receive_match({ type = "down" }, 0) })
    assert.equal("a message", (troupe.receive(0)))
    helper.silence()
    assert.equal(1, tasks[1]:await(0))
    assert.is_false(tasks[2]:cancel())
    assert.same({ nil, "cancelled" }, { tasks[2]:await() })
    assert.same({ n = 2, 3, 4 }, troupe.all({ tasks[3], tasks[4] }, 0))
    helper.silence()
  end)

  helper.actor("is none after a timeout of all or race either", function()
    local quick, slow = troupe.task(function() return "quick" end), troupe.task(forever)
    local other = troupe.task(function() return (troupe.receive()) end)
    helper.ended(quick.pid)
    assert.same({ nil, "timeout" }, { troupe.all({ slow, other }, 0) })
    assert.same({ nil, "timeout" }, { troupe.race({ slow, other }, 0) })
    assert.same({ nil, "timeout" }, { troupe.receive(0) })
    troupe.send(other.pid, "other")
    helper.ended(other.pid)
    assert.same({ nil, "timeout" }, { troupe.receive(0) })
    assert.equal("other", troupe.race { slow, other })
    assert.equal("quick", quick:await(0))
    helper.silence()
  end)

  helper.actor("that nobody awaits goes with its actor", function()
    helper.ended(troupe.spawn(function()
      for _ = 1, 100 do
        troupe.task(function() return ("x"):rep(1000) end)
      end
      troupe.receive(0.001)
    end))
  end)

  helper.actor("can be cancelled", function()
    local task = troupe.task(forever)
    assert.is_true(task:cancel())
    assert.same({ nil, "cancelled" }, { task:await() })
    assert.is_false(task:cancel())
    helper.ended(task.pid)
    -- Its result has come already, and is dropped.
    task = troupe.task(function() return 1 end)
    helper.ended(task.pid)
    assert.is_false(task:cancel())
    assert.same({ nil, "cancelled" }, { task:await() })
    -- After its result was seen it stays.
    task = troupe.task(function() return 1 end)
    assert.equal(1, task:await())
    assert.is_false(task:cancel())
    assert.equal(1, task:await())
    helper.silence(0.005)
  end)

  helper.actor("raises for what is no function", function()
    assert.matches("#1 to 'task' %(fn must be a function, not number%)", helper.misuse("task", 1))
    assert.is_false(pcall(troupe.task, function() end, io.stdout))
  end)
end)

describe("troupe.all", function()
  helper.actor("gives the first result of each", function()
    local tasks = {}
    for i = 1, 20 do
      tasks[i] = troupe.task(function() troupe.sleep((20 - i) / 5000) return i, "more" end)
    end
    tasks[21] = troupe.task(function() end)
    local results = troupe.all(tasks)
    assert.equal(21, results.n)
    for i = 1, 20 do
      assert.equal(i, results[i])
    end
    assert.same({ n = 0 }, troupe.all {})
    assert.equal(21, troupe.all(tasks).n) -- again
    helper.silence()
  end)

  helper.actor("fails as soon as one fails, and cancels the others", function()
    local tasks = { troupe.task(forever), troupe.task(function() return 1 end),
      troupe.task(function() troupe.sleep(0.005) troupe.exit "bad" end), troupe.task(forever) }
    assert.same({ nil, "bad", 3 }, { troupe.all(tasks) })
    for _, task in ipairs(tasks) do
      helper.ended(task.pid)
    end
    assert.same({ nil, "cancelled" }, { tasks[1]:await() })
    helper.silence(0.005)
  end)

  helper.actor("times out as a whole; the tasks go on", function()
    local task = troupe.task(function() return (troupe.receive()) end)
    local list = { troupe.task(function() return 1 end), task }
    assert.same({ nil, "timeout" }, { troupe.all(list, 0.005) })
    troupe.send(task.pid, 2)
    assert.same({ 1, 2, n = 2 }, troupe.all(list, helper.DEADLINE))
    assert.same({ 2, 2, n = 2 }, troupe.all { task, task })
  end)

  helper.actor("raises for what are no tasks", function()
    assert.matches("#1 to 'all' %(table of tasks expected%)", helper.misuse("all", 1))
    assert.matches("entry 1 is not a task", helper.misuse("all", { 1 }))
    assert.matches("entry 1 is not a task", helper.misuse("race", { {} }))
    assert.matches("no task", helper.misuse("race", {}))
  end)
end)

describe("troupe.race", function()
  helper.actor("gives the results of the first and cancels the others", function()
    local slow = troupe.task(forever)
    local fast = troupe.task(function() return 1, 2 end)
    assert.same({ 1, 2 }, { troupe.race { slow, fast } })
    helper.ended(slow.pid)
    assert.same({ nil, "cancelled" }, { slow:await() })
    assert.equal(1, fast:await())
    helper.silence(0.005)
  end)

  helper.actor("counts a failure as an end", function()
    assert.same({ nil, "bad" }, { troupe.race {
      troupe.task(forever), troupe.task(function() troupe.exit "bad" end) } })
  end)

  helper.actor("takes one that has ended already", function()
    local done = troupe.task(function() return "done" end)
    done:await()
    assert.equal("done", troupe.race { troupe.task(forever), done })
  end)

  helper.actor("times out; the tasks go on", function()
    local task = troupe.task(function() return (troupe.receive()) end)
    assert.same({ nil, "timeout" }, { troupe.race({ task }, 0.005) })
    troupe.send(task.pid, "x")
    assert.equal("x", troupe.race { task })
  end)
end)

describe("troupe.sendable", function()
  helper.actor("says whether a value can be sent, and why not", function()
    for _, value in ipairs { 1, "x", false, { {} }, function() end, troupe.self(), 1LL } do
      assert.is_true(troupe.sendable(value))
    end
    for _, value in ipairs { io.stdout, { a = { io.stdout } }, coroutine.create(print), print } do
      local ok, err = troupe.sendable(value)
      assert.is_false(ok)
      assert.is_string(err)
    end
    assert.matches("value%.a%[1%]: userdata", select(2, troupe.sendable { a = { io.stdout } }))
    assert.matches("#1 to 'sendable'", helper.misuse("sendable"))
  end)
end)
