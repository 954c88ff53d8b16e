--- Names of hosts.

local helper = require "spec.helper"
local net = require "troupe.net"
local troupe = require "troupe"

describe("net.resolve", function()
  helper.actor("knows numeric addresses", function()
    assert.same({ "127.0.0.1" }, net.resolve "127.0.0.1")
    assert.same({ "::1" }, net.resolve "[::1]")
    assert.same({ "::1" }, net.resolve("0:0:0:0:0:0:0:1", 0))
  end)

  helper.actor("knows localhost by both families", function()
    local found = {}
    for _, address in ipairs(assert(net.resolve "localhost")) do
      found[address] = true
    end
    assert.is_true(found["127.0.0.1"] and found["::1"])
  end)

  helper.actor("says what is unknown", function()
    for _, host in ipairs { "no.such.host.invalid", "", "a\0b", ("x"):rep(300) } do
      assert.same({ nil, "unknown_host" }, { net.resolve(host) })
    end
    local ok, err = pcall(net.resolve, {})
    assert.is_false(ok)
    assert.matches("host must be a string", err, 1, true)
  end)

  helper.actor("answers many at once", function()
    local me = troupe.self()
    for _ = 1, 100 do
      troupe.spawn(function()
        local t, n = require "troupe", require "troupe.net"
        t.send(me, n.resolve "localhost" ~= nil)
      end)
    end
    for _ = 1, 100 do
      assert.is_true((helper.receive()))
    end
  end)
end)

describe("names that hang", function()
  -- getaddrinfo is replaced: each name takes its seconds, and then some.
  local function run(text)
    local lib = os.getenv "TROUPE_BUILD" .. "/unit/slow_names.so"
    local r = helper.run_script(text, { env = { LD_PRELOAD = lib, TROUPE_SLOW_NAMES = 1000 } })
    assert.equal("", r.err)
    return r.out
  end

  helper.it("hold up nothing else", function()
    assert.equal("timeout\nnot one is back\n", run [[
      local troupe = require "troupe"
      local net = require "troupe.net"
      local me = troupe.self()
      for i = 1, 50 do
        troupe.spawn(function()
          local t, n = require "troupe", require "troupe.net"
          n.resolve("hangs" .. i)
          t.send(me, "back")
        end)
      end
      print(select(2, net.connect { host = "hangs", port = 1, timeout = 0.1 }))
      local listener = assert(net.listen())
      local client = assert(net.connect { port = listener:port() })
      local server = assert(listener:accept(60))
      for i = 1, 100 do
        client:write(i, "\n")
        server:write(server:read("line", 60), "\n")
        assert(client:read("line", 60) == tostring(i))
        assert(troupe.blocking(function() return i end) == i)
      end
      print(troupe.receive(0) or "not one is back")
      os.exit(0)
    ]])
  end)
end)
