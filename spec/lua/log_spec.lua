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

  helper.it("never tears long lines of two schedulers", function()
    local r = helper.run_script([[
      local troupe = require "troupe"
      for a = 1, 8 do
        troupe.spawn(function()
          for i = 1, 20 do
            troupe.log.warn(("%d "):rep(1000, ""):gsub("%%d", tostring(a)))
            troupe.yield()
          end
        end)
      end
    ]], { env = { TROUPE_LOG = "info" }, options = "--schedulers 2" })
    local n = 0
    for line in r.err:gmatch "([^\n]*)\n" do
      n = n + 1
      local digit = line:match "warn  <[%d.]+> (%d) "
      assert(digit and line:match("> (.*)$") == (digit .. " "):rep(1000), line:sub(1, 80))
    end
    assert.equal(160, n)
  end)

  -- Nobody reads standard error: the script goes on, what does not fit is
  -- dropped, and the count is told when somebody reads at last.
  helper.it("does not block a scheduler when standard error is slow", function()
    local logged, reads = helper.file "logged", helper.file "reads"
    local path = helper.file("main.lua", [[
      local troupe = require "troupe"
      for i = 1, 20000 do
        troupe.log.info("%d %s", i, ("x"):rep(200))
      end
      print(true)
      io.stdout:flush()
      io.open(troupe.args[1], "w"):close()
      while not io.open(troupe.args[2]) do
        troupe.sleep(0.01)
      end
      troupe.sleep(2)
    ]])
    local r = helper.shell(([[{ TROUPE_LOG=info %s run --schedulers 1 %s %s %s 2>&1 >&3 |
      { until [ -e %s ]; do sleep 0.01; done; >%s; cat >&2; }; } 3>&1]]):format(
      helper.quote(helper.bin), helper.quote(path), logged, reads, logged, reads))
    assert.equal("true\n", r.out)
    local dropped = tonumber(r.err:match "%((%d+) log lines dropped%)\n")
    assert.is_true(dropped > 1000)
    local lines, last = 0, 0
    for line in r.err:gmatch "([^\n]*)\n" do
      local i = line:match "info  <[%d.]+> (%d+) x+$"
      if i then
        assert(line:match("x+$") == ("x"):rep(200), line)
        assert(tonumber(i) > last, "out of order")
        lines, last = lines + 1, tonumber(i)
      end
    end
    assert.equal(20000, lines + dropped)
  end)
end)

describe("the log of an actor that ends by an error", function()
  local function death(script, level)
    return helper.run_script("local troupe = require 'troupe'\n" .. script,
      { env = { TROUPE_LOG = level or "info" } }).err
  end

  helper.it("is one entry: time, level, pid, what it ran, message and traceback", function()
    local text = death "troupe.spawn(function() error 'broken' end) troupe.sleep(0.05)"
    assert.matches("^%d+%-%d+%-%d+T%d+:%d+:%d+%.%d+Z error <0%.1%.1> [^\n]*main%.lua:2 ended by an "
      .. "error: [^\n]*main%.lua:2: broken\n    stack traceback:\n", text)
    assert.equal(1, helper.count(text, " error "))
    for line in text:gmatch "\n([^\n]+)" do
      assert.matches("^    ", line)
    end
  end)

  helper.it("has the actor's names", function()
    local text = death [[
      troupe.spawn_opt({ name = "first" }, function()
        troupe.register "second"
        error "broken"
      end)
      troupe.sleep(0.05)
    ]]
    assert.matches("error <0%.1%.1> %(first, second%) [^\n]*main%.lua:%d+ ended by an error", text)
    text = death [[
      troupe.spawn(function()
        for i = 1, 20 do troupe.register(("n"):rep(200) .. i) end
        error "broken"
      end)
      troupe.sleep(0.05)
    ]]
    assert.matches("error <0%.1%.1> %(n+%d, n+%) [^\n]* ended by an error", text)
  end)

  helper.it("names the module that it ran", function()
    local path, folder = helper.file("log_worker.lua", "local x = ... error(x)")
    local text = death(([[
      package.path = %q .. "/?.lua;" .. package.path
      troupe.spawn("log_worker", "by name")
      troupe.spawn(%q, "by path")
      troupe.sleep(0.05)
    ]]):format(folder, path))
    assert.matches("> log_worker ended by an error: [^\n]*log_worker%.lua:1: by name", text)
    assert.matches("log_worker%.lua ended by an error: [^\n]*: by path", text)
  end)

  helper.it("tells of memory and of stack overflow", function()
    local text = death [[
      troupe.spawn_opt({ memory_limit = 500000, name = "glutton" }, function()
        local t = {}
        while true do t[#t + 1] = {} end
      end)
      troupe.sleep(0.2)
    ]]
    assert.matches("error <0%.1%.1> %(glutton%) [^\n]* ended by an error: not enough memory", text)
    text = death [[
      troupe.spawn_opt({ name = "deep" }, function()
        local function f() return (("a"):gsub("a", f)) end
        f()
      end)
      troupe.sleep(0.2)
    ]]
    assert.matches("error <0%.1%.1> %(deep%) [^\n]* ended by an error: [^\n]*overflow", text)
    assert.equal(1, helper.count(text, "ended by"))
  end)

  helper.it("is none for an exit, a kill, or with TROUPE_LOG=off", function()
    local script = [[
      troupe.spawn(function() troupe.exit "reason" end)
      troupe.spawn(function() troupe.exit { kind = "error" } end)
      troupe.spawn(function() troupe.sleep(9) end):kill()
      troupe.sleep(0.05)
    ]]
    assert.equal("", death(script))
    assert.equal("", death("troupe.spawn(function() error 'x' end) troupe.sleep(0.05)", "off"))
  end)
end)
