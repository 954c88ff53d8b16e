-- chat.lua - a room where each line that one says is read by all others.
--
--   troupe run examples/chat.lua [port]      then: nc localhost <port>
--
-- What it shows: an actor for each client, which waits for its socket and for
-- messages at once; acceptors that share a port under a supervisor, so that one
-- may fail and nobody notices; a process group as the room. With a port it runs
-- until it is interrupted; without one three people meet, while an acceptor is
-- killed.
--
-- Expected output:
--   Ann reads: Bob is here
--   Ann reads: Bob: hello, Ann
--   Bob reads: Ann: hello, Bob
--   an acceptor was killed
--   Ann reads: Cid is here
--   Bob reads: Cid is here
--   Bob reads: Ann has left
--   Cid reads: Ann has left
local troupe = require "troupe"
local net = require "troupe.net"
local pg = require "troupe.pg"
local supervisor = require "troupe.supervisor"

local ROOM = "room"

-- ----------------------------------------------------------------- one client

-- Says all whole lines that have come; false at the end of the connection.
local function say_lines(conn, name)
  while true do
    local line, err = conn:read("line", 0)
    if line then
      pg.broadcast(ROOM, { from = name, text = name .. ": " .. line })
    else
      return err == "timeout"
    end
  end
end

local function client(conn)
  conn:write "Your name?\n"
  local name = conn:read("line", 60)
  if not name then
    return
  end
  pg.join(ROOM)
  pg.broadcast(ROOM, { from = name, text = name .. " is here" })
  conn:set_timeout(10) -- who does not read is not waited for
  local arms = { troupe.inbox, troupe.readable(conn:fd()) }
  local here = say_lines(conn, name) -- those that came with the name
  while here do
    if troupe.select(arms) == 1 then
      local message = troupe.receive(0)
      here = message.from == name or conn:write(message.text, "\n")
    else
      here = say_lines(conn, name)
    end
  end
  pg.leave(ROOM)
  pg.broadcast(ROOM, { from = name, text = name .. " has left" })
end

-- ------------------------------------------------------------------ the server

local function acceptor(port)
  local listener = assert(net.listen { port = port, reuseport = true })
  while true do
    local conn, err = listener:accept()
    if not conn then
      return troupe.exit(err)
    end
    troupe.spawn(client, conn)
  end
end

local function child(name, port)
  return { id = name, start = acceptor, args = { port }, name = name }
end

local function serve(port)
  return assert(supervisor.start_link {
    children = { child("acceptor-1", port), child("acceptor-2", port) },
  })
end

local port = tonumber(troupe.args[1])
if port then
  serve(port)
  troupe.receive() -- until the end
end

-- ---------------------------------------------------------------- three people

local function enter(name)
  local conn, greeting
  repeat -- until there is an acceptor, which is not killed before it accepts
    conn = net.connect { port = port, timeout = 10 }
    greeting = conn and conn:read("line", 10)
  until greeting == "Your name?"
  conn:set_timeout(10)
  assert(conn:write(name, "\n"))
  return conn
end

local function reads(name, conn)
  print(name .. " reads: " .. assert(conn:read "line"))
end

-- Until so many are in the room.
local function wait_for(count)
  while #pg.members(ROOM) < count do
    troupe.sleep(0.01)
  end
end

local reserved = assert(net.listen { reuseport = true })
port = reserved:port()
reserved:close()
serve(port)

local ann = enter "Ann"
wait_for(1)
local bob = enter "Bob"
reads("Ann", ann)
bob:write "hello, Ann\n"
reads("Ann", ann)
ann:write "hello, Bob\n"
reads("Bob", bob)
troupe.kill "acceptor-1"
print "an acceptor was killed"
local cid = enter "Cid"
reads("Ann", ann)
reads("Bob", bob)
ann:close()
reads("Bob", bob)
reads("Cid", cid)
