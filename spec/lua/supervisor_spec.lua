local dynamic_supervisor = require "troupe.dynamic_supervisor"
local gen_server = require "troupe.gen_server"
local helper = require "spec.helper"
local supervisor = require "troupe.supervisor"
local troupe = require "troupe"

-- Tells its start and its end, "<id>+" and "<id>-", and fails when asked to.
local Child = gen_server.behaviour "child"

function Child:init(teller, id, how)
  troupe.trap_exit(true)
  self.teller, self.id, self.how = teller, id, how
  if how == "refuse" then
    return nil, "refused"
  elseif how == "ignore" then
    return nil, "ignore"
  elseif how == "once" then -- the second start fails, and later ones
    if troupe.whereis("spec.once") then
      return nil, "only once"
    end
    troupe.register("spec.once", teller)
  end
  troupe.send(teller, id .. "+")
end

function Child:handle_call(request)
  if request == "pid" then
    return troupe.self()
  end
end

function Child:handle_cast(request)
  if request == "end" then
    return gen_server.stop_with("normal")
  end
  error(request, 0)
end

function Child:terminate()
  troupe.send(self.teller, self.id .. "-")
end

local function child(id, more)
  local c = { id = id, start = Child, args = { troupe.self(), id } }
  for k, v in pairs(more or {}) do
    if k == "how" then
      c.args[3] = v
    else
      c[k] = v
    end
  end
  return c
end

local function start(spec, ...)
  spec.children = spec.children or { ... }
  return assert(supervisor.start_link(spec))
end

-- The next things that children told.
local function told(list)
  for word in list:gmatch("%S+") do
    local message = helper.receive()
    if type(message) == "table" then
      message = message.type
    end
    assert.equal(word, message)
  end
end

local function pid_of(sup, id)
  for _, c in ipairs(assert(supervisor.which_children(sup))) do
    if c.id == id then
      return c.pid
    end
  end
end

local function crash(sup, id)
  local pid = pid_of(sup, id)
  pid:cast("crash")
  return pid
end

local function reason_of_exit(pid)
  local message = troupe.receive_match({ type = "exit", pid = pid }, helper.DEADLINE)
  return assert(message, "no exit").reason
end

-- Waits until count_children says so.
local function counts(sup, what, n)
  local deadline = troupe.now() + helper.DEADLINE
  while supervisor.count_children(sup)[what] ~= n do
    assert(troupe.now() < deadline, "it never came true")
    troupe.sleep(0.001)
  end
end

local raised = helper.raised

