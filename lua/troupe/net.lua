--- Sockets: TCP, unix, UDP, and names of hosts.
--
-- What has an address is made here; connections, listeners and UDP sockets are
-- objects of the C side (bindings/net.c), described in meta.lua and in
-- docs/reference/net.md.
-- @module troupe.net

local core = require "troupe.core"
local opts = require "troupe.opts"

local now = core.now
local sockets = core._net

local CONNECT_TIMEOUT = 30 -- seconds, in all
local BACKLOG = 4096 -- cut to what the system allows

local net = {}

local function is_port(value)
  return type(value) == "number" and value >= 0 and value <= 65535 and value % 1 == 0
end

local LISTEN = {
  host = { type = "string" },
  port = { type = "number" },
  path = { type = "string" },
  backlog = { type = "number", default = BACKLOG },
  reuseport = { type = "boolean", default = false },
}

local CONNECT = {
  host = { type = "string" },
  port = { type = "number" },
  path = { type = "string" },
  timeout = { type = "seconds", default = CONNECT_TIMEOUT },
}

local UDP = {
  host = { type = "string" },
  port = { type = "number" },
  path = { type = "string" },
  reuseport = { type = "boolean", default = false },
}

-- The options, with a host and a port or with a path. default_port nil: there
-- must be one.
local function check(where, options, fields, default_port)
  local o = opts.check(where, options, fields, 4)
  if o.path then
    if o.host or o.port then
      error(where .. ": options 'path' and 'host' or 'port' exclude each other", 3)
    end
    return o
  end
  o.host = o.host or "127.0.0.1"
  o.port = o.port or default_port
  if not o.port then
    error(where .. ": option 'port' or 'path' is missing", 3)
  elseif not is_port(o.port) then
    error(("%s: option 'port' must be an integer from 0 to 65535, not %s"):format(where,
      opts.show(o.port)), 3)
  end
  return o
end

-- What a host without a route to one family says of its addresses: it hides
-- what the others said.
local UNREACHABLE = {
  ENETUNREACH = true,
  EADDRNOTAVAIL = true,
  EAFNOSUPPORT = true,
}

-- The first success of attempt(address, how many are left) over the addresses;
-- or nil and the error that says most.
local function try_each(addresses, attempt)
  local err
  for i, address in ipairs(addresses) do
    local value, problem = attempt(address, #addresses - i + 1)
    if value then
      return value
    end
    if err == nil or UNREACHABLE[err] then
      err = problem
    end
  end
  return nil, err
end

--- The addresses of a host, as texts, in the order in which to try them. Parks
--- while a name is looked up; what was found is known for a while.
---@async
---@param host string a name, or a numeric address
---@param timeout? number seconds
---@return string[]? addresses nil on failure
---@return string? err "unknown_host" | "timeout" | the name of an errno
function net.resolve(host, timeout)
  return sockets.resolve(host, timeout)
end

--- Listen for connections, by TCP or at the path of a unix socket.
---@async
---@param options? table host ["127.0.0.1"], port [0: a free one]; or path; backlog
--- [4096], reuseport [false]
---@return troupe.Listener? listener nil on failure
---@return string? err "address_in_use" | the name of an errno
function net.listen(options)
  local o = check("listen", options, LISTEN, 0)
  if o.backlog % 1 ~= 0 or o.backlog < 1 or o.backlog > 2 ^ 31 - 1 then
    error("listen: option 'backlog' must be an integer, 1 or more", 2)
  end
  if o.path then
    return sockets.listen(o.path, nil, o.backlog, false)
  end
  local addresses, err = net.resolve(o.host)
  if not addresses then
    return nil, err
  end
  return try_each(addresses, function(address)
    return sockets.listen(address, o.port, o.backlog, o.reuseport)
  end)
end

-- Each address gets its share of the time that is left, so that one that does
-- not answer leaves some to the next.
local function connect_each(addresses, port, deadline)
  return try_each(addresses, function(address, left)
    return sockets.connect(address, port, (deadline - now()) / left)
  end)
end

--- Connect to a host, at whichever of its addresses answers first in order, or
--- to the path of a unix socket.
---@async
---@param options table host ["127.0.0.1"], port; or path; timeout [30] seconds in all
---@return troupe.Conn? conn nil on failure
---@return string? err "refused" | "timeout" | "unknown_host" | the name of an errno
function net.connect(options)
  local o = check("connect", options, CONNECT)
  if o.path then
    return sockets.connect(o.path, nil, o.timeout)
  end
  local deadline = now() + o.timeout
  local addresses, err = net.resolve(o.host, o.timeout)
  if not addresses then
    return nil, err
  end
  return connect_each(addresses, o.port, deadline)
end

--- A socket for datagrams.
---@async
---@param options? table host ["127.0.0.1"], port [0: a free one]; or path; reuseport
--- [false]
---@return troupe.Udp? socket nil on failure
---@return string? err "address_in_use" | the name of an errno
function net.udp(options)
  local o = check("udp", options, UDP, 0)
  if o.path then
    return sockets.udp(o.path, nil, false)
  end
  local addresses, err = net.resolve(o.host)
  if not addresses then
    return nil, err
  end
  return try_each(addresses, function(address)
    return sockets.udp(address, o.port, o.reuseport)
  end)
end

-- udp:send_to(data, host, port) or (data, path): see meta.lua.
function net._send_to(socket, data, host, port)
  if port == nil then
    return sockets.send_to(socket, data, host)
  end
  local addresses, err = net.resolve(host)
  if not addresses then
    return nil, err
  end
  return try_each(addresses, function(address)
    return sockets.send_to(socket, data, address, port)
  end)
end

return net
