-- luacheck: no max line length
--- Waiting for the first of several things.

local ffi = require "ffi"
local helper = require "spec.helper"
local troupe = require "troupe"

ffi.cdef [[
  int pipe2(int fds[2], int flags);
  int close(int fd);
  intptr_t read(int fd, void *to, size_t size);
  intptr_t write(int fd, const void *from, size_t size);
]]

local T = helper.DEADLINE
local O_NONBLOCK, O_CLOEXEC = 0x800, 0x80000

local function pipe()
  local fds = ffi.new "int[2]"
  assert(ffi.C.pipe2(fds, O_NONBLOCK + O_CLOEXEC) == 0)
  return fds[0], fds[1]
end

local function close(...)
  for _, fd in ipairs { ... } do
    ffi.C.close(fd)
  end
end

local function write(fd)
  assert(ffi.C.write(fd, "x", 1) == 1)
end

local function read(fd)
  local to = ffi.new "char[16]"
  return tonumber(ffi.C.read(fd, to, 16))
end

describe("troupe.select", function()
  helper.actor("returns the first arm in order that is ready, and takes nothing", function()
    local tx1, rx1 = troupe.channel()
    local tx2, rx2 = troupe.channel()
    local arms = { rx1, troupe.inbox, rx2 }
    assert.same({ nil, "timeout" }, { troupe.select(arms, 0) })
    tx2:send "b"
    assert.equal(3, (troupe.select(arms)))
    troupe.send(troupe.self(), "mail")
    assert.equal(2, (troupe.select(arms)))
    tx1:send "a"
    assert.equal(1, (troupe.select(arms)))
    assert.equal(1, (troupe.select(arms)))
    assert.equal("a", (rx1:recv(0)))
    assert.equal(2, (troupe.select(arms)))
    assert.equal("mail", (troupe.receive(0)))
    assert.equal(3, (troupe.select(arms, 0)))
    assert.equal("b", (rx2:recv(0)))
    assert.same({ nil, "timeout" }, { troupe.select(arms, 0.01) })
  end)

  helper.actor("wakes for whatever comes first", function()
    local me = troupe.self()
    local tx1, rx1 = troupe.channel()
    local tx2, rx2 = troupe.channel(1)
    local function after_parked(fn)
      troupe.spawn(function()
        helper.parked(me)
        fn()
      end)
    end
    after_parked(function() tx2:send(1) end)
    assert.equal(3, (troupe.select({ rx1, troupe.inbox, rx2 }, T)))
    rx2:recv()
    after_parked(function() troupe.send(me, 1) end)
    assert.equal(2, (troupe.select({ rx1, troupe.inbox, rx2 }, T)))
    troupe.receive()
    after_parked(function() tx1:send(1) end)
    assert.equal(1, (troupe.select({ rx1, troupe.inbox, rx2 }, T)))
  end)

  helper.actor("counts a closed arm as ready", function()
    local tx1, rx1 = troupe.channel()
    local _, rx2 = troupe.channel()
    rx2:close()
    assert.equal(2, (troupe.select({ rx1, rx2 })))
    tx1:close()
    assert.equal(1, (troupe.select({ rx1, rx2 })))
  end)

  helper.actor("wakes when arms close while it waits", function()
    local me = troupe.self()
    local tx1, rx1 = troupe.channel()
    local tx2, rx2 = troupe.channel()
    local _, rx3 = troupe.channel()
    troupe.spawn(function(a, b)
      helper.parked(me)
      b:close()
      a:close()
    end, tx1, tx2)
    tx1:close()
    tx2:close()
    local index = troupe.select({ rx3, rx1, rx2 }, T)
    assert.is_true(index == 2 or index == 3)
    assert.same({ nil, "closed" }, { rx1:recv(T) })
    assert.same({ nil, "closed" }, { rx2:recv(T) })
    assert.equal(2, (troupe.select({ rx3, rx1, rx2 }, 0)))
  end)

  helper.actor("leaves nothing behind: a losing arm ends no later wait", function()
    local tx1, rx1 = troupe.channel()
    local tx2, rx2 = troupe.channel()
    tx1:send(1)
    assert.equal(2, (troupe.select { rx2, rx1 }))
    rx1:recv()
    assert.same({ nil, "timeout" }, { troupe.select({ rx1, rx2, troupe.inbox }, 0.001) })
    troupe.spawn(function()
      tx1:send(1)
      tx2:send(2)
    end)
    local start = troupe.now()
    troupe.sleep(0.03)
    assert.is_true(troupe.now() - start >= 0.03)
    assert.same({ nil, "timeout" }, { troupe.receive(0.01) })
    assert.is_true(troupe.now() - start >= 0.04)
    assert.equal(1, (rx1:recv(T)))
    assert.equal(2, (rx2:recv(T)))
  end)

  helper.actor("prefers a message to the deadline", function()
    local tx, rx = troupe.channel()
    tx:send(1)
    assert.equal(1, (troupe.select({ rx }, 0)))
    assert.equal(1, (troupe.select({ rx }, -1)))
  end)

  helper.actor("may be killed while it waits", function()
    local tx, rx = troupe.channel()
    local pid, ref = troupe.spawn_monitor(function(mine)
      local _, other = troupe.channel()
      troupe.select { troupe.inbox, other, mine }
    end, rx)
    helper.parked(pid)
    pid:kill()
    assert.equal("killed", helper.down(ref))
    assert.same({ nil, "closed" }, { tx:send(1) })
  end)

  helper.actor("does not count notices that nobody wants any more", function()
    local pid = troupe.spawn(function() end)
    local ref = troupe.monitor(pid)
    assert.equal(1, (troupe.select({ troupe.inbox }, T)))
    troupe.demonitor(ref)
    assert.same({ nil, "timeout" }, { troupe.select({ troupe.inbox }, 0) })
  end)

  helper.actor("waits for file descriptors, too, in order of the arms", function()
    local r, w = pipe()
    local tx, rx = troupe.channel()
    local arms = { rx, troupe.readable(r), troupe.inbox, troupe.writable(w) }
    assert.equal(4, (troupe.select(arms)))
    arms[4] = nil
    assert.same({ nil, "timeout" }, { troupe.select(arms, 0) })
    assert.same({ nil, "timeout" }, { troupe.select(arms, 0.01) })
    write(w)
    assert.equal(2, (troupe.select(arms, T)))
    tx:send(1)
    assert.equal(1, (troupe.select(arms, T)))
    rx:recv()
    assert.equal(2, (troupe.select(arms, T)))
    assert.equal(1, read(r))
    assert.same({ nil, "timeout" }, { troupe.select(arms, 0) })
    close(w)
    assert.equal(2, (troupe.select(arms, T))) -- the end of a stream
    close(r)
  end)

  helper.actor("wakes for a file descriptor, and forgets the others", function()
    local me = troupe.self()
    local r, w = pipe()
    local r2, w2 = pipe()
    local tx, rx = troupe.channel()
    local arms = { rx, troupe.readable(r), troupe.readable(r2), troupe.inbox }
    local function after_parked(fd)
      return troupe.spawn(function()
        helper.parked(me)
        if fd then
          local f = require "ffi"
          pcall(f.cdef, "intptr_t write(int fd, const void *from, size_t size);")
          f.C.write(fd, "x", 1)
        else
          tx:send(1)
        end
      end)
    end
    for _ = 1, 3 do
      after_parked(w2)
      assert.equal(3, (troupe.select(arms, T)))
      read(r2)
      after_parked(w)
      assert.equal(2, (troupe.select(arms, T)))
      read(r)
      after_parked()
      assert.equal(1, (troupe.select(arms, T)))
      rx:recv()
      -- The losing arms are gone: another actor may wait there, and what
      -- comes ends no sleep of ours.
      local other = troupe.task(function() return troupe.wait_readable(r, T) end)
      helper.parked(other.pid)
      assert.same({ nil, "busy" }, { troupe.select({ troupe.readable(r) }, 1) })
      write(w2)
      local start = troupe.now()
      troupe.sleep(0.01)
      assert.is_true(troupe.now() - start >= 0.01)
      read(r2)
      write(w)
      assert.is_true(other:await(T))
      read(r)
    end
    close(r, w, r2, w2)
  end)

  helper.actor("leaves no arm behind when it is killed", function()
    local r, w = pipe()
    local pid = troupe.spawn(function()
      local _, rx = troupe.channel()
      troupe.select { rx, troupe.readable(r), troupe.inbox }
    end)
    helper.parked(pid)
    assert.same({ nil, "busy" }, { troupe.select({ troupe.readable(r) }, T) })
    pid:kill()
    helper.ended(pid)
    write(w)
    assert.equal(1, (troupe.select({ troupe.readable(r) }, T)))
    close(r, w)
  end)

  helper.actor("counts a closed file descriptor as ready, and refuses files", function()
    local r, w = pipe()
    local arm = troupe.readable(r)
    close(r, w)
    assert.equal(1, (troupe.select { arm }))
    local path = helper.file("plain", "text")
    local file = io.open(path)
    local of_file = troupe.readable(file)
    assert.matches("cannot be waited for", helper.misuse("select", { of_file }))
    file:close()
    for _, name in ipairs { "readable", "writable" } do
      assert.matches("fd must be", helper.misuse(name, "1"))
      assert.matches("fd must be", helper.misuse(name, -1))
      assert.matches("fd must be", helper.misuse(name, 0.5))
    end
    assert.matches("arm 2 is the same as arm 1",
      helper.misuse("select", { troupe.readable(3), troupe.readable(3) }))
    assert.matches("arm 1 is no receiver", helper.misuse("select", { { readable = "x" } }))
  end)

  helper.actor("takes more arms than a few", function()
    local arms, senders = {}, {}
    for i = 1, 100 do
      senders[i], arms[i] = troupe.channel()
    end
    local last = senders[100]
    local me = troupe.self()
    troupe.spawn(function()
      helper.parked(me)
      last:send(1)
    end)
    assert.equal(100, (troupe.select(arms, T)))
  end)

  helper.actor("checks its arms", function()
    local _, rx = troupe.channel()
    local tx = troupe.channel()
    assert.matches("no arms", helper.misuse("select", {}))
    assert.matches("arms must be a table", helper.misuse("select"))
    assert.matches("arm 1 is no receiver", helper.misuse("select", { 1 }))
    assert.matches("arm 2 is no receiver", helper.misuse("select", { rx, tx }))
    assert.matches("arm 2 is the same as arm 1", helper.misuse("select", { rx, rx }))
    assert.matches("arm 3 is the same as arm 1", helper.misuse("select", { troupe.inbox, rx, troupe.inbox }))
    assert.matches("timeout must be", helper.misuse("select", { rx }, "x"))
    -- Where a list with a hole ends is left to chance, by LuaJIT.
    local _, other = troupe.channel()
    for _, holed in ipairs { { rx, nil, other }, { rx, nil, nil, other }, { rx, [3] = other } } do
      assert.matches("arm", helper.misuse("select", holed, 0))
    end
    assert.matches("arms must be a list without holes", helper.misuse("select", { rx, timeout = 1 }, 0))
    troupe.spawn(function() troupe.receive() end, rx):kill()
    assert.matches("arm 1 was sent to another actor", helper.misuse("select", { rx }))
  end)
end)
