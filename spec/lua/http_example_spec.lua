--- examples/http.lua, as a client sees it: raw bytes over sockets, curl, wrk and
-- the load generator.

local helper = require "spec.helper"
local net = require "troupe.net"
local servers = dofile "spec/servers.lua"
local troupe = require "troupe"

local COMMAND = servers.troupe .. " run --schedulers 2 examples/http.lua 0 "
local PATIENT = "--timeout 100 --connect-timeout 100 --deadline 300 "
local HOST = " HTTP/1.1\r\nHost: localhost\r\n"

-- A spec of a client; it talks to the server that is current.
local server
local function client(name, fn)
  helper.actor(name, fn, { schedulers = { 1 } })
end

local function with_limits(limits)
  setup(function()
    server = servers.start(COMMAND .. limits)
  end)
  teardown(function()
    local alive = server:is_alive()
    server:stop()
    assert.is_true(alive, "the server has ended")
  end)
end

local function connect()
  local conn = assert(net.connect { host = "127.0.0.1", port = server.port,
    timeout = helper.DEADLINE })
  conn:set_timeout(helper.DEADLINE)
  return conn
end

-- Everything that comes until the server closes.
local function talk(text)
  local conn = connect()
  assert(conn:write(text))
  local all = assert(conn:read "all")
  conn:close()
  return all
end

local function status_of(text)
  return tonumber((text:match "^HTTP/1.1 (%d%d%d) "))
end

