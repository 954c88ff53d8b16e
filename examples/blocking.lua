-- blocking.lua - what waits in the system, and holds up nobody.
--
--   troupe run examples/blocking.lua
--
-- What it shows: troupe.blocking runs a function of the actor, with its
-- upvalues and its own Lua state, on a thread that may block: a command of
-- os.execute, the output of io.popen, a file of io.open. Others go on
-- meanwhile. troupe.fs and troupe.process do the same for files and children.
--
-- Expected output:
--   ticks while the command ran: true
--   status of the command: 3
--   popen says: hello from a shell
--   the file has 3 lines
--   saved and read again: true
--   upper case by a child process: HELLO
--   it ended with status 0
local troupe = require "troupe"
local fs = require "troupe.fs"
local process = require "troupe.process"

-- Ten commands that take a while run at once, each on a thread of the pool;
-- this actor and its timer go on as if nothing were.
local me = troupe.self()
for _ = 1, 10 do
  troupe.spawn(function()
    troupe.send(me, troupe.blocking(os.execute, "sleep 0.2; exit 3") / 256)
  end)
end
local timer = troupe.send_every(0.01, me, "tick")
local ticks, statuses = 0, {}
while #statuses < 10 do
  local message = troupe.receive()
  if message == "tick" then
    ticks = ticks + 1
  else
    statuses[#statuses + 1] = message
  end
end
troupe.cancel(timer)
print("ticks while the command ran: " .. tostring(ticks > 1))
print("status of the command: " .. statuses[1])

-- What the function returns, and its error, come back as they are.
local text = troupe.blocking(function()
  local pipe = assert(io.popen "echo hello from a shell")
  local line = pipe:read "*l"
  pipe:close()
  return line
end)
print("popen says: " .. text)

-- Upvalues are the actor's own: nothing was copied.
local path, lines = os.tmpname(), 0
troupe.blocking(function()
  local file = assert(io.open(path, "w"))
  file:write("one\n", "two\n", "three\n")
  file:close()
  for _ in io.lines(path) do
    lines = lines + 1
  end
end)
print(("the file has %d lines"):format(lines))

-- troupe.fs: whole files; a reader sees the old one or the new one.
assert(fs.write_file(path, "new"))
print("saved and read again: " .. tostring(fs.read_file(path) == "new"))
assert(fs.remove(path))

-- troupe.process: a child whose pipes are connections, its end a message.
local child = assert(process.spawn { "tr", "a-z", "A-Z" })
child.stdin:write "hello"
child.stdin:close()
print("upper case by a child process: " .. child.stdout:read "all")
local ended = troupe.receive_match { type = "process_exit", pid = child.pid }
print("it ended with status " .. ended.status)
