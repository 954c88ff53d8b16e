local dynamic_supervisor = require "troupe.dynamic_supervisor"
local gen_server = require "troupe.gen_server"
local helper = require "spec.helper"
local troupe = require "troupe"

local function idle()
  troupe.receive()
end

local Worker = gen_server.behaviour "worker"
function Worker:init(a, b, c)
  if c == "refuse" then
    return nil, "refused"
  end
  self.args = { a, b, c }
end
function Worker:handle_call() return self.args end
function Worker:handle_cast(reason) return gen_server.stop_with(reason) end

describe("troupe.dynamic_supervisor", function()
  helper.actor("starts children by specification, and knows them by pid", function()
    local sup = assert(dynamic_supervisor.start_link { name = "spec.dyn" })
    local a = assert(dynamic_supervisor.start_child(sup, { start = idle }))
    local b = assert(dynamic_supervisor.start_child("spec.dyn",
      { start = Worker, args = { 1, 2 } }))
    assert.same({ 1, 2 }, b:call("args"))
    assert.same({ specs = 2, active = 2, workers = 2, supervisors = 0 },
      dynamic_supervisor.count_children(sup))
    local pids = {}
    for _, c in ipairs(dynamic_supervisor.which_children(sup)) do
      pids[c.pid] = true
    end
    assert.same({ [a] = true, [b] = true }, pids)
    assert.is_true(dynamic_supervisor.terminate_child(sup, a))
    assert.is_false(a:alive())
    assert.same({ nil, "not_found" }, { dynamic_supervisor.terminate_child(sup, a) })
    assert.equal(1, dynamic_supervisor.count_children(sup).specs)
    assert.is_true(dynamic_supervisor.stop(sup))
    assert.is_false(b:alive())
  end)

  helper.actor("starts children from a template, whose arguments come first", function()
    local sup = assert(dynamic_supervisor.start_link {
      child = { start = Worker, args = { "a" } }, max_children = 2 })
    local one = assert(dynamic_supervisor.start_child(sup, { "b", "c" }))
    assert.same({ "a", "b", "c" }, one:call("args"))
    assert.same({ nil, "refused" }, { dynamic_supervisor.start_child(sup, { "b", "refuse" }) })
    local two = assert(dynamic_supervisor.start_child(sup))
    assert.same({ "a" }, two:call("args"))
    assert.same({ nil, "max_children" }, { dynamic_supervisor.start_child(sup) })
    dynamic_supervisor.terminate_child(sup, two)
    assert(dynamic_supervisor.start_child(sup))
    dynamic_supervisor.stop(sup)
  end)

  helper.actor("restarts as the kind of child says, else forgets", function()
    troupe.trap_exit(true)
    local sup = assert(dynamic_supervisor.start_link {
      child = { start = Worker, restart = "transient" }, intensity = { max = 2, period = 60 } })
    local pid = assert(dynamic_supervisor.start_child(sup, { 7 }))
    local ref = troupe.monitor(pid)
    pid:cast("failure")
    helper.down(ref)
    local list = dynamic_supervisor.which_children(sup)
    assert.equal(1, #list)
    assert.not_equal(pid, list[1].pid)
    assert.same({ 7 }, list[1].pid:call("args")) -- with its own arguments
    ref = troupe.monitor(list[1].pid)
    list[1].pid:cast("normal")
    helper.down(ref)
    assert.equal(0, dynamic_supervisor.count_children(sup).specs)
    for _ = 1, 3 do
      pid = dynamic_supervisor.start_child(sup, {})
      if pid then
        pid:cast("failure")
      end
    end
    local message = troupe.receive_match({ type = "exit", pid = sup }, helper.DEADLINE)
    assert.equal("shutdown", message.reason)
  end)

  helper.actor("stops all at once, and kills what does not stop in time", function()
    local me = troupe.self()
    local function slow()
      troupe.trap_exit(true)
      troupe.send(me, "ready")
      troupe.receive()
      troupe.send(me, "asked to stop")
      helper.await_go()
    end
    local function deaf()
      troupe.trap_exit(true)
      troupe.send(me, "ready")
      while true do
        troupe.receive()
      end
    end
    local sup = assert(dynamic_supervisor.start_link())
    local pids = {}
    for i = 1, 20 do
      pids[i] = assert(dynamic_supervisor.start_child(sup,
        { start = slow, shutdown = 10 * helper.DEADLINE }))
    end
    pids[21] = assert(dynamic_supervisor.start_child(sup, { start = deaf, shutdown = 0.1 }))
    pids[22] = assert(dynamic_supervisor.start_child(sup, { start = deaf, shutdown = "kill" }))
    for _ = 1, 22 do
      assert.equal("ready", helper.receive())
    end
    troupe.unlink(sup)
    local stopping = troupe.task(function() return dynamic_supervisor.stop(sup) end)
    for _ = 1, 20 do
      assert.equal("asked to stop", helper.receive())
    end
    for i = 1, 20 do
      troupe.send(pids[i], "go")
    end
    assert.is_true(stopping:await(helper.DEADLINE))
    for _, pid in ipairs(pids) do
      assert.is_false(pid:alive())
    end
  end)

  helper.actor("mistakes are errors of the caller", function()
    local function raised(fn)
      local ok, err = pcall(fn)
      assert.is_false(ok)
      return err
    end
    assert.matches("^spec/lua/dynamic_supervisor_spec.lua:%d+: .*unknown option 'children'",
      raised(function() local p = dynamic_supervisor.start_link { children = {} } return p end))
    assert.matches("option 'max_children' must be a whole number, 0 or more, not %-1",
      raised(function() local p = dynamic_supervisor.start_link { max_children = -1 } return p end))
    assert.matches("^spec/lua/dynamic_supervisor_spec.lua:%d+: .*unknown option 'x'",
      raised(function()
        local p = dynamic_supervisor.start_child("x", { start = idle, x = 1 })
        return p
      end))
    local sup = assert(dynamic_supervisor.start_link())
    assert.same({ nil, "no_template" }, { dynamic_supervisor.start_child(sup) })
    local supervisor = require "troupe.supervisor"
    assert.same({ nil, "not_supported" }, { supervisor.delete_child(sup, 1) })
    dynamic_supervisor.stop(sup)
  end)
end)
