local opts = require "troupe.opts"

local FIELDS = {
  name = { type = "string" },
  wait = { type = "seconds", default = 5 },
  both = { type = { "string", "table" } },
  mode = { one_of = { "fast", "slow", false } },
  must = { type = "number", required = true },
  any = { type = "any" },
}

local function check(options)
  local checked = opts.check("thing", options, FIELDS, 3)
  return checked
end

local function raised(options)
  local ok, err = pcall(function()
    local checked = check(options)
    return checked
  end)
  assert.is_false(ok)
  return err
end

describe("troupe.opts", function()
  it("returns a new table with defaults", function()
    local given = { must = 1 }
    assert.same({ must = 1, wait = 5 }, check(given))
    assert.same({ must = 1 }, given)
    local print_it = { must = 1, wait = 0, both = {}, mode = "slow", name = "x", any = print }
    assert.same(print_it, check(print_it))
    assert.same({ must = 1, wait = math.huge, mode = false },
      check { must = 1, wait = math.huge, mode = false })
  end)

  it("names what is wrong, at the caller", function()
    assert.matches("^spec/lua/opts_spec.lua:%d+: thing: unknown option 'x'",
      raised { must = 1, x = 2 })
    assert.matches("thing: unknown option '1'", raised { 7, must = 1 })
    assert.matches("thing: option 'must' is missing", raised(nil))
    assert.matches("thing: option 'name' must be string, not 7", raised { must = 1, name = 7 })
    assert.matches("option 'both' must be string or table, not true",
      raised { must = 1, both = true })
    assert.matches('option \'mode\' must be "fast" or "slow" or false, not "late"',
      raised { must = 1, mode = "late" })
    for _, wait in ipairs { -1, 0 / 0, "1" } do
      assert.matches("option 'wait' must be a number of seconds", raised { must = 1, wait = wait })
    end
    assert.matches("options must be a table, not number", raised(7))
  end)

  it("shows values in a few words", function()
    assert.equal('"a"', opts.show "a")
    assert.equal("{ a = 1 }", opts.show { a = 1 })
    assert.equal('{ [1] = "x" }', opts.show { "x" })
    assert.matches("%.%.%. }$", opts.show { 1, 2, 3, 4, 5, 6 })
    assert.equal(62, #opts.show(("x"):rep(100)))
  end)
end)
