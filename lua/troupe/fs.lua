--- Files, without holding up a scheduler: each call runs on the blocking pool.
--
-- All functions park. What can go wrong with a file is `nil, err`, where err is
-- the name of the errno, "ENOENT", or "too_many_files". A path with a zero byte
-- is "EINVAL".
-- @module troupe.fs

local core = require "troupe.core"
local opts = require "troupe.opts"

local raw, blocking = core._fs, core.blocking

local M = {}

local function check_string(value, arg, name, what)
  if type(value) ~= "string" then
    error(("bad argument #%d to '%s' (%s must be a string, not %s)"):format(arg, name,
      what or "path", type(value)), 3)
  end
end

--- The whole file.
---@async
---@param path string
---@return string? data
---@return string? err
function M.read_file(path)
  check_string(path, 1, "read_file")
  return blocking(raw.read, path)
end

local WRITE = { fsync = { type = "boolean", default = false } }

--- Replace a file, or make it: other processes see the old one or all of the
--- new one. Keeps the mode of the old one, and goes to where a link points.
---@async
---@param path string
---@param data string
---@param options? {fsync?: boolean} it is on the disk when this returns; default false
---@return true? ok
---@return string? err the old one is unchanged, unless only fsync has failed
function M.write_file(path, data, options)
  check_string(path, 1, "write_file")
  check_string(data, 2, "write_file", "data")
  local o = opts.check("write_file", options, WRITE)
  return blocking(raw.write, path, data, o.fsync)
end

--- About a file, or what a link points to.
---@async
---@param path string
---@return troupe.Stat? stat
---@return string? err
function M.stat(path)
  check_string(path, 1, "stat")
  return blocking(raw.stat, path, true)
end

--- About a file, or a link itself.
---@async
---@param path string
---@return troupe.Stat? stat
---@return string? err
function M.lstat(path)
  check_string(path, 1, "lstat")
  return blocking(raw.stat, path, false)
end

--- What is in a folder, but for "." and "..".
---@async
---@param path string
---@return string[]? names sorted by their bytes
---@return string? err
function M.dir(path)
  check_string(path, 1, "dir")
  local names, err = blocking(raw.dir, path)
  if names then
    table.sort(names)
  end
  return names, err
end

--- Make a folder.
---@async
---@param path string
---@return true? ok
---@return string? err
function M.mkdir(path)
  check_string(path, 1, "mkdir")
  return blocking(raw.mkdir, path)
end

--- Remove a file or an empty folder.
---@async
---@param path string
---@return true? ok
---@return string? err
function M.remove(path)
  check_string(path, 1, "remove")
  return blocking(raw.remove, path)
end

--- Give a file another name, in the same file system; replaces what has it.
---@async
---@param from string
---@param to string
---@return true? ok
---@return string? err
function M.rename(from, to)
  check_string(from, 1, "rename", "from")
  check_string(to, 2, "rename", "to")
  return blocking(raw.rename, from, to)
end

return M
