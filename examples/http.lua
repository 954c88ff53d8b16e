-- http.lua - a small HTTP/1.1 server: one actor per connection, supervised.
--
--   troupe run examples/http.lua                      serves itself, and ends
--   troupe run examples/http.lua PORT [limit=n...]    serves until it is stopped
--
-- What it shows: code that reads as if each connection were alone in the world,
-- with a deadline at each wait; errors that end one connection; and limits, so
-- that a client which is slow, endless or one of too many costs little. Keep-
-- alive, pipelining, bodies and responses in chunks, HEAD, Expect.
--
-- Expected output:
--   GET / -> 200 Hello from Troupe
--   HEAD / -> 200
--   GET /count?to=3 -> 200 1 2 3
--   POST /echo, in chunks -> 200 Wikipedia
--   GET /nothing -> 404 There is nothing here
--   BREW / -> 501 Not Implemented
local troupe = require "troupe"
local dynamic_supervisor = require "troupe.dynamic_supervisor"
local net = require "troupe.net"
local supervisor = require "troupe.supervisor"

local limits = {
  connections = 10000, -- at once; more are answered 503
  idle = 60,           -- seconds between two requests
  head = 10,           -- seconds that a request may take until its body,
  body = 60,           -- and then for its body
  write = 30,          -- seconds in which a client must take a piece of an answer
  line = 8192,         -- bytes of the first line,
  fields = 16384,      -- of all header fields,
  field_count = 100,
  size = 1024 * 1024,  -- of a body
}

-- ---------------------------------------------------------------- requests --
--
-- A reader takes requests from a connection, one after the other; bytes that
-- come after one belong to the next. Its functions return what was asked for;
-- or nil and the status with which to refuse; or nil when the client is gone.

local reader = {}
reader.__index = reader

function reader.new(conn, given)
  return setmetatable({ conn = conn, limits = given, bytes = "", at = 1 }, reader)
end

function reader:fill(deadline)
  local data, err = self.conn:read_some(16384, math.max(deadline - troupe.now(), 0))
  if not data then
    return nil, err == "timeout" and 408 or nil
  end
  self.bytes = self.bytes:sub(self.at) .. data
  self.at = 1
  return true
end

