-- Kills actors at random moments: troupe run spec/stress/kills.lua [count [seed]]
-- Also for sanitizer builds, which no luajit can load as a module.
local troupe = require "troupe"
local mixed = dofile "spec/stress/mixed.lua"

local count = tonumber(troupe.args[1]) or 300
local seed = tonumber(troupe.args[2]) or os.time()
print("seed", seed)
print(("%d killed, %d KiB more"):format(count, mixed.kill(count, seed)))
