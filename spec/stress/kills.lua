-- Kills actors at random moments: troupe run spec/stress/kills.lua [count [seed]]
-- Also for sanitizer builds, which no luajit can load as a module.
-- Says ten times what is resident: that must level off.
local troupe = require "troupe"
local mixed = dofile "spec/stress/mixed.lua"

local count = tonumber(troupe.args[1]) or 300
local seed = tonumber(troupe.args[2]) or os.time()
local start = troupe.now()
local step = math.max(1, math.floor(count / 10))
print("seed", seed)
local grown = mixed.kill(count, seed, function(killed, kib)
  if killed % step == 0 then
    print(("%6d started, %7d KiB resident, %6.1f s"):format(killed, kib, troupe.now() - start))
  end
end)
print(("%d killed, %d KiB more, %.1f s"):format(count, grown, troupe.now() - start))
