-- The sandbox of scripts. Runs once for each Lua state, with the functions of the server as `native`, and
-- returns the environment of scripts and the table of values that change with each script.
local native = ...
local real = setmetatable({}, {__mode = "k"})
local raw_next, raw_pairs, raw_get, raw_set = next, pairs, rawget, rawset
local raw_error, raw_setmetatable, raw_getmetatable = error, setmetatable, getmetatable
local raw_loadstring, raw_setfenv, raw_type = loadstring, setfenv, type
local byte, concat = string.byte, table.concat
local READONLY = "Attempt to modify a readonly table"

local function refuse() raw_error(READONLY, 2) end

-- A table that shows another one and cannot be changed.
local function protect(table, index)
  local shown = {}
  local meta = {__index = index or table, __newindex = refuse}
  local shown_meta = {}
  real[shown_meta] = meta
  raw_setmetatable(shown_meta, {__index = meta, __newindex = refuse, __metatable = shown_meta})
  meta.__metatable = shown_meta
  real[shown] = table
  return raw_setmetatable(shown, meta)
end

-- `unpack` of Lua 5.1 writes beyond its stack if the length of the range exceeds 31 bits. A call has at most
-- 8000 results.
local MOST_RESULTS = 8000
local raw_unpack = unpack
local function checked_unpack(table, first, last)
  if raw_type(table) ~= "table" then
    raw_error("bad argument #1 to 'unpack' (table expected, got " .. raw_type(table) .. ")", 2)
  end
  -- With two arguments more it would have room for fewer results.
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

-- The matcher of Lua 5.1 calls itself for each quantifier and each capture of a pattern, without a limit.
local MOST_CALLS = 1000
local raw_gsub = string.gsub
for _, name in raw_pairs({"find", "match", "gmatch", "gsub"}) do
  local raw = string[name]
  string[name] = function(text, pattern, ...)
    local is_long = raw_type(pattern) == "string" and #pattern > MOST_CALLS
    if is_long and not (name == "find" and select(2, ...)) then
      local _, calls = raw_gsub(pattern, "[?*+%-()]", "")
      if calls > MOST_CALLS then raw_error("pattern too complex", 2) end
    end
    return raw(text, pattern, ...)
  end
end

local globals = {}
-- `call`, `pcall`, `setresp` and `acl_check_cmd` are those of the script that runs.
local redis = {
  sha1hex = native.sha1hex, log = native.log,
  error_reply = native.error_reply, status_reply = native.status_reply,
  replicate_commands = function() return true end,
  set_repl = function() end,
  breakpoint = function() return false end,
  debug = function() end,
  REPL_ALL = 3, REPL_AOF = 1, REPL_SLAVE = 2, REPL_REPLICA = 2, REPL_NONE = 0,
  LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
  REDIS_VERSION = native.version, REDIS_VERSION_NUM = native.version_number,
}

for _, name in raw_pairs({
  "assert", "collectgarbage", "error", "gcinfo", "ipairs", "rawequal", "select", "tonumber",
  "tostring", "type", "_VERSION",
}) do
  globals[name] = _G[name]
end
globals.unpack = checked_unpack
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
  end
  if library == "cmsgpack" then functions._NAME, functions._VERSION = "cmsgpack", "lua-cmsgpack 0.4.0" end
  globals[library] = protect(functions)
end

-- An error of a function of the server is of a type of its own until it is caught.
local raw_pcall, raw_xpcall, convert = pcall, xpcall, native.convert
local function caught(ok, ...)
  if ok then return ok, ... end
  return ok, convert((...))
end
-- As in Redis, an error that is a reply becomes its text.
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
globals.pairs = function(table)
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

-- Precompiled code could do anything.
local function load_text(text, name)
  if byte(text, 1) == 27 then return nil, "attempt to load a binary chunk" end
  local f, why = raw_loadstring(text, name)
  if f then raw_setfenv(f, env) end
  return f, why
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
