--- Times: seconds as numbers, from never to not at all.

local helper = require "spec.helper"
local troupe = require "troupe"

-- Each function that takes a time, as f(time). Nothing comes while they wait.
local waits = {
  sleep = function(t) return troupe.sleep(t) end,
  receive = function(t) return troupe.receive(t) end,
  receive_match = function(t) return troupe.receive_match({ never = true }, t) end,
  join = function(t) return troupe.join(helper.sleeper, t) end,
}

-- Calls body(f, name) for each of them, with helper.sleeper an actor that lives.
local function each_wait(body)
  helper.sleeper = troupe.spawn(function() troupe.receive() end)
  for _, name in ipairs { "sleep", "receive", "receive_match", "join" } do
    body(waits[name], name)
  end
  troupe.send(helper.sleeper, "end")
  helper.ended(helper.sleeper)
  helper.sleeper = nil
end

local function check_timed_out(name, value, err)
  if name ~= "sleep" then
    assert.is_nil(value)
    assert.equal("timeout", err)
  end
end

describe("a time", function()
  helper.actor("that is NaN is an argument error", function()
    each_wait(function(f)
      local ok, err = pcall(f, 0 / 0)
      assert.is_false(ok)
      assert.matches("bad argument", err, 1, true)
      assert.matches("number of seconds", err, 1, true)
    end)
    local me = troupe.self()
    for _, name in ipairs { "send_after", "send_every" } do
      assert.matches("argument #1 to '" .. name, helper.misuse(name, 0 / 0, me, 1), 1, true)
    end
  end)

  helper.actor("that is no number is an argument error", function()
    for _, bad in ipairs { "1", true, {} } do
      assert.matches("argument #1 to 'sleep'", helper.misuse("sleep", bad), 1, true)
      assert.matches("argument #1 to 'receive'", helper.misuse("receive", bad), 1, true)
      assert.matches("argument #2 to 'receive_match'", helper.misuse("receive_match", {}, bad), 1,
        true)
      assert.matches("argument #1 to 'send_after'",
        helper.misuse("send_after", bad, troupe.self(), 1), 1, true)
    end
    assert.matches("argument #1 to 'sleep'", helper.misuse "sleep", 1, true)
    assert.matches("argument #1 to 'sleep'", helper.misuse("sleep", nil), 1, true)
  end)

  helper.actor("of 0 or less polls", function()
    each_wait(function(f, name)
      for _, t in ipairs { 0, -0, -1, -1e300, -math.huge, -5e-324 } do
        check_timed_out(name, f(t))
      end
    end)
  end)

  helper.actor("of 0 or less takes a message that is there", function()
    local me = troupe.self()
    for _, t in ipairs { 0, -1, -math.huge } do
      troupe.send(me, t)
      assert.equal(t, (troupe.receive(t)))
      troupe.send(me, t)
      assert.equal(t, (troupe.receive_match(function() return true end, t)))
    end
  end)

  helper.actor("that is tiny does not become for ever", function()
    each_wait(function(f, name)
      for _, t in ipairs { 5e-324, 1e-12, 1e-9, 1e-6 } do
        check_timed_out(name, f(t))
      end
    end)
  end)

  helper.actor("passes: not early and, within reason, not late", function()
    each_wait(function(f, name)
      for _, t in ipairs { 0.0005, 0.003, 0.02 } do
        local took
        helper.one_of_many_tries(function() -- the machine may stop meanwhile
          local start = troupe.now()
          check_timed_out(name, f(t))
          took = troupe.now() - start
          assert(took < t + 5)
        end)
        assert.is_true(took >= t)
      end
    end)
  end)

  for schedulers = 1, 2 do
    helper.it(("of 2^31 ms and up to infinity is never early (schedulers: %d)"):format(schedulers),
      function()
        local times = { 2 ^ 31 / 1000, 2 ^ 32 / 1000, 2 ^ 31, 2 ^ 32, 2 ^ 33, 1e10, 9.3e9, 1.8e10,
                        1.9e10, 2 ^ 63 / 1e9, 2 ^ 64 / 1e9, 1e12, 1e18, 1e300, math.huge }
        -- Only an error of the root ends a run that waits for timers.
        local ok, err = pcall(troupe.run, function()
          local me = troupe.self()
          local pids = {}
          for i, t in ipairs(times) do
            for _, name in ipairs { "sleep", "receive", "receive_match", "join" } do
              pids[#pids + 1] = troupe.spawn(function()
                if name == "sleep" then
                  troupe.sleep(t)
                elseif name == "receive" then
                  troupe.receive(t)
                elseif name == "receive_match" then
                  troupe.receive_match({ x = 1 }, t)
                else
                  troupe.join(me, t)
                end
                troupe.send(me, name .. " woke early, " .. i)
              end)
            end
            assert(troupe.send_after(t, me, "send_after fired early"))
          end
          helper.silence(0.05)
          for _, pid in ipairs(pids) do
            assert.is_true(pid:alive())
          end
          error("all slept", 0)
        end, { schedulers = schedulers })
        assert.is_false(ok)
        assert.equal("all slept", err)
      end)
  end

  helper.actor("of nil or math.huge waits until something comes", function()
    local me = troupe.self()
    for _, t in ipairs { math.huge, false } do
      t = t or nil
      troupe.send_after(0.01, me, "a")
      assert.equal("a", (troupe.receive(t)))
      troupe.send_after(0.01, me, "b")
      assert.equal("b", (troupe.receive_match(function() return true end, t)))
      local pid = troupe.spawn(function() troupe.sleep(0.01) end)
      assert.is_true(troupe.join(pid, t))
    end
  end)

  helper.actor("of 1,000 sleepers ends in order of the deadlines", function()
    local me = troupe.self()
    local start = troupe.now()
    for i = 1, 1000 do
      local t = ((i * 7919) % 1000) / 1000 * 0.2
      troupe.spawn(function()
        local deadline = start + t
        troupe.sleep(deadline - troupe.now())
        troupe.send(me, troupe.now() - deadline)
      end)
    end
    for _ = 1, 1000 do
      assert.is_true(helper.receive() > -1e-6)
    end
  end)

  helper.actor("passes while every scheduler is busy with actors that yield", function()
    local me = troupe.self()
    local busy = {}
    for i = 1, 4 do
      busy[i] = troupe.spawn(function()
        while not troupe.receive(0) do
          for _ = 1, 1000 do end
          troupe.yield()
        end
      end)
    end
    for _ = 1, 20 do
      local start = troupe.now()
      troupe.sleep(0.002)
      assert.is_true(troupe.now() - start >= 0.002)
    end
    troupe.send_after(0.002, me, "fired")
    assert.equal("fired", (helper.receive()))
    for i = 1, 4 do
      troupe.send(busy[i], "stop")
    end
  end)
end)

describe("troupe.now", function()
  helper.actor("never goes back, and goes on", function()
    local last, first = troupe.now(), troupe.now()
    for _ = 1, 1000 do
      local t = troupe.now()
      assert.is_true(t >= last)
      last = t
    end
    troupe.sleep(0.01)
    assert.is_true(troupe.now() - first >= 0.01)
  end)
end)
