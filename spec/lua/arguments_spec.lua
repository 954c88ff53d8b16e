--- Wrong arguments: the error names the function and the argument, at the
-- caller's place.

local helper = require "spec.helper"
local troupe = require "troupe"

local NAN = 0 / 0

-- The error of code(...) with these locals: troupe, and modules by their names.
local function misuse(code, ...)
  local chunk = assert(loadstring([[
    local troupe = require "troupe"
    local net, fs = require "troupe.net", require "troupe.fs"
    local process = require "troupe.process"
    local gen_server, gen_statem = require "troupe.gen_server", require "troupe.gen_statem"
    local supervisor = require "troupe.supervisor"
    local dynamic_supervisor = require "troupe.dynamic_supervisor"
    local a, b = ...
    local unused = ]] .. code, "=misuse"))
  local ok, err = pcall(chunk, ...)
  assert.is_false(ok, code)
  return err
end

local function names(fn, text, code, ...)
  local err = misuse(code, ...)
  assert.matches("^misuse:%d+: bad argument #%d to '" .. fn .. "' %(", err)
  assert.matches(text, err, 1, true)
end

describe("a wrong argument is named", function()
  helper.actor("of the core", function()
    names("sleep", "seconds must be a number, not string", "troupe.sleep('x')")
    names("sleep", "seconds must be a number", "troupe.sleep()")
    names("sleep", "seconds must be a number", "troupe.sleep(a)", NAN)
    names("spawn_opt", "opts must be a table, not nil", "troupe.spawn_opt()")
    names("blocking", "fn must be a function, not string", "troupe.blocking('x')")
    names("trap_exit", "on must be a boolean, not number", "troupe.trap_exit(1)")
    names("demonitor", "ref must be a number, not nil", "troupe.demonitor()")
    names("cancel", "timer must be a number, not table", "troupe.cancel({})")
    names("channel", "capacity must be a number, not string", "troupe.channel('x')")
    names("select", "arms must be a table, not nil", "troupe.select()")
    names("info", "format must be a string, not table", "troupe.log.info({})")
    names("with", "fn must be a function, not nil", "a:with()", troupe.mutex(1))
  end)

  helper.actor("of tasks", function()
    local task = troupe.task(function() end)
    names("await", "timeout must be a number of seconds, not nan", "a:await(b)", task, NAN)
    names("await", "timeout must be a number of seconds, not \"x\"", "a:await('x')", task)
    names("all", "timeout must be a number of seconds", "troupe.all({ a }, 'x')", task)
    names("race", "timeout must be a number of seconds", "troupe.race({ a }, 'x')", task)
    task:await()
  end)

  helper.actor("of sockets, files and processes", function()
    local net = require "troupe.net"
    local listener, socket = net.listen(), net.udp()
    local conn = net.connect { port = listener:port() }
    names("read", "what must be a number of bytes", "a:read({})", conn)
    names("read_some", "max must be a number, not table", "a:read_some({})", conn)
    names("read_until", "bytes must be a string, not nil", "a:read_until()", conn)
    names("write", "data must be a string, not nil", "a:write()", conn)
    names("write", "data must be a string, not table", "a:write('x', {})", conn)
    names("shutdown", "what must be \"send\"", "a:shutdown('recv')", conn)
    names("shutdown", "what must be \"send\"", "a:shutdown()", conn)
    names("set_max_line", "n must be a number", "a:set_max_line()", conn)
    names("nodelay", "on must be a boolean", "a:nodelay(1)", conn)
    names("send_to", "data must be a string", "a:send_to()", socket)
    names("send_to", "host must be a string", "a:send_to('x', {})", socket)
    names("send_to", "port must be a number, not string", "a:send_to('x', '::1', 'p')", socket)
    names("send_to", "port must be an integer", "a:send_to('x', '::1', 65536)", socket)
    names("resolve", "host must be a string", "net.resolve({})")
    names("read_file", "path must be a string", "fs.read_file({})")
    names("write_file", "data must be a string", "fs.write_file('x', {})")
    local child = require("troupe.process").spawn { "true" }
    names("wait", "timeout must be a number of seconds", "a:wait('x')", child)
    child:wait()
    conn:close()
    socket:close()
    listener:close()
  end)

  helper.actor("of servers, machines and supervisors", function()
    names("stop", "pid or registered name", "gen_server.stop(nil)")
    names("stop", "timeout must be", "gen_server.stop('x', 'normal', 'x')")
    names("multi_call", "request expected", "gen_server.multi_call({})")
    names("multi_call", "timeout must be", "gen_server.multi_call({}, 1, 'x')")
    names("multi_call", "pid or registered name", "gen_server.multi_call({ 5 }, 1)")
    names("stop", "pid or registered name", "gen_statem.stop(5)")
    names("stop", "timeout must be", "gen_statem.stop('x', 'normal', 'x')")
    names("which_children", "pid or registered name", "supervisor.which_children()")
    names("terminate_child", "pid or registered name", "supervisor.terminate_child({}, 1)")
    names("start_child", "pid or registered name", "dynamic_supervisor.start_child(1)")
  end)
end)

describe("gen_server.multi_call", function()
  helper.actor("tells who asks itself", function()
    troupe.register "asks.itself"
    local me = troupe.self()
    local gen_server = require "troupe.gen_server"
    local replies, failures = gen_server.multi_call({ me, "asks.itself" }, "x")
    assert.same({}, replies)
    assert.same({ [me] = "calling_self", ["asks.itself"] = "calling_self" }, failures)
  end)
end)
