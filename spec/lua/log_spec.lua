--- troupe.log: one line each, to standard error.

local helper = require "spec.helper"

local function log(script, level)
  local r = helper.run_script("local log = require('troupe').log\n" .. script,
    { env = { TROUPE_LOG = level } })
  assert(r.status == 0, r.err)
  assert(r.out == "", r.out)
  return r.err
end

local ALL = "log.debug 'd'; log.info 'i'; log.warn 'w'; log.error 'e'"

local function levels(text)
  local seen = {}
  for level in text:gmatch "Z (%a+) +<" do
    seen[#seen + 1] = level
  end
  return table.concat(seen, " ")
end

describe("troupe.log", function()
  helper.it("writes what TROUPE_LOG lets through", function()
    assert.equal("debug info warn error", levels(log(ALL, "debug")))
    assert.equal("info warn error", levels(log(ALL, "info")))
    assert.equal("warn error", levels(log(ALL, "warn")))
    assert.equal("error", levels(log(ALL, "error")))
    assert.equal("", log(ALL, "off"))
  end)

  helper.it("takes info for granted where the level is unknown or empty", function()
    assert.equal("info warn error", levels(log(ALL, "loud")))
    assert.equal("info warn error", levels(log(ALL, "")))
  end)

  helper.it("writes time, level, pid and text", function()
    assert.matches("^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%dZ warn  <0%.%d+%.%d+> hello 5 x\n$",
      log("log.warn('hello %d %s', 5, 'x')", "info"))
  end)

  helper.it("takes a text alone as it is", function()
    assert.matches(" 100%% of %%s\n$", log("log.info '100% of %s'", "info"))
  end)

  helper.it("writes one line whatever the text holds", function()
    local text = log("log.info('a\\nb\\nc')", "info")
    assert.equal(1, helper.count(text, "\n"))
    assert.matches("a\\nb\\nc\n", text, 1, true)
  end)

  helper.it("writes long lines whole", function()
    local text = log("log.info(('x'):rep(100000))", "info")
    assert.equal(100000, #text:match "x+")
  end)

  helper.it("never tears lines of many actors", function()
    local text = log([[
      local troupe = require "troupe"
      for a = 1, 20 do
        troupe.spawn(function()
          for i = 1, 50 do
            troupe.log.info("%s", ("abcdefghij"):rep(30))
            if i % 10 == 0 then troupe.yield() end
          end
        end)
      end
    ]], "info")
    local n = 0
    for line in text:gmatch "([^\n]*)\n" do
      n = n + 1
      assert(line:match "^%d+%-%d+%-%d+T[%d:%.]+Z info  <0%.%d+%.%d+> [a-j]+$", line)
      assert.equal(("abcdefghij"):rep(30), line:match "[a-j]+$")
    end
    assert.equal(1000, n)
  end)

  helper.it("raises for a wrong format where the level is on", function()
    local r = helper.run_script("require('troupe').log.info('%d', 'x')",
      { env = { TROUPE_LOG = "info" } })
    assert.equal(1, r.status)
    r = helper.run_script("require('troupe').log.info(nil)")
    assert.equal(1, r.status)
  end)
end)