-- A line without its end; status: if it has more than this many bytes.
function reader:line(most, status, deadline)
  local from = self.at
  while true do
    local last = self.bytes:find("\n", from, true)
    if (last or #self.bytes) - self.at + 1 > most then
      return nil, status
    elseif last then
      local line = self.bytes:sub(self.at, last)
      self.at = last + 1
      if line:sub(-2) ~= "\r\n" then
        return nil, 400
      end
      return line:sub(1, -3)
    end
    from = #self.bytes - self.at + 2 -- where the new bytes will be
    local ok, err = self:fill(deadline)
    if not ok then
      return nil, err
    end
  end
end

function reader:exactly(size, deadline)
  local parts, missing = {}, size
  while true do
    local part = self.bytes:sub(self.at, self.at + missing - 1)
    self.at = self.at + #part
    parts[#parts + 1] = part
    missing = missing - #part
    if missing == 0 then
      return table.concat(parts)
    end
    local ok, status = self:fill(deadline)
    if not ok then
      return nil, status
    end
  end
end

local METHODS = { GET = true, HEAD = true, POST = true }
local VERSIONS = { ["1.0"] = 0, ["1.1"] = 1 }
local TOKEN = "^[%w!#$%%&'*+.^_`|~-]+$"
local CONTROL = "[%z\1-\8\10-\31\127]"

-- "GET /path?query HTTP/1.1"
local function parse_line(line)
  local method, target, version = line:match "^(%S+) (%S+) HTTP/(%d%.%d)$"
  if not method or not method:find(TOKEN) or line:find(CONTROL) then
    return nil, 400
  elseif not VERSIONS[version] then
    return nil, 505
  elseif not METHODS[method] then
    return nil, 501
  end
  target = target:match "^[Hh][Tt][Tt][Pp]://[^/?]+(.*)$" or target -- as to a proxy
  local path, query = target:match "^(/[^?]*)%??(.*)$"
  if not path then
    return nil, 400
  end
  return { method = method, path = path, query = query, minor = VERSIONS[version] }
end

-- "Name: value". Patterns that try no byte twice: a line may be long.
local function parse_field(line)
  local colon = line:find(":", 1, true)
  local name = colon and line:sub(1, colon - 1)
  if not name or not name:find(TOKEN) or line:find(CONTROL) then
    return nil
  end
  local first = line:find("[^ \t]", colon + 1)
  return name:lower(), first and line:sub(first):match "^.*[^ \t]" or ""
end

-- Header fields, or those after a body in chunks. The same name twice makes a
-- list.
function reader:fields(deadline)
  local fields, left = {}, self.limits.fields
  for _ = 0, self.limits.field_count do
    local line, status = self:line(left, 431, deadline)
    if not line then
      return nil, status
    elseif line == "" then
      return fields
    end
    local name, value = parse_field(line)
    if not name then
      return nil, 400
    end
    fields[name] = fields[name] and fields[name] .. ", " .. value or value
    left = left - #line - 2
  end
  return nil, 431
end

local function has_word(list, word)
  for item in (list or ""):lower():gmatch "[^,%s]+" do
    if item == word then
      return true
    end
  end
  return false
end

-- How many bytes the body has, or "chunked". A request that says both, or says
-- it in two ways, is a trick.
local function body_size(request, most)
  local fields = request.fields
  local length, coding = fields["content-length"], fields["transfer-encoding"]
  if coding then
    if length or request.minor == 0 then
      return nil, 400
    end
    return coding:lower() == "chunked" and "chunked" or nil, 501
  end
  if not length then
    return 0
  elseif not length:find "^%d+$" then
    return nil, 400
  elseif #length > 15 or tonumber(length) > most then
    return nil, 413
  end
  return tonumber(length)
end

function reader:chunks(deadline)
  local parts, total = {}, 0
  while true do
    local line, status = self:line(1024, 400, deadline)
    if not line then
      return nil, status
    end
    local digits, rest = line:match "^(%x+)[ \t]*(.*)$"
    if not digits or rest:find "^[^;]" then
      return nil, 400
    end
    local size = #digits <= 8 and tonumber(digits, 16) or math.huge
    total = total + size
    if total > self.limits.size then
      return nil, 413
    elseif size == 0 then
      break
    end
    local part
    part, status = self:exactly(size + 2, deadline)
    if not part then
      return nil, status
    elseif part:sub(-2) ~= "\r\n" then
      return nil, 400
    end
    parts[#parts + 1] = part:sub(1, -3)
  end
  local trailers, status = self:fields(deadline)
  if not trailers then
    return nil, status
  end
  return table.concat(parts)
end

function reader:body(request)
  local size, status = body_size(request, self.limits.size)
  if not size then
    return nil, status
  elseif size == 0 then
    return ""
  end
  local expect = request.minor > 0 and request.fields.expect
  if expect and expect:lower() ~= "100-continue" then
    return nil, 417
  elseif expect and self.at > #self.bytes then
    self.conn:write "HTTP/1.1 100 Continue\r\n\r\n"
  end
  local deadline = troupe.now() + self.limits.body
  if size == "chunked" then
    return self:chunks(deadline)
  end
  return self:exactly(size, deadline)
end

-- The next request: method, path, query, minor (version), fields, body, keep
-- (whether the connection is wanted for another one).
function reader:request()
  if self.at > #self.bytes and not self:fill(troupe.now() + self.limits.idle) then
    return nil
  end
  local deadline = troupe.now() + self.limits.head
  local line, status = self:line(self.limits.line, 414, deadline)
  if line == "" then -- some clients end a body with one
    line, status = self:line(self.limits.line, 414, deadline)
  end
  local request
  if line then
    request, status = parse_line(line)
  end
  if not request then
    return nil, status
  end
  request.fields, status = self:fields(deadline)
  if not request.fields then
    return nil, status
  end
  local host = request.fields.host
  if host and host:find "[, ]" or not host and request.minor > 0 then
    return nil, 400
  end
  request.body, status = self:body(request)
  if not request.body then
    return nil, status
  end
  local words = request.fields.connection
  request.keep = request.minor > 0 and not has_word(words, "close") or has_word(words, "keep-alive")
  return request
end

-- --------------------------------------------------------------- responses --

local REASONS = {
  [200] = "OK", [400] = "Bad Request", [404] = "Not Found", [405] = "Method Not Allowed",
  [408] = "Request Timeout", [413] = "Content Too Large", [414] = "URI Too Long",
  [417] = "Expectation Failed", [431] = "Request Header Fields Too Large",
  [500] = "Internal Server Error", [501] = "Not Implemented", [503] = "Service Unavailable",
  [505] = "HTTP Version Not Supported",
}

local function head(status, fields)
  local lines = {
    ("HTTP/1.1 %d %s"):format(status, REASONS[status] or "Unknown"),
    os.date "!Date: %a, %d %b %Y %H:%M:%S GMT",
  }
  for name, value in pairs(fields) do
    lines[#lines + 1] = name .. ": " .. value
  end
  lines[#lines + 1] = "\r\n"
  return table.concat(lines, "\r\n")
end

-- A body that is made while it is sent: each call of next_part returns a piece.
local function write_parts(conn, next_part, in_chunks)
  for part in next_part do
    local ok
    if part == "" then
      ok = true -- an empty chunk would be the end
    elseif in_chunks then
      ok = conn:write(("%x\r\n"):format(#part), part, "\r\n")
    else
      ok = conn:write(part)
    end
    if not ok then
      return nil
    end
  end
  return not in_chunks or conn:write "0\r\n\r\n"
end

-- body: a string, or a function for write_parts. Whether the connection may
-- stay open.
local function respond(conn, request, status, body, fields)
  fields = fields or {}
  local streamed = type(body) == "function"
  local in_chunks = streamed and request.minor > 0
  local keep = request.keep and (in_chunks or not streamed)
  if in_chunks then
    fields["Transfer-Encoding"] = "chunked"
  elseif not streamed then
    fields["Content-Length"] = #body
  end
  if not keep then
    fields.Connection = "close"
  elseif request.minor == 0 then
    fields.Connection = "keep-alive"
  end
  local text = head(status, fields)
  local ok
  if request.method == "HEAD" then
    ok = conn:write(text)
  elseif streamed then
    ok = conn:write(text) and write_parts(conn, body, in_chunks)
  else
    ok = conn:write(text, body)
  end
  return ok and keep
end

-- Closing at once would reset a connection on which bytes still come, and the
-- client might never see the response. So it is asked to end first, for a while.
local function close_gently(conn)
  local deadline, left = troupe.now() + 1, 1024 * 1024
  conn:shutdown "send"
  while left > 0 do
    local data = conn:read_some(65536, math.max(deadline - troupe.now(), 0))
    if not data then
      break
    end
    left = left - #data
  end
  conn:close()
end

-- ------------------------------------------------------------- application --

local function count_to(last)
  local n = 0
  return function()
    n = n + 1
    return n <= last and n .. "\n" or nil
  end
end

-- request -> status, body [, header fields]
local function app(request)
  local path, method = request.path, request.method
  if path == "/echo" then
    if method ~= "POST" then
      return 405, "Post something\n", { Allow = "POST" }
    end
    return 200, request.body
  elseif method == "POST" then
    return 405, "There is nothing to post to\n", { Allow = "GET, HEAD" }
  elseif path == "/" then
    return 200, "Hello from Troupe\n", { ["Content-Type"] = "text/plain" }
  elseif path == "/count" then
    return 200, count_to(tonumber(request.query:match "to=(%d+)") or 10)
  elseif path == "/crash" then
    error "a fault of the application"
  end
  return 404, "There is nothing here\n"
end

-- ------------------------------------------------------------------ actors --

-- One connection, which is its first message.
local function connection(given)
  local conn = troupe.receive(10)
  if not conn then
    return
  end
  conn:set_timeout(given.write)
  local requests = reader.new(conn, given)
  local keep, request, status
  repeat
    request, status = requests:request()
    if request then
      local ok, code, body, fields = pcall(app, request)
      if not ok then
        troupe.log.error("%s %s: %s", request.method, request.path, code)
        code, body, fields = 500, "It failed\n", nil
      end
      keep = respond(conn, request, code, body, fields)
    elseif status then
      respond(conn, { minor = 1 }, status, (REASONS[status] or "") .. "\n")
    end
  until not request or not keep
  close_gently(conn)
end

-- Gives each connection to an actor, as long as there are not too many.
local function acceptor(root, port)
  local listener = assert(net.listen { host = "127.0.0.1", port = port, backlog = 1024 })
  troupe.send(root, { port = listener:port() })
  while true do
    local conn = assert(listener:accept())
    local pid, err = dynamic_supervisor.start_child("http.connections")
    if pid then
      troupe.send(pid, conn)
    else
      troupe.log.warn("a connection is refused: %s", tostring(err))
      conn:write(head(503, { ["Content-Length"] = 0, Connection = "close" }))
      conn:close()
    end
  end
end

local function start(port, given)
  local connections = dynamic_supervisor.spec {
    name = "http.connections",
    max_children = given.connections,
    child = { start = connection, args = { given }, restart = "temporary" },
  }
  local sup = assert(supervisor.start_link {
    strategy = "rest_for_one",
    children = {
      { id = "connections", start = connections },
      { id = "acceptor", start = acceptor, args = { troupe.self(), port } },
    },
  })
  return sup, troupe.receive_match({ port = port > 0 and port or nil }).port
end

-- -------------------------------------------------------------------- main --

-- What came back for one request: the status, and the body on one line.
local function ask(port, request)
  local conn = assert(net.connect { host = "127.0.0.1", port = port })
  conn:write(request)
  local text = assert(conn:read "all")
  conn:close()
  local status, rest = text:match "^HTTP/1.1 (%d+) .-\r\n\r\n(.*)$"
  if text:find("chunked", 1, true) then
    rest = rest:gsub("%x+\r\n(.-)\r\n", "%1")
  end
  return (status .. " " .. rest):gsub("%s+", " "):gsub(" $", "")
end

local function demonstrate()
  local sup, port = start(0, limits)
  local rest = " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
  for _, line in ipairs { "GET /", "HEAD /", "GET /count?to=3" } do
    print(line .. " -> " .. ask(port, line .. rest .. "\r\n"))
  end
  print("POST /echo, in chunks -> " .. ask(port, "POST /echo" .. rest
    .. "Transfer-Encoding: chunked\r\n\r\n4\r\nWiki\r\n5\r\npedia\r\n0\r\n\r\n"))
  for _, line in ipairs { "GET /nothing", "BREW /" } do
    print(line .. " -> " .. ask(port, line .. rest .. "\r\n"))
  end
  supervisor.stop(sup)
end

local function serve(port)
  for i = 2, #troupe.args do
    local name, value = troupe.args[i]:match "^([%a_]+)=([%d.]+)$"
    assert(limits[name], "no such limit: " .. troupe.args[i])
    limits[name] = tonumber(value)
  end
  local _, used = start(port, limits)
  print("listening on 127.0.0.1, port " .. used)
  io.stdout:flush()
  troupe.receive_match { type = "stop" } -- a signal ends it
end

if troupe.args[1] then
  serve(tonumber(troupe.args[1]))
else
  demonstrate()
end
