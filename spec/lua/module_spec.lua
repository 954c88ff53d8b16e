--- The table "troupe" and pids.

local helper = require "spec.helper"
local troupe = require "troupe"

describe("the module troupe", function()
  helper.actor("is the same table each time", function()
    assert.equal(troupe, require "troupe")
    assert.is_true(helper.elsewhere(function()
      local t = require "troupe"
      return t == require "troupe" and package.loaded.troupe == t
    end))
  end)

  helper.actor("has its functions, and nil for other names", function()
    for _, name in ipairs { "run", "spawn", "spawn_opt", "self", "send", "receive", "receive_match",
                            "sleep", "yield", "now", "send_after", "send_every", "cancel", "exit",
                            "join" } do
      assert.is_function(troupe[name])
      assert.equal(troupe[name], troupe[name])
    end
    assert.is_nil(troupe.no_such_function)
    assert.is_nil(troupe[1])
    assert.is_nil(troupe[true])
    assert.is_nil(rawget(troupe, "no_such_function"))
  end)

  helper.actor("lets a user replace a function", function()
    local me = troupe.self()
    assert.equal("mine", helper.elsewhere(function()
      troupe.self = function() return "mine" end
      return troupe.self()
    end))
    assert.equal(me, troupe.self())
  end)

  helper.it("says its version, as the command does", function()
    assert.matches("^%d+%.%d+%.%d+", troupe.version)
    local r = helper.shell(helper.quote(helper.bin) .. " --version")
    assert.equal("troupe " .. troupe.version .. "\n", r.out)
  end)

  helper.it("has the arguments of the script in troupe.args, in each actor", function()
    local r = helper.run_script([[
      local troupe = require "troupe"
      local function show(who)
        local a = troupe.args
        print(who, a[0]:match "[^/]*$", #a, a[1], a[2], a[3])
      end
      show("root")
      print("chunk", select("#", ...), ...)
      troupe.join(troupe.spawn(show, "child"))
    ]], { args = "one 'two words' --three" })
    assert.equal("", r.err)
    assert.equal("root\tmain.lua\t3\tone\ttwo words\t--three\n" ..
      "chunk\t3\tone\ttwo words\t--three\n" ..
      "child\tmain.lua\t3\tone\ttwo words\t--three\n", r.out)
  end)
end)

describe("a pid", function()
  helper.actor("prints as <0.index.generation>", function()
    assert.matches("^<0%.%d+%.%d+>$", tostring(troupe.self()))
    assert.equal(tostring(troupe.self()), ("%s"):format(tostring(troupe.self())))
    assert.matches("^<0%.%d+%.%d+>$",
      helper.elsewhere(function() return tostring(troupe.self()) end))
  end)

  helper.actor("is equal to itself only, however it came", function()
    local me = troupe.self()
    assert.equal(me, troupe.self())
    local pid = troupe.spawn(function() troupe.send(me, troupe.self()) end)
    local sent, from = helper.receive()
    assert.equal(pid, sent)
    assert.equal(pid, from)
    assert.not_equal(me, pid)
    assert.not_equal(tostring(me), tostring(pid))
  end)

  helper.actor("is a key of tables", function()
    local t = {}
    local pids = {}
    for i = 1, 100 do
      pids[i] = troupe.spawn(function() end)
      t[pids[i]] = i
    end
    for i = 1, 100 do
      assert.equal(i, t[pids[i]])
    end
    assert.is_nil(t[troupe.self()])
  end)

  helper.actor("is never used again, also where its place is", function()
    local seen = {}
    for _ = 1, 3000 do
      local pid = troupe.spawn(function() end)
      assert.is_nil(seen[pid])
      seen[pid] = true
      assert.is_nil(seen[tostring(pid)])
      seen[tostring(pid)] = true
      if #seen % 10 == 0 then
        troupe.yield()
      end
    end
  end)

  helper.actor("has methods", function()
    local me = troupe.self()
    assert.is_true(me:send "x")
    assert.equal("x", (helper.receive(0)))
    assert.is_true(me:alive())
    local pid = troupe.spawn(function() end)
    helper.ended(pid)
    assert.is_false(pid:alive())
    assert.is_nil(me.no_such_method)
  end)

  helper.actor("cannot be changed or added to", function()
    local me = troupe.self()
    assert.has_error(function() me.x = 1 end)
    assert.has_error(function() return me + 1 end)
    assert.has_error(function() return me < me end)
    assert.equal("userdata", type(me))
  end)

  helper.actor("leaves other light userdata as it is", function()
    local ok, text = pcall(tostring, io.stdout)
    assert.is_true(ok)
    assert.matches("^file", text)
  end)

  helper.it("works in a state that has no jit", function()
    local r = helper.shell("luajit -e " .. helper.quote [[
      jit, package.loaded.jit = nil, nil
      require "troupe".run(function() print "ran" end)
    ]])
    assert.same({ "ran\n", "" }, { r.out, r.err })
  end)
end)
