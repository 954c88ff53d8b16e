--- Connections: listen, connect, accept, addresses, and what may be wrong.

local ffi = require "ffi"
local helper = require "spec.helper"
local net = require "troupe.net"
local troupe = require "troupe"

local fails = helper.fails

-- Called from Lua code as users do, so that the text names the place.
local function raised(fn, ...)
  local args = { n = select("#", ...), ... }
  return helper.raised(function()
    fn(unpack(args, 1, args.n))
  end)
end

-- Both ends of a connection to a listener with these options.
local function pair(options)
  local listener = assert(net.listen(options))
  local to = options and options.path and { path = options.path }
    or { host = options and options.host, port = listener:port() }
  local client = assert(net.connect(to))
  local server = assert(listener:accept(helper.DEADLINE))
  return client, server, listener
end

local function close(...)
  for i = 1, select("#", ...) do
    select(i, ...):close()
  end
end

describe("net.listen and net.connect", function()
  helper.actor("make connections by TCP", function()
    local client, server, listener = pair()
    assert.is_true(client:write "hello")
    assert.equal("hello", server:read(5))
    assert.is_true(server:write("wor", "ld\n"))
    assert.equal("world", client:read "line")
    close(client, server, listener)
  end)

  helper.actor("make connections by IPv6, with and without brackets", function()
    for _, host in ipairs { "::1", "[::1]" } do
      local client, server, listener = pair { host = host }
      assert.same({ "::1", listener:port() }, { client:peername() })
      assert.is_true(client:write "6")
      assert.equal("6", server:read(1))
      close(client, server, listener)
    end
  end)

  helper.actor("make connections at a path, which is free again afterwards", function()
    local path = helper.file "socket"
    for _ = 1, 2 do
      local client, server, listener = pair { path = path }
      assert.equal(path, client:peername())
      assert.equal("", server:peername())
      assert.is_nil(listener:port())
      assert.is_true(client:write "x")
      assert.equal("x", server:read(1))
      close(client, server, listener)
      assert.is_nil(io.open(path))
    end
  end)

  helper.actor("make connections by an abstract name", function()
    local name = "@troupe_net_spec_" .. tostring(troupe.now())
    for _, path in ipairs { name, "\0" .. name:sub(2) } do
      local client, server, listener = pair { path = path }
      assert.equal(name, client:peername())
      assert.equal(name, listener:sockname())
      assert.is_true(server:write "x")
      assert.equal("x", client:read(1))
      close(client, server, listener)
    end
  end)

  helper.actor("know localhost, where only one family listens", function()
    for _, host in ipairs { "127.0.0.1", "::1" } do
      local listener = assert(net.listen { host = host })
      local client = assert(net.connect { host = "localhost", port = listener:port() })
      local server = assert(listener:accept(helper.DEADLINE))
      assert.equal(host, client:peername())
      close(client, server, listener)
    end
  end)

  helper.actor("leave time for the next address, where one does not answer", function()
    local deaf = assert(net.listen { backlog = 1 })
    local port = deaf:port()
    local conns, refusals = {}, 0
    repeat -- until its queue is full, and it was not the machine that was slow
      local conn = net.connect { port = port, timeout = 0.05 }
      conns[#conns + 1] = conn
      refusals = conn and 0 or refusals + 1
    until refusals == 4
    local listener = assert(net.listen { host = "::1", port = port })
    local client, err
    local timeout = 1
    repeat
      client, err = net.connect { host = "localhost", port = port, timeout = timeout }
      timeout = timeout * 4
    until client or timeout > helper.DEADLINE
    assert(client, err)
    assert.equal("::1", (client:peername()))
    close(deaf, listener, client, unpack(conns))
  end)

  helper.actor("work in two actors that know the port only", function()
    local listener = assert(net.listen())
    local port = listener:port()
    local child = troupe.spawn(function()
      local conn = assert(require("troupe.net").connect { port = port })
      conn:write(conn:read "line" .. "!\n")
    end)
    local conn = assert(listener:accept(helper.DEADLINE))
    conn:write "hi\n"
    assert.equal("hi!", conn:read "line")
    assert.equal("", conn:read "all") -- it ended, and its socket with it
    helper.ended(child)
    close(conn, listener)
  end)

  helper.actor("tell both ends their addresses", function()
    local client, server, listener = pair { host = "127.0.0.1", port = 0 }
    assert.same({ "127.0.0.1", listener:port() }, { client:peername() })
    assert.same({ "127.0.0.1", listener:port() }, { listener:sockname() })
    assert.same({ server:peername() }, { client:sockname() })
    close(client, server, listener)
  end)

  helper.actor("share a port when all say so", function()
    local a = assert(net.listen { reuseport = true })
    local b = assert(net.listen { reuseport = true, port = a:port() })
    assert.equal(a:port(), b:port())
    close(a, b)
  end)
end)

describe("a failure to connect or listen", function()
  helper.actor("is refused where nobody listens", function()
    local listener = assert(net.listen())
    local port = listener:port()
    close(listener)
    fails("refused", net.connect { port = port })
    fails("refused", net.connect { host = "localhost", port = port })
    local path = helper.file "socket"
    fails("ENOENT", net.connect { path = path })
    -- A file that a dead server has left.
    local script = ("local s = require('troupe.net').listen { path = %q } os.exit(0)"):format(path)
    assert.equal(0, helper.run_script(script).status)
  end)

  helper.actor("is a timeout where nobody answers", function()
    local listener = assert(net.listen { backlog = 1 })
    local conns, err = {}
    repeat -- the queue is full soon, and the next ones get no answer
      conns[#conns + 1], err = net.connect { port = listener:port(), timeout = 0.05 }
    until err
    assert.equal("timeout", err)
    close(listener, unpack(conns))
  end)

  helper.actor("is the errno's name where there is no way", function()
    fails("ENETUNREACH", net.connect { host = "255.255.255.255", port = 9 })
    fails("EADDRNOTAVAIL", net.listen { host = "203.0.113.1" })
  end)

  helper.actor("says that a port or a path is in use", function()
    local listener = assert(net.listen())
    fails("address_in_use", net.listen { port = listener:port() })
    close(listener)
    local path = helper.file "socket"
    listener = assert(net.listen { path = path })
    fails("address_in_use", net.listen { path = path })
    close(listener)
  end)

  helper.actor("says that a path is too long", function()
    fails("ENAMETOOLONG", net.listen { path = "/tmp/" .. ("x"):rep(200) })
    fails("ENAMETOOLONG", net.connect { path = "@" .. ("x"):rep(108) })
  end)

  helper.actor("says that a host is unknown", function()
    fails("unknown_host", net.connect { host = "no.such.host.invalid", port = 1 })
    fails("unknown_host", net.listen { host = "" })
    fails("unknown_host", net.resolve "")
  end)

  helper.actor("is an error where the options are wrong", function()
    local function says(text, fn, options)
      assert.matches(text, raised(fn, options), 1, true)
    end
    says("unknown option 'prot'", net.listen, { prot = 1 })
    says("'port' must be an integer", net.listen, { port = 65536 })
    says("'port' must be an integer", net.connect, { port = 1.5 })
    says("'port' must be number", net.connect, { port = "80" })
    says("'port' or 'path' is missing", net.connect, { host = "::1" })
    says("exclude each other", net.listen, { path = "x", port = 1 })
    says("exclude each other", net.connect, { path = "x", host = "y" })
    says("'timeout' must be a number of seconds", net.connect, { port = 1, timeout = 0 / 0 })
    says("'backlog' must be an integer", net.listen, { backlog = 0 })
    says("path must not be empty", net.listen, { path = "" })
    says("path must not be empty", net.listen, { path = "a\0b" })
    assert.matches("net_spec.lua", raised(net.listen, { prot = 1 }), 1, true)
  end)

  helper.actor("leaves nothing open", function()
    local before = assert(net.listen()):fd()
    for _ = 1, 100 do
      net.connect { port = 1 }
      net.listen { host = "203.0.113.1" }
    end
    collectgarbage()
    local after = assert(net.listen())
    assert.is_true(after:fd() <= before + 1)
  end)
end)

describe("listener:accept", function()
  helper.actor("times out, and polls", function()
    local listener = assert(net.listen())
    fails("timeout", listener:accept(0.01))
    fails("timeout", listener:accept(0))
    listener:set_timeout(0.01)
    fails("timeout", listener:accept())
    local client = assert(net.connect { port = listener:port() })
    assert(listener:accept(0)):close()
    close(client, listener)
  end)

  helper.actor("gives all who came, once each", function()
    local listener = assert(net.listen())
    local port, clients = listener:port(), {}
    for i = 1, 50 do
      clients[i] = assert(net.connect { port = port })
      clients[i]:write(i, "\n")
    end
    local seen = {}
    for _ = 1, 50 do
      local conn = assert(listener:accept(helper.DEADLINE))
      seen[tonumber(conn:read "line")] = true
      conn:close()
    end
    assert.equal(50, #seen)
    fails("timeout", listener:accept(0))
    close(listener, unpack(clients))
  end)

  helper.actor("is closed once the listener is", function()
    local listener = assert(net.listen())
    assert.is_true(listener:close())
    assert.is_false(listener:close())
    fails("closed", listener:accept())
    fails("closed", listener:port())
    assert.equal("troupe.listener: closed", tostring(listener))
  end)
end)

describe("a connection", function()
  helper.actor("says what it is", function()
    local client, server, listener = pair()
    assert.matches("^troupe.conn: 0x", tostring(client))
    assert.matches("^troupe.listener: 0x", tostring(listener))
    assert.is_true(client:close())
    assert.is_false(client:close())
    assert.equal("troupe.conn: closed", tostring(client))
    for _, method in ipairs { "fd", "peername", "sockname", "read_some" } do
      fails("closed", client[method](client))
    end
    fails("closed", client:read(1))
    fails("closed", client:read_until "x")
    fails("closed", client:nodelay(true))
    fails("closed", client:shutdown "send")
    assert.same({ nil, "closed", 0 }, { client:write "x" })
    client:set_timeout(1)
    client:set_max_line(1)
    close(server, listener)
  end)

  helper.actor("can hold small writes back, or not", function()
    local client, server, listener = pair()
    assert.is_true(client:nodelay(false))
    assert.is_true(client:nodelay(true))
    assert.matches("bad argument #1 to 'nodelay'", raised(function()
      client:nodelay "yes"
    end), 1, true)
    close(client, server, listener)
  end)

  helper.actor("is closed when nobody refers to it any more", function()
    local client, _, listener = (function()
      local c, _, l = pair()
      return c, nil, l
    end)()
    collectgarbage()
    collectgarbage()
    assert.equal("", client:read("all", helper.DEADLINE))
    close(client, listener)
  end)

  helper.actor("refuses what is no connection", function()
    local client, server, listener = pair()
    assert.matches("connection expected", raised(client.read, listener, 1), 1, true)
    assert.matches("listener expected", raised(listener.accept, client), 1, true)
    assert.matches("connection, listener or udp socket expected", raised(client.close, {}), 1, true)
    assert.matches("connection, listener or udp socket expected", raised(client.close), 1, true)
    close(client, server, listener)
  end)

  helper.actor("is of use outside of its object by its number", function()
    local client, server, listener = pair()
    ffi.cdef "ssize_t send(int fd, const void *p, size_t n, int flags);"
    assert.equal(2, tonumber(ffi.C.send(client:fd(), "ok", 2, 0)))
    assert.equal("ok", server:read(2))
    close(client, server, listener)
  end)

  helper.it("cannot be made outside of an actor", function()
    assert.matches("not called from an actor", raised(net.listen), 1, true)
    assert.matches("not called from an actor", raised(net.connect, { port = 1 }), 1, true)
  end)
end)
