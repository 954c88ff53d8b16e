-- plain_luajit.lua - actors in a program that luajit itself runs.
--
--   luajit examples/plain_luajit.lua
--
-- What it shows: require "troupe" works in any LuaJIT program (luarocks make
-- installs it). troupe.run makes a function the root actor. It runs in the
-- program's own Lua state, so it sees all locals; the actors that it spawns
-- have states of their own and get copies. run returns what the function
-- returns, or raises its error, when all actors are gone.
--
-- Expected output:
--   7 6 5 4 3 2 1
--   before run, after run: 1 2
--   run failed: oh no
--   and runs again: true
local troupe = require "troupe"

local runs = 1

local list = troupe.run(function()
  local me = troupe.self()
  runs = runs + 1 -- the program's own variable
  for i = 1, 7 do
    troupe.spawn(function() troupe.send(me, i) end)
  end
  local got = {}
  for i = 1, 7 do
    got[i] = troupe.receive()
  end
  table.sort(got, function(a, b) return a > b end)
  return got
end)
print(table.concat(list, " "))
print("before run, after run: 1 " .. runs)

local ok, err = pcall(troupe.run, function() error("oh no", 0) end)
assert(not ok)
print("run failed: " .. err)

local pid_of_root = troupe.run(troupe.self)
print("and runs again: " .. tostring(pid_of_root ~= nil))
