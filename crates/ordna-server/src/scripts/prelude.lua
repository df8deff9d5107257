-- The sandbox of scripts. Runs once for each Lua state, with the functions of the server as `native`, and
-- returns the environment of scripts and the tables of values that change with each script.
local native = ...
local real = setmetatable({}, {__mode = "k"})
local raw_next, raw_pairs, raw_get, raw_set = next, pairs, rawget, rawset
local raw_error, raw_setmetatable, raw_getmetatable = error, setmetatable, getmetatable
local raw_load, raw_setfenv, raw_type = load, setfenv, type
local byte, sub, concat = string.byte, string.sub, table.concat
local READONLY = "Attempt to modify a readonly table"

local function refuse() raw_error(READONLY, 2) end

-- The value that scripts get as the metatable of a protected table. It is empty and cannot be changed. The actual
-- metatable refers to the protected table.
local no_meta = {}
real[no_meta] = {}
raw_setmetatable(no_meta, {__newindex = refuse, __metatable = no_meta})

-- Returns a read-only view of another table.
local function protect(table, index)
  local shown = {}
  real[shown] = table
  return raw_setmetatable(shown, {__index = index or table, __newindex = refuse, __metatable = no_meta})
end

-- `unpack` of Lua 5.1 writes beyond its stack if the length of the range exceeds 31 bits. A call has at most
-- 8000 results.
local MOST_RESULTS = 8000
local raw_unpack = unpack
local function checked_unpack(table, first, last)
  if raw_type(table) ~= "table" then
    raw_error("bad argument #1 to 'unpack' (table expected, got " .. raw_type(table) .. ")", 2)
  end
  -- Two more arguments would reduce the room for results.
  if first == nil and last == nil and #table < MOST_RESULTS then return raw_unpack(table) end
  local i, j = tonumber(first == nil and 1 or first), tonumber(last == nil and #table or last)
  if not i or not j then
    local at, wrong = 2, first
    if i then at, wrong = 3, last end
    raw_error("bad argument #" .. at .. " to 'unpack' (number expected, got " .. raw_type(wrong) .. ")", 2)
  end
  if i > j then return end
  if not (j - i < MOST_RESULTS and i >= -2147483648 and j <= 2147483647) then
    raw_error("too many results to unpack", 2)
  end
  return raw_unpack(table, i, j)
end

local globals = {}
-- `call`, `pcall`, `setresp` and `acl_check_cmd` belong to the running script.
local redis = {
  sha1hex = native.sha1hex, log = native.log,
  error_reply = native.error_reply, status_reply = native.status_reply,
  replicate_commands = function() return true end,
  set_repl = native.set_repl,
  breakpoint = function() return false end,
  debug = function() end,
  REPL_ALL = 3, REPL_AOF = 1, REPL_SLAVE = 2, REPL_REPLICA = 2, REPL_NONE = 0,
  LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
  REDIS_VERSION = native.version, REDIS_VERSION_NUM = native.version_number,
}

for _, name in raw_pairs({
  "assert", "error", "gcinfo", "ipairs", "rawequal", "select", "tonumber",
  "tostring", "type", "_VERSION",
}) do
  globals[name] = _G[name]
end
globals.unpack = checked_unpack
-- The options of the collector would affect the scripts of all users.
local raw_collectgarbage = collectgarbage
globals.collectgarbage = function(option, argument)
  if option == "stop" or option == "restart" then return 0 end
  if option == "setpause" or option == "setstepmul" then return 200 end
  -- Lua reads an option up to its first zero byte.
  if option ~= nil and option ~= "collect" and option ~= "count" and option ~= "step" then
    raw_error("bad argument #1 to 'collectgarbage' (invalid option)", 2)
  end
  return raw_collectgarbage(option, argument)
end

-- The functions of `table` ignore metatables, so they would change protected tables. Wrong arguments are refused
-- here, so that an error names the line of the script.
local raw_insert, raw_remove, raw_sort = table.insert, table.remove, table.sort
local select, tonumber, guarded = select, tonumber, pcall
local function check(list, name)
  if raw_type(list) ~= "table" then
    raw_error("bad argument #1 to '" .. name .. "' (table expected, got " .. raw_type(list) .. ")", 3)
  end
  if real[list] then raw_error(READONLY, 0) end
end
local LEAST_POSITION = -1000000
-- `#t` may be any border, for example 10^9 for a table with 31 entries. No table has this number of values.
local MOST_VALUES = 16777216
local function check_length(list)
  if #list > MOST_VALUES then raw_error("the table is too sparse: its length is " .. #list, 3) end
end
table.insert = function(list, ...)
  check(list, "insert")
  local count = select("#", ...)
  if count == 1 then return raw_insert(list, (...)) end
  if count ~= 2 then raw_error("wrong number of arguments to 'insert'", 2) end
  local at = tonumber((...))
  if not at then
    raw_error("bad argument #2 to 'insert' (number expected, got " .. raw_type((...)) .. ")", 2)
  end
  -- Lua moves all values from a position to the end, even if the position is negative.
  if not (at >= LEAST_POSITION and at <= 2147483647) then
    raw_error("bad argument #2 to 'insert' (position out of bounds)", 2)
  end
  check_length(list)
  return raw_insert(list, ...)
end
table.remove = function(list, ...)
  check(list, "remove")
  check_length(list)
  return raw_remove(list, ...)
end
-- A comparison function in Lua can be interrupted when the script is ended.
local function less(a, b) return a < b end
table.sort = function(list, compare)
  check(list, "sort")
  check_length(list)
  local in_lua = less
  if compare ~= nil then
    if not native.is_native(compare) then return raw_sort(list, compare) end
    in_lua = function(a, b) return compare(a, b) end
  end
  local ok, why = guarded(raw_sort, list, in_lua)
  -- Removes the line of the prelude from the error.
  if not ok then raw_error(raw_type(why) == "string" and native["string.match"](why, "^redis:%d+: (.*)$") or why, 0) end
end
-- These versions in Lua can be interrupted even if `f` is a function of a library.
local function check_each(list, f, name)
  if raw_type(list) ~= "table" then
    raw_error("bad argument #1 to '" .. name .. "' (table expected, got " .. raw_type(list) .. ")", 3)
  end
  if raw_type(f) ~= "function" then
    raw_error("bad argument #2 to '" .. name .. "' (function expected, got " .. raw_type(f) .. ")", 3)
  end
end
table.foreach = function(list, f)
  check_each(list, f, "foreach")
  for key, value in raw_next, list do
    local result = f(key, value)
    if result ~= nil then return result end
  end
end
table.foreachi = function(list, f)
  check_each(list, f, "foreachi")
  for at = 1, #list do
    local result = f(at, raw_get(list, at))
    if result ~= nil then return result end
  end
end

-- See long_numbers.rs.
math.max, math.min = native["math.max"], native["math.min"]
string.char, string.format = native["string.char"], native["string.format"]

local raw_rep = string.rep
string.rep = function(text, count)
  -- Repeating an empty string takes as long as repeating any other.
  if text == "" and tonumber(count) then count = 0 end
  return raw_rep(text, count)
end

-- Patterns. See patterns.rs.
local search, substitute = native["string.search"], native["string.substitute"]
string.find, string.match = native["string.find"], native["string.match"]
string.gmatch = function(text, pattern)
  local from = 1
  local function advance(first, last, ...)
    if not first then return nil end
    from = last < first and first + 1 or last + 1
    return ...
  end
  if raw_type(text) == "number" then text = tostring(text) end
  -- Checks the arguments; nothing can be found after the end.
  search(text, pattern, 1099511627776, false, "gmatch")
  return function() return advance(search(text, pattern, from, false, "gmatch")) end
end
string.gfind = nil
-- Replaces matches by the results of a function, or by values of a table.
local function replace(text, pattern, by, most)
  local is_function, anchored = raw_type(by) == "function", byte(pattern, 1) == 94
  local parts, chunks, from, count = {}, {}, 1, 0
  local function add(first, last, ...)
    if not first then return false end
    count = count + 1
    local value
    if is_function then value = by(...) else value = by[(...)] end
    if not value then
      value = sub(text, first, last)
    elseif raw_type(value) ~= "string" and raw_type(value) ~= "number" then
      raw_error("invalid replacement value (a " .. raw_type(value) .. ")", 4)
    end
    if first > from then parts[#parts + 1] = sub(text, from, first - 1) end
    parts[#parts + 1] = value
    from = last + 1
    if last < first then
      if first > #text then return false end
      parts[#parts + 1] = sub(text, first, first)
      from = first + 1
    end
    if #parts > 4000 then
      chunks[#chunks + 1] = concat(parts)
      parts = {}
    end
    return not anchored
  end
  while count < most and add(search(text, pattern, from, true, "gsub")) do end
  chunks[#chunks + 1] = concat(parts)
  chunks[#chunks + 1] = sub(text, from)
  return concat(chunks), count
end
string.gsub = function(text, pattern, by, most)
  local kind = raw_type(by)
  if kind == "string" or kind == "number" then
    -- Not a tail call, so that an error names the line of the caller.
    local result, count = substitute(text, pattern, by, most)
    return result, count
  end
  if raw_type(text) == "number" then text = tostring(text) end
  if raw_type(pattern) == "number" then pattern = tostring(pattern) end
  if raw_type(text) ~= "string" or raw_type(pattern) ~= "string" then
    local result = substitute(text, pattern, "")
    return result
  end
  if kind ~= "function" and kind ~= "table" then
    raw_error("bad argument #3 to 'gsub' (string/function/table expected)", 2)
  end
  return replace(text, pattern, by, most and tonumber(most) or #text + 1)
end

string.dump = nil
for _, name in raw_pairs({"coroutine", "math", "string", "table"}) do
  globals[name] = protect(_G[name])
end
globals.os = protect({clock = native.clock})
globals.redis = protect(redis)
globals.server = globals.redis
local libraries = {
  bit = {"tobit", "tohex", "bnot", "band", "bor", "bxor", "lshift", "rshift", "arshift", "rol", "ror", "bswap"},
  cjson = {
    "encode", "decode", "encode_max_depth", "decode_max_depth", "encode_number_precision", "encode_keep_buffer",
    "encode_invalid_numbers", "decode_invalid_numbers", "encode_sparse_array",
  },
  cmsgpack = {"pack", "unpack", "unpack_one", "unpack_limit"},
  struct = {"pack", "unpack", "size"},
}
for library, names in raw_pairs(libraries) do
  local functions = {}
  for _, name in raw_pairs(names) do functions[name] = native[library .. "." .. name] end
  if library == "cjson" then
    functions.null = native.null
    functions._NAME, functions._VERSION = "cjson", "2.1.0"
    -- Returns a separate table; the settings belong to the script.
    functions.new = function()
      local copy = {}
      for name, value in raw_next, functions do copy[name] = value end
      return copy
    end
  end
  if library == "cmsgpack" then functions._NAME, functions._VERSION = "cmsgpack", "lua-cmsgpack 0.4.0" end
  globals[library] = protect(functions)
end

-- Until it is caught, an error of a function of the server has its own type.
local raw_pcall, raw_xpcall, convert = pcall, xpcall, native.convert
local function caught(ok, ...)
  if ok then return ok, ... end
  return ok, convert((...))
end
-- As in Redis, an error that is a reply is converted to its text.
local function text_of(ok, err, ...)
  if not ok and raw_type(err) == "table" then
    local text = raw_get(err, "err")
    if raw_type(text) == "string" then return ok, text end
  end
  return ok, err, ...
end
globals.pcall = function(...) return text_of(caught(raw_pcall(...))) end
globals.xpcall = function(f, handler)
  return caught(raw_xpcall(f, function(err) return handler(convert(err)) end))
end
local raw_resume = coroutine.resume
coroutine.resume = function(...) return caught(raw_resume(...)) end

globals.next = function(table, key) return raw_next(real[table] or table, key) end
globals.pairs = function(...)
  local table = ...
  if raw_type(table) ~= "table" then
    local kind = select("#", ...) == 0 and "no value" or raw_type(table)
    raw_error("bad argument #1 to 'pairs' (table expected, got " .. kind .. ")", 2)
  end
  local hidden = real[table]
  if not hidden then return raw_pairs(table) end
  return function(_, key) return raw_next(hidden, key) end, table, nil
end
globals.rawget = function(table, key) return raw_get(real[table] or table, key) end
globals.rawset = function(table, key, value)
  if real[table] then raw_error(READONLY, 0) end
  return raw_set(table, key, value)
end
globals.setmetatable = function(table, meta)
  if real[table] then raw_error(READONLY, 0) end
  return raw_setmetatable(table, meta)
end
local string_meta = protect({__index = globals.string})
globals.getmetatable = function(value)
  if raw_type(value) == "string" then return string_meta end
  return raw_getmetatable(value)
end

local env = protect(globals, function(_, name)
  local value = globals[name]
  if value == nil then
    raw_error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end
  return value
end)
globals._G = env

-- Precompiled code is refused, because it could do anything.
local function load_text(text, name)
  if byte(text, 1) == 27 then return nil, "attempt to load a binary chunk" end
  -- Compiles in pieces, between which the script can be ended.
  local at = 1
  local f, why = raw_load(function()
    local piece = sub(text, at, at + 255)
    at = at + 256
    return piece
  end, name)
  if f then raw_setfenv(f, env) end
  return f, convert(why)
end
globals.loadstring = function(text, name)
  if raw_type(text) ~= "string" then raw_error("bad argument #1 to 'loadstring' (string expected)", 2) end
  return load_text(text, name or text)
end
globals.load = function(f, name)
  local parts = {}
  while true do
    local part = f()
    if part == nil or part == "" then break end
    if raw_type(part) ~= "string" then return nil, "reader function must return a string" end
    parts[#parts + 1] = part
  end
  return load_text(concat(parts), name or "=(load)")
end
return env, redis, globals
