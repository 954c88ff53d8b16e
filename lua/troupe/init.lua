--- Troupe: actors for LuaJIT.
--
-- All functions live in the C module; this file is the door that `require
-- "troupe"` opens from a plain LuaJIT. Inside an actor the module is built in.
-- @module troupe

return require "troupe.core"
