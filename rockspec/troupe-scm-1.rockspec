rockspec_format = "3.0"
package = "troupe"
version = "scm-1"

-- Built from the tree that holds this file:
--   luarocks --lua-version=5.1 make rockspec/troupe-scm-1.rockspec
-- Needed beside it: LuaJIT 2.1 with headers (libluajit-5.1-dev), cmake, a C
-- compiler, pkg-config. `make` does not use source.url.
source = {
  url = "git+file://.",
}

description = {
  summary = "A Lua-scriptable actor runtime",
  detailed = [[
    Hundreds of thousands of isolated Lua actors on a few OS threads, with
    links, monitors and supervisors as in Erlang/OTP. Gives the module
    "troupe" to LuaJIT and the command "troupe".
  ]],
  license = "MIT",
}

supported_platforms = { "linux" }

dependencies = {
  "lua == 5.1",
}

build = {
  type = "cmake",
  variables = {
    CMAKE_BUILD_TYPE = "RelWithDebInfo",
    CMAKE_INSTALL_PREFIX = "$(PREFIX)",
    TROUPE_ROCK = "ON",
    TROUPE_BINDIR = "$(BINDIR)",
    TROUPE_LIBDIR = "$(LIBDIR)",
    TROUPE_LUADIR = "$(LUADIR)",
  },
}
