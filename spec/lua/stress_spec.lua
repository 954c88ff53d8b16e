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
      local actors, rounds = LONG and 200 or 40, 10
      local want = {}
      for seed = 0, 9 do
        want[seed] = mixed.expected(rounds, seed)
      end
      run(schedulers, function()
        local stop = troupe.now() + (LONG or 0)
        repeat
          for i = 1, actors do
            troupe.spawn_opt({ jit = ({ true, false, "auto" })[i % 3 + 1] }, mixed.body,
              troupe.self(), mixed.work, rounds, i % 10)
          end
          local got = 0
          while got < actors do
            local m = troupe.receive(helper.DEADLINE)
            assert(m, "an actor was lost")
            assert(m.total == want[m.seed], "a result is wrong")
            got = got + 1
          end
        until troupe.now() >= stop
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
