--- State machines.

local gen_statem = require "troupe.gen_statem"
local helper = require "spec.helper"
local troupe = require "troupe"

-- A machine whose cast rows note what they see in data.log; `log` asks for it.
-- on: its states; what else it has is in more.
local function noting(on, more)
  local definition = {
    initial = "one",
    data = function() return { log = {} } end,
    on = on,
  }
  on["*"] = on["*"] or {}
  on["*"].call = on["*"].call or {
    log = function(data, _, cx) cx:reply(table.concat(data.log, " ")) end,
    state = function(_, _, cx) cx:reply(cx.state) end,
  }
  for k, v in pairs(more or {}) do
    definition[k] = v
  end
  return gen_statem.machine(definition)
end

local function note(data, _, cx)
  data.log[#data.log + 1] = cx.event or cx.kind
end

-- Notes the event, and goes to that state.
local function go(state)
  return function(data, payload, cx)
    note(data, payload, cx)
    return state
  end
end

local function started(machine, ...)
  return assert(machine:start(...))
end

local function log_of(m)
  return (assert(m:call "log"))
end

-- Waits until the machine's log has that many entries.
local function log_when(m, n)
  local deadline = troupe.now() + helper.DEADLINE
  while true do
    local text = log_of(m)
    if select(2, text:gsub("%S+", "")) >= n then
      return text
    end
    assert(troupe.now() < deadline, "the log stays at: " .. text)
    troupe.sleep(0.001)
  end
end

local function definition_error(definition)
  local ok, err = pcall(gen_statem.machine, definition)
  assert(not ok, "no error was raised")
  return err
end

local function check_ended(ref, reason)
  assert.same(reason, helper.down(ref))
end

-- Starts it, and returns handle and monitor.
local function watched(machine, ...)
  return assert(machine:start_opt({ monitor = true }, ...))
end

local Door = gen_statem.machine {
  name = "door",
  initial = "closed",
  data = function(code) return { code = code, opened = 0 } end,
  enter = { open = function(data, cx) data.opened = data.opened + 1; cx:state_timeout(5) end },
  on = {
    open = { cast = { push = "closed" }, state_timeout = "closed" },
    closed = { cast = { pull = "open", lock = "locked" } },
    locked = {
      cast = {
        unlock = function(data, key)
          if key == data.code then
            return "closed"
          end
        end,
        knock = gen_statem.postpone,
      },
    },
    ["*"] = {
      call = {
        state = function(_, _, cx) cx:reply(cx.state) end,
        opened = function(data, _, cx) cx:reply(data.opened) end,
      },
    },
  },
}

describe("a machine", function()
  helper.actor("goes from state to state", function()
    local door = started(Door, 1234)
    assert.equal("closed", door:call "state")
    assert.is_true(door:cast "lock")
    door:cast("unlock", 1111)
    assert.equal("locked", door:call "state")
    door:cast("unlock", 1234)
    door:cast "pull"
    assert.equal("open", door:call "state")
    assert.equal(1, door:call "opened")
    assert.is_true(gen_statem.stop(door))
    assert.same({ nil, "noproc" }, { door:call "state" })
    assert.same({ nil, "noproc" }, { door:cast "push" })
  end)

  helper.actor("is called by pid and by name", function()
    local door = assert(Door:start_opt({ name = "front" }, 1))
    assert.equal(door.pid, troupe.whereis "front")
    assert.is_true(gen_statem.cast("front", "pull"))
    assert.equal("open", gen_statem.call("front", "state"))
    assert.equal("open", gen_statem.call(door.pid, "state", nil, 1))
    assert.equal("open", gen_statem.call(door, "state"))
    assert.same({ nil, "name_taken", door.pid }, { Door:start_opt({ name = "front" }, 1) })
    assert.is_true(gen_statem.stop "front")
    assert.same({ nil, "noproc" }, { gen_statem.call("front", "state") })
    assert.same({ nil, "noproc" }, { gen_statem.stop "front" })
  end)

  helper.actor("takes casts that a pid sends", function()
    local door = started(Door, 7)
    door.pid:cast "lock"
    door.pid:cast { "unlock", 7 }
    assert.equal("closed", door.pid:call "state")
  end)

  helper.actor("is sendable, and so is its handle", function()
    local door = started(Door, 1)
    local state = helper.elsewhere(function()
      door:cast "pull"
      return door:call "state"
    end)
    assert.equal("open", state)
    troupe.send(troupe.self(), { door })
    local copy = helper.receive()[1]
    assert.equal(door.pid, copy.pid)
    copy:cast "push"
    assert.equal("closed", copy:call "state")
    local made = helper.elsewhere(function()
      local other = Door:start(2)
      other:cast "lock"
      return other
    end)
    assert.equal("locked", made:call "state")
  end)

  helper.actor("is found by the name of its module, or by its file", function()
    local path = helper.file("lamp.lua", [[
      local gen_statem = require "troupe.gen_statem"
      return gen_statem.machine {
        initial = "off",
        data = function(place) return { place = place } end,
        on = {
          off = { cast = { press = "on" } },
          on = { cast = { press = "off" } },
          ["*"] = { call = { get = function(d, _, cx) cx:reply(d.place .. " " .. cx.state) end } },
        },
      }
    ]])
    local lamp = assert(gen_statem.start(path, "hall"))
    lamp:cast "press"
    assert.equal("hall on", lamp:call "get")
    package.path = path:gsub("lamp.lua$", "?.lua") .. ";" .. package.path
    local linked = assert(gen_statem.start_link("lamp", "attic"))
    assert.equal("attic off", linked:call "get")
    local _, err = gen_statem.start "no.such.module"
    assert.matches("no.such.module", err.message, 1, true)
    _, err = gen_statem.start "spec.helper"
    assert.matches("returned no machine", err.message, 1, true)
  end)

  helper.actor("has an empty table for data if there is no function", function()
    local m = started(gen_statem.machine {
      initial = "a",
      on = { a = { call = { n = function(data, by, cx)
        data.n = (data.n or 0) + by
        cx:reply(data.n)
      end } } },
    })
    assert.equal(2, m:call("n", 2))
    assert.equal(5, m:call("n", 3))
  end)

  helper.actor("keeps functions that share a variable together", function()
    local n = 0
    local m = started(gen_statem.machine {
      initial = "a",
      on = { a = {
        cast = { add = function() n = n + 1 end },
        call = { get = function(_, _, cx) cx:reply(n) end },
      } },
    })
    m:cast "add"
    m:cast "add"
    assert.equal(2, m:call "get")
    assert.equal(0, n)
  end)
end)

describe("start", function()
  helper.actor("gives the reason of a data function that refuses", function()
    local M = gen_statem.machine {
      initial = "a", on = { a = {} },
      data = function(why) return nil, why end,
    }
    for _, start in ipairs { "start", "start_link" } do
      assert.same({ nil, "no disk" }, { M[start](M, "no disk") })
      assert.same({ nil, { 1 } }, { M[start](M, { 1 }) })
    end
    local opts = { name = "refused", link = true, monitor = true }
    assert.same({ nil, "x" }, { M:start_opt(opts, "x") })
    assert.is_nil(troupe.whereis "refused")
    helper.silence(0.005)
  end)

  helper.actor("gives the error of a data function, and registers nothing", function()
    local M = gen_statem.machine {
      name = "pump", initial = "a", on = { a = {} },
      data = function() error { code = 5 } end,
    }
    local handle, err = M:start_opt { name = "pump", link = true }
    assert.is_nil(handle)
    assert.equal("error", err.kind)
    assert.matches("^pump: data: ", err.message)
    assert.same({ code = 5 }, err.value)
    assert.is_nil(troupe.whereis "pump")
    helper.silence(0.005)
  end)

  helper.actor("ends a machine that is not ready in time", function()
    local M = gen_statem.machine {
      initial = "a", on = { a = {} },
      data = function() require("troupe").sleep(100) end,
    }
    assert.same({ nil, "timeout" }, { M:start_opt { timeout = 0.01, name = "slow", link = true } })
    assert.is_nil(troupe.whereis "slow")
    helper.silence(0.005)
  end)

  helper.actor("names what is not right", function()
    local function raised(...)
      local ok, err = pcall(...)
      assert(not ok, "no error was raised")
      return err
    end
    assert.matches("unknown option 'nmae'", raised(Door.start_opt, Door, { nmae = "x" }), 1, true)
    assert.matches("option 'timeout'", raised(Door.start_opt, Door, { timeout = "x" }), 1, true)
    assert.matches("table expected", raised(Door.start_opt, Door, 5), 1, true)
    assert.matches("machine or module name", raised(gen_statem.start, 5), 1, true)
    assert.matches("^argument", raised(Door.start, Door, io.stdout):match "argument.*")
    local door = started(Door, 1)
    assert.matches("event name expected", raised(door.cast, door, 5), 1, true)
    assert.matches("event name expected", raised(door.call, door), 1, true)
    assert.matches("event name expected", raised(gen_statem.cast, door.pid, {}), 1, true)
  end)

  helper.actor("links: the machine ends with who started it", function()
    local me = troupe.self()
    local ref
    local pid = troupe.spawn(function()
      troupe.send(me, Door:start_link(1))
      troupe.receive()
    end)
    local door = helper.receive()
    ref = troupe.monitor(door.pid)
    troupe.kill(pid)
    check_ended(ref, "killed")
  end)

  helper.actor("leaves no machine waiting for a starter that was killed", function()
    for i = 1, 20 do
      local pid = troupe.spawn(function()
        while true do
          Door:start_link(i)
        end
      end)
      troupe.sleep(0.001)
      troupe.kill(pid)
      troupe.join(pid)
    end
  end)
end)

describe("postponed events", function()
  local function machine()
    return noting {
      one = {
        cast = {
          a = gen_statem.postpone,
          b = function(_, _, cx) cx:postpone() end,
          c = function(data, payload, cx)
            note(data, payload, cx)
            cx:next_event("internal", "n")
            return "two"
          end,
          stay = function(data, payload, cx)
            note(data, payload, cx)
            return "one"
          end,
        },
      },
      two = { cast = { a = note, b = note, c = note, d = note }, internal = { n = note } },
    }
  end

  helper.actor("are replayed in order, after next_event and before what is queued", function()
    local M = machine()
    local m = started(M)
    for _, name in ipairs { "a", "b", "c", "d" } do
      m:cast(name)
    end
    assert.equal("c n a b d", log_of(m))
  end)

  helper.actor("stay where they are while the state does", function()
    local m = started(machine())
    m:cast "a"
    m:cast "stay"
    m:cast "stay"
    assert.equal("stay stay", log_of(m))
    m:cast "c"
    assert.equal("stay stay c n a", log_of(m))
  end)

  helper.actor("that postpone again wait for the next change", function()
    local m = started(noting {
      one = { cast = { a = gen_statem.postpone, go = go "two" } },
      two = { cast = { a = gen_statem.postpone, go = go "three" } },
      three = { cast = { a = note } },
    })
    m:cast "a"
    m:cast "go"
    assert.equal("go", log_of(m))
    m:cast "go"
    assert.equal("go go a", log_of(m))
  end)

  helper.actor("keep their order when only some postpone again", function()
    local m = started(noting {
      one = { cast = { ["*"] = gen_statem.postpone, go = go "two" } },
      two = { cast = { x = gen_statem.postpone, y = note, z = gen_statem.postpone,
        go = go "three" } },
      three = { cast = { ["*"] = note } },
    })
    for _, name in ipairs { "x", "y", "z", "go", "w", "go" } do
      m:cast(name)
    end
    assert.equal("go y go x z", log_of(m):gsub(" w", ""))
  end)

  helper.actor("come before queued ones also when a replayed event changes the state", function()
    local m = started(noting {
      one = { cast = { a = gen_statem.postpone, b = gen_statem.postpone, go = go "two" } },
      two = { cast = { a = go "three", b = note, d = note } },
      three = { cast = { b = note, d = note } },
    })
    for _, name in ipairs { "a", "b", "go", "d" } do
      m:cast(name)
    end
    assert.equal("go a b d", log_of(m))
  end)

  helper.actor("may change the state themselves and be replayed last", function()
    local m = started(noting {
      one = { cast = { a = gen_statem.postpone, b = function(_, _, cx)
        cx:postpone()
        return "two"
      end } },
      two = { cast = { a = note, b = note } },
    })
    m:cast "a"
    m:cast "b"
    assert.equal("a b", log_of(m))
  end)

  helper.actor("are answered by a later state if they are calls", function()
    local m = started(noting {
      one = { call = { get = gen_statem.postpone }, cast = { go = "two" } },
      two = { call = { get = function(_, payload, cx)
        cx:reply { cx.state, payload }
      end } },
    })
    local me = troupe.self()
    for i = 1, 3 do
      troupe.spawn(function() troupe.send(me, m:call("get", i)) end)
    end
    troupe.sleep(0.005)
    helper.silence()
    m:cast "go"
    local sum = 0
    for _ = 1, 3 do
      local answer = helper.receive()
      assert.equal("two", answer[1])
      sum = sum + answer[2]
    end
    assert.equal(6, sum)
  end)

  helper.actor("are failed with the machine", function()
    local m = started(noting { one = { call = { get = gen_statem.postpone } } })
    local me = troupe.self()
    helper.parked(troupe.spawn(function() troupe.send(me, { m:call "get" }) end))
    gen_statem.stop(m, "shutdown")
    assert.equal("shutdown", helper.receive()[2])
  end)

  helper.actor("may be plain messages, with their sender", function()
    local m = started(noting {
      one = { info = { hello = gen_statem.postpone }, cast = { go = "two" } },
      two = { info = { hello = function(_, message, cx) troupe.send(cx.from, message) end } },
    })
    troupe.send(m.pid, { type = "hello", n = 1 })
    m:cast "go"
    assert.same({ type = "hello", n = 1 }, (helper.receive()))
  end)
end)

describe("enter", function()
  helper.actor("runs at the start and on changes, not on a stay", function()
    local m = started(noting({
      one = { cast = { stay = go(nil), same = go "one", two = go "two" } },
      two = { cast = { one = go "one", same = go "two" } },
    }, {
      enter = {
        one = function(data, cx)
          data.log[#data.log + 1] = "[one<" .. tostring(cx.previous) .. "]"
        end,
        ["*"] = function(data, cx) data.log[#data.log + 1] = "[" .. cx.state .. "]" end,
      },
    }))
    for _, name in ipairs { "stay", "same", "two", "same", "one" } do
      m:cast(name)
    end
    assert.equal("[one<nil] stay same two [two] same one [one<two]", log_of(m))
  end)

  helper.actor("runs before next_event and replayed events", function()
    local m = started(noting({
      one = { cast = { a = gen_statem.postpone, go = function(_, _, cx)
        cx:next_event("internal", "n")
        return "two"
      end } },
      two = { cast = { a = note }, internal = { n = note } },
    }, { enter = { two = function(data) data.log[1] = "enter" end } }))
    m:cast "a"
    m:cast "go"
    assert.equal("enter n a", log_of(m))
  end)

  helper.actor("may answer the call that led there", function()
    local m = started(noting({
      one = { call = { go = "two" } },
      two = {},
    }, { enter = { two = function(_, cx) cx:reply "welcome" end } }))
    assert.equal("welcome", m:call "go")
  end)

  helper.actor("cannot change the state, postpone or make events", function()
    local tries = {
      ["only a row changes the state"] = function() return "one" end,
      ["cx:postpone: not while a state is entered"] = function(_, cx) cx:postpone() end,
      ["cx:next_event: not while a state is entered"] = function(_, cx)
        cx:next_event("cast", "x")
      end,
    }
    for text, fn in pairs(tries) do
      local m, ref = watched(noting({ one = { cast = { go = "two" } }, two = {} }, {
        enter = { two = fn },
      }))
      m:cast "go"
      local message = helper.down(ref).message
      assert.matches(text, message, 1, true)
      assert.matches("state 'two', enter: ", message, 1, true)
    end
  end)
end)

describe("state_timeout", function()
  helper.actor("fires in its state, with its payload", function()
    local M = noting {
      one = { cast = { go = function(_, _, cx)
        cx:state_timeout(0.01, "late")
        return "two"
      end } },
      two = { state_timeout = function(data, payload, cx)
        data.log[#data.log + 1] = cx.kind .. ":" .. payload
        return "three"
      end },
      three = {},
    }
    local m = started(M)
    m:cast "go"
    assert.equal("state_timeout:late", log_when(m, 1))
    assert.equal("three", m:call "state")
  end)

  helper.actor("ends with the state", function()
    local m = started(noting {
      one = { cast = { go = function(_, _, cx)
        cx:state_timeout(0.02)
        cx:next_event("internal", "leave")
        return "two"
      end } },
      two = { state_timeout = note, internal = { leave = go "three" } },
      three = { state_timeout = note, cast = { back = go "two" } },
    })
    m:cast "go"
    troupe.sleep(0.05)
    assert.equal("leave", log_of(m))
    m:cast "back"
    troupe.sleep(0.05)
    assert.equal("leave back", log_of(m))
  end)

  helper.actor("survives a stay", function()
    local m = started(noting({
      one = { cast = { x = go "one" }, state_timeout = note },
    }, { enter = { one = function(_, cx) cx:state_timeout(0.05) end } }))
    m:cast "x"
    m:cast "x"
    local words = {}
    for word in log_when(m, 3):gmatch "%S+" do
      words[#words + 1] = word
    end
    table.sort(words) -- where the machine was held up it fires first
    assert.same({ "state_timeout", "x", "x" }, words)
  end)

  helper.actor("of 0 fires before messages that are queued", function()
    local m = started(noting({
      one = { cast = { go = go "two", x = note } },
      two = { cast = { x = note }, state_timeout = note },
    }, { enter = { two = function(_, cx) cx:state_timeout(0) end } }))
    for _, name in ipairs { "go", "x", "x" } do
      m:cast(name)
    end
    assert.equal("go state_timeout x x", log_of(m))
  end)

  helper.actor("of 0 fires after next_event and after replayed events", function()
    local m = started(noting {
      one = { cast = { a = gen_statem.postpone, go = function(_, _, cx)
        cx:state_timeout(0)
        cx:next_event("internal", "n")
        return "two"
      end } },
      two = { cast = { a = note }, internal = { n = note }, state_timeout = note },
    })
    m:cast "a"
    m:cast "go"
    assert.equal("n a state_timeout", log_of(m))
  end)

  helper.actor("of 0 does not fire in the state that a next_event leads to", function()
    local m = started(noting {
      one = { cast = { go = function(_, _, cx)
        cx:state_timeout(0)
        cx:next_event("internal", "n")
        return "two"
      end } },
      two = { internal = { n = go "three" }, state_timeout = note },
      three = { state_timeout = note },
    })
    m:cast "go"
    assert.equal("three", m:call "state")
    assert.equal("n", log_of(m))
  end)

  helper.actor("is replaced when it is armed again", function()
    local m = started(noting {
      one = {
        cast = { arm = function(_, list, cx)
          for _, s in ipairs(list) do
            cx:state_timeout(s, s)
          end
        end },
        state_timeout = function(data, s) data.log[#data.log + 1] = tostring(s) end,
      },
    })
    m:cast("arm", { 0.05, 0.1 })
    assert.equal("0.1", log_when(m, 1))
    m:cast("arm", { 0.05, math.huge })
    troupe.sleep(0.07)
    assert.equal("0.1", log_of(m))
  end)

  helper.actor("can be cancelled", function()
    local m = started(noting {
      one = {
        call = { cancel = function(_, _, cx)
          cx:state_timeout(0.05)
          cx:reply { cx:cancel_state_timeout(), cx:cancel_state_timeout() }
        end },
        state_timeout = note,
      },
    })
    assert.same({ true, false }, m:call "cancel")
    troupe.sleep(0.07)
    assert.equal("", log_of(m))
  end)
end)

describe("named timeouts", function()
  local function machine()
    return noting {
      one = {
        -- Arms { name, seconds, payload }, and cancels names, all at one time.
        call = { arm = function(_, list, cx)
          local cancelled = {}
          for _, a in ipairs(list) do
            if type(a) == "string" then
              cancelled[#cancelled + 1] = cx:cancel_timeout(a)
            else
              cx:timeout(a[1], a[2], a[3])
            end
          end
          cx:reply(cancelled)
          return list.go
        end },
        timeout = { x = note, y = note },
      },
      two = {
        timeout = {
          x = function(data, payload) data.log[#data.log + 1] = "two:" .. tostring(payload) end,
        },
      },
    }
  end

  helper.actor("survive transitions", function()
    local m = started(machine())
    m:call("arm", { { "x", 0.05, 5 }, go = "two" })
    assert.equal("two:5", log_when(m, 1))
  end)

  helper.actor("are independent, and fire in the order of their times", function()
    local m = started(machine())
    m:call("arm", { { "x", 0.1 }, { "y", 0.05 } })
    assert.equal("y x", log_when(m, 2))
  end)

  helper.actor("of 0 fire in the order they were armed, before messages", function()
    local m = started(noting {
      one = {
        cast = {
          go = function(_, _, cx)
            cx:timeout("x", 0)
            cx:state_timeout(0)
            cx:timeout("y", -1)
          end,
          d = note,
        },
        timeout = { x = note, y = note },
        state_timeout = note,
      },
    })
    m:cast "go"
    m:cast "d"
    assert.equal("x state_timeout y d", log_of(m))
  end)

  helper.actor("are replaced when they are armed again, and can be cancelled", function()
    local m = started(machine())
    assert.same({ true, false, false },
      m:call("arm", { { "x", 0.05 }, { "x", 0.1 }, { "y", 0.05 }, "y", "y", "never" }))
    assert.equal("x", log_when(m, 1))
    m:call("arm", { { "x", 0.05 }, { "x", math.huge } })
    troupe.sleep(0.07)
    assert.equal("x", log_of(m))
  end)

  -- Each is due within a window: a machine that is busy may take its time between
  -- two of them.
  helper.actor("are many, in any order", function()
    local m = started(noting {
      one = {
        cast = { arm = function(data, list, cx)
          data.from, data.to = {}, {}
          for i, at in ipairs(list) do
            data.from[at] = troupe.now() + at * 0.0005
            cx:timeout(tostring(i), at * 0.0005, at)
            data.to[at] = troupe.now() + at * 0.0005
          end
          for i = 3, #list, 3 do
            assert(cx:cancel_timeout(tostring(i)))
          end
        end },
        timeout = function(data, at)
          local early = data.last and data.from[data.last] > data.to[at]
          data.log[#data.log + 1] = early and at .. "-after-" .. data.last or tostring(at)
          data.last = at
        end,
      },
    })
    local list, expected = {}, {}
    for i = 1, 100 do
      list[i] = (i * 37) % 101
      if i % 3 ~= 0 then
        expected[#expected + 1] = list[i]
      end
    end
    table.sort(expected)
    m:cast("arm", list)
    local came = {}
    for at in log_when(m, #expected):gmatch "%S+" do
      came[#came + 1] = assert(tonumber(at), at)
    end
    table.sort(came)
    assert.same(expected, came)
  end)
end)

describe("event_timeout", function()
  local function machine()
    local me = troupe.self()
    return noting {
      one = {
        cast = {
          arm = function(_, s, cx) cx:event_timeout(s, "quiet") end,
          noise = note,
          go = function(_, _, cx)
            cx:event_timeout(0.01)
            return "two"
          end,
          next = function(_, _, cx)
            cx:event_timeout(0.005)
            cx:next_event("internal", "n")
          end,
        },
        info = note,
        timeout = { x = note },
        internal = { n = note },
        event_timeout = function(data, payload)
          data.log[#data.log + 1] = payload
          require("troupe").send(me, payload)
        end,
      },
      two = { event_timeout = function() require("troupe").send(me, "in two") end },
    }
  end

  helper.actor("fires when nothing happens, with its payload", function()
    local m = started(machine())
    m:cast("arm", 0.01)
    assert.equal("quiet", helper.receive())
    assert.equal("quiet", log_of(m))
  end)

  helper.actor("is cancelled by any event", function()
    -- It fires where one of the two is held up between the two events.
    local function cancels(event, log)
      helper.one_of_many_tries(function()
        local m = started(machine())
        m:cast("arm", 0.05)
        event(m)
        troupe.sleep(0.07)
        assert.equal(log, log_of(m))
      end)
    end
    cancels(function(m) m:cast "noise" end, "noise")
    cancels(function(m) troupe.send(m.pid, "hello") end, "hello")
    cancels(function(m) m:cast "nobody knows this" end, "")
  end)

  helper.actor("is cancelled by a next_event of the same row", function()
    local m = started(machine())
    m:cast "next"
    troupe.sleep(0.02)
    assert.equal("n", log_of(m))
  end)

  helper.actor("of 0 fires when the queue of the machine is empty", function()
    local m = started(machine())
    m:cast("arm", 0)
    m:cast "noise"
    assert.equal("quiet noise", log_of(m))
  end)

  helper.actor("outlives the transition that it was armed in", function()
    local m = started(machine())
    m:cast "go"
    assert.equal("in two", helper.receive())
  end)
end)

describe("next_event", function()
  helper.actor("comes before what is queued, in order, of any kind", function()
    local m = started(noting {
      one = {
        cast = {
          go = function(data, payload, cx)
            note(data, payload, cx)
            cx:next_event("internal", "n1", 5)
            cx:next_event("cast", "n2")
            cx:next_event("info", "n3")
            cx:next_event("timeout", "n4")
            cx:next_event("state_timeout")
          end,
          n2 = note,
          d = note,
        },
        internal = { n1 = function(data, payload, cx)
          data.log[#data.log + 1] = "n1=" .. payload
          cx:next_event("internal", "deep")
        end, deep = note },
        info = { n3 = note },
        timeout = { n4 = note },
        state_timeout = note,
      },
    })
    m:cast "go"
    m:cast "d"
    assert.equal("go n1=5 deep n2 n3 n4 state_timeout d", log_of(m))
  end)

  helper.actor("may answer the call that made it", function()
    local m = started(noting {
      one = {
        call = { sum = function(_, list, cx) cx:next_event("internal", "add", list) end },
        internal = { add = function(_, list, cx) cx:reply(list[1] + list[2]) end },
      },
    })
    assert.equal(5, m:call("sum", { 2, 3 }))
  end)

  helper.actor("of an unknown kind is an error of the row", function()
    local m, ref = watched(noting {
      one = { cast = { x = function(_, _, cx) cx:next_event("intern", "x") end } },
    })
    m:cast "x"
    assert.matches("unknown kind intern", helper.down(ref).message, 1, true)
  end)
end)

describe("calls", function()
  helper.actor("are answered later by who kept from", function()
    local m = started(gen_statem.machine {
      initial = "a",
      data = function() return { waiting = {} } end,
      on = { a = {
        call = { wait = function(data, _, cx) table.insert(data.waiting, cx.from) end },
        cast = { go = function(data, value)
          for _, from in ipairs(data.waiting) do
            gen_statem.reply(from, value)
          end
          data.waiting = {}
        end },
      } },
    })
    local me = troupe.self()
    for _ = 1, 2 do
      troupe.spawn(function() troupe.send(me, m:call "wait") end)
    end
    troupe.sleep(0.005)
    m:cast("go", "now")
    assert.equal("now", helper.receive())
    assert.equal("now", helper.receive())
  end)

  helper.actor("that no row answers fail at once", function()
    local m = started(gen_statem.machine {
      initial = "a",
      on = {
        a = { call = {
          forget = function() end,
          no = gen_statem.unhandled,
          go = "b",
        }, cast = { number = function() end } },
        b = { call = { no = function() return gen_statem.unhandled end } },
      },
    })
    for _, name in ipairs { "forget", "no", "unknown", "number", "go", "no" } do
      assert.same({ nil, "no_reply" }, { m:call(name, 1, helper.DEADLINE) })
    end
  end)

  helper.actor("have a timeout, and late replies are dropped", function()
    local m = started(gen_statem.machine {
      initial = "a",
      on = { a = { call = { slow = function(_, _, cx)
        require("spec.helper").await_go()
        cx:reply "late"
      end, fast = function(_, _, cx) cx:reply "fast" end } } },
    })
    assert.same({ nil, "timeout" }, { m:call("slow", nil, 0.005) })
    troupe.send(m.pid, "go")
    assert.equal("fast", m:call "fast")
    helper.silence()
  end)

  helper.actor("of a machine to itself say so", function()
    local m = started(gen_statem.machine {
      initial = "a",
      on = { a = { call = { me = function(_, _, cx)
        cx:reply { gen_statem.call(troupe.self(), "me") }
      end } } },
    })
    assert.equal("calling_self", m:call("me")[2])
  end)

  helper.actor("may be answered with nil, false, and once only", function()
    local m = started(gen_statem.machine {
      initial = "a",
      on = { a = { call = {
        none = function(_, _, cx) cx:reply() end,
        no = function(_, _, cx) cx:reply(false) end,
        twice = function(_, _, cx)
          assert(cx:reply(1) == true and cx:reply(2) == false)
        end,
      } } },
    })
    assert.same({}, { m:call "none" })
    assert.is_false(m:call "no")
    assert.equal(1, m:call "twice")
    assert.is_false(m:call "no")
  end)

  helper.actor("that are queued fail with the machine", function()
    local m = started(gen_statem.machine {
      initial = "a",
      on = { a = { cast = { boom = function()
        require("spec.helper").await_go()
        error "boom"
      end } } },
    })
    m:cast "boom"
    local me = troupe.self()
    helper.parked(troupe.spawn(function() troupe.send(me, { m:call "x" }) end))
    troupe.send(m.pid, "go")
    local answer = helper.receive()
    assert.is_nil(answer[1])
    assert.matches("boom", answer[2].message, 1, true)
  end)
end)

describe("rows", function()
  helper.actor("of a state go before those of *", function()
    local m = started(noting {
      one = { cast = { x = go(nil), z = gen_statem.unhandled }, info = note },
      ["*"] = {
        cast = { x = "two", y = go(nil), z = "two", w = "two" },
        info = "two",
      },
      two = {},
    })
    for _, name in ipairs { "x", "y", "z" } do
      m:cast(name)
    end
    troupe.send(m.pid, 5)
    troupe.send(m.pid, "text")
    assert.equal("x y info text", log_of(m))
    assert.equal("one", m:call "state")
    m:cast "w"
    assert.equal("two", m:call "state")
  end)

  helper.actor("named * take the events that have none", function()
    local m = started(noting {
      one = { cast = { x = note, ["*"] = function(data, _, cx)
        data.log[#data.log + 1] = "other:" .. cx.event
      end } },
      ["*"] = { cast = { y = "two" } },
      two = {},
    })
    m:cast "x"
    m:cast "y"
    assert.equal("x other:y", log_of(m))
  end)

  helper.actor("of kind info see messages by their type", function()
    local me = troupe.self()
    local m = started(noting {
      one = { info = {
        down = function(_, message, cx) troupe.send(me, { cx.event, message.reason }) end,
        tick = function(_, message) troupe.send(me, { "tick", message }) end,
      }, cast = { watch = function(_, pid) troupe.monitor(pid) end } },
    })
    local pid = troupe.spawn(function() require("troupe").exit "gone" end)
    helper.ended(pid)
    m:cast("watch", pid)
    assert.same({ "down", "noproc" }, (helper.receive()))
    troupe.send(m.pid, "tick")
    assert.same({ "tick", "tick" }, (helper.receive()))
    troupe.send(m.pid, { type = "tick", n = 1 })
    assert.same({ "tick", { type = "tick", n = 1 } }, (helper.receive()))
  end)

  helper.actor("see who sent the event", function()
    local me = troupe.self()
    local m = started(noting {
      one = {
        cast = { who = function(_, _, cx)
          troupe.send(cx.from, { cx.kind, cx.event, cx.state })
        end },
      },
    })
    m:cast "who"
    local message, from = helper.receive()
    assert.same({ "cast", "who", "one" }, message)
    assert.equal(m.pid, from)
    assert.is_true(from ~= me)
  end)

  helper.actor("may return false for a stay", function()
    local m = started(noting { one = { cast = { x = function() return false end } } })
    m:cast "x"
    assert.equal("one", m:call "state")
  end)

  helper.actor("may read and replace data through cx", function()
    local m = started(gen_statem.machine {
      initial = "a", data = function() return 1 end,
      on = { a = {
        cast = { add = function(n, by, cx) cx.data = n + by end },
        call = { get = function(n, _, cx) cx:reply(n) end },
      } },
    })
    m:cast("add", 4)
    assert.equal(5, m:call "get")
  end)
end)

describe("an error", function()
  local function ends_with(on, more, event)
    local m, ref = watched(noting(on, more))
    m:cast(event or "x", 5)
    return helper.down(ref)
  end

  helper.actor("in a row names machine, state and event", function()
    local reason = ends_with({ one = { cast = { x = function() error "kaputt" end } } },
      { name = "pump" })
    assert.equal("error", reason.kind)
    assert.matches("^pump: state 'one', cast 'x': .*gen_statem_spec.lua:%d+: kaputt$",
      reason.message)
    assert.matches("gen_statem_spec.lua", reason.traceback, 1, true)
    assert.matches("kaputt$", reason.value)
  end)

  helper.actor("keeps its value, or a text if that cannot be sent", function()
    local reason = ends_with { one = { cast = { x = function() error { code = 7 } end } } }
    assert.same({ code = 7 }, reason.value)
    reason = ends_with { one = { cast = { x = function() error(print) end } } }
    assert.equal("string", type(reason.value))
    assert.matches("state 'one', cast 'x'", reason.message, 1, true)
  end)

  helper.actor("is a state that is not known", function()
    local reason = ends_with { one = { cast = { x = function() return "nowhere" end } } }
    assert.matches("state 'one', cast 'x': returned unknown state 'nowhere'", reason.message, 1,
      true)
    reason = ends_with { one = { cast = { x = function() return {} end } } }
    assert.matches("returned a table", reason.message, 1, true)
    reason = ends_with { one = { cast = { x = function(_, payload) return payload end } } }
    assert.matches("returned a number", reason.message, 1, true)
  end)

  helper.actor("in enter names the state", function()
    local reason = ends_with({ one = { cast = { x = "two" } }, two = {} },
      { enter = { two = function() error "no entry" end } })
    assert.matches("state 'two', enter: .*no entry$", reason.message)
  end)

  helper.actor("in a timeout names it", function()
    local reason = ends_with {
      one = {
        cast = { x = function(_, _, cx) cx:timeout("alarm", 0) end },
        timeout = { alarm = function() error "rang" end },
      },
    }
    assert.matches("state 'one', timeout 'alarm': .*rang$", reason.message)
  end)

  helper.actor("is a reply to what is no call, and wrong arguments of cx", function()
    local tries = {
      ["nobody has called"] = function(_, _, cx) cx:reply(1) end,
      ["seconds expected"] = function(_, _, cx) cx:state_timeout "soon" end,
      ["name expected"] = function(_, _, cx) cx:timeout(5, 5) end,
      ["seconds expected, got nan"] = function(_, _, cx) cx:event_timeout(0 / 0) end,
    }
    for text, fn in pairs(tries) do
      local reason = ends_with { one = { cast = { x = fn } } }
      assert.matches(text, (reason.message:gsub("%-nan", "nan")), 1, true)
    end
  end)
end)

describe("stop", function()
  local function terminating()
    local me = troupe.self()
    return gen_statem.machine {
      initial = "a",
      data = function() return { me = me } end,
      on = { a = {
        cast = {
          stop = function(_, reason, cx) cx:stop(reason) end,
          boom = function() error "boom" end,
          leave = function(_, reason) require("troupe").exit(reason) end,
          hold = function(data)
            require("troupe").send(data.me, "held")
            require("spec.helper").await_go()
          end,
          trap = function() require("troupe").trap_exit(true) end,
        },
        call = { bye = function(_, _, cx)
          cx:reply "bye"
          cx:stop()
        end },
      } },
      terminate = function(data, reason, cx)
        require("troupe").send(data.me, { cx.state, reason })
      end,
    }
  end

  helper.actor("from a row ends the machine for that reason, after terminate", function()
    local m, ref = watched(terminating())
    m:cast("stop", "tired")
    m:cast "boom"
    assert.same({ "a", "tired" }, (helper.receive()))
    check_ended(ref, "tired")
    m, ref = watched(terminating())
    m:cast "stop"
    assert.same({ "a", "normal" }, (helper.receive()))
    check_ended(ref, "normal")
  end)

  helper.actor("from a row may follow a reply", function()
    local m, ref = watched(terminating())
    assert.equal("bye", m:call "bye")
    check_ended(ref, "normal")
  end)

  helper.actor("from outside goes before what is queued", function()
    local m, ref = watched(terminating())
    m:cast "hold"
    assert.equal("held", helper.receive())
    m:cast "boom"
    local stopping = troupe.task(function() return gen_statem.stop(m, "shutdown") end)
    helper.parked(stopping.pid)
    troupe.send(m.pid, "go")
    assert.is_true(stopping:await(helper.DEADLINE))
    assert.same({ "a", "shutdown" }, helper.receive())
    check_ended(ref, "shutdown")
  end)

  helper.actor("has a timeout", function()
    local me = troupe.self()
    local m = started(gen_statem.machine {
      initial = "a",
      on = { a = { cast = { hold = function()
        require("troupe").send(me, "held")
        require("spec.helper").await_go()
      end } } },
    })
    m:cast "hold"
    assert.equal("held", helper.receive())
    assert.same({ nil, "timeout" }, { gen_statem.stop(m, "normal", 0.005) })
    troupe.send(m.pid, "go")
    helper.ended(m.pid)
    helper.silence()
  end)

  helper.actor("of a machine that runs into its own timeouts works, too", function()
    local m = started(gen_statem.machine {
      initial = "a",
      enter = { a = function(_, cx) cx:state_timeout(0) end },
      on = { a = { state_timeout = function(_, _, cx) cx:state_timeout(0) end } },
    })
    assert.is_true(gen_statem.stop(m))
  end)

  helper.actor("by an error runs terminate with the failure", function()
    local m, ref = watched(terminating())
    m:cast "boom"
    local message = helper.receive()
    assert.matches("boom", message[2].message, 1, true)
    assert.matches("boom", helper.down(ref).message, 1, true)
  end)

  helper.actor("by troupe.exit in a row runs terminate, too", function()
    local m, ref = watched(terminating())
    m:cast("leave", "own reason")
    assert.same({ "a", "own reason" }, (helper.receive()))
    check_ended(ref, "own reason")
  end)

  helper.actor("by troupe.exit in data is a start that failed", function()
    troupe.trap_exit(true)
    local M = gen_statem.machine {
      initial = "a", on = { a = {} }, data = function() require("troupe").exit "not today" end,
    }
    assert.same({ nil, "not today" }, { M:start_link() })
    assert.same({ nil, "not today" }, { M:start() })
    helper.silence()
  end)

  helper.actor("by an error in terminate has that one for a reason", function()
    local m, ref = watched(gen_statem.machine {
      initial = "a", on = { a = {} }, terminate = function() error "twice" end,
    })
    assert.is_nil((gen_statem.stop(m)))
    assert.matches("terminate: .*twice$", helper.down(ref).message)
  end)

  helper.actor("by the parent's exit runs terminate when exits are trapped", function()
    local M = terminating()
    local me = troupe.self()
    local pid = troupe.spawn(function()
      local m = M:start_link()
      m:cast "trap"
      m:call "none"
      troupe.send(me, m)
      troupe.exit "over"
    end)
    local first = helper.receive()
    local second = helper.receive()
    local told = first.pid and second or first
    assert.same({ "a", "over" }, told)
    helper.ended(pid)
  end)

  helper.actor("by itself from outside is an error", function()
    local m, ref = watched(gen_statem.machine {
      initial = "a",
      on = { a = { cast = { x = function() gen_statem.stop(troupe.self()) end } } },
    })
    m:cast "x"
    assert.matches("cx:stop", helper.down(ref).message, 1, true)
  end)
end)

describe("a definition", function()
  helper.it("with a mistake names it", function()
    local function row(rows)
      return { initial = "a", on = { a = rows, b = {} } }
    end
    local tries = {
      ["state 'a', cast 'x': unknown target state 'c'"] = row { cast = { x = "c" } },
      ["state 'a', state_timeout: unknown target state 'c'"] = row { state_timeout = "c" },
      ["state 'a': unknown kind 'csat'"] = row { csat = {} },
      ["state 'a', cast 'x': target must be a state, a function, postpone or unhandled, "
        .. "not a boolean"] = row { cast = { x = true } },
      ["state 'a', cast '5': the name of an event"] = row { cast = { [5] = "b" } },
      ["state 'a', state_timeout 'x': this kind has no names"] = row {
        state_timeout = { x = "b" },
      },
      ["unreachable state 'b'"] = row {},
      ["initial: unknown state 'z'"] = { initial = "z", on = { a = {} } },
      ["initial: unknown state 'nil'"] = { on = { a = {} } },
      ["field 'on' is missing"] = { initial = "a" },
      ["unknown field 'states'"] = { initial = "a", states = {} },
      ["state 'a' must be a table"] = { initial = "a", on = { a = "b" } },
      ["enter: unknown state 'z'"] = { initial = "a", on = { a = {} },
        enter = { z = function() end } },
      ["enter: state 'a' must have a function"] = { initial = "a", on = { a = {} },
        enter = { a = "b" } },
      ["'handle_event' and 'on' exclude"] = { initial = "a", on = {},
        handle_event = function() end },
      ["field 'strict' must be a boolean"] = { initial = "a", on = { a = {} }, strict = 1 },
    }
    for text, definition in pairs(tries) do
      assert.matches(text, definition_error(definition), 1, true)
    end
    assert.matches("machine 'x': ", definition_error { name = "x" }, 1, true)
    assert.matches("table expected", definition_error(nil), 1, true)
  end)

  helper.it("blames the line that called machine", function()
    local chunk = assert(loadstring([[

      local machine = require("troupe.gen_statem").machine
      machine { initial = "a", on = { a = { cast = { x = "b" } } } }
    ]], "=here"))
    local _, err = pcall(chunk)
    assert.matches("^here:3: machine: state 'a', cast 'x': unknown", err)
  end)

  helper.it("finds states that no row leads to, functions included", function()
    local function with(fn, star)
      return { initial = "a", on = { a = { cast = { x = fn } }, b = {}, ["*"] = star } }
    end
    local function nothing() end
    local function always() return "b" end
    local function maybe(data, key)
      if key == data.code then
        return "b"
      end
    end
    local function anywhere(_, state) return state end
    local function choice(_, x) return x and "b" or nil end
    local function other() return "a" end
    local function both() return "a", "b" end
    local function tail(f) return f() end
    for _, fn in ipairs { always, maybe, anywhere, choice, both, tail } do
      assert.is_table(gen_statem.machine(with(fn)))
    end
    for _, fn in ipairs { nothing, other } do
      assert.matches("unreachable state 'b'", definition_error(with(fn)), 1, true)
    end
    assert.is_table(gen_statem.machine(with(nothing, { info = "b" })))
    assert.is_table(gen_statem.machine(with(nothing, { info = anywhere })))
  end)

  helper.it("that is strict has a row for each event in each state", function()
    local definition = {
      initial = "a", strict = true,
      on = {
        a = { cast = { x = "b", y = gen_statem.unhandled }, state_timeout = "b" },
        b = { cast = { x = gen_statem.postpone }, call = { q = function() end } },
      },
    }
    local err = definition_error(definition)
    assert.matches("state 'b', cast 'y'", err, 1, true)
    assert.matches("state 'a', call 'q'", err, 1, true)
    assert.not_matches("timeout", err, 1, true)
    definition.on["*"] = { cast = { y = "a" } }
    assert.matches("state 'a', call 'q'", definition_error(definition), 1, true)
    definition.on.a.call = function() end
    assert.is_table(gen_statem.machine(definition))
  end)
end)

describe("the raw form", function()
  helper.actor("has one function, and any value for a state", function()
    local m = started(gen_statem.machine {
      initial = { "idle", 0 },
      data = function() return { entered = 0 } end,
      enter = function(_, data) data.entered = data.entered + 1 end,
      handle_event = function(kind, payload, state, data, cx)
        if kind == "call" then
          cx:reply { state[1], state[2], data.entered }
        elseif kind == "cast" and payload == "go" then
          return { "busy", state[2] }
        elseif kind == "cast" and cx.event == "add" then
          return { state[1], state[2] + payload }
        elseif kind == "cast" and payload == "same" then
          return { state[1], state[2] }
        elseif kind == "cast" and state[1] == "idle" then
          return gen_statem.postpone
        elseif kind == "info" then
          cx:timeout("t", 0, "tp")
        elseif kind == "timeout" then
          return { payload, state[2] }
        end
      end,
    })
    assert.same({ "idle", 0, 1 }, m:call "get")
    m:cast "same"
    m:cast("add", 5)
    assert.same({ "idle", 5, 2 }, m:call "get")
    m:cast "go"
    assert.same({ "busy", 5, 3 }, m:call "get")
    troupe.send(m.pid, { any = "message" })
    assert.same({ "tp", 5, 4 }, m:call "get")
  end)

  helper.actor("names the event in errors", function()
    local m, ref = watched(gen_statem.machine {
      initial = "s", handle_event = function() error "raw" end,
    })
    m:cast "x"
    assert.matches("state 's', cast 'x': .*raw$", helper.down(ref).message)
  end)
end)

describe("under a supervisor", function()
  helper.actor("a machine is a child, by itself or by the name of its file", function()
    local path = helper.file("bell.lua", [[
      return require("troupe.gen_statem").machine {
        initial = "quiet",
        data = function(tone) return { tone = tone } end,
        on = { quiet = { call = { ring = function(data, _, cx) cx:reply(data.tone) end } } },
      }
    ]])
    local sup = assert(require("troupe.supervisor").start_link {
      children = {
        { id = "door", start = Door, args = { 5 }, name = "door" },
        { id = "bell", start = path, args = { "ding" }, name = "bell" },
      },
    })
    gen_statem.cast("door", "lock")
    assert.equal("locked", gen_statem.call("door", "state"))
    assert.equal("ding", gen_statem.call("bell", "ring"))
    for _, name in ipairs { "door", "bell" } do
      local pid = troupe.whereis(name)
      troupe.kill(pid)
      troupe.join(pid, helper.DEADLINE)
      local deadline = troupe.now() + helper.DEADLINE
      while not gen_statem.call(name, name == "door" and "state" or "ring") do
        assert(troupe.now() < deadline)
        troupe.sleep(0.001)
      end
    end
    assert.equal("closed", gen_statem.call("door", "state"))
    troupe.unlink(sup)
    troupe.exit(sup, "shutdown")
    helper.ended(sup)
    assert.is_nil(troupe.whereis "door")
  end)
end)

describe("gen_statem.dot", function()
  helper.it("draws states, rows and what functions return", function()
    local text = gen_statem.dot(Door)
    for _, line in ipairs {
      'digraph "door" {',
      '"" -> "closed";',
      '"closed" -> "open" [label="pull"];',
      '"open" -> "closed" [label="push\\nstate_timeout"];',
      '"locked" -> "closed" [label="unlock", style=dashed];',
      '"locked" [label="locked\\nknock: postpone"];',
    } do
      assert.matches(line, text, 1, true)
    end
    assert.equal(text, gen_statem.dot(Door))
    assert.matches("handle_event", gen_statem.dot(gen_statem.machine {
      initial = "a", handle_event = function() end,
    }), 1, true)
    assert.is_false((pcall(gen_statem.dot, {})))
  end)
end)
