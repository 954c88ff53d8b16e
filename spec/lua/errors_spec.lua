--- How actors end by errors, and who hears of it.

local helper = require "spec.helper"
local troupe = require "troupe"

local reason_of = helper.reason_of

-- The reason of an actor that was given a value to raise.
local function raised(make)
  local reason = reason_of(make)
  assert.is_table(reason)
  assert.equal("error", reason.kind)
  assert.is_string(reason.message)
  assert.is_string(reason.traceback)
  return reason
end

describe("an actor that fails", function()
  helper.actor("ends with kind, message, traceback and value", function()
    local reason = raised(function() error "oops" end)
    assert.matches("errors_spec%.lua:%d+: oops$", reason.message)
    assert.equal(reason.message, reason.value)
    assert.matches("stack traceback:", reason.traceback, 1, true)
    assert.matches("errors_spec.lua", reason.traceback, 1, true)
  end)

  helper.actor("by error() or error(nil) does not end normally", function()
    for _, f in ipairs { function() error() end, function() error(nil) end } do
      local reason = raised(f)
      assert.is_nil(reason.value)
      assert.equal("nil", reason.message)
    end
  end)

  helper.actor("by error(false) keeps the value", function()
    local reason = raised(function() error(false) end)
    assert.is_false(reason.value)
    assert.equal("false", reason.message)
  end)

  helper.actor("by a number or a table keeps the value", function()
    assert.equal(42, raised(function() error(42, 0) end).value)
    local reason = raised(function() error { code = 1, list = { 2 } } end)
    assert.same({ code = 1, list = { 2 } }, reason.value)
  end)

  helper.actor("by a pid keeps the value", function()
    local me = troupe.self()
    assert.equal(me, raised(function() error(me) end).value)
  end)

  helper.actor("by the string \"normal\" does not end normally", function()
    assert.equal("normal", raised(function() error("normal", 0) end).value)
  end)

  helper.actor("by an object gives the text of its __tostring", function()
    local reason = raised(function()
      error(setmetatable({ code = 7 }, { __tostring = function(e) return "code " .. e.code end }))
    end)
    assert.equal("code 7", reason.message)
    assert.same({ code = 7 }, reason.value)
  end)

  helper.actor("survives an error object whose __tostring fails", function()
    local fail = { function() error "again" end, function() return nil end,
                   function() return {} end, function() error() end }
    for _, f in ipairs(fail) do
      local reason = raised(function() error(setmetatable({ code = 1 }, { __tostring = f })) end)
      assert.same({ code = 1 }, reason.value)
    end
  end)

  helper.actor("by a value that cannot be sent gives its string", function()
    local reason = raised(function() error(newproxy()) end)
    assert.is_string(reason.value)
    assert.is_string(raised(function() error(print) end).value)
    assert.is_string(raised(function() error { co = coroutine.create(print) } end).value)
    assert.is_string(raised(function() error(coroutine.create(print)) end).value)
  end)

  helper.actor("by an object with a cycle keeps it", function()
    local reason = raised(function()
      local e = {}
      e.me = e
      error(e)
    end)
    assert.equal(reason.value, reason.value.me)
  end)

  helper.actor("in each way that Lua knows gives a reason of kind error", function()
    raised(function() return nil .. "x" end)
    raised(function() return 1 + {} end)
    raised(function() nowhere() end) -- luacheck: ignore
    raised(function() string.rep() end)
    raised(function() require "no.such.module" end)
    raised(function() assert(false) end)
    raised(function() assert(nil, "told") end)
    raised(function() local function f() return 1 + f() end f() end)
    raised(function() coroutine.wrap(function() error "inner" end)() end)
    raised(function() loadstring "x = = 1" () end)
    raised(function() setmetatable({}, { __index = function() error "index" end }).x() end)
    raised(function() troupe.send(5, 1) end)
  end)

  helper.actor("in a message handler of its own goes on", function()
    local pid = troupe.spawn(function(parent)
      local ok, err = xpcall(function() error "a" end, function() error "b" end)
      local again, value = xpcall(function() error { 1 } end, function(e) return e[1] end)
      troupe.send(parent, { ok, type(err), again, value })
    end, troupe.self())
    assert.same({ false, "string", false, 1 }, (helper.receive()))
    helper.ended(pid)
  end)

  helper.actor("hurts no other actor", function()
    local me = troupe.self()
    local good = troupe.spawn(function()
      for i = 1, 100 do
        troupe.send(me, i + helper.receive())
      end
    end)
    for i = 1, 100 do
      assert.same({ i }, raised(function() error { i } end).value)
      troupe.send(good, i)
      assert.equal(2 * i, (helper.receive()))
    end
    helper.ended(good)
  end)

  helper.actor("with a finalizer that fails still ends with its own reason", function()
    local reason = raised(function()
      getmetatable(newproxy(true)).__gc = function() error "finalizer" end
      error("first", 0)
    end)
    assert.equal("first", reason.message)
    assert.equal("normal", reason_of(function()
      getmetatable(newproxy(true)).__gc = function() error "finalizer" end
    end))
  end)
end)