describe("troupe.supervisor", function()
  helper.actor("starts in order and stops in reverse", function()
    local sup = start({ name = "spec.sup" }, child "a", child "b", child "c")
    told "a+ b+ c+"
    assert.equal(sup, troupe.whereis("spec.sup"))
    local children = supervisor.which_children("spec.sup")
    assert.same({ "a", "b", "c" }, { children[1].id, children[2].id, children[3].id })
    assert.is_true(children[2].pid:alive())
    assert.equal("worker", children[1].type)
    assert.same({ specs = 3, active = 3, workers = 3, supervisors = 0 },
      supervisor.count_children(sup))
    assert.is_true(supervisor.stop(sup))
    told "c- b- a-"
    assert.is_nil(troupe.whereis("spec.sup"))
    helper.silence()
  end)

  helper.actor("stops with the parent, and on an exit shutdown", function()
    local me = troupe.self()
    local a, b = child "a", child "b"
    local parent = troupe.spawn(function()
      assert(supervisor.start_link({ children = { a, b } }))
      troupe.send(me, "started")
      troupe.receive()
      troupe.exit("parent's reason")
    end)
    told "a+ b+ started"
    parent:send("end")
    told "b- a-"
    local sup = start({}, a)
    told "a+"
    troupe.trap_exit(true)
    troupe.exit(sup, "shutdown")
    told "a-"
    assert.equal("shutdown", reason_of_exit(sup))
  end)

  helper.actor("a child that does not start: the others stop, the reason comes back", function()
    local sup, reason = supervisor.start_link({ name = "spec.sup",
      children = { child "a", child "b", child("c", { how = "refuse" }), child "d" } })
    assert.is_nil(sup)
    assert.equal("failed_to_start_child", reason.kind)
    assert.equal("c", reason.id)
    assert.equal("refused", reason.reason)
    told "a+ b+ b- a-"
    assert.is_nil(troupe.whereis("spec.sup"))
    helper.silence() -- no exit signal: we do not trap
  end)

  helper.actor("mistakes in a specification are errors of the caller", function()
    local function text(spec)
      return raised(function()
        local pid = supervisor.start_link(spec)
        return pid
      end)
    end
    assert.matches("^spec/lua/supervisor_spec.lua:%d+: .*strategy", text { strategy = "none" })
    assert.matches("^spec/lua/supervisor_spec.lua:%d+: .*unknown option 'x'", text { x = 1 })
    assert.matches("^spec/lua/supervisor_spec.lua:%d+: .*option 'max' must be number",
      text { intensity = { max = "3" } })
    for _, bad in ipairs { -1, 1.5, 0 / 0 } do
      assert.matches("intensity: option 'max' must be a whole number, 0 or more",
        text { intensity = { max = bad } })
    end
    assert.matches("^spec/lua/supervisor_spec.lua:%d+: .*intensity: option 'period' must be more",
      text { intensity = { period = 0 } })
    assert.matches("children%[1%]: option 'start' is missing", text { children = { { id = 1 } } })
    assert.matches("^spec/lua/supervisor_spec.lua:%d+: .*children%[1%]: option 'restart'",
      text { children = { child("a", { restart = "often" }) } })
    assert.matches("the id \"a\" is there twice", text { children = { child "a", child "a" } })
    assert.matches("shutdown", text { children = { child("a", { shutdown = "never" }) } })
    assert.matches("permanent child cannot be significant",
      text { auto_shutdown = "any_significant", children = { child("a", { significant = true }) } })
    assert.matches("significant needs",
      text { children = { child("a", { significant = true, restart = "transient" }) } })
    assert.matches("^spec/lua/supervisor_spec.lua:%d+: ", raised(function()
      local pid = supervisor.start_child("x", { id = 1 })
      return pid
    end))
  end)

  -- ------------------------------------------------------------- strategies

  helper.actor("one_for_one starts only the one that died", function()
    local sup = start({}, child "a", child("b", { name = "spec.b" }), child "c")
    told "a+ b+ c+"
    local old = crash(sup, "b")
    told "b- b+"
    local new = pid_of(sup, "b")
    assert.not_equal(old, new)
    assert.equal(new, troupe.whereis("spec.b")) -- the name was free at once
    troupe.kill(new)
    told "b+"
    supervisor.stop(sup)
    told "c- b- a-"
  end)

  helper.actor("rest_for_one stops later ones in reverse, then starts in order", function()
    local sup = start({ strategy = "rest_for_one" }, child "a", child "b", child "c", child "d")
    told "a+ b+ c+ d+"
    crash(sup, "b")
    told "b- d- c- b+ c+ d+"
    crash(sup, "d")
    told "d- d+"
    supervisor.stop(sup)
    told "d- c- b- a-"
  end)

  helper.actor("one_for_all cycles all, and counts it once", function()
    local sup = start({ strategy = "one_for_all", intensity = { max = 3, period = 60 } },
      child "a", child "b", child "c")
    told "a+ b+ c+"
    for _ = 1, 3 do -- three deaths, nine starts
      crash(sup, "b")
      told "b- c- a- a+ b+ c+"
    end
    troupe.trap_exit(true)
    crash(sup, "a")
    told "a- c- b-"
    assert.equal("shutdown", reason_of_exit(sup))
  end)

  helper.actor("siblings that die at the same time do not count again", function()
    local sup = start({ strategy = "one_for_all", intensity = { max = 1, period = 60 } },
      child "a", child "b", child "c")
    told "a+ b+ c+"
    local pids = { pid_of(sup, "a"), pid_of(sup, "b"), pid_of(sup, "c") }
    -- The supervisor does not run between these.
    for i = 1, 3 do
      troupe.exit(pids[i], "kill them")
    end
    for i = 1, 3 do
      troupe.kill(pids[i])
    end
    local plus = 0
    while plus < 3 do
      plus = plus + (helper.receive():match("%+") and 1 or 0)
    end
    assert.equal(3, supervisor.count_children(sup).active)
    supervisor.stop(sup)
  end, { schedulers = { 1 } })

  helper.actor("late exit messages of replaced children are ignored", function()
    local sup = start({ intensity = { max = 2, period = 60 } }, child "a")
    told "a+"
    local old = crash(sup, "a")
    told "a- a+"
    local new = pid_of(sup, "a")
    for _ = 1, 5 do
      sup:send({ type = "exit", pid = old, reason = "late" })
      sup:send({ type = "exit", pid = new, reason = "forged" })
      sup:send({ type = "down", ref = 1, pid = new, reason = "forged" })
    end
    assert.equal(new, pid_of(sup, "a"))
    helper.silence()
    supervisor.stop(sup)
    told "a-"
  end)

  helper.actor("temporary children go, transient ones come back after a failure", function()
    local sup = start({ strategy = "one_for_all" }, child("p"),
      child("t", { restart = "transient" }), child("x", { restart = "temporary" }))
    told "p+ t+ x+"
    pid_of(sup, "x"):cast("crash")
    told "x-"
    counts(sup, "specs", 2)
    helper.silence(0.02)
    pid_of(sup, "t"):cast("end")
    told "t-"
    counts(sup, "active", 1)
    helper.silence(0.02)
    assert.is_nil(pid_of(sup, "t"))
    assert.same({ specs = 2, active = 1, workers = 2, supervisors = 0 },
      supervisor.count_children(sup))
    assert.is_truthy(supervisor.restart_child(sup, "t"))
    told "t+"
    crash(sup, "t")
    told "t- p- p+ t+"
    pid_of(sup, "p"):cast("end") -- permanent: also after a normal end
    told "p- t- p+ t+"
    assert.is_truthy(supervisor.start_child(sup, child("y", { restart = "temporary" })))
    told "y+"
    crash(sup, "p") -- a temporary sibling is stopped and gone
    told "p- y- t- p+ t+"
    assert.equal(2, supervisor.count_children(sup).specs)
    supervisor.stop(sup)
    told "t- p-"
  end)

  -- -------------------------------------------------------------- intensity

  helper.actor("gives up when it restarts too often: the children stop, exit shutdown", function()
    troupe.trap_exit(true)
    local sup = start({ intensity = { max = 2, period = 60 } }, child "a", child "b")
    told "a+ b+"
    for _ = 1, 2 do
      crash(sup, "b")
      told "b- b+"
    end
    crash(sup, "b")
    told "b- a-"
    assert.equal("shutdown", reason_of_exit(sup))
  end)

  helper.actor("restarts longer ago than the period do not count", function()
    local sup = start({ intensity = { max = 1, period = 0.05 } }, child "a")
    told "a+"
    for _ = 1, 4 do
      crash(sup, "a")
      told "a- a+"
      troupe.sleep(0.06)
    end
    supervisor.stop(sup)
    told "a-"
  end)

  helper.actor("an init that fails in a restart counts", function()
    troupe.trap_exit(true)
    local sup = start({ intensity = { max = 3, period = 60 } }, child "a",
      child("b", { how = "once" }))
    told "a+ b+"
    crash(sup, "b")
    told "b- a-"
    assert.equal("shutdown", reason_of_exit(sup))
  end)

  helper.actor("a storm of children that die in init is over at once", function()
    troupe.trap_exit(true)
    local me, children, born = troupe.self(), {}, 0
    for i = 1, 100 do
      children[i] = { id = i, start = function()
        troupe.send(me, "born")
        error("at once")
      end }
    end
    local sup = start({ intensity = { max = 3, period = 3600 }, children = children })
    assert.equal("shutdown", reason_of_exit(sup))
    while troupe.receive(0) == "born" do
      born = born + 1
    end
    assert.is_true(born <= 103, born)
    children[1] = child("refused", { how = "refuse" })
    assert.is_nil((supervisor.start_link({ children = children })))
  end)

  -- -------------------------------------------------------------- shutdown

  helper.actor("kills a child that does not stop in time, an endless loop too", function()
    local me = troupe.self()
    local function deaf()
      troupe.trap_exit(true)
      troupe.send(me, "deaf+")
      while true do
        troupe.receive()
      end
    end
    local function loop()
      troupe.trap_exit(true)
      troupe.send(me, "loop+")
      while true do end -- luacheck: ignore
    end
    local sup = start({}, child "a", { id = "deaf", start = deaf, shutdown = 0.05 },
      { id = "loop", start = loop, shutdown = 0.05 },
      { id = "brutal", start = deaf, shutdown = "kill" })
    told "a+"
    local seen = {}
    for _ = 1, 3 do
      seen[#seen + 1] = helper.receive()
    end
    table.sort(seen)
    assert.same({ "deaf+", "deaf+", "loop+" }, seen)
    local pids = { pid_of(sup, "deaf"), pid_of(sup, "loop"), pid_of(sup, "brutal") }
    assert.is_true(supervisor.stop(sup))
    told "a-"
    for _, pid in ipairs(pids) do
      assert.is_false(pid:alive())
    end
  end)

  helper.actor("a killed supervisor leaves no orphan", function()
    local sup = start({}, child "a", { id = "plain", start = function() troupe.receive() end },
      { id = "sub", start = { children = { child "b", child "c" } } })
    told "a+ b+ c+"
    local plain = pid_of(sup, "plain")
    local ref = troupe.monitor(plain)
    troupe.unlink(sup)
    troupe.kill(sup)
    local seen = {}
    for _ = 1, 4 do
      local m = helper.receive()
      seen[#seen + 1] = type(m) == "table" and m.type or m
    end
    table.sort(seen)
    assert.same({ "a-", "b-", "c-", "down" }, seen)
    assert.is_false(troupe.demonitor(ref))
  end)

  helper.actor("a supervisor killed in the middle of its start leaves none either", function()
    local Slow = gen_server.behaviour "slow"
    function Slow:init(teller)
      troupe.send(teller, troupe.self())
      troupe.sleep(60)
    end
    local a, slow = child "a", { id = "slow", start = Slow, args = { troupe.self() } }
    local starter = troupe.spawn(function()
      supervisor.start({ name = "spec.mid", children = { a, slow } })
    end)
    told "a+"
    local pid = helper.receive()
    local ref = troupe.monitor(pid)
    troupe.kill("spec.mid")
    assert.equal("killed", helper.down(ref))
    told "a-"
    helper.ended(starter)
  end)

  -- ----------------------------------------------------------- children API

  helper.actor("start, terminate, restart and delete a child", function()
    local sup = start({}, child "a")
    told "a+"
    local pid = assert(supervisor.start_child(sup, child "b"))
    told "b+"
    assert.equal(pid, pid_of(sup, "b"))
    assert.same({ nil, "already_started", pid }, { supervisor.start_child(sup, child "b") })
    assert.same({ nil, "running" }, { supervisor.delete_child(sup, "b") })
    assert.same({ nil, "running", pid }, { supervisor.restart_child(sup, "b") })
    assert.is_true(supervisor.terminate_child(sup, "b"))
    told "b-"
    assert.same({ nil, "already_present" }, { supervisor.start_child(sup, child "b") })
    assert.is_true(supervisor.terminate_child(sup, "b"))
    pid = assert(supervisor.restart_child(sup, "b"))
    told "b+"
    assert.is_true(pid:alive())
    supervisor.terminate_child(sup, "b")
    told "b-"
    assert.is_true(supervisor.delete_child(sup, "b"))
    assert.same({ nil, "not_found" }, { supervisor.delete_child(sup, "b") })
    assert.same({ nil, "not_found" }, { supervisor.restart_child(sup, "b") })
    assert.same({ nil, "not_found" }, { supervisor.terminate_child(sup, "b") })
    -- One that does not start is not kept.
    assert.same({ nil, "refused" }, { supervisor.start_child(sup, child("c", { how = "refuse" })) })
    assert.equal(1, supervisor.count_children(sup).specs)
    -- One that said "ignore" is, without a pid.
    assert.is_true(supervisor.start_child(sup, child("i", { how = "ignore" })))
    assert.same({ specs = 2, active = 1, workers = 2, supervisors = 0 },
      supervisor.count_children(sup))
    supervisor.stop(sup)
    told "a-"
    assert.same({ nil, "noproc" }, { supervisor.which_children(sup) })
  end)

  helper.actor("nested: a supervisor that gives up is restarted by its own", function()
    local sup = start({}, child "a", { id = "sub", start = {
      name = "spec.sub", intensity = { max = 0, period = 60 }, children = { child "b", child "c" },
    } })
    told "a+ b+ c+"
    local sub = troupe.whereis("spec.sub")
    local c = supervisor.which_children(sup)[2]
    assert.equal("supervisor", c.type)
    assert.equal(sub, c.pid)
    crash("spec.sub", "b")
    told "b- c- b+ c+"
    assert.not_equal(sub, troupe.whereis("spec.sub"))
    supervisor.stop(sup)
    told "c- b- a-"
  end)

  helper.actor("what starts supervisors and servers may be the start of a child", function()
    local dynamic = require "troupe.dynamic_supervisor"
    local inner = { { children = { child "x" } } }
    for _, what in ipairs { supervisor.start_link, supervisor, "troupe.supervisor" } do
      local sup = start({}, { id = "erlang", start = what, args = inner })
      told "x+"
      assert.equal("supervisor", supervisor.which_children(sup)[1].type)
      supervisor.stop(sup)
      told "x-"
    end
    for _, what in ipairs { dynamic.start_link, dynamic, "troupe.dynamic_supervisor" } do
      local sup = start({}, { id = "many", start = what, args = { { child = child() } } })
      local many = pid_of(sup, "many")
      assert(dynamic.start_child(many, { "y" }))
      told "y+"
      supervisor.stop(sup)
      told "y-"
    end
    local x = child "x"
    local sup = start({}, { id = "x", start = gen_server.start_link, args = { x.start, x.args } })
    told "x+"
    supervisor.stop(sup)
    told "x-"
  end)

  helper.actor("significant children end their supervisor", function()
    troupe.trap_exit(true)
    local significant = { restart = "transient", significant = true }
    local sup = start({ auto_shutdown = "any_significant" }, child "a", child("b", significant),
      child("c", significant))
    told "a+ b+ c+"
    crash(sup, "b") -- restarted: does not count
    told "b- b+"
    supervisor.terminate_child(sup, "c") -- asked for: does not count
    told "c-"
    pid_of(sup, "b"):cast("end")
    told "b- a-"
    assert.equal("shutdown", reason_of_exit(sup))
    sup = start({ auto_shutdown = "all_significant" }, child "a", child("b", significant),
      child("c", significant))
    told "a+ b+ c+"
    pid_of(sup, "b"):cast("end")
    told "b-"
    helper.silence(0.02)
    pid_of(sup, "c"):cast("end")
    told "c- a-"
    assert.equal("shutdown", reason_of_exit(sup))
  end)

  helper.actor("children that are modules and files, of each kind", function()
    local me = troupe.self()
    local body = helper.file("body.lua", [[
      local troupe = require "troupe"
      local teller, id = ...
      troupe.send(teller, id .. "+")
      troupe.receive()
    ]])
    local fn = helper.file("fn.lua", [[
      return function(teller, id)
        local troupe = require "troupe"
        troupe.send(teller, id .. "+")
        troupe.receive()
      end
    ]])
    local server = helper.file("server.lua", [[
      local troupe = require "troupe"
      local gen_server = require "troupe.gen_server"
      local B = gen_server.behaviour "file"
      function B:init(teller, id)
        troupe.sleep(0.05)
        troupe.send(teller, id .. "+")
      end
      return B
    ]])
    local broken = helper.file("broken.lua", "error 'broken'")
    local function file(id, path)
      return { id = id, start = path, args = { me, id } }
    end
    local sup = start({}, file("body", body), file("server", server), file("fn", fn))
    told "body+ server+ fn+"
    for _, id in ipairs { "body", "server", "fn" } do
      troupe.kill(pid_of(sup, id))
      told(id .. "+")
    end
    local pid, reason = supervisor.start_child(sup, file("broken", broken))
    assert.is_nil(pid)
    assert.matches("broken", reason.message)
    supervisor.stop(sup)
  end)

  helper.actor("many children: each is started anew in no time", function()
    local children = {}
    for i = 1, 500 do
      children[i] = { id = i, start = function() troupe.receive() end }
    end
    local sup = start({ children = children, intensity = { max = 1000, period = 1 } })
    assert.equal(500, supervisor.count_children(sup).active)
    local list = supervisor.which_children(sup)
    for i = 1, 500, 7 do
      troupe.kill(list[i].pid)
    end
    counts(sup, "active", 500)
    assert.is_true(supervisor.stop(sup))
  end)

  -- ---------------------------------------------------------- application

  local APP = [[
    local troupe = require "troupe"
    local gen_server = require "troupe.gen_server"
    local S = gen_server.behaviour "s"
    function S:init(id)
      troupe.trap_exit(true)
      self.id = id
      print(id .. "+")
      io.stdout:flush()
    end
    function S:handle_cast() error "crash" end
    function S:terminate(reason) print(self.id .. "-", reason) io.stdout:flush() end
    local function killer(signal)
      troupe.sleep(0.2)
      os.execute("kill -" .. signal .. " $PPID")
      troupe.receive()
    end
    local function deaf()
      troupe.trap_exit(true)
      while true do end
    end
    local function crasher() troupe.sleep(0.05) error("crashing") end
  ]]

  local function app(text, opts)
    return helper.run_script(APP .. text, opts)
  end

  helper.it("troupe run: a file that returns a specification; SIGTERM stops in order", function()
    local result = app [[return { children = {
      { id = "a", start = S, args = { "a" } }, { id = "b", start = S, args = { "b" } },
      { id = "deaf", start = deaf, shutdown = 0.1 },
      { id = "killer", start = killer, args = { "TERM" } },
    } }]]
    assert.equal("a+\nb+\nb-\tshutdown\na-\tshutdown\n", result.out)
    assert.equal(143, result.status)
  end)

  helper.it("troupe run: a start that fails, and a supervisor that gives up", function()
    local result = app [[return { children = {
      { id = "a", start = S, args = { "a" } }, { id = "b", start = S, args = {} } } }]]
    assert.equal(1, result.status)
    assert.matches('child "b" of supervisor did not start', result.err, 1, true)
    assert.equal("a+\na-\tshutdown\n", result.out)
    result = app [[return { intensity = { max = 1, period = 60 }, children = {
      { id = "a", start = S, args = { "a" } }, { id = "c", start = crasher } } }]]
    assert.equal(1, result.status)
    assert.equal("a+\na-\tshutdown\n", result.out)
    assert.matches("more than 1 restarts in 60 s; the last reason: .*crashing", result.err)
  end)

  helper.it("troupe run: a significant child that is done ends the program", function()
    local result = app [[return { auto_shutdown = "any_significant", children = {
      { id = "a", start = S, args = { "a" } },
      { id = "job", start = function() print "done" end, restart = "transient",
        significant = true },
    } }]]
    assert.equal(0, result.status)
    assert.equal("a+\ndone\na-\tshutdown\n", result.out)
  end)

  helper.actor("a file that returns a behaviour runs as a server, also when spawned", function()
    local path = helper.file("adder.lua", [[
      local B = require("troupe.gen_server").behaviour "adder"
      function B:init(n) self.n = n end
      function B:handle_call(m) return self.n + m end
      return B
    ]])
    local pid = troupe.spawn(path, 40)
    assert.equal(42, pid:call(2))
    assert.is_true(gen_server.stop(pid))
  end)
end)

describe("troupe.dynamic_supervisor", function()
  helper.actor("nests under a supervisor", function()
    local sup = start({}, { id = "pool", start = dynamic_supervisor.spec { name = "spec.pool" } })
    local pid = assert(dynamic_supervisor.start_child("spec.pool",
      { start = function() troupe.receive() end }))
    assert.equal("supervisor", supervisor.which_children(sup)[1].type)
    supervisor.stop(sup)
    assert.is_false(pid:alive())
  end)
end)
