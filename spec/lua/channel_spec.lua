-- luacheck: no max line length
--- Channels: many senders, one receiver, ends that travel.

local helper = require "spec.helper"
local troupe = require "troupe"

local T = helper.DEADLINE

local function idle()
  troupe.receive()
end

describe("troupe.channel", function()
  helper.actor("takes any value that can be sent, in order", function()
    local tx, rx = troupe.channel()
    local values = { 1, -0.5, "x", "", true, false, { 1, { 2 } }, troupe.self(), 5LL, ("x"):rep(10000) }
    for _, value in ipairs(values) do
      assert.is_true(tx:send(value))
    end
    assert.equal(#values, #rx)
    for _, value in ipairs(values) do
      assert.same(value, (rx:recv(0)))
    end
    assert.same({ nil, "timeout" }, { rx:recv(0) })
    assert.same({ nil, "empty" }, { rx:try_recv() })
    assert.equal(0, #rx)
  end)

  helper.actor("keeps nothing of what cannot be sent, and names it", function()
    local tx, rx = troupe.channel()
    assert.has_error(function() tx:send(nil) end)
    assert.matches("message%.a%.b: C function cannot be sent",
      select(2, pcall(tx.send, tx, { a = { b = print } })))
    assert.equal(0, #rx)
  end)

  helper.actor("checks its arguments", function()
    local tx, rx = troupe.channel()
    for _, capacity in ipairs { 0, -1, 0.5, 0 / 0, math.huge, 2 ^ 32 } do
      assert.matches("capacity must be", helper.misuse("channel", capacity))
    end
    assert.matches("capacity must be a number", helper.misuse("channel", "x"))
    assert.matches("channel sender expected", select(2, pcall(tx.send, rx, 1)))
    assert.matches("channel receiver expected", select(2, pcall(rx.recv, tx)))
    assert.matches("channel receiver expected", select(2, pcall(rx.recv, io.stdout)))
    assert.matches("channel receiver expected", select(2, pcall(rx.recv, newproxy())))
    assert.matches("timeout must be", select(2, pcall(rx.recv, rx, "x")))
    assert.matches("timeout must be", select(2, pcall(rx.recv, rx, 0 / 0)))
    assert.matches("predicate or table expected", select(2, pcall(rx.recv_match, rx, 1)))
    assert.equal("troupe.channel.tx", getmetatable(tx))
    assert.matches("^troupe%.channel%.rx: ", tostring(rx))
  end)

  helper.actor("waits for a value, and for as long as it is told", function()
    local tx, rx = troupe.channel()
    local me = troupe.self()
    troupe.spawn(function()
      helper.parked(me)
      tx:send "later"
    end)
    assert.equal("later", (rx:recv(T)))
    local start = troupe.now()
    assert.same({ nil, "timeout" }, { rx:recv(0.02) })
    assert.is_true(troupe.now() - start >= 0.02)
  end)

  helper.actor("says closed once all senders are gone and all is taken", function()
    local tx, rx = troupe.channel()
    local pid = troupe.spawn(function(mine)
      mine:send "theirs"
      idle()
    end, tx)
    assert.equal("theirs", (rx:recv(T)))
    tx:send "ours"
    tx:close()
    tx:close() -- again is no difference
    assert.same({ nil, "closed" }, { tx:send(1) })
    assert.same({ nil, "closed" }, { tx:try_send(1) })
    assert.equal("ours", (rx:recv(0)))
    assert.same({ nil, "timeout" }, { rx:recv(0) })
    pid:send "end"
    assert.same({ nil, "closed" }, { rx:recv(T) })
    assert.same({ nil, "closed" }, { rx:recv() })
    assert.same({ nil, "closed" }, { rx:try_recv() })
    assert.same({ nil, "closed" }, { rx:recv_match {} })
  end)

  helper.actor("closes when the last sender is collected", function()
    local tx, rx = troupe.channel()
    tx:send(1)
    tx = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.equal(1, (rx:recv()))
    assert.same({ nil, "closed" }, { rx:recv() })
  end)

  helper.actor("closes when its last sender is killed", function()
    local tx, rx = troupe.channel()
    local pid = troupe.spawn(function()
      tx:send "here"
      while true do end
    end)
    tx:close()
    assert.equal("here", (rx:recv(T)))
    pid:kill()
    assert.same({ nil, "closed" }, { rx:recv(T) })
  end)

  helper.actor("closes when its last sender overflows its stack", function()
    local tx, rx = troupe.channel()
    troupe.spawn(function()
      local function deep(s) return (s:gsub(".", deep)) .. tostring(tx) end
      deep "x"
    end)
    tx:close()
    assert.same({ nil, "closed" }, { rx:recv(T) })
  end)

  helper.actor("refuses a send whose receiver is gone: nothing moves", function()
    local tx, rx = troupe.channel()
    local tx2, rx2 = troupe.channel()
    rx:close()
    assert.same({ nil, "closed" }, { rx:recv() })
    assert.same({ nil, "closed" }, { tx:send { rx2 } })
    tx2:send "still mine"
    assert.equal("still mine", (rx2:recv()))
  end)

  helper.actor("refuses a send whose receiver died: nothing moves", function()
    local tx, rx = troupe.channel()
    local tx2, rx2 = troupe.channel()
    local pid = troupe.spawn(idle, rx)
    pid:kill()
    helper.ended(pid)
    assert.same({ nil, "closed" }, { tx:send { rx2 } })
    tx2:send "still mine"
    assert.equal("still mine", (rx2:recv()))
  end)

  helper.actor("releases what was queued when the receiver is dropped", function()
    local tx, rx = troupe.channel()
    local reply_tx, reply_rx = troupe.channel()
    tx:send { question = 1, answer = reply_tx }
    reply_tx:close()
    rx:close()
    assert.same({ nil, "closed" }, { reply_rx:recv(T) })
  end)

  helper.actor("releases what was queued when the receiver's actor ends", function()
    local tx, rx = troupe.channel()
    local reply_tx, reply_rx = troupe.channel()
    tx:send { question = 1, answer = reply_tx }
    reply_tx:close()
    local pid = troupe.spawn(idle, rx)
    assert.same({ nil, "timeout" }, { reply_rx:recv(0) })
    pid:kill()
    assert.same({ nil, "closed" }, { reply_rx:recv(T) })
  end)

  helper.actor("closes when a sender is dropped in a message that nobody received", function()
    local tx, rx = troupe.channel()
    local pid = troupe.spawn(function() troupe.receive_match { never = 1 } end)
    assert(pid:send { tx })
    tx:close()
    assert.same({ nil, "timeout" }, { rx:recv(0) })
    pid:kill()
    assert.same({ nil, "closed" }, { rx:recv(T) })
  end)

  helper.actor("drops channels that are queued in each other, however deep", function()
    local tx, rx = troupe.channel()
    local first = tx
    for _ = 1, 20000 do
      local inner_tx, inner_rx = troupe.channel()
      tx:send { inner_rx }
      tx = inner_tx
    end
    rx:close()
    assert.same({ nil, "closed" }, { tx:send(1) })
    assert.same({ nil, "closed" }, { first:send(1) })
  end)
end)

describe("a channel with a capacity", function()
  helper.actor("says full, or parks the sender", function()
    local tx, rx = troupe.channel(2)
    assert.is_true(tx:try_send(1))
    assert.is_true(tx:send(2))
    assert.same({ nil, "full" }, { tx:try_send(3) })
    assert.same({ nil, "timeout" }, { tx:send(3, 0) })
    assert.same({ nil, "timeout" }, { tx:send(3, 0.01) })
    assert.equal(2, #rx)
    assert.equal(1, (rx:recv()))
    assert.is_true(tx:try_send(3))
    assert.equal(2, (rx:recv()))
    assert.equal(3, (rx:recv()))
    assert.equal(0, #rx)
  end)

  helper.actor("lets parked senders in first come first served", function()
    local tx, rx = troupe.channel(1)
    local me = troupe.self()
    tx:send(0)
    for i = 1, 5 do
      local pid = troupe.spawn(function()
        troupe.send(me, i)
        tx:send(i)
      end)
      assert.equal(i, (helper.receive()))
      helper.parked(pid)
    end
    for i = 0, 5 do
      assert.equal(i, (rx:recv(T)))
    end
  end)

  helper.actor("gives a parked sender its value back when the receiver goes", function()
    local tx, rx = troupe.channel(1)
    local me = troupe.self()
    tx:send(0)
    local pid = troupe.spawn(function()
      local tx2, rx2 = troupe.channel()
      troupe.send(me, "ready")
      local ok, err = tx:send { rx2 }
      tx2:send "mine"
      troupe.send(me, { ok, err, (rx2:recv()) })
    end)
    helper.receive()
    helper.parked(pid)
    rx:close()
    assert.same({ nil, "closed", "mine" }, (helper.receive()))
    helper.ended(pid)
  end)

  helper.actor("forgets a parked sender that is killed, and its value", function()
    local tx, rx = troupe.channel(1)
    local gone_tx, gone_rx = troupe.channel()
    tx:send(0)
    local pid = troupe.spawn(function() tx:send { gone_tx } end)
    gone_tx:close()
    helper.parked(pid)
    pid:kill()
    helper.ended(pid)
    assert.same({ nil, "closed" }, { gone_rx:recv(T) })
    assert.equal(0, (rx:recv()))
    assert.same({ nil, "timeout" }, { rx:recv(0) })
    assert.is_true(tx:try_send(1))
    assert.same({ nil, "full" }, { tx:try_send(2) })
  end)
end)

describe("a receiver", function()
  helper.actor("is moved by sending it: the sender's handle is dead", function()
    local tx, rx = troupe.channel()
    tx:send "queued"
    local got = helper.elsewhere(function(theirs)
      return (theirs:recv())
    end, rx)
    assert.equal("queued", got)
    for _, method in ipairs { "recv", "try_recv", "close" } do
      assert.matches("channel receiver was sent to another actor", select(2, pcall(rx[method], rx)))
    end
    assert.matches("was sent to another actor", select(2, pcall(rx.recv_match, rx, {})))
    assert.matches("was sent to another actor", select(2, pcall(function() return #rx end)))
    assert.matches("message: channel receiver that is closed or was sent away cannot be sent",
      select(2, pcall(troupe.send, troupe.self(), rx)))
    assert.matches("sent away", tostring(rx))
  end)

  helper.actor("may go as an upvalue, in a call, in a reply, in a cast, by a timer", function()
    local function pair(value)
      local tx, rx = troupe.channel()
      tx:send(value)
      return rx
    end
    local server = troupe.spawn(function()
      while true do
        local message, from, kind = troupe.receive()
        if kind == "call" then
          local value = message[1]:recv()
          local tx, rx = troupe.channel()
          tx:send(value + 1)
          from:reply { rx }
        elseif kind == "cast" then
          message.to:send((message[1]:recv()))
        end
      end
    end)
    local up = pair(1)
    assert.equal(1, (helper.elsewhere(function() return (up:recv()) end)))
    assert.equal(3, (server:call({ pair(2) })[1]:recv()))
    local tx, rx = troupe.channel()
    assert.is_true(server:cast { pair(5), to = tx })
    assert.equal(5, (rx:recv(T)))
    troupe.send_after(0, troupe.self(), { pair(6) })
    assert.equal(6, (helper.receive()[1]:recv()))
    server:kill()
  end)

  helper.actor("stays where it is when the send fails", function()
    local tx, rx = troupe.channel()
    local dead = troupe.spawn(function() end)
    helper.ended(dead)
    local full = troupe.spawn_opt({ mailbox = { limit = 1 } }, function() troupe.sleep(100) end)
    full:send(1)
    local function still_mine()
      tx:send(1)
      assert.equal(1, (rx:recv(0)))
    end
    assert.same({ nil, "noproc" }, { troupe.send(dead, rx) })
    still_mine()
    assert.same({ nil, "full" }, { troupe.send(full, { a = rx }) })
    still_mine()
    assert.same({ nil, "noproc" }, { troupe.call(dead, rx) })
    still_mine()
    assert.same({ nil, "full" }, { troupe.call(full, rx) })
    still_mine()
    assert.same({ nil, "calling_self" }, { troupe.call(troupe.self(), rx) })
    still_mine()
    assert.same({ nil, "noproc" }, { troupe.cast(dead, rx) })
    still_mine()
    assert.same({ nil, "no_member" }, { require("troupe.pg").dispatch("nobody", rx) })
    still_mine()
    assert.is_false(pcall(troupe.send, troupe.self(), { rx, print }))
    still_mine()
    assert.is_false(pcall(troupe.spawn, function() end, rx, print))
    still_mine()
    troupe.register "taken"
    assert.equal("name_taken", select(2, troupe.spawn_opt({ name = "taken" }, idle, rx)))
    still_mine()
    assert.is_true(troupe.sendable(rx))
    still_mine()
    full:kill()
  end)

  helper.actor("stays where it is when a reply comes too late", function()
    local me = troupe.self()
    local server = troupe.spawn(function()
      local _, from = troupe.receive()
      troupe.receive()
      local tx, rx = troupe.channel()
      local waits = from:reply(rx)
      tx:send "mine"
      troupe.send(me, { waits, (rx:recv()) })
    end)
    assert.same({ nil, "timeout" }, { server:call("x", 0) })
    server:send "go"
    assert.same({ false, "mine" }, (helper.receive()))
  end)

  helper.actor("is one receiver still when it is twice in a message", function()
    local tx, rx = troupe.channel()
    local same, value = helper.elsewhere(function(m)
      return m[1] == m[2] and m[1] == m.x[1], (m[2]:recv())
    end, (function()
      tx:send "one"
      return { rx, rx, x = { rx } }
    end)())
    assert.is_true(same)
    assert.equal("one", value)
  end)

  helper.actor("does not go into its own channel", function()
    local tx, rx = troupe.channel()
    local text = "a receiver cannot be sent into its own channel"
    assert.matches(text, select(2, pcall(tx.send, tx, { a = { rx } })))
    assert.matches(text, select(2, pcall(tx.try_send, tx, rx)))
    assert.equal(0, #rx)
    tx:send { tx }
    assert.is_true(rx:recv()[1]:send "back")
    assert.equal("back", (rx:recv()))
  end)

  helper.actor("does not go to many: the error names the path", function()
    local tx, rx = troupe.channel()
    local pg = require "troupe.pg"
    pg.join "all"
    local expected = "message%.a%[1%]: channel receiver in a message to many cannot be sent"
    assert.matches(expected, select(2, pcall(pg.broadcast, "all", { a = { rx } })))
    assert.matches(expected, select(2, pcall(troupe.send_every, 1, troupe.self(), { a = { rx } })))
    assert.matches("value%.a: channel receiver in a message to many cannot be sent",
      select(2, pcall(troupe.mutex, { a = rx })))
    assert.is_true(troupe.sendable(rx))
    assert.is_false(troupe.sendable(rx, true))
    local reason = helper.reason_of(function()
      local _, mine = troupe.channel()
      troupe.exit { mine }
    end)
    assert.equal("string", type(reason)) -- as any reason that cannot be sent
    tx:send(1)
    assert.equal(1, (rx:recv()))
    pg.leave "all"
  end)

  helper.actor("loses nothing and keeps the order when it moves while values arrive", function()
    local SENDERS, EACH, HOPS = 4, 500, 40
    local tx, rx = troupe.channel()
    for s = 1, SENDERS do
      troupe.spawn(function(mine)
        for i = 1, EACH do
          mine:send { s, i }
          if i % 7 == 0 then
            troupe.yield()
          end
        end
      end, tx)
    end
    tx:close()
    local function hop(theirs, next_of, hops, me)
      while true do
        local v, err = theirs:recv()
        if not v then
          troupe.send(me, { count = next_of, err = err })
          return
        end
        if v[2] ~= next_of[v[1]] then
          troupe.send(me, { wrong = v })
          return
        end
        next_of[v[1]] = v[2] + 1
        if hops > 0 and v[2] % 20 == 0 then
          troupe.spawn(hop, theirs, next_of, hops - 1, me)
          return
        end
      end
    end
    troupe.spawn(hop, rx, { 1, 1, 1, 1 }, HOPS, troupe.self())
    assert.same({ count = { EACH + 1, EACH + 1, EACH + 1, EACH + 1 }, err = "closed" },
      (helper.receive()))
  end)

  helper.actor("goes with a child that was killed before it ran", function()
    local tx, rx = troupe.channel()
    local pid, ref = troupe.spawn_monitor(idle, rx)
    pid:kill()
    helper.down(ref)
    assert.same({ nil, "closed" }, { tx:send(1) })
  end)

  helper.actor("goes before others are told of its actor's end", function()
    local tx, rx = troupe.channel()
    local pid, ref = troupe.spawn_monitor(idle, rx)
    pid:send(1)
    helper.down(ref)
    assert.same({ nil, "closed" }, { tx:send(1) })
  end)
end)

describe("rx:recv_match", function()
  helper.actor("takes the oldest value that fits; the others stay in order", function()
    local tx, rx = troupe.channel()
    for i = 1, 6 do
      tx:send { n = i, even = i % 2 == 0 }
    end
    assert.equal(2, rx:recv_match({ even = true }).n)
    assert.equal(5, rx:recv_match(function(v) return v.n > 4 end).n)
    assert.same({ nil, "timeout" }, { rx:recv_match({ n = 9 }, 0) })
    assert.equal(4, #rx)
    for _, n in ipairs { 1, 3, 4, 6 } do
      assert.equal(n, rx:recv().n)
    end
    tx:send "plain"
    assert.equal("plain", (rx:recv_match(function(v) return v == "plain" end)))
  end)

  helper.actor("makes room in a full channel", function()
    local tx, rx = troupe.channel(2)
    tx:send(1)
    tx:send(2)
    troupe.spawn(function() tx:send(3) end)
    assert.equal(2, (rx:recv_match(function(v) return v == 2 end)))
    assert.equal(3, (rx:recv_match(function(v) return v == 3 end, T)))
    assert.equal(1, (rx:recv()))
  end)

  helper.actor("waits for what fits while other values are there", function()
    local tx, rx = troupe.channel()
    tx:send "other"
    troupe.spawn(function()
      for i = 1, 50 do
        tx:send(i)
        troupe.yield()
      end
    end)
    assert.equal(50, (rx:recv_match(function(v) return v == 50 end, T)))
    assert.equal("other", (rx:recv()))
  end)

  helper.actor("wakes when the channel closes, though values are there", function()
    local tx, rx = troupe.channel()
    tx:send "other"
    local me = troupe.self()
    troupe.spawn(function(mine)
      helper.parked(me)
      mine:close()
    end, tx)
    tx:close()
    assert.same({ nil, "closed" }, { rx:recv_match({ never = 1 }, T) })
    assert.equal("other", (rx:recv()))
    assert.same({ nil, "closed" }, { rx:recv() })
  end)

  helper.actor("does not move what it only looks at", function()
    local tx, rx = troupe.channel()
    local in_tx, in_rx = troupe.channel()
    in_tx:send "inner"
    tx:send { k = 1, inner = in_rx }
    tx:send { k = 2 }
    assert.equal(2, rx:recv_match({ k = 2 }).k)
    assert.equal("inner", (rx:recv_match({ k = 1 }).inner:recv()))
    -- The same with the mailbox.
    local m_tx, m_rx = troupe.channel()
    m_tx:send "inner"
    troupe.send(troupe.self(), { k = 1, inner = m_rx })
    troupe.send(troupe.self(), { k = 2 })
    assert.equal(2, troupe.receive_match({ k = 2 }).k)
    assert.equal("inner", (troupe.receive_match({ k = 1 }).inner:recv()))
  end)

  helper.actor("survives a predicate that raises, receives, closes or sends it away", function()
    local tx, rx = troupe.channel()
    tx:send(1)
    assert.matches("oops", select(2, pcall(rx.recv_match, rx, function() error "oops" end)))
    local text = "must not receive"
    assert.matches(text, select(2, pcall(rx.recv_match, rx, function() return rx:recv() end)))
    assert.matches(text, select(2, pcall(rx.recv_match, rx, function() return troupe.receive(0) end)))
    assert.matches(text, select(2, pcall(rx.recv_match, rx, function() return troupe.select({ rx }, 0) end)))
    assert.equal(1, (rx:recv(0)))
    tx:send(2)
    assert.same({ nil, "closed" }, { rx:recv_match(function()
      rx:close()
      collectgarbage()
      return true
    end) })
    local tx2, rx2 = troupe.channel()
    tx2:send(3)
    assert.matches("was sent to another actor", select(2, pcall(rx2.recv_match, rx2, function()
      troupe.spawn(function(theirs) theirs:recv() end, rx2)
      return true
    end)))
  end)
end)

describe("channel ends", function()
  helper.actor("of an earlier run are closed in the next one", function()
    -- This body runs in troupe.run: the ends below are those of other specs'
    -- runs, kept by the Lua state that they share.
    local kept = rawget(_G, "kept_channel")
    if kept then
      assert.same({ nil, "closed" }, { kept.tx:send(1) })
      assert.same({ nil, "closed" }, { kept.rx:recv() })
      kept.tx:close()
      collectgarbage()
    end
    local tx, rx = troupe.channel()
    rawset(_G, "kept_channel", { tx = tx, rx = rx })
  end)

  helper.actor("are closed in finalizers at the actor's end", function()
    local tx, rx = troupe.channel()
    local path = helper.file "finalized"
    local pid = troupe.spawn(function()
      local open = io.open
      local a_tx, a_rx = troupe.channel()
      local proxy = newproxy(true)
      getmetatable(proxy).__gc = function()
        local ok, err = a_tx:send(1)
        local value, why = a_rx:recv()
        a_rx:close()
        local fine = ok == nil and err == "closed" and value == nil and why == "closed"
        open(path, "w"):write(fine and "closed" or "open"):close()
      end
      _G.proxy = proxy
      tx:send "made"
    end)
    assert.equal("made", (rx:recv(T)))
    helper.ended(pid)
    assert.equal("closed", helper.read(path))
  end)

  helper.actor("may be in exit reasons and results of tasks, if they are senders", function()
    local tx, rx = troupe.channel()
    local got = assert(troupe.task(function() return tx end):await(T))
    tx:close()
    assert.is_true(got:send "by a result")
    assert.equal("by a result", (rx:recv()))
    local _, err = troupe.task(function()
      local _, mine = troupe.channel()
      return { mine }
    end):await(T)
    assert.matches("task result: .*channel receiver in a message to many", err.message)
  end)

  helper.actor("that are senders go to each of many", function()
    local tx, rx = troupe.channel()
    local pg = require "troupe.pg"
    local me = troupe.self()
    for i = 1, 3 do
      troupe.spawn(function()
        pg.join "many"
        troupe.send(me, "in")
        troupe.receive().to:send(i)
      end)
      helper.receive()
    end
    assert.equal(3, pg.broadcast("many", { to = tx }))
    tx:close()
    local sum = 0
    for _ = 1, 3 do
      sum = sum + rx:recv(T)
    end
    assert.equal(6, sum)
    assert.same({ nil, "closed" }, { rx:recv(T) })
  end)

  helper.actor("that are senders live on in a timer, and go with it", function()
    local tx, rx = troupe.channel()
    local timer = troupe.send_every(0.001, troupe.self(), { tx })
    tx:close()
    for i = 1, 3 do
      helper.receive()[1]:send(i)
      assert.equal(i, (rx:recv(T)))
    end
    assert.is_true(troupe.cancel(timer))
    troupe.receive(0)
    collectgarbage()
    collectgarbage()
    assert.same({ nil, "closed" }, { rx:recv(T) })
  end)
end)
