--- UDP sockets.

local helper = require "spec.helper"
local net = require "troupe.net"
local troupe = require "troupe"

local raised = helper.raised

describe("net.udp", function()
  helper.actor("sends and receives datagrams", function()
    for _, host in ipairs { "127.0.0.1", "::1" } do
      local a = assert(net.udp { host = host })
      local b = assert(net.udp { host = host })
      for _, text in ipairs { "one", "", ("x"):rep(60000), "a\0b" } do
        assert.is_true(a:send_to(text, host, b:port()))
        assert.same({ text, host, a:port() }, { b:recv_from(helper.DEADLINE) })
      end
      a:close()
      b:close()
    end
  end)

  helper.actor("sends to a name", function()
    local a, b = assert(net.udp()), assert(net.udp())
    assert.is_true(a:send_to("x", "localhost", b:port()))
    assert.equal("x", (b:recv_from(helper.DEADLINE)))
    assert.same({ nil, "unknown_host" }, { a:send_to("x", "no.such.host.invalid", 1) })
    a:close()
    b:close()
  end)

  helper.actor("sends to a path, or an abstract name", function()
    local name = helper.address "udp"
    local a = assert(net.udp { path = name })
    local b = assert(net.udp { path = name .. "2" })
    assert.is_true(b:send_to("x", name))
    assert.same({ "x", name .. "2" }, { a:recv_from(helper.DEADLINE) })
    a:close()
    b:close()
  end)

  helper.actor("waits, times out, and is closed", function()
    local a = assert(net.udp())
    local port = a:port()
    assert.same({ nil, "timeout" }, { a:recv_from(0.01) })
    a:set_timeout(0)
    assert.same({ nil, "timeout" }, { a:recv_from() })
    a:set_timeout()
    troupe.spawn(function()
      local socket = require("troupe.net").udp()
      socket:send_to("late", "127.0.0.1", port)
    end)
    assert.equal("late", (a:recv_from(helper.DEADLINE)))
    assert.same({ nil, "address_in_use" }, { net.udp { port = port } })
    assert.is_true(a:close())
    assert.same({ nil, "closed" }, { a:recv_from() })
    assert.same({ nil, "closed" }, { a:send_to("x", "127.0.0.1", 1) })
  end)

  helper.actor("says what is wrong", function()
    local a = assert(net.udp())
    assert.same({ nil, "EMSGSIZE" }, { a:send_to(("x"):rep(70000), "127.0.0.1", 1) })
    assert.matches("port must be an integer", raised(a.send_to, a, "x", "127.0.0.1", 1.5), 1, true)
    assert.matches("data must be a string", raised(a.send_to, a, {}, "127.0.0.1", 1), 1, true)
    assert.matches("unknown option", raised(net.udp, { prot = 1 }), 1, true)
    a:close()
  end)
end)
