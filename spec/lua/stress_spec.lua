--- Many actors, very short slices, kills at random: every result is right.
--
-- TROUPE_STRESS=<seconds> runs the first for so long, and 20,000 kills.

local helper = require "spec.helper"
local troupe = require "troupe"

local LONG = tonumber(os.getenv "TROUPE_STRESS" or "")
local SLICE = 0.0001
local mixed = dofile "spec/stress/mixed.lua"

local function run(schedulers, fn)
  troupe.run(fn, { schedulers = schedulers, slice = SLICE })
end

describe("with a slice of 0.1 ms", function()
  for _, schedulers in ipairs { 2, 4 } do
    helper.it(("every result is right (schedulers: %d)"):format(schedulers), function()
      run(schedulers, function()
        mixed.laps(LONG and 200 or 40, 10, LONG or 0, helper.DEADLINE)
      end)
    end, { limit = (LONG or 0) + 600 })

    helper.it(("every result of long C calls is right (schedulers: %d)"):format(schedulers),
      function()
        run(schedulers, function()
          mixed.laps(LONG and 50 or 10, 2, LONG or 0, helper.DEADLINE, nil, mixed.long)
        end)
      end, { limit = (LONG or 0) + 600 })

    helper.it(("kills at random moments leave nothing (schedulers: %d)"):format(schedulers),
      function()
        run(schedulers, function()
          local grown = mixed.kill(LONG and 20000 or 300, schedulers)
          assert(grown < 16 * 1024, grown .. " KiB more are resident")
        end)
      end, { limit = LONG and 3600 or 600 })
  end
end)
