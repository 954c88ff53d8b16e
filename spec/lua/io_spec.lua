--- Waits for file descriptors.

local helper = require "spec.helper"
local troupe = require "troupe"
local ffi = require "ffi"

ffi.cdef [[
  int pipe2(int fds[2], int flags);
  int socketpair(int domain, int type, int protocol, int fds[2]);
  int close(int fd);
  intptr_t read(int fd, void *to, size_t size);
  intptr_t write(int fd, const void *from, size_t size);
]]

local C = ffi.C
local O_NONBLOCK, O_CLOEXEC = 0x800, 0x80000
local T = helper.DEADLINE

-- Each actor has a Lua state of its own, which declares C functions again.
local function c()
  local f = require "ffi"
  pcall(f.cdef, [[
    int close(int fd);
    intptr_t read(int fd, void *to, size_t size);
    intptr_t write(int fd, const void *from, size_t size);
  ]])
  return f.C, f
end

local function pipe()
  local fds = ffi.new "int[2]"
  assert(C.pipe2(fds, O_NONBLOCK + O_CLOEXEC) == 0)
  return fds[0], fds[1]
end

local function pair()
  local fds = ffi.new "int[2]"
  assert(C.socketpair(1, 1 + O_NONBLOCK + O_CLOEXEC, 0, fds) == 0)
  return fds[0], fds[1]
end

local function close(...)
  for i = 1, select("#", ...) do
    C.close((select(i, ...)))
  end
end

