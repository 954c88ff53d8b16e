-- 01_hello.lua - one actor, one message.
--
--   troupe run examples/01_hello.lua
--
-- What it shows: spawn starts an actor and returns its pid; the arguments are
-- copied to it. send copies a value into a mailbox, receive takes the oldest
-- one out and says who sent it. join waits for an actor's end.
--
-- Expected output:
--   Hello, world, from a new actor
--   The new actor thanks me
--   It has ended
local troupe = require "troupe"

local child = troupe.spawn(function(name)
  print(("Hello, %s, from a new actor"):format(name))
  local message, from = troupe.receive()
  troupe.send(from, "The new actor " .. message)
end, "world")

troupe.send(child, "thanks me")
print((troupe.receive()))
troupe.join(child)
print("It has ended")
