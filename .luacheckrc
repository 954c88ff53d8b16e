std = "luajit"
self = false
max_line_length = 100
ignore = { "212/_.*" } -- an unused argument is an error unless _named
exclude_files = { "build", "build.luarocks", "lua/troupe/meta.lua" }
files["spec/**/*_spec.lua"] = { std = "+busted" }
files["spec/helper.lua"] = { std = "+busted" }
