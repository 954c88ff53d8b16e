--- Writing to connections, and their ends.

local helper = require "spec.helper"
local net = require "troupe.net"
local troupe = require "troupe"

local raised = helper.raised

local function pair(options)
  local listener = assert(net.listen(options))
  local client = assert(net.connect(options or { port = listener:port() }))
  local server = assert(listener:accept(helper.DEADLINE))
  listener:close()
  client:set_timeout(helper.DEADLINE)
  server:set_timeout(helper.DEADLINE)
  return client, server
end

-- An actor that reads conn to its end and tells how much there was.
local function drain(conn)
  local me = troupe.self()
  troupe.spawn(function()
    local n, data = 0, ""
    while data do
      n = n + #data
      data = conn:read_some()
    end
    require("troupe").send(me, { got = n })
  end)
end

describe("conn:write", function()
  helper.actor("takes several strings, and numbers", function()
    local a, b = pair()
    assert.is_true(a:write("one", "", 2, " ", 0.5, "\n"))
    assert.equal("one2 0.5", b:read "line")
    assert.is_true(a:write "")
    local many = {}
    for i = 1, 200 do
      many[i] = i .. ";"
    end
    assert.is_true(a:write(unpack(many)))
    assert.equal(table.concat(many), b:read(#table.concat(many)))
    a:close()
    b:close()
  end)

  helper.actor("refuses other values before anything is sent", function()
    local a, b = pair()
    for _, bad in ipairs { {}, true, print } do
      assert.matches("data must be a string", raised(a.write, a, "x", bad), 1, true)
    end
    assert.matches("data must be a string", raised(a.write, a), 1, true)
    assert.same({ nil, "timeout" }, { b:read(1, 0.01) })
    a:close()
    b:close()
  end)

  helper.actor("waits for who reads slowly", function()
    local a, b = pair()
    local block = ("x"):rep(2 ^ 20)
    drain(b)
    for _ = 1, 8 do
      assert.is_true(a:write(block, block))
    end
    a:close()
    assert.equal(2 ^ 24, helper.receive().got)
  end)

  helper.actor("tells how much went when nobody reads", function()
    for _, options in ipairs { {}, { path = helper.address "write" } } do
      local a, b = pair(options.path and options)
      a:set_timeout(0.05)
      local data = ("x"):rep(2 ^ 26)
      local ok, err, written = a:write("head", data)
      assert.is_nil(ok)
      assert.equal("timeout", err)
      assert.is_true(written > 0 and written < #data)
      -- The next one goes on from there, and nothing is lost or sent twice.
      drain(b)
      a:set_timeout(helper.DEADLINE)
      assert.is_true(a:write(data:sub(1, 1000)))
      a:close()
      assert.equal(written + 1000, helper.receive().got)
    end
  end)

  helper.actor("says closed or reset to who writes to nobody", function()
    local a, b = pair()
    b:close()
    local ok, err, written
    repeat
      ok, err, written = a:write(("x"):rep(1000))
    until not ok
    assert.is_true(err == "closed" or err == "reset")
    assert.equal(0, written)
    a:close()
    a, b = pair { path = helper.address "write" }
    b:close()
    assert.same({ nil, "closed", 0 }, { a:write "x" })
    a:close()
  end)
end)

describe("conn:shutdown", function()
  helper.actor("ends our side only", function()
    local a, b = pair()
    a:write "question"
    assert.is_true(a:shutdown "send")
    assert.equal("question", b:read "all")
    b:write "answer"
    b:close()
    assert.equal("answer", a:read "all")
    assert.matches("bad argument", raised(a.shutdown, a, "both"), 1, true)
    a:close()
  end)

  helper.actor("delivers what was written before it, and a close does", function()
    for _, how in ipairs { "shutdown", "close" } do
      local a, b = pair()
      local data = ("x"):rep(50000)
      a:write(data)
      a[how](a, "send")
      assert.equal(data, b:read "all")
      a:close()
      b:close()
    end
  end)
end)

describe("an actor that ends", function()
  helper.actor("in the middle of a read leaves nothing for its peer to write to", function()
    local listener = assert(net.listen())
    local port = listener:port()
    for i = 1, 50 do
      local pid, ref = troupe.spawn_monitor(function()
        local conn = require("troupe.net").connect { port = port }
        conn:read(i % 2 == 0 and "line" or 1000)
      end)
      local conn = assert(listener:accept(helper.DEADLINE))
      conn:write "half a li"
      troupe.kill(pid)
      helper.down(ref)
      local ok, err
      repeat
        ok, err = conn:write "ne\n"
      until not ok
      assert.is_true(err == "closed" or err == "reset")
      conn:close()
    end
    listener:close()
  end)

  helper.actor("in the middle of a write does, too", function()
    local listener = assert(net.listen())
    local port = listener:port()
    for _ = 1, 5 do
      local pid, ref = troupe.spawn_monitor(function()
        local conn = require("troupe.net").connect { port = port }
        conn:write(("x"):rep(2 ^ 24))
      end)
      local conn = assert(listener:accept(helper.DEADLINE))
      assert.equal(1000, #conn:read(1000, helper.DEADLINE))
      troupe.kill(pid)
      helper.down(ref)
      local data = conn:read("all", helper.DEADLINE)
      assert.is_true(data == nil or #data < 2 ^ 24)
      conn:close()
    end
    listener:close()
  end)

  helper.actor("in the middle of a connect does, too", function()
    local listener = assert(net.listen { backlog = 1 })
    local port = listener:port()
    local conns, err = {}
    repeat -- until its queue is full
      conns[#conns + 1], err = net.connect { port = port, timeout = 0.05 }
    until err
    for _ = 1, 10 do
      local pid, ref = troupe.spawn_monitor(function()
        require("troupe.net").connect { port = port }
      end)
      troupe.sleep(0.005)
      troupe.kill(pid)
      helper.down(ref)
    end
    listener:close()
    for _, conn in ipairs(conns) do
      conn:close()
    end
  end)
end)
