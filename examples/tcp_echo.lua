-- tcp_echo.lua - a TCP server that sends back whatever it is sent.
--
--   troupe run examples/tcp_echo.lua [port]
--
-- What it shows: an actor for each connection, written straight ahead. With a
-- port it serves there until it is interrupted; without one, ten clients in
-- actors of their own talk to it, and it ends with them.
--
-- Expected output:
--   10 clients sent 10000 lines and got all of them back
local troupe = require "troupe"
local net = require "troupe.net"

local CLIENTS, LINES = 10, 1000

-- One connection. It is closed when the actor ends, however it ends.
local function echo(conn)
  local data = conn:read_some()
  while data and conn:write(data) do
    data = conn:read_some()
  end
end

-- The listener is moved here, and each connection to an actor of its own.
local function accept(listener)
  while true do
    local conn, err = listener:accept()
    if not conn then
      return troupe.exit(err)
    end
    troupe.spawn(echo, conn)
  end
end

local function client(port)
  local conn = assert(net.connect { port = port, timeout = 10 })
  conn:set_timeout(10)
  local good = 0
  for i = 1, LINES do
    assert(conn:write("line ", i, "\n"))
    if conn:read "line" == "line " .. i then
      good = good + 1
    end
  end
  return good
end

local port = tonumber(troupe.args[1])
local listener = assert(net.listen { port = port or 0 })
if port then
  accept(listener)
end

port = listener:port()
local server = troupe.spawn(accept, listener)
local tasks, good = {}, 0
for i = 1, CLIENTS do
  tasks[i] = troupe.task(client, port)
end
for _, task in ipairs(tasks) do
  good = good + assert(task:await())
end
print(("%d clients sent %d lines and got %s of them back"):format(CLIENTS, CLIENTS * LINES,
  good == CLIENTS * LINES and "all" or good))
troupe.kill(server)
