--- The examples that serve, as their clients see them: examples/tcp_echo.lua
-- under the load generator, examples/chat.lua with a room full of people.

local helper = require "spec.helper"
local net = require "troupe.net"
local servers = dofile "spec/servers.lua"
local troupe = require "troupe"

local PATIENT = "--timeout 100 --connect-timeout 100 --deadline 300 "

-- One that is free now: it was given by the system a moment ago.
local function free_port()
  local port
  troupe.run(function()
    local listener = assert(net.listen {})
    port = listener:port()
    listener:close()
  end)
  return port
end

-- A server for all specs of a block; it is alive at the end.
local server
local function with_server(example)
  setup(function()
    server = servers.start_at(("%s run --schedulers 2 examples/%s"):format(servers.troupe, example),
      free_port())
  end)
  teardown(function()
    local alive = server:is_alive()
    server:stop()
    assert.is_true(alive, "the server has ended")
  end)
end

local function settled(fds, registered)
  local now_fds, now_registered
  assert.is_true(servers.wait(helper.DEADLINE, function()
    now_fds, now_registered = server:descriptors()
    return now_fds <= fds and now_registered <= registered
  end), ("%s descriptors (%s registered) are left of %d (%d)"):format(tostring(now_fds),
    tostring(now_registered), fds, registered))
end

describe("examples/tcp_echo.lua", function()
  with_server "tcp_echo.lua"

  for _, case in ipairs {
    { "one byte at a time", "--size 1 --count 500" },
    { "a hundred connections", "--connections 100 --count 5000" },
    { "many requests in flight", "--connections 10 --pipeline 32 --count 5000" },
    { "requests of a megabyte", "--connections 3 --size 1000003 --pipeline 2 --count 30" },
    { "requests at fixed times", "--connections 20 --rate 500 --count 500" },
    { "connections that wait", "--mode idle --connections 300 --duration 0.3" },
    { "connections that come and go", "--mode churn --connections 50 --requests 2 --count 1500" },
    { "connections that end by halves", "--mode churn --connections 50 --count 1000 --end half" },
    { "connections that are reset", "--mode churn --connections 50 --count 1000 --end reset" },
  } do
    it("sends back each byte of " .. case[1], function()
      if not servers.has_load() then
        pending "there is no libuv, hence no load generator"
        return
      end
      local fds, registered = server:descriptors()
      local figures, text = server:load(PATIENT .. case[2])
      assert.truthy(figures, text)
      assert.equal(figures.sent, figures.verified)
      assert.equal(figures.sent, figures.received)
      settled(fds, registered + 1) -- the listener may have come
    end)
  end
end)

describe("examples/chat.lua", function()
  with_server "chat.lua"

  local function client(name, fn)
    helper.actor(name, fn, { schedulers = { 1 } })
  end

  local function connect()
    local conn = assert(net.connect { port = server.port, timeout = helper.DEADLINE })
    conn:set_timeout(helper.DEADLINE)
    return conn
  end

  local function enter(name)
    local conn = connect()
    assert.equal("Your name?", conn:read "line")
    assert(conn:write(name, "\n"))
    return conn
  end

  -- Reads lines until this one.
  local function until_line(conn, line)
    local got
    repeat
      got = assert(conn:read "line")
    until got == line
  end

  -- The first one in the room: another talks until it hears that.
  local function enter_first(name)
    local conn, talker = enter(name), enter "talker"
    repeat
      talker:write "hello\n"
      local line, err = conn:read("line", 0.1)
      assert(line or err == "timeout", err)
    until line
    talker:close()
    until_line(conn, "talker has left")
    return conn
  end

  -- People that are all in the room.
  local function room(count)
    local conns = { enter_first "p1" }
    for i = 2, count do
      conns[i] = enter("p" .. i)
      until_line(conns[1], ("p%d is here"):format(i))
    end
    return conns
  end

  -- Empty again, so that the next spec is alone.
  local function leave(conns, fds)
    for _, conn in ipairs(conns) do
      conn:close()
    end
    assert.is_true(servers.wait(helper.DEADLINE, function()
      return server:descriptors() <= fds
    end), "a client is still in the room")
  end

  client("tells who comes and who goes", function()
    local fds = server:descriptors()
    local ann = enter_first "Ann"
    local bob = enter "Bob"
    assert.equal("Bob is here", ann:read "line")
    bob:close()
    assert.equal("Bob has left", ann:read "line")
    leave({ ann }, fds)
  end)

  client("brings each line to all others, and not to who said it", function()
    local fds = server:descriptors()
    local conns = room(3)
    conns[1]:write "first\nsecond\n"
    for i = 2, 3 do
      until_line(conns[i], "p1: first")
      assert.equal("p1: second", conns[i]:read "line")
    end
    conns[2]:write "third\n"
    assert.equal("p2: third", conns[1]:read "line")
    assert.equal("p2: third", conns[3]:read "line")
    leave(conns, fds)
  end)

  client("keeps the lines of each in order while all talk at once", function()
    local PEOPLE, LINES = 20, 25
    local fds = server:descriptors()
    local conns = room(PEOPLE)
    for n = 1, LINES do
      for i, conn in ipairs(conns) do
        conn:write(("%d/%d\n"):format(i, n))
      end
    end
    for i, conn in ipairs(conns) do
      local last, left = {}, (PEOPLE - 1) * LINES
      while left > 0 do
        local from, who, n = assert(conn:read "line"):match "^p(%d+): (%d+)/(%d+)$"
        if from then
          assert.equal(from, who)
          assert.not_equal(i, tonumber(who))
          assert.equal((last[who] or 0) + 1, tonumber(n))
          last[who] = tonumber(n)
          left = left - 1
        end
      end
    end
    leave(conns, fds)
  end)

  client("does not wait for one who does not read", function()
    local fds = server:descriptors()
    local conns = room(3)
    until_line(conns[2], "p3 is here")
    local text = ("x"):rep(60000)
    for _ = 1, 200 do -- 12 MB: more than any socket takes; nobody reads p3's
      conns[1]:write(text, "\n")
      assert.equal(4 + #text, #assert(conns[2]:read "line"))
    end
    leave(conns, fds)
  end)

  client("forgets who goes without a name, or in the middle of a line", function()
    local fds = server:descriptors()
    local ann = room(1)[1]
    for _, text in ipairs { "", "Bo" } do
      local conn = connect()
      conn:write(text)
      conn:close()
    end
    local bob = enter "Bob"
    bob:write "not a who"
    bob:close()
    leave({ ann }, fds)
  end)
end)