local function fill(fd)
  local block = ("x"):rep(65536)
  while C.write(fd, block, #block) > 0 do end
  while C.write(fd, block, 1) > 0 do end
end

-- An actor that waits, and tells its parent what came of it.
local function waiter(name, fd, timeout)
  local parent = troupe.self()
  return troupe.spawn(function()
    parent:send { waiting = true }
    local ok, err = troupe[name](fd, timeout)
    parent:send { ok = ok or false, err = err }
  end), helper.receive()
end

-- It is about to park: then the wait is in place.
local function parked(pid)
  local deadline = troupe.now() + T
  while pid:info().state ~= "parked" do
    assert(troupe.now() < deadline, "it does not wait")
    troupe.yield()
  end
end

describe("troupe.wait_readable", function()
  helper.actor("returns true once there is something to read", function()
    local r, w = pipe()
    local pid = waiter("wait_readable", r)
    parked(pid)
    C.write(w, "x", 1)
    assert.same({ ok = true }, helper.receive())
    assert.is_true(troupe.wait_readable(r))
    assert.is_true(troupe.wait_readable(r, 0))
    close(r, w)
  end)

  helper.actor("returns true at the end of the stream", function()
    local r, w = pipe()
    local pid = waiter("wait_readable", r)
    parked(pid)
    C.close(w)
    assert.same({ ok = true }, helper.receive())
    C.close(r)
  end)

  helper.actor("returns nil, timeout when nothing comes", function()
    local r, w = pipe()
    for _, timeout in ipairs { -1, 0, 0.001 } do
      local ok, err = troupe.wait_readable(r, timeout)
      assert.is_nil(ok)
      assert.equal("timeout", err)
    end
    C.write(w, "x", 1)
    assert.is_true(troupe.wait_readable(r, 0))
    close(r, w)
  end)

  helper.actor("returns nil, busy while another actor waits", function()
    local r, w = pipe()
    local pid = waiter("wait_readable", r)
    parked(pid)
    local ok, err = troupe.wait_readable(r)
    assert.is_nil(ok)
    assert.equal("busy", err)
    C.write(w, "x", 1)
    assert.same({ ok = true }, helper.receive())
    close(r, w)
  end)

  helper.actor("returns nil, closed for a number that is no fd", function()
    local r, w = pipe()
    assert.is_true(troupe.wait_writable(w)) -- the driver has its own fds now
    close(r, w)
    for _, fd in ipairs { r, 2 ^ 31 - 1 } do
      local ok, err = troupe.wait_readable(fd)
      assert.is_nil(ok)
      assert.equal("closed", err)
    end
  end)

  helper.actor("takes a file handle of io.popen", function()
    local f = io.popen "echo hello"
    assert.is_true(troupe.wait_readable(f, T))
    assert.equal("hello", f:read "*l")
    f:close()
    assert.matches("bad argument #1 to 'wait_readable' (fd is a closed file)",
      helper.misuse("wait_readable", f), 1, true)
  end)

  helper.actor("refuses files and folders and names the way out", function()
    local f = io.open(helper.bin, "rb")
    local err = helper.misuse("wait_readable", f)
    assert.matches("bad argument #1 to 'wait_readable'", err, 1, true)
    assert.matches("troupe.blocking", err, 1, true)
    f:close()
  end)

  helper.actor("takes the null device as ready", function()
    local f = io.open("/dev/null", "r")
    assert.is_true(troupe.wait_readable(f))
    f:close()
  end)

  helper.actor("names a wrong argument", function()
    for _, fd in ipairs { "1", {}, true, -1, 1.5, 2 ^ 31, 0 / 0, newproxy(true) } do
      assert.matches("bad argument #1 to 'wait_readable' (fd ", helper.misuse("wait_readable", fd),
        1, true)
    end
    assert.matches("bad argument #1 to 'wait_readable'", helper.misuse "wait_readable", 1, true)
    assert.matches("bad argument #2 to 'wait_readable'", helper.misuse("wait_readable", 0, "1"), 1,
      true)
    assert.matches("bad argument #2 to 'wait_writable'", helper.misuse("wait_writable", 0, 0 / 0),
      1, true)
  end)

  helper.it("is refused outside of an actor", function()
    assert.is_false(pcall(troupe.wait_readable, 0))
  end)

  helper.actor("raises in a finalizer", function()
    local r, w = pipe()
    local parent = troupe.self()
    helper.ended(troupe.spawn(function()
      local p = newproxy(true)
      getmetatable(p).__gc = function()
        parent:send { pcall(troupe.wait_readable, r) }
      end
      _G.kept = p
    end))
    local answer = helper.receive()
    assert.is_false(answer[1])
    assert.matches("finalizer", answer[2], 1, true)
    close(r, w)
  end)

  helper.actor("ends when the actor is killed, and the next one can wait", function()
    local r, w = pipe()
    local pid = waiter("wait_readable", r)
    parked(pid)
    pid:kill()
    assert.equal("killed", helper.reason(pid))
    pid = waiter("wait_readable", r)
    parked(pid)
    C.write(w, "x", 1)
    assert.same({ ok = true }, helper.receive())
    close(r, w)
  end)

  helper.actor("works in callbacks, coroutines and pcall", function()
    local r, w = pipe()
    C.write(w, "x", 1)
    local co = coroutine.wrap(function() return pcall(troupe.wait_readable, r) end)
    assert.same({ true, true }, { co() })
    assert.equal("b", (("a"):gsub("a", function() return troupe.wait_readable(r) and "b" end)))
    close(r, w)
  end)

  helper.it("keeps the run alive after its root has ended", function()
    local r, w = pipe()
    local back_r, back_w = pipe()
    for n = 1, 2 do
      troupe.run(function()
        troupe.spawn(function()
          assert(troupe.wait_readable(r))
          c().write(back_w, "y", 1)
        end)
        troupe.spawn(function()
          troupe.sleep(0.001)
          c().write(w, "x", 1)
        end)
      end, { schedulers = n })
      local buf = ffi.new "char[1]"
      assert.equal(1, tonumber(C.read(back_r, buf, 1)))
      assert.equal(1, tonumber(C.read(r, buf, 1)))
    end
    close(r, w, back_r, back_w)
  end)

  it("waits for standard input", function()
    local script = [[
      local troupe = require "troupe"
      local n = 0
      troupe.spawn(function()
        while true do
          assert(troupe.wait_readable(io.stdin))
          local line = io.read "*l"
          if not line then break end
          n = n + #line
        end
        print(n)
      end)
    ]]
    local path = helper.file("main.lua", script)
    local done = helper.shell(("(echo abc; echo de) | %s run %s"):format(helper.quote(helper.bin),
      helper.quote(path)))
    assert.same({ status = 0, out = "5\n", err = "" }, done)
    script = 'print(require("troupe").wait_readable(io.stdin))'
    done = helper.run_script(script, { closed = true })
    assert.same({ status = 0, out = "nil\tclosed\n", err = "" }, done)
  end)
end)

describe("troupe.wait_writable", function()
  helper.actor("returns true once there is room", function()
    local a, b = pair()
    assert.is_true(troupe.wait_writable(a))
    fill(a)
    local ok, err = troupe.wait_writable(a, 0.001)
    assert.is_nil(ok)
    assert.equal("timeout", err)
    local pid = waiter("wait_writable", a)
    parked(pid)
    local buf = ffi.new "char[65536]"
    while C.read(b, buf, 65536) > 0 do end
    assert.same({ ok = true }, helper.receive())
    close(a, b)
  end)

  helper.actor("waits beside a reader of the same fd", function()
    local a, b = pair()
    fill(a)
    local reader = waiter("wait_readable", a)
    parked(reader)
    local writer = waiter("wait_writable", a)
    parked(writer)
    local buf = ffi.new "char[65536]"
    while C.read(b, buf, 65536) > 0 do end
    helper.ended(writer)
    assert.equal("parked", reader:info().state)
    C.write(b, "x", 1)
    helper.ended(reader)
    close(a, b)
  end)

  helper.actor("moves a megabyte through a pipe", function()
    local r, w = pipe()
    local total = 1024 * 1024
    local pid = troupe.spawn(function()
      local lib = c()
      local block, sent = ("x"):rep(10000), 0
      while sent < total do
        local n = tonumber(lib.write(w, block, math.min(#block, total - sent)))
        if n > 0 then
          sent = sent + n
        else
          assert(troupe.wait_writable(w))
        end
      end
    end)
    local buf, got = ffi.new "char[65536]", 0
    while got < total do
      local n = tonumber(C.read(r, buf, 65536))
      if n > 0 then
        got = got + n
      else
        assert(troupe.wait_readable(r, T))
      end
    end
    helper.ended(pid)
    assert.equal(total, got)
    close(r, w)
  end)
end)
