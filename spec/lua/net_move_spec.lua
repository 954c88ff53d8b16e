--- Sockets that are sent to other actors.

local helper = require "spec.helper"
local net = require "troupe.net"
local troupe = require "troupe"

local raised = helper.raised

local function pair(options)
  local listener = assert(net.listen(options))
  local client = assert(net.connect { port = listener:port() })
  local server = assert(listener:accept(helper.DEADLINE))
  listener:close()
  return client, server
end

-- An actor that answers each line of the connection that it is sent.
local function answerer()
  return troupe.spawn(function()
    local t = require "troupe"
    local conn = t.receive()
    local line = conn:read "line"
    while line do
      conn:write(line, "!\n")
      line = conn:read "line"
    end
  end)
end

-- The receiver is to say what it is given in the end.
local function child(fn, ...)
  local parent = troupe.self()
  return troupe.spawn(function(...)
    require("troupe").send(parent, { fn(...) })
  end, ...)
end

describe("a connection that is sent", function()
  helper.actor("belongs to the receiver", function()
    local client, server = pair()
    local pid = answerer()
    assert.is_true(troupe.send(pid, server))
    client:write "one\ntwo\n"
    assert.equal("one!", client:read("line", helper.DEADLINE))
    assert.equal("two!", client:read("line", helper.DEADLINE))
    assert.matches("sent away", tostring(server))
    assert.matches("connection was sent to another actor", raised(server.read, server, 1), 1, true)
    assert.matches("closed or was sent away", raised(troupe.send, pid, server), 1, true)
    client:close()
    helper.ended(pid)
  end)

  helper.actor("takes what it has read already with it", function()
    local client, server = pair()
    client:write("first\n", ("x"):rep(20000), "\nlast")
    client:shutdown "send"
    assert.equal("first", server:read("line", helper.DEADLINE))
    child(function(conn)
      return #conn:read "line", conn:read "all"
    end, server)
    assert.same({ 20000, "last" }, (helper.receive()))
    client:close()
  end)

  helper.actor("keeps its settings", function()
    local client, server = pair()
    server:set_timeout(0.01)
    server:set_max_line(3)
    child(function(conn)
      local _, e1 = conn:read "line"
      conn:read_some()
      local _, e2 = conn:read "line"
      return e1, e2
    end, server)
    client:write "12345"
    assert.same({ "line_too_long", "timeout" }, (helper.receive()))
    client:close()
  end)

  helper.actor("may be an argument, an upvalue, or deep in a message", function()
    local a, b = pair()
    local c, d = pair()
    local me = troupe.self()
    local pid = troupe.spawn(function(conn)
      conn:write "argument\n"
      d:write "upvalue\n"
      local t = require "troupe"
      local e = t.receive().list[2].conn
      e:write "deep\n"
      t.send(me, "done")
    end, b)
    local e, f = pair()
    troupe.send(pid, { list = { 1, { conn = f } } })
    assert.equal("done", (helper.receive()))
    assert.equal("argument", a:read "line")
    assert.equal("upvalue", c:read "line")
    assert.equal("deep", e:read "line")
    for _, conn in ipairs { a, c, e } do
      conn:close()
    end
  end)

  helper.actor("may come back", function()
    local client, server = pair()
    local pid = troupe.spawn(function()
      local t = require "troupe"
      local conn, from = t.receive()
      t.send(from, conn)
    end)
    troupe.send(pid, server)
    local again = helper.receive()
    client:write "x"
    assert.equal("x", again:read(1))
    again:close()
    client:close()
  end)

  helper.actor("stays where it is when the send fails", function()
    local client, server = pair()
    local dead = troupe.spawn(function() end)
    helper.ended(dead)
    assert.same({ nil, "noproc" }, { troupe.send(dead, server) })
    local full = troupe.spawn_opt({ mailbox = { limit = 1 } }, function()
      require("troupe").receive_match { never = true }
    end)
    troupe.send(full, 1)
    assert.same({ nil, "full" }, { troupe.send(full, server) })
    assert.matches("cannot be sent", raised(troupe.send, full, { server, newproxy() }), 1, true)
    client:write "still here"
    assert.equal("still here", server:read(10))
    troupe.kill(full)
    helper.ended(full)
    server:close()
    client:close()
  end)

  helper.actor("is closed when nobody takes it", function()
    local client, server = pair()
    local pid = troupe.spawn(function()
      require("troupe").receive_match "end"
    end)
    local deaf = troupe.spawn(function()
      require("troupe").receive_match { never = true }
    end)
    troupe.send(deaf, server)
    troupe.kill(deaf)
    assert.equal("", client:read("all", helper.DEADLINE))
    troupe.kill(pid)
    client:close()
  end)

  helper.actor("is not for many", function()
    local client, server = pair()
    local pg = require "troupe.pg"
    pg.join "everybody"
    assert.matches("message to many", raised(pg.broadcast, "everybody", server), 1, true)
    server:close()
    client:close()
  end)

  helper.actor("may be closed by who has sent it, under a reader", function()
    local client, server = pair()
    troupe.register "spec"
    child(function(conn)
      require("troupe").send("spec", "reads")
      return conn:read(1)
    end, server)
    assert.equal("reads", (helper.receive()))
    assert.is_true(server:close())
    assert.is_false(server:close())
    local answer = troupe.receive_match({}, helper.DEADLINE)
    assert.same({ nil, "closed" }, { answer[1], answer[2] })
    assert.equal("", client:read("all", helper.DEADLINE))
    troupe.unregister "spec"
    client:close()
  end)

  helper.actor("ends with its receiver, before others hear of that", function()
    for _ = 1, 20 do
      local client, server = pair()
      local pid = answerer()
      local ref = troupe.monitor(pid)
      troupe.send(pid, server)
      client:write "x\n"
      assert.equal("x!", client:read("line", helper.DEADLINE))
      troupe.kill(pid)
      helper.down(ref)
      client:write "too late\n"
      assert.is_nil((client:read("line", 0)))
      client:close()
    end
  end)
end)

describe("a listener that is sent", function()
  helper.actor("accepts where it is", function()
    local listener = assert(net.listen())
    local port = listener:port()
    local pid = troupe.spawn(function()
      local t = require "troupe"
      local l = t.receive()
      while true do
        local conn = l:accept()
        if not conn then
          break
        end
        conn:write "hello\n"
        conn:close()
      end
    end)
    troupe.send(pid, listener)
    for _ = 1, 3 do
      local conn = assert(net.connect { port = port })
      assert.equal("hello", conn:read("line", helper.DEADLINE))
      conn:close()
    end
    -- Who has sent it away may close it, and wakes who accepts.
    assert.is_true(listener:close())
    helper.ended(pid)
    assert.same({ nil, "refused" }, { net.connect { port = port } })
  end)

  helper.actor("is free at once for the next one, when its actor is killed", function()
    local listener = assert(net.listen())
    local port = listener:port()
    for _ = 1, 20 do
      local pid, ref = troupe.spawn_monitor(function()
        require("troupe").receive():accept()
      end)
      troupe.send(pid, listener)
      troupe.kill(pid)
      helper.down(ref)
      listener = assert(net.listen { port = port })
    end
    listener:close()
  end)
end)

describe("a udp socket that is sent", function()
  helper.actor("receives where it is", function()
    local socket = assert(net.udp())
    local port = socket:port()
    child(function(s)
      return (s:recv_from())
    end, socket)
    local mine = assert(net.udp())
    mine:send_to("datagram", "127.0.0.1", port)
    assert.same({ "datagram" }, (helper.receive()))
    mine:close()
  end)
end)
