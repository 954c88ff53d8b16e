--- troupe.process: child processes.

local helper = require "spec.helper"
local process = require "troupe.process"
local troupe = require "troupe"

local eventually = helper.eventually

-- A process of that number is there, be it as a zombie.
local function is_there(pid)
  local f = io.open("/proc/" .. pid .. "/stat")
  if f then
    f:close()
  end
  return f ~= nil
end

-- The same of one that is no child of ours: a zombie is its parent's business.
local function runs(pid)
  local f = io.open("/proc/" .. pid .. "/stat")
  local state = f and f:read("*a"):match "%) (%a)"
  if f then
    f:close()
  end
  return state ~= nil and state ~= "Z"
end

describe("troupe.process.spawn", function()
  helper.actor("starts a command, with pipes as connections", function()
    local p = assert(process.spawn { "cat" })
    assert.is_true(p.pid > 0 and is_there(p.pid))
    assert.equal(("troupe.process (%d)"):format(p.pid), tostring(p))
    assert(p.stdin:write "one\ntwo\n")
    assert.equal("one", p.stdout:read "line")
    assert.equal("two", p.stdout:read "line")
    assert.is_nil(p.stderr)
    assert.same({ nil, "timeout" }, { p.stdout:read("line", 0.001) })
    assert(p.stdin:shutdown "send")
    assert.equal("", p.stdout:read "all")
    assert.equal(0, p:wait(helper.DEADLINE))
    assert.is_false(is_there(p.pid))
  end)

  helper.actor("tells its end by a message", function()
    local p = assert(process.spawn { "sh", "-c", "exit 7" })
    local message, from, kind = troupe.receive(helper.DEADLINE)
    assert.same({ type = "process_exit", pid = p.pid, ref = p.ref, status = 7 }, message)
    assert.is_nil(from)
    assert.equal("process", kind)
    assert.is_false(is_there(p.pid))
    for _ = 1, 2 do
      assert.same({ 7 }, { p:wait() })
    end
    p = assert(process.spawn { "sh", "-c", "kill -9 $$" })
    assert.same({ type = "process_exit", pid = p.pid, ref = p.ref, signal = 9 }, (helper.receive()))
    assert.same({ nil, "signal", 9 }, { p:wait() })
  end)

  helper.actor("wait takes the message, and leaves others", function()
    local me = troupe.self()
    local a = assert(process.spawn { "sh", "-c", "read x; exit 1" })
    local b = assert(process.spawn { "sh", "-c", "read x; exit 2" })
    troupe.send(me, "mine")
    assert.same({ nil, "timeout" }, { a:wait(0) })
    assert.same({ nil, "timeout" }, { a:wait(0.001) })
    a.stdin:close()
    b.stdin:close()
    assert.equal(2, b:wait(helper.DEADLINE))
    assert.equal(1, a:wait(helper.DEADLINE))
    assert.equal("mine", helper.receive())
    helper.silence()
  end)

  helper.actor("gives the child its arguments as they are", function()
    local words = { "a b", "", "'\"$HOME\\", "*", "\n", 5 }
    local p = assert(process.spawn { "printf", "<%s>", unpack(words) })
    assert.equal("<" .. table.concat(words, "><") .. ">", p.stdout:read "all")
    assert.equal(0, p:wait(helper.DEADLINE))
  end)

  helper.actor("sets cwd and changes the environment", function()
    local p = assert(process.spawn { "sh", "-c", "pwd; echo $ADDED; echo ${HOME-none}; echo $PATH",
      cwd = "/", env = { ADDED = "x=y z", HOME = false } })
    assert.equal(("/\nx=y z\nnone\n%s\n"):format(os.getenv "PATH"), p.stdout:read "all")
    p:wait(helper.DEADLINE)
  end)

  helper.actor("lets the child have no descriptor and no signal mask of ours", function()
    local ours = assert(io.open("/dev/null"))
    local p = assert(process.spawn { "grep", "-E", "SigBlk|SigIgn", "/proc/self/status",
      stdin = "null" })
    local out = p.stdout:read "all"
    local blocked, ignored = out:match "SigBlk:%s*(%x+)\nSigIgn:%s*(%x+)"
    assert.matches("^0+$", blocked)
    -- But for the two that the C library keeps to itself.
    assert.matches("^0+$", (ignored:gsub("180000000$", "")))
    p:wait(helper.DEADLINE)
    p = assert(process.spawn { "ls", "/proc/self/fd", stdin = "null" })
    assert.equal("0\n1\n2\n3\n", p.stdout:read "all") -- 3: the folder itself
    ours:close()
    p:wait(helper.DEADLINE)
  end)

  helper.actor("stderr may be a pipe of its own, or go where stdout goes", function()
    local p = assert(process.spawn { "sh", "-c", "echo out; echo err >&2", stderr = "pipe",
      stdin = "null" })
    assert.is_nil(p.stdin)
    assert.equal("out\n", p.stdout:read "all")
    assert.equal("err\n", p.stderr:read "all")
    p:wait(helper.DEADLINE)
    p = assert(process.spawn { "sh", "-c", "echo out; echo err >&2", stderr = "stdout" })
    assert.equal("out\nerr\n", p.stdout:read "all")
    assert.is_nil(p.stderr)
    p:wait(helper.DEADLINE)
    p = assert(process.spawn { "sh", "-c", "cat; echo x; echo y >&2", stdin = "null",
      stdout = "null", stderr = "null" })
    assert.equal(0, p:wait(helper.DEADLINE))
  end)

  helper.actor("moves megabytes, either way", function()
    local n = 4 * 2 ^ 20
    local p = assert(process.spawn { "wc", "-c" })
    assert(p.stdin:write(("0123456789abcdef"):rep(n / 16)))
    p.stdin:close()
    assert.equal(n, tonumber((p.stdout:read "all")))
    assert.equal(0, p:wait(helper.DEADLINE))
    p = assert(process.spawn { "head", "-c", tostring(n), "/dev/zero" })
    assert.equal(n, #p.stdout:read "all")
    assert.equal(0, p:wait(helper.DEADLINE))
  end)

  helper.actor("has pipes that move to other actors like any connection", function()
    local n = 2 ^ 20
    local p = assert(process.spawn { "cat" })
    troupe.spawn(function(stdin)
      assert(stdin:write(("0123456789abcdef"):rep(n / 16)))
      stdin:close()
    end, p.stdin)
    assert.equal(n, #p.stdout:read "all")
    assert.equal(0, p:wait(helper.DEADLINE))
  end)

  helper.actor("a write to one that has closed its end is nil, closed", function()
    local p = assert(process.spawn { "true" })
    assert.equal(0, p:wait(helper.DEADLINE))
    assert.same({ nil, "closed", 0 }, { p.stdin:write "x" })
  end)

  helper.actor("says what the system says when it cannot start", function()
    assert.same({ nil, "ENOENT" }, { process.spawn { "no-such-command" } })
    assert.same({ nil, "ENOENT" }, { process.spawn { "/no/such/command" } })
    assert.same({ nil, "EACCES" }, { process.spawn { "/etc/passwd" } })
    assert.same({ nil, "ENOENT" }, { process.spawn { "true", cwd = "/no/such/folder" } })
    helper.silence()
  end)

  helper.actor("names the argument that is wrong", function()
    local function complains(text, ...)
      local ok, err = pcall(process.spawn, ...)
      assert.is_false(ok)
      assert.matches(text, err, 1, true)
    end
    complains("bad argument #1 to 'spawn' (table expected, got no value)")
    complains("bad argument #1 to 'spawn' (table expected, got string)", "ls")
    complains("the command is missing", {})
    complains("argument 2 must be a string, not table", { "ls", {} })
    complains("without zero bytes", { "l\0s" })
    complains("without zero bytes", { "ls", env = { A = "\0" } })
    complains("'A=B' cannot be a name", { "ls", env = { ["A=B"] = "x" } })
    complains("a value in env must be a string", { "ls", env = { A = true } })
    complains("unknown option 'shell'", { "ls", shell = true })
    complains("option 'stdin' must be", { "ls", stdin = "stdout" })
    helper.silence()
  end)
end)

describe("a process", function()
  helper.actor("gets signals, by number or name, and its group too", function()
    for signal, number in pairs { [15] = 15, TERM = 15, SIGINT = 2, KILL = 9 } do
      local p = assert(process.spawn { "sleep", "1000" })
      assert.is_true(p:kill(signal))
      assert.same({ nil, "signal", number }, { p:wait(helper.DEADLINE) })
      assert.same({ nil, "noproc" }, { p:kill() })
    end
    local p = assert(process.spawn { "sh", "-c", "sleep 1000 & echo $!; wait" })
    local grandchild = p.stdout:read "line"
    assert.is_true(p:kill())
    assert.same({ nil, "signal", 15 }, { p:wait(helper.DEADLINE) })
    eventually(function() return not runs(grandchild) end)
    assert.has_error(function() p:kill "NOSUCH" end)
    assert.has_error(function() p:kill(65) end)
    assert.has_error(function() p:wait "x" end)
  end)

  helper.actor("is killed and reaped when its owner ends, however that is", function()
    local function with_child(how)
      local me = troupe.self()
      local pid, ref = troupe.spawn_monitor(function()
        local p = assert(require("troupe.process").spawn { "sleep", "1000" })
        troupe.send(me, p.pid)
        if how == "error" then
          error "broken"
        elseif how == "wait" then
          troupe.receive()
        elseif how == "overflow" then
          local function f() return ("x"):gsub("x", f) end
          f()
        end
      end)
      return pid, ref, helper.receive()
    end
    for _, how in ipairs { "return", "error", "wait", "overflow" } do
      local pid, ref, child = with_child(how)
      if how == "wait" then
        troupe.kill(pid)
      end
      helper.down(ref)
      eventually(function() return not is_there(child) end)
    end
  end)

  helper.actor("that ignores SIGTERM is killed with its owner all the same", function()
    local me = troupe.self()
    local pid = troupe.spawn(function()
      local p = assert(require("troupe.process").spawn {
        "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done" })
      p.stdout:read "line"
      p:kill "TERM"
      troupe.send(me, p.pid)
      troupe.receive()
    end)
    local child = helper.receive()
    assert.is_true(is_there(child))
    troupe.kill(pid)
    eventually(function() return not is_there(child) end)
  end)

  -- Runs in the child: joins the group of its parent, which is not its own.
  local LEAVES = [[
    local ffi = require "ffi"
    ffi.cdef "int setpgid(int, int); int getpgid(int); int getppid(void); int sleep(int);"
    assert(ffi.C.setpgid(0, ffi.C.getpgid(ffi.C.getppid())) == 0)
    io.write "left\n"
    io.flush()
    ffi.C.sleep(1000)
  ]]

  helper.actor("that has left its group gets signals, and ends with its owner", function()
    local p = assert(process.spawn { "luajit", "-e", LEAVES })
    assert.equal("left", p.stdout:read("line", helper.DEADLINE))
    assert.is_true(p:kill())
    assert.same({ nil, "signal", 15 }, { p:wait(helper.DEADLINE) })
    assert.same({ nil, "noproc" }, { p:kill() })
    local me = troupe.self()
    local pid = troupe.spawn(function(leaves)
      local child = assert(require("troupe.process").spawn { "luajit", "-e", leaves })
      child.stdout:read "line"
      troupe.send(me, child.pid)
    end, LEAVES)
    local child = helper.receive()
    helper.ended(pid)
    eventually(function() return not is_there(child) end)
  end)

  helper.actor("that has left its group is signalled with what stayed there", function()
    local p = assert(process.spawn { "sh", "-c",
      'sleep 1000 & echo $!; exec luajit -e "$0"', LEAVES })
    local grandchild = p.stdout:read("line", helper.DEADLINE)
    assert.equal("left", p.stdout:read("line", helper.DEADLINE))
    assert.is_true(p:kill())
    assert.same({ nil, "signal", 15 }, { p:wait(helper.DEADLINE) })
    eventually(function() return not runs(grandchild) end)
  end)

  helper.actor("goes on when its handle is collected", function()
    do
      local p = assert(process.spawn { "sh", "-c", "read x; exit 4" })
      local stdin = p.stdin
      p = nil -- luacheck: ignore
      collectgarbage()
      collectgarbage()
      stdin:close()
    end
    assert.equal(4, helper.receive().status)
  end)

  helper.it("does not outlive the run", function()
    local child
    troupe.run(function()
      child = assert(process.spawn { "sleep", "1000" }).pid
    end)
    assert.is_false(is_there(child))
    local ok = pcall(troupe.run, function()
      local me = troupe.self()
      troupe.spawn(function()
        troupe.send(me, assert(require("troupe.process").spawn { "sleep", "1000" }).pid)
        troupe.receive()
      end)
      child = helper.receive()
      error "stop"
    end, { schedulers = 2 })
    assert.is_false(ok)
    assert.is_false(is_there(child))
  end)

  helper.actor("of many at once: each end is told once", function()
    local n, seen = 40, {}
    for i = 1, n do
      assert(process.spawn { "sh", "-c", "exit " .. i, stdin = "null", stdout = "null" })
    end
    for _ = 1, n do
      local m = helper.receive()
      assert.equal("process_exit", m.type)
      assert.is_nil(seen[m.status])
      seen[m.status] = true
      assert.is_false(is_there(m.pid))
    end
    helper.silence()
  end)

  helper.actor("works for gen_server as any message", function()
    local gen_server = require "troupe.gen_server"
    local me = troupe.self()
    local B = gen_server.behaviour "spawner"
    function B:init(to)
      self.to = to
      self.process = assert(require("troupe.process").spawn { "sh", "-c", "exit 5" })
    end
    function B:handle_info(message)
      troupe.send(self.to, message.status)
    end
    local pid = assert(gen_server.start(B, { me }))
    assert.equal(5, helper.receive())
    gen_server.stop(pid)
  end)
end)

describe("troupe.process.run", function()
  helper.actor("runs a line of the shell, or a command", function()
    assert.same({ "hi\n", 3 }, { process.run "echo hi; exit 3" })
    assert.same({ "a b", 0 }, { process.run { "printf", "%s", "a b" } })
    assert.same({ "", nil, 9 }, { process.run "kill -9 $$" })
    assert.same({ nil, "ENOENT" }, { process.run { "no-such-command" } })
    assert.same({ "", 127 }, { process.run("no-such-command", { stderr = "null" }) })
    helper.silence()
  end)

  helper.actor("feeds it input, more than a pipe holds", function()
    local input = ("line\n"):rep(100000)
    assert.same({ "100000\n", 0 }, { process.run("wc -l | tr -d ' '", { input = input }) })
    local output = process.run({ "cat" }, { input = input })
    assert.is_true(output == input)
    assert.same({ "", 0 }, { process.run { "cat" } })
    assert.same({ "", 0 }, { process.run("true", { input = input }) })
  end)

  helper.actor("takes stderr, cwd, env", function()
    assert.same({ "x\n/\n", 0 }, { process.run("echo $V >&2; pwd", { stderr = "stdout", cwd = "/",
      env = { V = "x" } }) })
  end)

  helper.actor("ends what takes too long, and all that it has started", function()
    local output, err, partial = process.run("echo $$; sleep 1000 & echo $!; wait",
      { timeout = 0.3 })
    assert.is_nil(output)
    assert.equal("timeout", err)
    for pid in partial:gmatch "%d+" do
      eventually(function() return not runs(pid) end)
    end
    helper.silence()
  end)

  helper.actor("names the argument that is wrong", function()
    local _, err = pcall(process.run)
    assert.matches("bad argument #1 to 'run'", err, 1, true)
    _, err = pcall(process.run, "x", { limit = 1 })
    assert.matches("unknown option 'limit'", err, 1, true)
    _, err = pcall(process.run, "x", { timeout = 0 / 0 })
    assert.matches("option 'timeout' must be", err, 1, true)
  end)
end)