-- One response of a connection that stays open.
local function read_response(conn, has_no_body)
  local response = { fields = {} }
  response.status = status_of(assert(conn:read "line"))
  while true do
    local line = assert(conn:read "line"):gsub("\r$", "")
    local name, value = line:match "^([^:]+): (.*)$"
    if not name then
      break
    end
    response.fields[name:lower()] = value
  end
  if has_no_body then
    return response
  end
  if response.fields["content-length"] then
    local size = tonumber(response.fields["content-length"])
    response.body = size == 0 and "" or assert(conn:read(size))
    return response
  end
  assert(response.fields["transfer-encoding"] == "chunked")
  local parts = {}
  while true do
    local size = tonumber((assert(conn:read "line"):gsub("\r$", "")), 16)
    local part = assert(conn:read(size + 2))
    assert(part:sub(-2) == "\r\n")
    if size == 0 then
      response.body = table.concat(parts)
      return response
    end
    parts[#parts + 1] = part:sub(1, -3)
  end
end

-- Waits until the server has as many descriptors as in the beginning.
local function settled(fds)
  assert.is_true(servers.wait(helper.DEADLINE, function()
    return server:descriptors() <= fds
  end), "connections are left open")
end

local function has(command)
  if helper.shell("command -v " .. command).status == 0 then
    return true
  end
  pending(command .. " is not installed")
end

describe("examples/http.lua", function()
  with_limits ""

  client("answers GET, with the length of the body", function()
    local conn = connect()
    conn:write("GET /" .. HOST .. "\r\n")
    local response = read_response(conn)
    assert.equal(200, response.status)
    assert.equal("Hello from Troupe\n", response.body)
    assert.equal("text/plain", response.fields["content-type"])
    assert.truthy(response.fields.date)
    conn:close()
  end)

  client("answers HEAD as GET, without the body", function()
    local conn = connect()
    conn:write("HEAD /" .. HOST .. "\r\nHEAD /count" .. HOST .. "\r\nGET /" .. HOST .. "\r\n")
    local response = read_response(conn, true)
    assert.equal("18", response.fields["content-length"])
    response = read_response(conn, true)
    assert.equal("chunked", response.fields["transfer-encoding"])
    assert.equal("Hello from Troupe\n", read_response(conn).body)
    conn:close()
  end)

  client("keeps a connection for many requests, of all kinds", function()
    local conn = connect()
    for i = 1, 50 do
      conn:write("GET /count?to=3" .. HOST .. "\r\n")
      assert.equal("1\n2\n3\n", read_response(conn).body)
      local body = ("x"):rep(i * 100)
      conn:write("POST /echo" .. HOST .. "Content-Length: " .. #body .. "\r\n\r\n", body)
      assert.equal(body, read_response(conn).body)
      conn:write("GET /nothing" .. HOST .. "\r\n")
      assert.equal(404, read_response(conn).status)
    end
    conn:close()
  end)

  client("answers pipelined requests in their order", function()
    local conn, requests = connect(), {}
    for i = 1, 300 do
      requests[#requests + 1] = ("POST /echo%sContent-Length: %d\r\n\r\n%d"):format(HOST,
        #tostring(i), i)
      requests[#requests + 1] = ("GET /count?to=%d%s\r\n"):format(i % 3, HOST)
    end
    assert(conn:write(table.concat(requests)))
    for i = 1, 300 do
      assert.equal(tostring(i), read_response(conn).body)
      assert.equal(#("1\n"):rep(i % 3), #read_response(conn).body)
    end
    conn:close()
  end)

  client("takes a request byte by byte", function()
    local conn = connect()
    local text = "POST /echo" .. HOST .. "Transfer-Encoding: chunked\r\n\r\n"
      .. "3;a=b\r\nabc\r\n0A\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nGET /" .. HOST .. "\r\n"
    for i = 1, #text do
      assert(conn:write(text:sub(i, i)))
      troupe.yield()
    end
    assert.equal("abc0123456789", read_response(conn).body)
    assert.equal("Hello from Troupe\n", read_response(conn).body)
    conn:close()
  end)

  client("answers what came before the client's end", function()
    local conn = connect()
    conn:write("GET /" .. HOST .. "\r\nPOST /echo" .. HOST .. "Content-Length: 2\r\n\r\nok")
    conn:shutdown "send"
    local all = assert(conn:read "all")
    assert.truthy(all:find("Hello from Troupe\n", 1, true))
    assert.truthy(all:find("\r\n\r\nok$"))
    conn:close()
  end)

  client("ends the connection when it is asked to", function()
    for _, line in ipairs { "Connection: close", "connection: foo, CLOSE" } do
      local all = talk("GET /" .. HOST .. line .. "\r\n\r\n")
      assert.equal(200, status_of(all))
      assert.truthy(all:find("\r\nConnection: close\r\n", 1, true))
    end
  end)

  client("speaks HTTP/1.0", function()
    local all = talk "GET / HTTP/1.0\r\n\r\n"
    assert.truthy(all:find("\r\n\r\nHello from Troupe\n$"))
    all = talk "GET /count?to=2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    assert.truthy(all:find("\r\n\r\n1\n2\n$"))
    assert.falsy(all:find("chunked", 1, true))
    local conn = connect()
    for _ = 1, 3 do
      conn:write "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"
      assert.equal("keep-alive", read_response(conn).fields.connection)
    end
    conn:close()
  end)

  client("asks for the body when the client wants to be asked", function()
    local conn = connect()
    conn:write("POST /echo" .. HOST .. "Content-Length: 4\r\nExpect: 100-continue\r\n\r\n")
    assert.equal(100, read_response(conn, true).status)
    conn:write "body"
    assert.equal("body", read_response(conn).body)
    conn:close()
    -- Not if it would not take it.
    assert.equal(413, status_of(talk("POST /echo" .. HOST
      .. "Content-Length: 4000000\r\nExpect: 100-continue\r\n\r\n")))
  end)

  client("takes a target with a host, and an empty line before it", function()
    assert.equal(200, status_of(talk("GET http://localhost/" .. HOST
      .. "Connection: close\r\n\r\n")))
    assert.equal(200, status_of(talk("\r\nGET /?a=b" .. HOST .. "Connection: close\r\n\r\n")))
  end)

  local long = ("x"):rep(20000)
  local post = "POST /echo" .. HOST
  local chunked = post .. "Transfer-Encoding: chunked\r\n\r\n"
  local many = {}
  for i = 1, 101 do
    many[i] = "F" .. i .. ": x\r\n"
  end

  for _, case in ipairs {
    { 400, "nonsense", "hello\r\n\r\n" },
    { 400, "TLS", "\22\3\1\2\0\1\0\1\252\3\3\r\n\r\n" },
    { 400, "HTTP/0.9", "GET /\r\n\r\n" },
    { 400, "two blanks", "GET  / HTTP/1.1\r\nHost: x\r\n\r\n" },
    { 400, "a relative target", "GET x HTTP/1.1\r\nHost: x\r\n\r\n" },
    { 400, "a line end without CR", "GET / HTTP/1.1\nHost: x\n\n" },
    { 400, "no host", "GET / HTTP/1.1\r\n\r\n" },
    { 400, "two hosts", "GET /" .. HOST .. "Host: other\r\n\r\n" },
    { 400, "a field without colon", "GET /" .. HOST .. "Field\r\n\r\n" },
    { 400, "a field without name", "GET /" .. HOST .. ": x\r\n\r\n" },
    { 400, "a blank before the colon", "GET /" .. HOST .. "Content-Length : 5\r\n\r\n" },
    { 400, "a folded field", "GET /" .. HOST .. "A: b\r\n c\r\n\r\n" },
    { 400, "a zero byte", "GET /" .. HOST .. "A: \0\r\n\r\n" },
    { 400, "a lone CR", "GET /" .. HOST .. "A: b\rC: d\r\n\r\n" },
    { 400, "a length that is no number", post .. "Content-Length: 0x10\r\n\r\n" },
    { 400, "a negative length", post .. "Content-Length: -1\r\n\r\n" },
    { 400, "two lengths", post .. "Content-Length: 1\r\nContent-Length: 2\r\n\r\n" },
    { 400, "length and chunks", chunked:gsub("\r\n\r\n", "\r\nContent-Length: 1%0") },
    { 400, "chunks in HTTP/1.0", "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" },
    { 400, "a chunk without size", chunked .. "\r\n" },
    { 400, "a chunk of nonsense", chunked .. "xyz\r\n" },
    { 400, "a chunk that is longer than it says", chunked .. "3\r\nabcdef\r\n" },
    { 400, "an endless chunk extension", chunked .. "3;" .. long },
    { 404, "an unknown path", "GET /nothing" .. HOST .. "Connection: close\r\n\r\n" },
    { 405, "GET of what wants POST", "GET /echo" .. HOST .. "Connection: close\r\n\r\n" },
    { 405, "POST of what wants GET", "POST /" .. HOST .. "Connection: close\r\n\r\n" },
    { 413, "too large a body", post .. "Content-Length: 1048577\r\n\r\n" },
    { 413, "an astronomic body", post .. "Content-Length: 1" .. ("0"):rep(400) .. "\r\n\r\n" },
    { 413, "too large a chunk", chunked .. "100001\r\n" },
    { 413, "too many chunks", chunked .. ("20000\r\n" .. ("x"):rep(0x20000) .. "\r\n"):rep(9) },
    { 413, "a chunk of astronomic size", chunked .. ("f"):rep(100) .. "\r\n" },
    { 414, "too long a target", "GET /" .. long .. HOST .. "\r\n" },
    { 414, "a first line without end", ("x"):rep(100000) },
    { 417, "an expectation that it does not know",
      post .. "Content-Length: 1\r\nExpect: miracles\r\n\r\n" },
    { 431, "too long a field", "GET /" .. HOST .. "A: " .. long .. "\r\n\r\n" },
    { 431, "a field without end", "GET /" .. HOST .. "A: " .. ("x"):rep(100000) },
    { 431, "blanks without end", "GET /" .. HOST .. "A:" .. (" "):rep(100000) },
    { 431, "too many fields", "GET /" .. HOST .. table.concat(many) .. "\r\n" },
    { 431, "too many trailers", chunked .. "0\r\n" .. table.concat(many) .. "\r\n" },
    { 500, "an error of the application", "GET /crash" .. HOST .. "Connection: close\r\n\r\n" },
    { 501, "an unknown method", "BREW /" .. HOST .. "\r\n" },
    { 501, "an unknown coding", post .. "Transfer-Encoding: gzip\r\n\r\n" },
    { 501, "two codings", post .. "Transfer-Encoding: gzip, chunked\r\n\r\n" },
    { 505, "HTTP/2", "GET / HTTP/2.0\r\n\r\n" },
  } do
    client(("answers %d to %s, and closes"):format(case[1], case[2]), function()
      local all = talk(case[3])
      assert.equal(case[1], status_of(all))
      assert.truthy(all:find("\r\nConnection: close\r\n", 1, true))
    end)
  end

  client("goes on after an error of the application", function()
    local conn = connect()
    conn:write("GET /crash" .. HOST .. "\r\nGET /" .. HOST .. "\r\n")
    assert.equal(500, read_response(conn).status)
    assert.equal(200, read_response(conn).status)
    conn:close()
  end)

  client("forgets clients that go away in the middle", function()
    local fds = server:descriptors()
    for _, text in ipairs { "", "GET", "GET /" .. HOST, post .. "Content-Length: 9\r\n\r\nabc",
      chunked .. "5\r\nab", "GET /count?to=1000000" .. HOST .. "\r\n" } do
      local conn = connect()
      conn:write(text)
      conn:close()
    end
    settled(fds)
  end)

  it("serves curl", function()
    if not has "curl" then
      return
    end
    local url = "http://127.0.0.1:" .. server.port
    local body = ("0123456789"):rep(90000)
    local path = helper.file("body", body)
    local function curl(rest)
      local ran = helper.shell("curl -sS --max-time 200 " .. rest)
      assert.equal(0, ran.status, ran.err)
      return ran.out
    end
    assert.equal("Hello from Troupe\n", curl(url .. "/"))
    assert.truthy(curl("-I " .. url .. "/"):find("Content-Length: 18", 1, true))
    assert.equal("1\n2\n", curl("'" .. url .. "/count?to=2'"))
    assert.equal(body, curl("-H 'Expect: 100-continue' --data-binary @" .. path .. " " .. url
      .. "/echo"))
    assert.equal(body, curl("-H 'Transfer-Encoding: chunked' --data-binary @" .. path .. " " .. url
      .. "/echo"))
    -- Five requests on one connection.
    local ports = curl(("-w '%%{local_port}\n' %s"):format((url .. "/count?to=0 "):rep(5)))
    local first = ports:match "%d+"
    assert.equal((first .. "\n"):rep(5), ports)
  end)

  it("serves wrk", function()
    if not has "wrk" then
      return
    end
    local ran = helper.shell(("wrk -t1 -c20 -d1s --timeout 100s http://127.0.0.1:%d/"):format(
      server.port))
    assert.equal(0, ran.status)
    assert.truthy(ran.out:find "Requests/sec:")
    assert.falsy(ran.out:find "Socket errors", ran.out)
    assert.falsy(ran.out:find "Non%-2xx", ran.out)
  end)

  it("serves the load generator, which counts no error", function()
    if not servers.has_load() then
      pending "there is no libuv, hence no load generator"
      return
    end
    local fds = server:descriptors()
    for _, options in ipairs {
      "--connections 50 --duration 1",
      "--connections 5 --pipeline 16 --count 2000",
      "--connections 10 --path '/count?to=20' --count 1000",
      "--connections 20 --rate 500 --duration 1",
    } do
      local figures, text = server:load(PATIENT .. "--mode http " .. options)
      assert.truthy(figures, text)
      assert.is_true(figures.requests > 0)
    end
    settled(fds)
  end)
end)

describe("the time limit of examples/http.lua", function()
  with_limits "idle=0.4"

  client("closes an idle connection without a word", function()
    assert.equal("", talk "")
    helper.one_of_many_tries(function() -- a request may come too late
      local all = talk("GET /count?to=0" .. HOST .. "\r\n")
      assert.truthy(all:find "0\r\n\r\n$")
    end)
  end)
end)

describe("the limits of examples/http.lua", function()
  with_limits "head=0.4 body=0.4 idle=100 write=0.4 connections=8"

  -- Each byte comes in time; all of them do not.
  local function drip(text)
    local conn = connect()
    local pid = troupe.self()
    local feeder = troupe.spawn(function()
      while true do
        troupe.send(pid, "next")
        troupe.sleep(0.05)
      end
    end)
    assert(conn:write(text))
    local response
    repeat
      troupe.receive()
      conn:write "x"
      response = conn:read_some(1000, 0)
    until response
    feeder:kill()
    conn:close()
    return status_of(response)
  end

  client("answer 408 to a head that comes too slowly", function()
    assert.equal(408, drip "")
    assert.equal(408, drip("GET /" .. HOST .. "A: "))
  end)

  client("answer 408 to a body that comes too slowly", function()
    assert.equal(408, drip("POST /echo" .. HOST .. "Content-Length: 100000\r\n\r\n"))
    assert.equal(408, drip("POST /echo" .. HOST .. "Transfer-Encoding: chunked\r\n\r\nffff\r\n"))
  end)

  client("give up a client that never reads", function()
    local fds = server:descriptors()
    local conn = connect()
    conn:write("GET /count?to=100000000" .. HOST .. "\r\n")
    assert.truthy(conn:read_some()) -- it has begun
    settled(fds)
    conn:close()
  end)

  client("refuse one connection too many, and take the next", function()
    local fds = server:descriptors()
    local conns = {}
    for i = 1, 8 do
      conns[i] = connect()
    end
    local all = talk ""
    assert.equal(503, status_of(all))
    for _, conn in ipairs(conns) do
      conn:close()
    end
    settled(fds)
    assert.equal(200, status_of(talk("GET /" .. HOST .. "Connection: close\r\n\r\n")))
  end)
end)
