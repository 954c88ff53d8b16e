--- Reading from connections.

local helper = require "spec.helper"
local net = require "troupe.net"
local troupe = require "troupe"

local fails = helper.fails

local raised = helper.raised

-- A connection to an actor that does as it is told: text is written, "end"
-- closes, "half" ends its sending side, "reset" sends an RST, "wait" waits for a
-- message, "drip" writes again and again until there is one. Returns its pid, too.
local function peer(...)
  local listener = assert(net.listen())
  local port, script = listener:port(), { ... }
  local pid = troupe.spawn(function()
    local t = require "troupe"
    local conn = assert(require("troupe.net").connect { port = port })
    for _, step in ipairs(script) do
      if step == "wait" then
        t.receive()
      elseif step == "drip" then
        repeat
          conn:write "x"
        until t.receive(0.01)
      elseif step == "half" then
        conn:shutdown "send"
      elseif step == "reset" then
        local ffi = require "ffi"
        ffi.cdef "int setsockopt(int fd, int level, int name, const void *p, unsigned n);"
        local SOL_SOCKET, SO_LINGER = 1, 13
        assert(ffi.C.setsockopt(conn:fd(), SOL_SOCKET, SO_LINGER, ffi.new("int[2]", 1, 0), 8) == 0)
        conn:close()
      elseif step == "end" then
        conn:close()
      else
        conn:write(step)
      end
    end
    conn:read "all" -- until the other side has had enough
  end)
  local conn = assert(listener:accept(helper.DEADLINE))
  listener:close()
  conn:set_timeout(helper.DEADLINE)
  return conn, pid
end

-- Reads until it times out with just this.
local function times_out_with(want, conn, method, ...)
  local deadline = troupe.now() + helper.DEADLINE
  repeat
    local data, err, partial = conn[method](conn, ...)
    assert.same({ nil, "timeout" }, { data, err })
    assert(troupe.now() < deadline, partial)
  until partial == want
end

