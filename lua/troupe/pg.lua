--- Process groups: actors under one name.
--
-- An actor joins any number of groups and leaves them at the latest when it
-- ends: nobody sees a dead member. The functions are written in C
-- (bindings/group.c); meta.lua describes them.
-- @module troupe.pg

return require("troupe.core")._pg
