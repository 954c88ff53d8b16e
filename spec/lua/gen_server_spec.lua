local troupe = require "troupe"
local gen_server = require "troupe.gen_server"
local helper = require "spec.helper"

local SOON = helper.DEADLINE

-- A server that does what its requests say; what happens goes to the parent.
local Probe = gen_server.behaviour "probe"

function Probe:init(parent, how)
  self.parent = parent
  self.n = 0
  if how == "refuse" then
    return nil, "not today"
  elseif how == "error" then
    error({ code = 7 })
  elseif how == "slow" then
    troupe.sleep(60)
  elseif how == "continue" then
    return gen_server.continue("first")
  elseif how == "trap" then
    troupe.trap_exit(true)
  elseif how == "wrong" then
    return 42
  end
end

function Probe:tell(what, value)
  if self.parent then
    troupe.send(self.parent, { what = what, value = value })
  end
end

local CALLS = {}

function CALLS.get(self) return self.n end
function CALLS.nothing() end
function CALLS.sleep(_, s) troupe.sleep(s) return "slept" end

function CALLS.hold(self)
  self:tell("held")
  helper.await_go()
  return "let go"
end
function CALLS.table() return { a = { 1, 2 } } end
function CALLS.function_() return { f = { print } } end
function CALLS.error() error("no luck", 0) end
function CALLS.stop() return gen_server.stop_with("normal", "bye") end
function CALLS.stop_silently() return gen_server.stop_with({ why = "enough" }) end
function CALLS.continue() return "replied", gen_server.continue("later") end
function CALLS.wrong() return "reply", 42 end
function CALLS.forget() return gen_server.noreply end
function CALLS.exit() troupe.exit("left") end

function CALLS.defer(self, seconds, from)
  self:start_timer(seconds, { reply_to = from })
  return gen_server.noreply
end

function CALLS.early(_, _, from)
  gen_server.reply(from, "early")
  return "late"
end

function Probe:handle_call(request, from)
  if type(request) == "table" then
    return CALLS[request[1]](self, request[2], from)
  end
  return CALLS[request](self, nil, from)
end

function Probe:handle_cast(request)
  if request == "error" then
    error("cast failed", 0)
  elseif request == "wrong" then
    return "unexpected"
  elseif request == "stop" then
    return gen_server.stop_with("done")
  elseif type(request) == "table" and request.run then
    return request.run(self)
  end
  self.n = self.n + request
end

function Probe:handle_info(message) self:tell("info", message) end
function Probe:handle_continue(x) self:tell("continue", x) end
function Probe:handle_timeout() self:tell("timeout", true) end
function Probe:handle_down(down) self:tell("down", down) end

function Probe:handle_timer(message)
  if type(message) == "table" and message.reply_to then
    gen_server.reply(message.reply_to, "deferred")
  else
    self:tell("timer", message)
  end
end

function Probe:terminate(reason)
  if self.n == -1 then
    error("terminate failed", 0)
  end
  self:tell("terminate", reason)
end

local function start(how, opts)
  return assert(gen_server.start(Probe, { troupe.self(), how }, opts))
end

local function idler()
  return troupe.spawn(function() troupe.receive() end)
end

-- What the probe told next: it must be of that kind.
local function told(what)
  local message = helper.receive()
  assert.equal(what, message.what)
  return message.value
end

local function do_in(server, fn)
  assert(gen_server.cast(server, { run = fn }))
end

