-- echo_server.lua - a TCP echo server, one actor per connection, for bench_echo,
-- bench_idle_connections and the stress tests. Prints its port and serves until
-- it is killed.
local troupe = require "troupe"
local net = require "troupe.net"

local function echo(conn)
  while true do
    local data = conn:read_some()
    if not data or not conn:write(data) then
      break
    end
  end
  conn:close()
end

local listener = assert(net.listen { host = "127.0.0.1", port = 0, backlog = 4096 })
print(listener:port())
io.stdout:flush()
while true do
  troupe.spawn(echo, assert(listener:accept()))
end