describe("troupe.exit", function()
  helper.actor("without a reason, or with \"normal\", is a normal end", function()
    assert.equal("normal", reason_of(function() troupe.exit() end))
    assert.equal("normal", reason_of(function() troupe.exit(nil) end))
    assert.equal("normal", reason_of(function() troupe.exit "normal" end))
  end)

  helper.actor("gives any other value as it is", function()
    for _, reason in ipairs { "shutdown", "killed", "mine", 42, false, true } do
      assert.equal(reason, reason_of(function() troupe.exit(reason) end))
    end
    assert.same({ code = 1 }, reason_of(function() troupe.exit { code = 1 } end))
    assert.equal(("long "):rep(100), reason_of(function() troupe.exit(("long "):rep(100)) end))
  end)

  helper.actor("gives the string of what cannot be sent", function()
    assert.is_string(reason_of(function() troupe.exit(print) end))
  end)

  helper.actor("does not come back and is not caught by pcall", function()
    local me = troupe.self()
    assert.equal("out", reason_of(function()
      pcall(function() troupe.exit "out" end)
      troupe.send(me, "still here")
    end))
    assert.equal("out", reason_of(function()
      coroutine.wrap(function() troupe.exit "out" end)()
      troupe.send(me, "still here")
    end))
    helper.silence()
  end)

  helper.actor("runs the finalizers", function()
    local me = troupe.self()
    local pid = troupe.spawn(function()
      local keep = newproxy(true)
      getmetatable(keep).__gc = function() troupe.send(me, "closed") end
      troupe.exit "early"
    end)
    helper.ended(pid)
    assert.equal("closed", (helper.receive()))
  end)
end)

describe("the log of a failure", function()
  local function logged(script)
    local r = helper.run_script(script, { env = { TROUPE_LOG = "info" } })
    return r.err, r
  end

  helper.it("is one entry with the pid, the error and a traceback", function()
    local err, r = logged [[
      local troupe = require "troupe"
      local pid = troupe.spawn(function()
        local function inner() error "broken" end
        inner()
      end)
      troupe.join(pid)
      print(pid)
    ]]
    assert.equal(0, r.status)
    assert.equal(1, helper.count(err, "broken"))
    assert.equal(1, helper.count(err, "stack traceback"))
    assert.matches(r.out:gsub("%s+$", ""), err, 1, true)
    assert.matches("main.lua:3", err, 1, true)
  end)

  helper.it("is there for each odd error value", function()
    local err, r = logged [[
      local troupe = require "troupe"
      local values = { function() error() end, function() error(false) end,
        function() error { code = 1 } end, function() error(print) end,
        function() error(setmetatable({}, { __tostring = function() error "no" end })) end }
      for _, f in ipairs(values) do troupe.join(troupe.spawn(f)) end
      print "alive"
    ]]
    assert.equal(0, r.status)
    assert.equal("alive\n", r.out)
    assert.equal(5, helper.count(err, "ended by an error"))
  end)

  helper.it("is not written for a normal end or an exit", function()
    local err, r = logged [[
      local troupe = require "troupe"
      troupe.join(troupe.spawn(function() end))
      troupe.join(troupe.spawn(function() troupe.exit "reason" end))
      troupe.join(troupe.spawn(function() troupe.exit { code = 1 } end))
    ]]
    assert.equal(0, r.status)
    assert.equal("", err)
  end)
end)

describe("an error of the root under `troupe run`", function()
  helper.it("gives status 1 and one traceback", function()
    local r = helper.run_script [[
      local function inner() error "root broke" end
      local function outer() inner() end
      outer()
    ]]
    assert.equal(1, r.status)
    assert.equal(1, helper.count(r.err, "root broke"))
    assert.equal(1, helper.count(r.err, "stack traceback"))
    assert.matches("main.lua:1", r.err, 1, true)
    assert.equal("", r.out)
  end)

  helper.it("gives status 1 for each odd error value", function()
    for _, value in ipairs { "", "nil", "false", "{code=1}", "print", "'text'",
      "setmetatable({}, {__tostring=function() error 'no' end})" } do
      local r = helper.run_script("error(" .. value .. ")")
      assert.equal(1, r.status)
      assert.not_equal("", r.err)
    end
  end)

  helper.it("ends the actors that are left", function()
    local r = helper.run_script [[
      local troupe = require "troupe"
      for _ = 1, 10 do troupe.spawn(function() troupe.receive() end) end
      troupe.spawn(function() while true do troupe.yield() end end)
      troupe.spawn(function() troupe.sleep(1000) end)
      error "root broke"
    ]]
    assert.equal(1, r.status)
    assert.equal(1, helper.count(r.err, "stack traceback"))
  end)

  helper.it("gives status 1 for an exit with a reason, 0 for a normal one", function()
    assert.equal(1, helper.run_script("require('troupe').exit('why')").status)
    assert.matches("why", helper.run_script("require('troupe').exit('why')").err, 1, true)
    assert.equal(0, helper.run_script("require('troupe').exit()").status)
    assert.equal(0, helper.run_script("require('troupe').exit('normal')").status)
  end)
end)
