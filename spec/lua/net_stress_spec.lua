--- Connections that come and go, many times.

local helper = require "spec.helper"
local net = require "troupe.net"
local troupe = require "troupe"

local CYCLES = tonumber(os.getenv "TROUPE_NET_CYCLES") or 100000
local SECONDS = 60 -- at most

-- How many descriptors this process has.
local function open_fds()
  local n = 0
  for _ in require("lfs").dir "/proc/self/fd" do
    n = n + 1
  end
  return n
end

-- Makes count connections, one after the other, to an actor that answers each
-- and is done with it; how many there were before the time was up.
local function reopen(options, count)
  local listener = assert(net.listen(options))
  local to = options.path and options or { port = listener:port() }
  local pid = troupe.spawn(function(l)
    while true do
      local conn = l:accept()
      if not conn then
        break
      end
      local line = conn:read "line"
      if line then
        conn:write(line, "\n")
      end
      conn:close()
    end
  end, listener)
  local stop, n = troupe.now() + SECONDS, 0
  while n < count and troupe.now() < stop do
    local conn = assert(net.connect(to))
    n = n + 1
    assert(conn:write(n, "\n"))
    assert.equal(tostring(n), conn:read("line", helper.DEADLINE))
    conn:close()
  end
  listener:close()
  helper.ended(pid)
  return n
end

describe("connections that come and go", function()
  helper.actor("leave nothing behind, at a path", function()
    reopen({ path = helper.address "stress" }, 10)
    local before = open_fds()
    reopen({ path = helper.address "stress" }, CYCLES)
    assert.equal(before, open_fds())
  end)

  helper.actor("leave nothing behind, by TCP", function()
    reopen({}, 10)
    local before = open_fds()
    reopen({}, CYCLES / 10)
    assert.equal(before, open_fds())
  end, { schedulers = { 2 } })

  helper.actor("at once and at random carry each byte", function()
    local ACTORS, ROUNDS = 100, 10
    local seed = tonumber(os.getenv "TROUPE_SEED") or os.time()
    print("TROUPE_SEED=" .. seed)
    local before = open_fds()
    local listener = assert(net.listen())
    local port, me = listener:port(), troupe.self()
    local acceptor = troupe.spawn(function(l)
      local t = require "troupe"
      while true do
        local conn = l:accept()
        if not conn then
          break
        end
        t.spawn(function() -- echo, until the other side has ended
          local data = conn:read_some()
          while data and conn:write(data) do
            data = conn:read_some()
          end
        end)
      end
    end, listener)
    for i = 1, ACTORS do
      troupe.spawn(function()
        local t, n = require "troupe", require "troupe.net"
        math.randomseed(seed + i)
        local sent, got = 0, 0
        for _ = 1, ROUNDS do
          local conn = assert(n.connect { port = port })
          local size = math.random(1, 20000)
          assert(conn:write(("x"):rep(size)))
          conn:shutdown "send"
          sent, got = sent + size, got + #conn:read "all"
          conn:close()
        end
        t.send(me, { sent = sent, got = got })
      end)
    end
    for _ = 1, ACTORS do
      local m = helper.receive()
      assert.equal(m.sent, m.got)
    end
    listener:close()
    helper.ended(acceptor)
    local deadline = troupe.now() + helper.DEADLINE
    while open_fds() > before + 3 and troupe.now() < deadline do
      troupe.sleep(0.01) -- the last echoes end
    end
    assert.is_true(open_fds() <= before + 3) -- the driver's own
  end)
end)