describe("conn:read", function()
  helper.actor("reads by count, by line, and all", function()
    local conn = peer("12345line one\r\nline two\n\n", "the ", "rest", "end")
    assert.equal("", conn:read(0))
    assert.equal("12", conn:read(2))
    assert.equal("345", conn:read(3))
    assert.equal("line one", conn:read "line")
    assert.equal("line two", conn:read "line")
    assert.equal("", conn:read "line")
    assert.equal("the rest", conn:read "all")
    assert.equal("", conn:read "all")
    fails("closed", conn:read "line")
    fails("closed", conn:read(1))
    conn:close()
  end)

  helper.actor("takes bytes as they are", function()
    local bytes = {}
    for i = 0, 255 do
      bytes[#bytes + 1] = string.char(i)
    end
    local text = table.concat(bytes)
    local conn = peer(text, text:rep(100), "end")
    assert.equal(text, conn:read(256))
    assert.equal(text:rep(100), conn:read "all")
    conn:close()
  end)

  helper.actor("that times out leaves what came to the next one", function()
    local conn, pid = peer("abc", "wait", "defg\nh", "wait", "i", "end")
    times_out_with("abc", conn, "read", 5, 0.05)
    assert.same({ nil, "timeout", "abc" }, { conn:read("line", 0) })
    assert.same({ nil, "timeout", "abc" }, { conn:read("all", 0) })
    troupe.send(pid, "go on")
    assert.equal("abcde", conn:read(5))
    assert.equal("fg", conn:read "line")
    troupe.send(pid, "go on")
    assert.equal("hi", conn:read(2))
    conn:close()
  end)

  helper.actor("has one deadline for all of it", function()
    local conn, pid = peer "drip"
    local data, err = conn:read(1000000, 0.15)
    assert.is_nil(data)
    assert.equal("timeout", err)
    troupe.send(pid, "enough")
    conn:close()
  end)

  helper.actor("uses the connection's own timeout when none is given", function()
    local conn = peer()
    conn:set_timeout(0.01)
    fails("timeout", conn:read(1))
    conn:set_timeout(0)
    fails("timeout", conn:read "line")
    fails("timeout", conn:read_some())
    conn:set_timeout()
    fails("timeout", conn:read("line", 0.01))
    conn:set_timeout(math.huge)
    fails("timeout", conn:read("line", -1))
    conn:close()
  end)

  helper.actor("gives what there was before the end", function()
    local conn = peer("abc", "end")
    assert.same({ nil, "closed", "abc" }, { conn:read(5) })
    assert.same({ nil, "closed", "abc" }, { conn:read "line" }) -- it stays
    assert.equal("abc", conn:read_some())
    fails("closed", conn:read_some())
    conn:close()
  end)

  helper.actor("gives what there was before a reset, and tells it from an end", function()
    local conn = peer("abc", "reset")
    assert.same({ nil, "reset", "abc" }, { conn:read(5) })
    assert.equal("abc", conn:read(3))
    fails("reset", conn:read(1))
    fails("reset", conn:read "all")
    conn:close()
  end)

  helper.actor("goes on after our own end", function()
    local conn = peer { wait = 0.02 }
    assert.is_true(conn:shutdown "send")
    assert.equal("", conn:read "all") -- the peer has read to the end, and left
    assert.same({ nil, "closed", 0 }, { conn:write "x" })
    conn:close()
  end)

  helper.actor("goes on after the other side's end, and writing does, too", function()
    local conn = peer("last", "half")
    assert.equal("last", conn:read "all")
    assert.is_true(conn:write "still heard")
    conn:close()
  end)

  helper.actor("limits a line, and goes on", function()
    local conn = peer("1234\n12345\n", ("x"):rep(100000), "\nend\n")
    conn:set_max_line(4)
    assert.equal("1234", conn:read "line")
    assert.same({ nil, "line_too_long" }, { conn:read "line" })
    assert.same({ nil, "line_too_long" }, { conn:read "line" })
    assert.equal("12345\n", conn:read(6))
    conn:set_max_line(100)
    fails("line_too_long", conn:read "line")
    conn:set_max_line(200000)
    assert.equal(100000, #conn:read "line")
    assert.equal("end", conn:read "line")
    conn:close()
  end)

  helper.actor("limits a line to 64 KiB where nothing is said", function()
    local conn = peer(("x"):rep(65536), "\n", ("x"):rep(65537), "\n")
    assert.equal(65536, #conn:read "line")
    fails("line_too_long", conn:read "line")
    conn:close()
  end)

  helper.actor("of a line without end does not hoard it", function()
    local listener = assert(net.listen())
    local port = listener:port()
    local pid = troupe.spawn(function()
      local conn = assert(require("troupe.net").connect { port = port })
      local block = ("x"):rep(2 ^ 20)
      for _ = 1, 1024 do -- 1 GB
        if not conn:write(block) then
          break
        end
      end
    end)
    local conn = assert(listener:accept(helper.DEADLINE))
    fails("line_too_long", conn:read "line")
    conn:close()
    helper.ended(pid)
    listener:close()
  end)

  helper.actor("reads much, whole", function()
    local size = 10 * 2 ^ 20
    local listener = assert(net.listen())
    local port = listener:port()
    troupe.spawn(function()
      local conn = assert(require("troupe.net").connect { port = port })
      local block = ("0123456789abcdef"):rep(2 ^ 10)
      for _ = 1, 2 * size / #block do
        conn:write(block)
      end
    end)
    local conn = assert(listener:accept(helper.DEADLINE))
    local data = conn:read(size)
    assert.equal(size, #data)
    assert.equal("0123456789abcdef0123", data:sub(1, 20))
    assert.equal(size, #conn:read "all")
    conn:close()
    listener:close()
  end, { schedulers = { 2 } })

  helper.actor("counts towards the actor's memory", function()
    local listener = assert(net.listen())
    local port = listener:port()
    local pid, ref = troupe.spawn_opt({ monitor = true, memory_limit = 2 ^ 20 }, function()
      local conn = assert(require("troupe.net").connect { port = port })
      local _, err = conn:read "all"
      error(err, 0)
    end)
    local conn = assert(listener:accept(helper.DEADLINE))
    local block = ("x"):rep(2 ^ 20)
    while conn:write(block) do
    end
    assert.equal("nomem", helper.down(ref).message)
    assert.is_false(pid:alive())
    conn:close()
    listener:close()
  end)

  helper.actor("refuses what it cannot read", function()
    local conn = peer()
    for _, bad in ipairs { -1, 1.5, 0 / 0, 2 ^ 40, "lines", {}, true } do
      assert.matches("bad argument", raised(conn.read, conn, bad), 1, true)
      assert.matches("what must be a number of bytes, \"line\" or \"all\"",
        raised(conn.read, conn, bad), 1, true)
    end
    assert.matches("number of bytes", raised(conn.read, conn), 1, true)
    assert.matches("timeout must be a number", raised(conn.read, conn, 1, "x"), 1, true)
    assert.matches("timeout must be a number", raised(conn.set_timeout, conn, 0 / 0), 1, true)
    for _, bad in ipairs { 0, -1, 0 / 0 } do
      assert.matches("bad argument", raised(conn.set_max_line, conn, bad), 1, true)
    end
    conn:close()
  end)
end)

describe("conn:read_some", function()
  helper.actor("gives what there is, up to so much", function()
    local conn = peer("abcdef", "end")
    assert.equal("ab", conn:read_some(2))
    assert.equal("cdef", conn:read_some(100))
    fails("closed", conn:read_some(1))
    assert.matches("1 or more", raised(conn.read_some, conn, 0), 1, true)
    conn:close()
  end)
end)

describe("conn:read_until", function()
  helper.actor("gives what comes before the bytes", function()
    local conn, pid = peer("head\r\n\r\nbo", "dy\0\0", "wait", "\0next", "end")
    assert.equal("head", conn:read_until "\r\n\r\n")
    times_out_with("body\0\0", conn, "read_until", "\0\0\0", 0.01)
    troupe.send(pid, "go on")
    assert.equal("body", conn:read_until "\0\0\0")
    assert.same({ nil, "closed", "next" }, { conn:read_until "\n" })
    assert.equal("n", conn:read_until "ex")
    times_out_with("t", peer "t", "read_until", "x", 0.05)
    assert.matches("bytes must be one or more", raised(conn.read_until, conn, ""), 1, true)
    conn:close()
  end)

  helper.actor("limits what it looks through as a line", function()
    local conn = peer(("x"):rep(50), ";", ("x"):rep(50))
    conn:set_max_line(49)
    fails("line_too_long", conn:read_until ";")
    conn:set_max_line(50)
    assert.equal(50, #conn:read_until ";")
    conn:close()
  end)
end)

describe("a finalizer", function()
  helper.actor("that closes a connection does not disturb the one that reads it", function()
    local conn = peer(("x"):rep(5000) .. "\n", "tail")
    for _ = 1, 2000 do
      local session = newproxy(true)
      getmetatable(session).__gc = function()
        conn:close()
      end
    end
    local line, err = conn:read "line"
    assert.is_true(err == "closed" or #line == 5000)
    collectgarbage()
    fails("closed", conn:read "line")
  end)

  helper.actor("may say good-bye, but not wait for an answer", function()
    local listener = assert(net.listen())
    local port = listener:port()
    local pid = troupe.spawn(function()
      local conn = assert(require("troupe.net").connect { port = port })
      local keep = newproxy(true)
      getmetatable(keep).__gc = function()
        conn:read "all"
      end
      _G.keep = keep
      require("troupe").receive()
    end)
    local conn = assert(listener:accept(helper.DEADLINE))
    troupe.kill(pid)
    helper.ended(pid) -- its connection was closed before its state
    assert.equal("", conn:read("all", helper.DEADLINE))
    conn:close()
    listener:close()
  end)
end)
