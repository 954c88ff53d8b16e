-- counter.lua - a gen_server: one actor that owns a number.
--
--   troupe run examples/counter.lua
--
-- What it shows: a behaviour is a table of callbacks, self is the server's own
-- state. call waits for the reply, cast does not; a reply may come later; a
-- timer fires between messages; stop runs terminate.
--
-- Expected output:
--   the counter is at 42
--   it was 42 a moment ago, it is 43 now
--   asked for a silly thing: counter does not know "sing"
--   terminate: normal, at 43
--   after its end: nil noproc
local troupe = require "troupe"
local gen_server = require "troupe.gen_server"

local Counter = gen_server.behaviour "counter"

function Counter:init(start)
  self.n = start or 0
end

function Counter:handle_call(request, from)
  if request == "get" then
    return self.n
  elseif request == "get_later" then
    -- The server goes on meanwhile; handle_timer answers.
    self:start_timer(0.05, { to = from, was = self.n })
    return gen_server.noreply
  end
  return ("counter does not know %q"):format(request)
end

function Counter:handle_cast(request)
  self.n = self.n + request
end

function Counter:handle_timer(later)
  gen_server.reply(later.to, { was = later.was, is = self.n })
end

function Counter:terminate(reason)
  print(("terminate: %s, at %d"):format(reason, self.n))
end

local counter = assert(gen_server.start_link(Counter, { 40 }))
counter:cast(1)
counter:cast(1)
print("the counter is at " .. counter:call("get"))

troupe.spawn(function()
  troupe.sleep(0.01)
  counter:cast(1)
end)
local later = counter:call("get_later")
print(("it was %d a moment ago, it is %d now"):format(later.was, later.is))
print("asked for a silly thing: " .. counter:call("sing"))

gen_server.stop(counter)
print("after its end: " .. table.concat({ tostring((counter:call("get"))),
  select(2, counter:call("get")) }, " "))