describe("troupe.gen_server", function()
  -- ------------------------------------------------------------------ start

  helper.actor("answers calls, takes casts in order, and sees plain messages apart", function()
    local server = start()
    assert.is_true(server:cast(2))
    assert.is_true(gen_server.cast(server, 3))
    assert.equal(5, server:call("get"))
    assert.equal(5, gen_server.call(server, "get", 1))
    assert.same({ a = { 1, 2 } }, server:call("table"))
    assert.is_nil((server:call("nothing")))
    server:send(17)
    assert.equal(17, told "info")
    assert.is_true(gen_server.stop(server))
    assert.equal("normal", told "terminate")
  end)

  helper.actor("init gets the arguments, holes included", function()
    local B = {}
    function B:init(...) self.args = { n = select("#", ...), ... } end
    function B:handle_call() return self.args end
    local server = assert(gen_server.start(B, { 1, nil, "three" }))
    assert.same({ n = 3, 1, nil, "three" }, server:call("args"))
    server:kill()
    server = assert(gen_server.start(B))
    assert.same({ n = 0 }, server:call("args"))
    server:kill()
  end)

  helper.actor("init may refuse: nil and the reason, and nothing is left", function()
    for _, f in ipairs { gen_server.start, gen_server.start_link } do
      local pid, reason = f(Probe, { troupe.self(), "refuse" }, { name = "refuser" })
      assert.is_nil(pid)
      assert.equal("not today", reason)
      assert.is_nil(troupe.whereis("refuser"))
    end
    helper.silence() -- no terminate either
  end)

  helper.actor("an error in init: the reason, no name, and no signal", function()
    for _, f in ipairs { gen_server.start, gen_server.start_link } do
      local pid, reason = f(Probe, { troupe.self(), "error" }, { name = "failure" })
      assert.is_nil(pid)
      assert.equal("error", reason.kind)
      assert.equal(7, reason.value.code)
      assert.is_nil(troupe.whereis("failure"))
    end
    local _, reason = gen_server.start(Probe, { troupe.self(), "wrong" })
    assert.matches("probe:init returned 42", reason.message, 1, true)
    helper.silence()
  end)

  helper.actor("init that takes too long is ended", function()
    local pid, reason = gen_server.start_link(Probe, { troupe.self(), "slow" },
      { name = "slow", timeout = 0.05 })
    assert.is_nil(pid)
    assert.equal("timeout", reason)
    assert.is_nil(troupe.whereis("slow"))
  end)

  helper.actor("has its name before init runs; a name is given once", function()
    local B = {}
    function B:init() self.seen = troupe.whereis("named") == troupe.self() end
    function B:handle_call() return self.seen end
    local server = assert(gen_server.start(B, {}, { name = "named" }))
    assert.is_true(gen_server.call("named", "seen"))
    local pid, err, holder = gen_server.start(B, {}, { name = "named" })
    assert.is_nil(pid)
    assert.equal("name_taken", err)
    assert.equal(server, holder)
    gen_server.stop("named")
    assert.is_nil(troupe.whereis("named"))
    -- At once again, many times: no moment in which the name is still taken.
    for _ = 1, 20 do
      assert(gen_server.start(B, {}, { name = "named" }))
      assert.is_true(gen_server.stop("named"))
    end
  end)

  helper.actor("messages that come before init are kept", function()
    local B = gen_server.behaviour "early"
    function B:init(parent)
      self.parent = parent
      troupe.send(parent, "in init")
      troupe.receive_match(function(m) return m == "go" end)
    end
    function B:handle_info(m) troupe.send(self.parent, m) end
    function B:handle_call(m) return m end
    local me = troupe.self()
    troupe.spawn(function()
      assert(gen_server.start(B, { me }, { name = "early" }))
    end)
    assert.equal("in init", helper.receive())
    troupe.send("early", 1)
    troupe.send("early", "go")
    troupe.send("early", 2)
    assert.equal(1, helper.receive())
    assert.equal(2, helper.receive())
    assert.equal("x", gen_server.call("early", "x"))
    troupe.kill("early")
  end)

  helper.actor("behaviours by module name and by path", function()
    local text = [[
      local gen_server = require "troupe.gen_server"
      local Echo = gen_server.behaviour "echo"
      local count = 0
      function Echo:handle_call(request)
        count = count + 1
        return { request, count }
      end
      return Echo
    ]]
    local path, folder = helper.file("spec_echo.lua", text)
    local server = assert(gen_server.start(path))
    server:call("a")
    assert.same({ "b", 2 }, server:call("b"))
    gen_server.stop(server)
    local before = package.path
    package.path = folder .. "/?.lua;" .. before
    server = assert(gen_server.start("spec_echo"))
    package.path = before
    assert.same({ "a", 1 }, server:call("a"))
    gen_server.stop(server)
    local pid, reason = gen_server.start("no.such.module")
    assert.is_nil(pid)
    assert.matches("module 'no.such.module' not found", reason.message, 1, true)
    pid, reason = gen_server.start((helper.file("spec_number.lua", "return 42")))
    assert.is_nil(pid)
    assert.matches("returned a number, expected a behaviour", reason.message, 1, true)
  end)

  helper.actor("mistakes of the caller are errors of the caller", function()
    local function text(...)
      local ok, err = pcall(...)
      assert.is_false(ok)
      return err
    end
    local err = text(function() gen_server.start(Probe, {}, { nam = "x" }) end)
    assert.matches("^spec/lua/gen_server_spec.lua:%d+: .*unknown option 'nam'", err)
    err = text(function() gen_server.start(Probe, {}, { timeout = "x" }) end)
    assert.matches("option 'timeout' must be a number of seconds", err)
    err = text(function() gen_server.start(42) end)
    assert.matches("behaviour or module name expected", err)
    err = text(function() gen_server.start({ handle_call = print }) end)
    assert.matches("behaviour.handle_call: C function cannot be sent", err, 1, true)
    err = text(function() gen_server.start(Probe, { coroutine.create(print) }) end)
    assert.matches("args[1]: coroutine cannot be sent", err, 1, true)
    assert.matches("seconds", text(function() Probe.start_timer({}, 0 / 0) end))
    local pid, reason = gen_server.start({ handle_call = 42 })
    assert.is_nil(pid)
    assert.matches("handle_call must be a function, not a number", reason.message, 1, true)
  end)

  helper.actor("takes the options of spawn_opt", function()
    local pid, ref = gen_server.start(Probe, { troupe.self() },
      { monitor = true, memory_limit = 8e6, mailbox = { limit = 100 } })
    gen_server.stop(pid)
    told "terminate"
    assert.equal("normal", helper.down(ref))
  end)

  -- ------------------------------------------------------------------ calls

  helper.actor("call fails for a reason", function()
    local server = start()
    local slow = start()
    local _, err = gen_server.call(slow, "hold", 0.02)
    assert.equal("timeout", err)
    told "held"
    slow:send "go"
    assert.equal(0, slow:call("get"))
    helper.silence() -- the late reply does not come
    _, err = gen_server.call("nobody", "get")
    assert.equal("noproc", err)
    gen_server.stop(server)
    told "terminate"
    _, err = server:call("get")
    assert.equal("noproc", err)
    do_in(slow, function(self)
      local _, why = gen_server.call(troupe.self(), "get")
      self:tell("self", why)
    end)
    assert.equal("calling_self", told "self")
    gen_server.stop(slow)
  end)

  helper.actor("a server that dies fails the call under way and those queued", function()
    local server = start(nil, { mailbox = { limit = 100 } })
    local me = troupe.self()
    local function call(request)
      troupe.spawn(function()
        local value, err = gen_server.call(server, request, math.huge)
        troupe.send(me, { value = value, err = err })
      end)
    end
    call "hold"
    told "held"
    call "get"
    call "get"
    while troupe.info(server).mailbox < 2 do
      troupe.yield()
    end
    troupe.exit(server, { why = "test" })
    for _ = 1, 3 do
      assert.same({ err = { why = "test" } }, helper.receive())
    end
  end)

  helper.actor("the caller gets the failure of the callback", function()
    local server = start()
    local value, err = server:call("error")
    assert.is_nil(value)
    assert.equal("error", err.kind)
    assert.equal("no luck", err.message)
    assert.matches("handle_call", err.traceback)
    assert.equal("no luck", told("terminate").message)
  end)

  helper.actor("replies later, from another callback", function()
    local server = start()
    assert.equal("deferred", server:call({ "defer", 0.02 }))
    assert.equal("early", server:call("early"))
    gen_server.stop(server)
  end)

  helper.actor("another actor may reply in the server's stead", function()
    local B = gen_server.behaviour "front"
    function B.handle_call(_, request, from)
      troupe.spawn(function() gen_server.reply(from, "done: " .. request) end)
      return gen_server.noreply
    end
    local server = assert(gen_server.start(B))
    assert.equal("done: work", gen_server.call(server, "work"))
    gen_server.stop(server)
  end)

  helper.actor("a server that forgets to reply: no_reply, also when it is idle", function()
    local server = start()
    local value, err = server:call("forget", SOON)
    assert.is_nil(value)
    assert.equal("no_reply", err)
    gen_server.stop(server)
  end)

  helper.actor("noreply, stop_with and continue work as upvalues of a copied behaviour", function()
    local noreply, continue, stop_with =
      gen_server.noreply, gen_server.continue, gen_server.stop_with
    local B = {}
    function B:handle_call(request, from)
      self.from = from
      if request == "stop" then
        return stop_with("normal", "stopped")
      end
      return noreply, continue("go")
    end
    function B:handle_continue(x) gen_server.reply(self.from, x) end
    local server = assert(gen_server.start(B))
    assert.equal("go", server:call("x"))
    assert.equal("stopped", server:call("stop"))
  end)

  helper.actor("continue runs before anything else", function()
    local server = start("continue")
    server:send("next")
    assert.equal("first", told "continue")
    assert.equal("next", told "info")
    server:send("before")
    assert.equal("before", told "info")
    assert.equal("replied", server:call("continue"))
    assert.equal("later", told "continue")
    gen_server.stop(server)
  end)

  helper.actor("a wrong return names callback and value", function()
    local cases = {
      { "call", "wrong", "probe:handle_call returned 42 (a number)" },
      { "cast", "wrong", 'probe:handle_cast returned "unexpected" (a string)' },
      { "call", "function_", "probe:handle_call returned a reply that cannot be sent: reply.f" },
    }
    for _, case in ipairs(cases) do
      local kind, request, text = unpack(case)
      local server = start()
      local ref = troupe.monitor(server)
      gen_server[kind](server, request)
      assert.matches(text, told("terminate").message, 1, true)
      assert.matches(text, helper.down(ref).message, 1, true)
    end
  end)

  helper.actor("the defaults: calls and casts fail, other messages are logged", function()
    local server = assert(gen_server.start(gen_server.behaviour "bare"))
    server:send("what?")
    local _, err = server:call("hello")
    assert.matches('bare does not answer calls.*"hello"', err.message)
    server = assert(gen_server.start({}))
    local ref = troupe.monitor(server)
    server:cast("hello")
    assert.matches("takes no casts", helper.down(ref).message)
  end)

  helper.actor("multi_call asks all members of a group at once", function()
    local pg = require "troupe.pg"
    local servers = {}
    for i = 1, 3 do
      servers[i] = start()
      servers[i]:cast(i)
      pg.join("spec.multi", servers[i])
    end
    local replies, failures = gen_server.multi_call("spec.multi", "get")
    assert.same({ [servers[1]] = 1, [servers[2]] = 2, [servers[3]] = 3 }, replies)
    assert.same({}, failures)
    servers[2]:cast({ run = function() troupe.receive_match { never = true } end })
    local timeout = 0.2
    repeat -- until it is long enough for the others
      replies, failures = gen_server.multi_call(servers, { "sleep", 0.1 }, timeout)
      timeout = timeout * 4
    until timeout > SOON or replies[servers[1]] and replies[servers[3]]
    assert.same({ [servers[1]] = "slept", [servers[3]] = "slept" }, replies)
    assert.same({ [servers[2]] = "timeout" }, failures)
    for i = 1, 3 do servers[i]:kill() end
  end)

  -- ----------------------------------------------------------------- timers

  helper.actor("timers: in order of time, once; a cancelled one does not fire", function()
    local server = start()
    do_in(server, function(self)
      self:start_timer(0.06, "third")
      self:start_timer(0.02, "first")
      local id = self:start_timer(0.03, "never")
      self:start_timer(0.04, "second")
      self:tell("cancelled", self:cancel_timer(id))
      self:tell("again", self:cancel_timer(id))
    end)
    assert.is_true(told "cancelled")
    assert.is_false(told "again")
    for _, name in ipairs { "first", "second", "third" } do
      assert.equal(name, told "timer")
    end
    gen_server.stop(server)
    told "terminate"
    helper.silence()
  end)

  helper.actor("a timer keeps its message as it is", function()
    local server = start()
    do_in(server, function(self)
      self:start_timer(0.01, setmetatable({}, { __tostring = function() return "mine" end }))
      self.handle_timer = function(s, message) s:tell("timer", tostring(message)) end
    end)
    assert.equal("mine", told "timer")
    gen_server.stop(server)
  end)

  helper.actor("an interval fires again, leaves out what it missed, and is cancelled", function()
    local server = start()
    do_in(server, function(self)
      self.interval = self:start_interval(0.02, "tick")
    end)
    for _ = 1, 3 do
      assert.equal("tick", told "timer")
    end
    do_in(server, function(self)
      troupe.sleep(0.4)
      self:tell("slept")
    end)
    do_in(server, function(self)
      self:cancel_timer(self.interval)
      self:tell("cancelled")
    end)
    local ticks = 0
    repeat
      local what = helper.receive().what
      ticks = what == "slept" and 0 or ticks + 1
    until what == "cancelled"
    assert.is_true(ticks <= 6, ticks .. " ticks")
    helper.silence(0.05)
    gen_server.stop(server)
  end)

  helper.actor("many timers, most of them cancelled", function()
    local server = start()
    do_in(server, function(self)
      local keep
      for i = 1, 5000 do
        local id = self:start_timer(0.3 + (i * 7919 % 1000) / 1000)
        if i == 2500 then
          keep = self:start_timer(0.05, "kept")
        end
        self:cancel_timer(id)
      end
      self.keep = keep
    end)
    assert.equal("kept", told "timer")
    gen_server.stop(server)
  end)

  helper.actor("due timers come before the mailbox, stop before both", function()
    local server = start()
    local function be_busy(self)
      self:start_timer(0.01, "due")
      self:tell("busy")
      helper.await_go()
      troupe.sleep(0.02)
    end
    do_in(server, be_busy)
    told "busy"
    server:send("mail")
    server:send("go")
    assert.equal("due", told "timer")
    assert.equal("mail", told "info")
    do_in(server, be_busy)
    told "busy"
    for i = 1, 100 do
      server:send(i)
    end
    local stopping = troupe.task(function() return gen_server.stop(server, "shutdown") end)
    helper.parked(stopping.pid)
    server:send("go")
    assert.is_true(stopping:await(SOON))
    assert.equal("shutdown", told "terminate")
    helper.silence()
  end)

  helper.actor("a timer of 0 seconds that is set again and again starves nobody", function()
    local server = start()
    do_in(server, function(self)
      self.handle_timer = function(s) s:start_timer(0) end
      self:start_timer(0)
    end)
    assert.equal(0, server:call("get"))
    assert.is_true(gen_server.stop(server))
  end)

  helper.actor("idle_timeout: once in each quiet time", function()
    local server = start()
    do_in(server, function(self) self:idle_timeout(0.05) end)
    told "timeout"
    helper.silence(0.15)
    server:call("get")
    told "timeout"
    do_in(server, function(self) self:idle_timeout(nil) end)
    helper.silence(0.1)
    gen_server.stop(server)
  end)

  helper.actor("idle_timeout: messages put it off", function()
    local server = start()
    do_in(server, function(self)
      self.handle_timeout = function(s) s:tell("quiet", troupe.now() - s.touched) end
      self.touched = troupe.now()
      self:idle_timeout(0.3)
    end)
    for _ = 1, 5 do
      troupe.sleep(0.1)
      do_in(server, function(self) self.touched = troupe.now() end)
    end
    assert.is_true(told "quiet" >= 0.3)
    gen_server.stop(server)
  end)

  -- --------------------------------------------------------------- channels

  -- Tells what it gets; "pause" lets the test fill all inboxes.
  local function teller(...)
    local B = gen_server.behaviour "teller"
    function B:init(to, ...)
      self.to = to
      for _, rx in ipairs { ... } do
        self:add_channel(rx)
      end
    end
    function B:handle_info(message) troupe.send(self.to, message) end
    function B:handle_timer(message) troupe.send(self.to, message) end
    function B:handle_timeout() troupe.send(self.to, "idle") end
    function B:handle_cast(seconds)
      self:start_timer(seconds, "timer")
      troupe.send(self.to, "paused")
      troupe.receive_match(function(m) return m == "go" end)
    end
    function B:handle_call(seconds) self:idle_timeout(seconds) end
    return assert(gen_server.start(B, { troupe.self(), ... }))
  end

  helper.actor("channels: values are for handle_info, after timers, before mail", function()
    local tx1, rx1 = troupe.channel()
    local tx2, rx2 = troupe.channel(10)
    local server = teller(rx1, rx2)
    server:cast(0)
    assert.equal("paused", (helper.receive()))
    server:send "mail"
    tx2:send "second"
    tx1:send "first"
    tx1:send(false)
    server:send "go"
    for _, expected in ipairs { "timer", "first", false, "second", "mail" } do
      assert.equal(expected, (helper.receive()))
    end
    -- And where it sleeps for one of them.
    for i = 1, 3 do
      helper.parked(server)
      tx1:send(i)
      assert.equal(i, (helper.receive()))
      helper.parked(server)
      server:send(-i)
      assert.equal(-i, (helper.receive()))
    end
    gen_server.stop(server)
    assert.same({ nil, "closed" }, { tx1:send(1) })
  end)

  helper.actor("channels: stop comes before what they hold", function()
    local tx, rx = troupe.channel()
    local server = teller(rx)
    server:cast(60)
    assert.equal("paused", (helper.receive()))
    for i = 1, 10 do
      tx:send(i)
    end
    local stopping = troupe.task(function() return gen_server.stop(server) end)
    helper.parked(stopping.pid)
    server:send "go"
    assert.is_true(stopping:await(helper.DEADLINE))
    helper.silence()
  end)

  helper.actor("channels: a closed one is forgotten; values count for the idle timeout", function()
    local tx, rx = troupe.channel()
    local server = teller(rx)
    tx:send "last"
    tx:close()
    assert.equal("last", (helper.receive()))
    server:send "mail"
    assert.equal("mail", (helper.receive()))
    local tx2, rx2 = troupe.channel()
    local other = teller(rx2)
    other:call(0.01)
    assert.equal("idle", (helper.receive()))
    tx2:send "awake"
    assert.equal("awake", (helper.receive()))
    assert.equal("idle", (helper.receive()))
    helper.silence(0.03)
    gen_server.stop(server)
    gen_server.stop(other)
  end)

  helper.actor("channels: only a receiver will do, and once", function()
    local tx, rx = troupe.channel()
    local server = start()
    local me = troupe.self()
    do_in(server, function(self)
      troupe.send(me, select(2, pcall(self.add_channel, self, tx)))
      self:add_channel(rx)
      troupe.send(me, select(2, pcall(self.add_channel, self, rx)))
    end)
    assert.matches("receiver expected, got userdata", (helper.receive()))
    assert.matches("it was added before", (helper.receive()))
    gen_server.stop(server)
  end)

  -- ------------------------------------------------------- monitors, exits

  helper.actor("self:monitor brings handle_down; a foreign down is an info", function()
    local server = start()
    local victim = idler()
    troupe.send(server, "x")
    told "info"
    do_in(server, function(self)
      self:monitor(victim)
      self:tell("ready")
    end)
    told "ready"
    troupe.exit(victim, "victim's reason")
    local down = told "down"
    assert.equal(victim, down.pid)
    assert.equal("victim's reason", down.reason)
    server:send({ type = "down", ref = down.ref, pid = victim, reason = "forged" })
    assert.equal("forged", told("info").reason)
    local other = idler()
    do_in(server, function(self)
      self:demonitor(self:monitor(other))
      troupe.monitor(other)
      self:tell("ready")
    end)
    told "ready"
    other:kill()
    assert.equal("down", told("info").type)
    helper.silence()
    gen_server.stop(server)
  end)

  helper.actor("terminate runs on a trapped exit of the parent, before queued mail", function()
    local me = troupe.self()
    local parent = troupe.spawn(function()
      local server = assert(gen_server.start_link(Probe, { me, "trap" }))
      troupe.send(me, server)
      troupe.receive()
      server:cast({ run = helper.await_go })
      for i = 1, 10 do server:send(i) end
      troupe.exit("parent's reason")
    end)
    local server = helper.receive()
    local ref = troupe.monitor(server)
    parent:send("go")
    helper.ended(parent)
    server:send("go")
    assert.equal("parent's reason", told "terminate")
    assert.equal("parent's reason", helper.down(ref))
  end)

  helper.actor("other trapped exits are infos; untrapped ones end it without terminate", function()
    local server = start("trap")
    local other = idler()
    do_in(server, function(self)
      troupe.link(other)
      self:tell("linked")
    end)
    told "linked"
    troupe.exit(other, "gone")
    local message = told "info"
    assert.same({ "exit", other, "gone" }, { message.type, message.pid, message.reason })
    gen_server.stop(server)
    told "terminate"
    server = start()
    local ref = troupe.monitor(server)
    troupe.exit(server, "away")
    assert.equal("away", helper.down(ref))
    helper.silence()
  end)

  -- ------------------------------------------------------------------- stop

  helper.actor("stop_with: terminate, the reply, the reason", function()
    local server = start()
    local ref = troupe.monitor(server)
    assert.equal("bye", server:call("stop"))
    assert.equal("normal", told "terminate")
    assert.equal("normal", helper.down(ref))
    server = start()
    local _, err = server:call("stop_silently")
    assert.same({ why = "enough" }, err)
    assert.same({ why = "enough" }, told "terminate")
    server = start()
    ref = troupe.monitor(server)
    server:cast("stop")
    told "terminate"
    assert.equal("done", helper.down(ref))
  end)

  helper.actor("stop: its results", function()
    local server = start()
    assert.is_true(gen_server.stop(server, { any = "reason" }))
    assert.same({ any = "reason" }, told "terminate")
    assert.same({ nil, "noproc" }, { gen_server.stop(server) })
    assert.same({ nil, "noproc" }, { gen_server.stop("nobody") })
    server = start()
    do_in(server, function(self)
      self:tell("busy")
      troupe.sleep(60)
    end)
    told "busy"
    local _, err = gen_server.stop(server, "normal", 0.05)
    assert.equal("timeout", err)
    server:kill()
    server = start()
    do_in(server, function(self)
      self:tell("self", { pcall(function() gen_server.stop(troupe.self()) end) })
    end)
    assert.matches("gen_server_spec.lua:%d+: .*stop_with", told("self")[2])
    gen_server.stop(server)
  end)

  helper.actor("exit in a callback: terminate runs first, wherever it was called", function()
    local ways = {
      function() troupe.exit { why = "own" } end,
      function() pcall(troupe.exit, { why = "own" }) end,
      function() coroutine.wrap(function() troupe.exit { why = "own" } end)() end,
    }
    for _, way in ipairs(ways) do
      local server = start()
      local ref = troupe.monitor(server)
      do_in(server, way)
      assert.same({ why = "own" }, told "terminate")
      assert.same({ why = "own" }, helper.down(ref))
    end
    local server = start()
    local ref = troupe.monitor(server)
    do_in(server, function() troupe.exit() end)
    assert.equal("normal", told "terminate")
    assert.equal("normal", helper.down(ref))
    helper.silence() -- it ran once each
  end)

  helper.actor("exit in terminate has the last word; a signal of its own runs none", function()
    local server = assert(gen_server.start({
      handle_cast = function() return gen_server.stop_with "first" end,
      terminate = function() troupe.exit "second" end,
    }))
    local ref = troupe.monitor(server)
    server:cast "end"
    assert.equal("second", helper.down(ref))
    server = start()
    ref = troupe.monitor(server)
    do_in(server, function() troupe.exit(troupe.self(), "signal") end)
    assert.equal("signal", helper.down(ref))
    helper.silence()
  end)

  helper.actor("exit with what cannot be sent: terminate gets it, others its text", function()
    local me = troupe.self()
    local server = assert(gen_server.start({
      handle_cast = function() troupe.exit(coroutine.create(print)) end,
      terminate = function(_, reason) troupe.send(me, type(reason)) end,
    }))
    local ref = troupe.monitor(server)
    server:cast "end"
    assert.equal("thread", (helper.receive()))
    assert.matches("^thread: ", helper.down(ref))
  end)

  helper.actor("exit in init: start returns the reason, and no link tells of it", function()
    troupe.trap_exit(true)
    local B = { init = function() troupe.exit "not today" end }
    assert.same({ nil, "not today" }, { gen_server.start_link(B) })
    assert.same({ nil, "not today" }, { gen_server.start(B) })
    helper.silence()
  end)

  helper.actor("an error in terminate is the reason; the reply still goes out", function()
    local server = start()
    local ref = troupe.monitor(server)
    server:cast(-1)
    assert.equal("bye", server:call("stop"))
    local reason = helper.down(ref)
    assert.equal("error", reason.kind)
    assert.equal("terminate failed", reason.message)
  end)

  helper.actor("an error in any callback: terminate gets it, the link carries it", function()
    troupe.trap_exit(true)
    local server = assert(gen_server.start_link(Probe, { troupe.self() }))
    server:cast("error")
    assert.equal("cast failed", told("terminate").message)
    local message = troupe.receive_match({ type = "exit", pid = server }, SOON)
    assert.equal("error", message.reason.kind)
    assert.equal("cast failed", message.reason.value)
  end)

  helper.it("an error is logged once, with the behaviour's name and the traceback", function()
    local result = helper.run_script([[
      local gen_server = require "troupe.gen_server"
      local B = gen_server.behaviour "fragile"
      function B:handle_call() error("crack") end
      local server = assert(gen_server.start(B, {}, { name = "glass" }))
      print(select(2, server:call("x")).kind)
    ]], { env = { TROUPE_LOG = "info" } })
    assert.equal("error\n", result.out)
    assert.equal(1, helper.count(result.err, "ended by an error"))
    assert.matches("glass", result.err)
    assert.matches("fragile", result.err)
    assert.matches("main.lua:3", result.err)
  end)

  helper.actor("memory and stack overflow end the server as they end any actor", function()
    local B = {}
    function B:handle_call(request)
      if request == "memory" then
        local t = {}
        while true do t[#t + 1] = ("x"):rep(1000) .. #t end
      end
      local function down() return ("x"):gsub("x", down) end
      return (down())
    end
    local server = assert(gen_server.start(B, {}, { memory_limit = 4e6 }))
    local _, err = server:call("memory")
    assert.equal("memory", err.kind)
    server = assert(gen_server.start(B))
    _, err = server:call("overflow")
    assert.is_truthy(err.kind == "stack_overflow" or err.kind == "error")
  end)
end)
