--- Sockets where something has run out, in processes of their own.

local helper = require "spec.helper"

local function run(text, opts)
  local r = helper.run_script(text, opts)
  assert.equal("", r.err)
  return r
end

describe("descriptors that run out", function()
  -- The limit is set by the shell; the clients are another process's.
  helper.it("pause accept, which goes on when there are some again", function()
    local server = helper.file("server.lua", [[
      local troupe = require "troupe"
      local listener = assert(require("troupe.net").listen { path = troupe.args[1] })
      io.stdout:write "ready\n"
      io.stdout:flush()
      local held = {}
      repeat -- there are more clients than descriptors
        local conn = listener:accept(1)
        held[#held + 1] = conn
      until not conn and #held > 20
      assert(#held < 40, #held)
      local switches = 0
      for _, s in ipairs(troupe.stats().schedulers) do
        switches = switches + s.switches
      end
      assert(select(2, listener:accept(0.5)) == "timeout")
      for _, s in ipairs(troupe.stats().schedulers) do
        switches = switches - s.switches
      end
      assert(-switches < 200, "it spins: " .. -switches)
      local served = 0
      while served < 60 do
        for _, conn in ipairs(held) do
          conn:write "hello\n"
          conn:close()
          served = served + 1
        end
        held = {}
        local conn = listener:accept(60)
        held[1] = assert(conn)
      end
      print("served " .. served)
    ]])
    local client = helper.file("client.lua", [[
      local troupe = require "troupe"
      local path = troupe.args[1]
      local net = require "troupe.net"
      local got = 0
      local conns = {}
      for i = 1, 61 do
        conns[i] = assert(net.connect { path = path, timeout = 60 })
      end
      for i = 1, 60 do
        got = got + (conns[i]:read("line", 60) == "hello" and 1 or 0)
      end
      print("got " .. got)
    ]])
    local path = helper.file "socket"
    local bin = helper.quote(helper.bin)
    local r = helper.shell(([[
      (ulimit -n 40; %s run %s %s) >%s.log 2>&1 &
      until [ -S %s ]; do sleep 0.01; done
      %s run %s %s
      wait
      cat %s.log
    ]]):format(bin, helper.quote(server), path, path, path, bin, helper.quote(client), path, path))
    helper.file "socket.log"
    assert(r.err == "", r.err .. r.out)
    assert.matches("got 60", r.out, 1, true)
    assert.matches("served 60", r.out, 1, true)
  end)

  helper.it("fail a connect and a listen by name", function()
    local script = helper.file("main.lua", [[
      local net = require "troupe.net"
      local all, err = {}, nil
      local listener = assert(net.listen())
      listener:accept(0.01) -- the driver has its own from here on
      repeat
        all[#all + 1], err = net.listen()
      until err
      print(err, select(2, net.connect { port = listener:port() }), select(2, net.udp()))
      all[1]:close()
      local conn = assert(net.connect { port = listener:port() })
      print(conn:peername())
    ]])
    local r = helper.shell(("ulimit -n 40; %s run %s"):format(helper.quote(helper.bin),
      helper.quote(script)))
    assert.equal("", r.err)
    assert.matches("^too_many_files\ttoo_many_files\ttoo_many_files\n127.0.0.1", r.out)
  end)
end)

describe("standard input that was closed", function()
  helper.it("has its number used again, and that is a socket like any other", function()
    local r = run([[
      local net = require "troupe.net"
      local listener = assert(net.listen())
      assert(listener:fd() == 0, listener:fd())
      local client = assert(net.connect { port = listener:port() })
      local server = assert(listener:accept(60))
      server:write "hello\n"
      print(client:read("line", 60))
      assert(listener:close())
      local again = assert(net.listen())
      assert(again:fd() == 0)
      local other = assert(net.connect { port = again:port() })
      other:write "x\n"
      print(assert(again:accept(60)):read("line", 60))
    ]], { closed = true })
    assert.equal("hello\nx\n", r.out)
  end)
end)

describe("SIGPIPE", function()
  helper.it("does not kill a host that has its default", function()
    local text = ("local PATH = %q\n"):format(helper.address "sigpipe") .. [[
      require("ffi").cdef "void (*signal(int n, void (*f)(int)))(int);"
      require("ffi").C.signal(13, nil)
      require("troupe").run(function()
        local net = require "troupe.net"
        local listener = assert(net.listen { path = PATH })
        local client = assert(net.connect { path = PATH })
        listener:accept(60):close()
        for _ = 1, 10 do
          print(client:write("x", "y"))
        end
      end)
      print "alive"
    ]]
    local r = helper.shell(("%s -e %s"):format(os.getenv "LUAJIT" or "luajit", helper.quote(text)))
    assert.equal("", r.err)
    assert.equal(("nil\tclosed\t0\n"):rep(10) .. "alive\n", r.out)
  end)
end)
