-- kv.lua - a key-value store that is killed again and again and loses nothing.
--
--   troupe run examples/kv.lua
--
-- What it shows: a supervisor starts the store anew each time, under the same
-- name; the store writes each change to a file before it acknowledges it, and
-- reads the file when it starts. A client that gets no answer asks again. (The
-- file survives the end of the actor and of the process; against a power cut it
-- would have to be synced, too.)
--
-- Expected output:
--   600 writes were acknowledged while the store was killed 30 times
--   lost: 0
local troupe = require "troupe"
local gen_server = require "troupe.gen_server"
local supervisor = require "troupe.supervisor"

local ROUNDS, WRITES = 30, 20

-- ------------------------------------------------------------------ the store

local Store = gen_server.behaviour "kv"

-- A line counts if it is whole: a write that was cut off has no "." at its end.
local LINE = "^(%S+) (%S+) %.$"

function Store:init(path)
  self.values = {}
  local file = io.open(path, "rb")
  if file then
    for line in file:lines() do
      local key, value = line:match(LINE)
      if key then
        self.values[key] = value
      end
    end
    file:close()
  end
  self.log = assert(io.open(path, "ab"))
  self.log:write("\n") -- after a line that was cut off
end

function Store:handle_call(request)
  local what, key, value = unpack(request)
  if what == "get" then
    return self.values[key]
  end
  self.log:write(("%s %s .\n"):format(key, value))
  self.log:flush()
  self.values[key] = value
  return "stored"
end

-- ----------------------------------------------------------------- the client

-- Asks until there is an answer.
local function ask(...)
  while true do
    local reply, err = gen_server.call("kv", { ... })
    if err == nil then
      return reply
    end
    troupe.yield() -- until the supervisor has started it anew
  end
end

local function kill_soon()
  troupe.sleep(math.random() * 0.002)
  while not troupe.kill("kv") do
    troupe.yield()
  end
end

local path = os.tmpname()
local sup = assert(supervisor.start_link {
  intensity = { max = 1000, period = 1 },
  children = { { id = "kv", start = Store, args = { path }, name = "kv" } },
})

local written = {}
for round = 1, ROUNDS do
  local killer = troupe.spawn(kill_soon)
  for i = 1, WRITES do
    local key = ("key-%d-%d"):format(round, i)
    local value = tostring(math.random(1e9))
    if ask("set", key, value) == "stored" then
      written[key] = value
    end
  end
  troupe.join(killer)
end

local count, lost = 0, 0
for key, value in pairs(written) do
  count = count + 1
  if ask("get", key) ~= value then
    lost = lost + 1
  end
end
print(("%d writes were acknowledged while the store was killed %d times"):format(count, ROUNDS))
print("lost: " .. lost)

supervisor.stop(sup)
os.remove(path)
