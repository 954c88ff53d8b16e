-- door.lua - a door with a lock: a state machine as a table.
--
--   troupe run examples/door.lua
--   troupe run examples/door.lua dot | dot -Tsvg > door.svg
--
--              pull                   lock
--     +------+ <------- +----------+ -------> +--------+
--     | open |          |  closed  |          | locked |  knock: postponed
--     +------+ -------> +----------+ <- - - - +--------+
--           push, or 0.1 s            unlock
--                                     (the right code)
--
-- What it shows: rows that name the next state, and a function that decides; a
-- state timeout (a door left open closes by itself); an event that is postponed
-- until there is somebody to hear it; a row for all states; the picture that
-- gen_statem.dot draws of it.
--
-- Expected output:
--   closed
--   locked, after a wrong code: locked
--   unlocked: closed
--   somebody knocked
--   pulled: open
--   a little later: closed, opened 1 time
--   "locked" -> "closed" [label="unlock", style=dashed]
local troupe = require "troupe"
local gen_statem = require "troupe.gen_statem"

local Door = gen_statem.machine {
  name = "door",
  initial = "closed",
  data = function(code, root)
    return { code = code, root = root, opened = 0 }
  end,
  enter = {
    open = function(data, cx)
      data.opened = data.opened + 1
      cx:state_timeout(0.1)
    end,
  },
  on = {
    open = {
      cast = { push = "closed" },
      state_timeout = function(data)
        troupe.send(data.root, "it closed")
        return "closed"
      end,
    },
    closed = {
      cast = {
        pull = "open",
        lock = "locked",
        knock = function(data)
          troupe.send(data.root, "somebody knocked")
        end,
      },
    },
    locked = {
      cast = {
        unlock = function(data, code)
          if code == data.code then
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

if ... == "dot" then
  print(gen_statem.dot(Door))
  return
end

local door = assert(Door:start(1234, troupe.self()))
print(door:call "state")

door:cast "lock"
door:cast "knock"
door:cast("unlock", 4711)
print("locked, after a wrong code: " .. door:call "state")

door:cast("unlock", 1234)
print("unlocked: " .. door:call "state")
print((troupe.receive())) -- the knock, now that the door is not locked

door:cast "pull"
print("pulled: " .. door:call "state")
assert(troupe.receive() == "it closed")
print(("a little later: %s, opened %d time"):format(door:call "state", door:call "opened"))

print(gen_statem.dot(Door):match '"locked" %-> [^;]*')
