//! The Lua state in which scripts run, one at a time.
//!
//! # Contract
//! A script has access only to its arguments, the libraries, and the commands of its [`Host`]. The
//! next script cannot see what it leaves in the state, because all tables that outlive it are
//! protected. The state's memory is limited to [`MOST_MEMORY`], and so is what libraries and
//! replies build outside of the state. [`Control::kill`] also ends a script within a function of a
//! library.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mlua::{Function, HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Table, Value, VmState};
use ordna::sync::Lock;
use sha1::{Digest, Sha1};

pub use crate::scripts::control::Control;
use crate::scripts::control::{KILLED, Work};
use crate::scripts::limits::MOST_MEMORY;
use crate::scripts::{bits, cjson, cmsgpack, conversion, long_numbers, numbers, patterns, structs};
use crate::wire::reply::Replies;

/// Memory in bytes above which the state is collected after a script.
const COLLECTED: usize = 16 << 20;
/// Memory in bytes of a collected state above which compiled scripts are dropped, because they
/// would take memory that other scripts need.
const KEPT: usize = 64 << 20;
/// Number of instructions between two checks of the clock and of [`Control`].
const INSTRUCTIONS: u32 = 100;
/// Number of instructions between two checks at the start of a script, when its speed is not known
/// yet.
const FIRST_INSTRUCTIONS: u32 = 10;
/// Time between two checks above which every instruction is followed by a check, because a single
/// instruction may process hundreds of megabytes.
const SLOW: Duration = Duration::from_millis(10);
/// Maximum number of functions that are kept compiled.
const COMPILED: usize = 1000;
/// Maximum size in bytes of the arguments of a command that a script calls. A script may pass the
/// same string many times.
const MOST_ARGUMENTS: usize = MOST_MEMORY;
/// Maximum length in bytes of a line that a script logs, as in Redis.
const LONGEST_LINE: usize = 1024;
/// Maximum length in bytes of an error text.
const LONGEST_ERROR: usize = 4096;

/// Lua's error text when memory is exhausted.
const NO_MEMORY: &str = "not enough memory";
/// The name of the prelude's chunk.
const PRELUDE: &str = "=redis";
/// The name of a script's chunk.
const CHUNK: &str = "@user_script";

/// The interface of the server for scripts.
pub trait Host {
    /// Executes a command and returns its encoded reply. An error begins with its code.
    fn call(&mut self, arguments: &[Vec<u8>], resp3: bool) -> Vec<u8>;

    /// Returns whether the user may execute a command. The error is a text without a code.
    fn may_call(&mut self, arguments: &[Vec<u8>]) -> Result<bool, String>;
}

/// A Lua state with the sandbox.
#[derive(Debug)]
pub struct Engine {
    lua: Lua,
    env: Table,
    globals: Table,
    /// The table `redis`. Some of its functions belong to the running script.
    redis: Table,
    xpcall: Function,
    load: Function,
    handler: Function,
    /// Compiled scripts by their SHA-1.
    compiled: HashMap<String, Function>,
    control: Arc<Control>,
    /// Chunk and line at which the last error occurred.
    place: Arc<Lock<Option<(String, usize)>>>,
}

/// Returns the SHA-1 of a text in hexadecimal digits. Checks the clock before each piece of the
/// text.
fn sha1(
    text: &[u8],
    mut look: impl FnMut() -> std::result::Result<(), String>,
) -> std::result::Result<String, String> {
    /// Size of a piece in bytes: a millisecond or two.
    const STRETCH: usize = 1 << 20;
    let mut digest = Sha1::new();
    for stretch in text.chunks(STRETCH) {
        look()?;
        digest.update(stretch);
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the text of an error of mlua, without a stack trace.
fn text_of(error: &mlua::Error) -> String {
    match error {
        mlua::Error::CallbackError { cause, .. } => text_of(cause),
        mlua::Error::RuntimeError(text) => text.clone(),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        mlua::Error::MemoryError(_) => NO_MEMORY.to_owned(),
        other => other.to_string(),
    }
}

/// Returns the bytes of a command's argument.
fn argument(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(number) => Some(number.to_string().into_bytes()),
        Value::Number(number) => Some(numbers::general(*number, 17).into_bytes()),
        _ => None,
    }
}

/// Returns the first `most` bytes of an argument, or all of it if it is shorter.
fn beginning(value: &Value, most: usize) -> Vec<u8> {
    match value {
        Value::String(text) => {
            let bytes = text.as_bytes();
            bytes[..bytes.len().min(most)].to_vec()
        }
        value => argument(value).unwrap_or_default(),
    }
}

/// Returns the approximate size of an argument in bytes.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.as_bytes().len(),
        _ => 24,
    }
}

/// An error that a script can catch.
#[derive(Debug, Clone, thiserror::Error)]
enum ScriptError {
    /// A text, as Lua's `error` raises it.
    #[error("{0}")]
    Text(String),
    /// A reply: a table with the field `err`.
    #[error("{0}")]
    Reply(String),
    /// The reply of a command, which the statistics have already counted.
    #[error("{0}")]
    Counted(String),
}

/// Field of an error that the statistics have already counted, with the name that Redis uses.
const IS_COUNTED: &str = "ignore_error_stats_update";

/// Returns an error as a table.
fn error_table(lua: &Lua, text: impl AsRef<[u8]>, is_counted: bool) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("err", lua.create_string(text)?)?;
    if is_counted {
        table.raw_set(IS_COUNTED, true)?;
    }
    Ok(table)
}

/// Returns the error of `redis.error_reply`. The code is the part before the first space, or `ERR`
/// if there is no space.
fn coded(text: &[u8]) -> Vec<u8> {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let blank = text.iter().position(|byte| *byte == b' ');
    let (code, text) = blank.map_or((&b"ERR"[..], text), |at| (&text[..at], &text[at + 1..]));
    let is_break = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let start = text.iter().position(|byte| !is_break(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_break(byte)).map_or(start, |last| last + 1);
    [code, b" ", &text[start..end]].concat()
}

/// Returns the script's error that an error of mlua contains.
fn script_error(error: &mlua::Error) -> ScriptError {
    match error {
        mlua::Error::CallbackError { cause, .. } => script_error(cause),
        mlua::Error::ExternalError(error) => match error.downcast_ref::<ScriptError>() {
            Some(error) => error.clone(),
            None => ScriptError::Text(error.to_string()),
        },
        other => ScriptError::Text(text_of(other)),
    }
}

fn reply_error(text: impl Into<String>) -> mlua::Error {
    mlua::Error::external(ScriptError::Reply(text.into()))
}

/// Registers a function. If `is_positioned` is set, its errors are texts that begin with the line
/// of the script.
fn add(
    lua: &Lua,
    native: &Table,
    name: &str,
    is_positioned: bool,
    function: impl Fn(&Lua, MultiValue) -> Result<MultiValue, String> + Send + 'static,
) -> mlua::Result<()> {
    let called = move |lua: &Lua, arguments: MultiValue| {
        function(lua, arguments).map_err(|text| {
            if text == KILLED {
                return mlua::Error::runtime(KILLED);
            }
            if !is_positioned {
                return reply_error(format!("ERR {text}"));
            }
            let position = |level| {
                lua.inspect_stack(level, |frame| {
                    let source = frame.source();
                    let is_own = source.source.is_some_and(|source| source == PRELUDE);
                    let short = source.short_src.map(|source| source.into_owned());
                    let place = short.zip(frame.current_line());
                    (is_own, place.map(|(source, line)| format!("{source}:{line}: ")))
                })
            };
            // The calling function, skipping those of the prelude.
            let caller = (1..4).map_while(position).find(|(is_own, _)| !is_own);
            let position = caller.and_then(|(_, place)| place).unwrap_or_default();
            mlua::Error::external(ScriptError::Text(format!("{position}{text}")))
        })
    };
    native.raw_set(name, lua.create_function(called)?)
}

/// Makes the state check the clock and [`Control`] after this number of instructions. Afterwards it
/// checks every instruction while they are slow, and otherwise less often.
fn watch(lua: &Lua, control: &Arc<Control>, instructions: u32) -> mlua::Result<()> {
    /// Number of checks after which the hook is set again, even if the number of instructions does
    /// not change, because another coroutine may have a different one.
    const LOOKS: u32 = 8;
    let control = Arc::clone(control);
    let since = Lock::new(Instant::now());
    let looks = AtomicU32::new(1);
    let triggers = HookTriggers::new().every_nth_instruction(instructions);
    lua.set_global_hook(triggers, move |lua, _| {
        if control.is_killed() {
            return Err(mlua::Error::runtime(KILLED));
        }
        let is_slow = since.lock().elapsed() > SLOW;
        control.look_at_clock();
        if is_slow {
            watch(lua, &control, 1)?;
        } else if looks.fetch_add(1, Ordering::Relaxed) >= LOOKS {
            watch(lua, &control, (instructions * 10).min(INSTRUCTIONS))?;
        } else {
            *since.lock() = Instant::now();
        }
        Ok(VmState::Continue)
    })
}

/// Returns a list with one result.
fn one(value: Value) -> MultiValue {
    MultiValue::from_iter([value])
}

impl Engine {
    /// Creates a state. `log` receives the lines that scripts log, with a level from 0 to 3.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn new(version: (&str, u32), log: fn(i64, &str)) -> mlua::Result<Self> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::default())?;
        long_numbers::keep(&lua)?;
        let native = lua.create_table()?;
        native.raw_set("version", version.0)?;
        native.raw_set("version_number", version.1)?;
        native.raw_set("null", Value::NULL)?;
        let since = Instant::now();
        native.raw_set(
            "clock",
            lua.create_function(move |_, ()| Ok(since.elapsed().as_secs_f64()))?,
        )?;
        let is_native = lua.create_function(|_, function: Value| {
            Ok(function.as_function().is_some_and(|function| function.info().what == "C"))
        })?;
        native.raw_set("is_native", is_native)?;
        add(&lua, &native, "sha1hex", false, |lua, arguments| {
            let text = match (arguments.len(), arguments.front()) {
                (1, Some(value)) => argument(value).unwrap_or_default(),
                _ => return Err("wrong number of arguments".to_owned()),
            };
            let work = Work::of(lua);
            lua.create_string(sha1(&text, || work.stretch())?)
                .map(|text| one(Value::String(text)))
                .map_err(|error| text_of(&error))
        })?;
        add(&lua, &native, "log", false, move |_, arguments| {
            let arguments = Vec::from_iter(arguments);
            let [level, parts @ ..] = arguments.as_slice() else {
                return Err("redis.log() requires two arguments or more.".to_owned());
            };
            if parts.is_empty() {
                return Err("redis.log() requires two arguments or more.".to_owned());
            }
            let level = match level {
                Value::Integer(level) => *level,
                Value::Number(level) => *level as i64,
                _ => return Err("First argument must be a number (log level).".to_owned()),
            };
            if !(0..=3).contains(&level) {
                return Err("Invalid debug level.".to_owned());
            }
            let mut line = Vec::new();
            for (at, part) in parts.iter().enumerate() {
                if line.len() > LONGEST_LINE {
                    break;
                }
                line.extend_from_slice(if at > 0 { b" " } else { b"" });
                line.extend_from_slice(&beginning(part, LONGEST_LINE));
            }
            line.truncate(LONGEST_LINE);
            // Replaces line breaks; otherwise a script could forge lines of the server's log.
            let is_break = |byte: &u8| matches!(byte, b'\r' | b'\n');
            line.iter_mut().filter(|byte| is_break(byte)).for_each(|byte| *byte = b' ');
            log(level, &String::from_utf8_lossy(&line));
            Ok(MultiValue::new())
        })?;
        add(&lua, &native, "set_repl", false, |_, arguments| {
            if arguments.len() != 1 {
                return Err("redis.set_repl() requires two arguments.".to_owned());
            }
            // As in Redis, an argument that is not a number counts as 0.
            let flags = arguments.front().and_then(argument);
            let flags = flags.and_then(|text| str::from_utf8(&text).ok()?.parse::<f64>().ok());
            if !(0..=3).contains(&(flags.unwrap_or_default() as i64)) {
                const NAMES: &str = "REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE";
                return Err(format!("Invalid replication flags. Use {NAMES}."));
            }
            Ok(MultiValue::new())
        })?;
        for (name, field) in [("error_reply", "err"), ("status_reply", "ok")] {
            add(&lua, &native, name, false, move |lua, arguments| {
                let (text, field) = match (arguments.len(), arguments.front()) {
                    (1, Some(Value::String(text))) if field == "err" => {
                        (coded(&text.as_bytes()), field)
                    }
                    (1, Some(Value::String(text))) => (text.as_bytes().to_vec(), field),
                    _ => (b"ERR wrong number or type of arguments".to_vec(), "err"),
                };
                let reply = || -> mlua::Result<MultiValue> {
                    let table = lua.create_table()?;
                    table.raw_set(field, lua.create_string(&text)?)?;
                    Ok(one(Value::Table(table)))
                };
                reply().map_err(|error| text_of(&error))
            })?;
        }
        for (library, functions) in [
            ("bit", bits::FUNCTIONS),
            ("cjson", cjson::FUNCTIONS),
            ("cmsgpack", cmsgpack::FUNCTIONS),
            ("struct", structs::FUNCTIONS),
            ("string", patterns::FUNCTIONS),
            ("math", long_numbers::OF_MATH),
            ("string", long_numbers::OF_STRING),
        ] {
            for (name, function) in functions {
                add(&lua, &native, &format!("{library}.{name}"), true, function)?;
            }
        }
        let control = Arc::new(Control::default());
        lua.set_app_data(Arc::clone(&control));
        let running = Arc::clone(&control);
        let convert = lua.create_function(move |lua, error: Value| {
            // A script cannot catch the error that ends it.
            if running.is_killed() {
                return Err(mlua::Error::runtime(KILLED));
            }
            let Value::Error(error) = &error else { return Ok(error) };
            match script_error(error) {
                ScriptError::Text(text) => lua.create_string(text).map(Value::String),
                ScriptError::Reply(text) => error_table(lua, text, false).map(Value::Table),
                ScriptError::Counted(text) => error_table(lua, text, true).map(Value::Table),
            }
        })?;
        native.raw_set("convert", convert)?;
        let xpcall = lua.globals().get("xpcall")?;
        let load = lua.globals().get("load")?;
        let prelude = lua.load(include_str!("prelude.lua")).set_name(PRELUDE);
        let (env, redis, globals) = prelude.call::<(Table, Table, Table)>(native)?;
        lua.set_globals(env.clone())?;
        // The parser of Lua 5.1 uses the name of a chunk without holding a reference to it
        // (CVE-2025-49844). Lua stores each string once, so this reference keeps the name alive.
        lua.set_named_registry_value(CHUNK, CHUNK)?;
        let place = Arc::new(Lock::new(None));
        let last = Arc::clone(&place);
        let handler = lua.create_function(move |lua, error: Value| {
            let place = |level| {
                lua.inspect_stack(level, |frame| {
                    let source = frame.source().source.map(|source| source.into_owned());
                    // The names of functions of the server and of the prelude begin with `=`.
                    let source = source.filter(|source| !source.starts_with('='));
                    source.zip(frame.current_line())
                })
            };
            // The innermost function of the script itself.
            *last.lock() = (1..64).map_while(place).flatten().next();
            Ok(error)
        })?;
        lua.set_app_data(cjson::Settings::default());
        lua.set_memory_limit(MOST_MEMORY)?;
        let engine = Self {
            lua,
            env,
            globals,
            redis,
            xpcall,
            load,
            handler,
            compiled: HashMap::new(),
            control,
            place,
        };
        watch(&engine.lua, &engine.control, INSTRUCTIONS)?;
        Ok(engine)
    }

    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.control)
    }

    /// Returns the memory of the state in bytes.
    pub fn memory(&self) -> usize {
        self.lua.used_memory()
    }

    /// Compiles a script.
    ///
    /// # Errors
    /// Returns the text of a compile error.
    pub fn compile(&mut self, sha: &str, body: &[u8]) -> Result<Function, String> {
        if let Some(function) = self.compiled.get(sha) {
            return Ok(function.clone());
        }
        self.control.begin();
        // The first line of a script with flags is not Lua, but counts for line numbers.
        let body = match body.starts_with(b"#!") {
            true => &body[body.iter().position(|byte| *byte == b'\n').unwrap_or(body.len())..],
            false => body,
        };
        let mut function = self.load(body);
        if function.as_ref().is_err_and(|error| text_of(error) == NO_MEMORY) {
            self.clear();
            function = self.load(body);
        }
        self.control.finish();
        let function = function.map_err(|error| text_of(&error))?;
        if self.compiled.len() >= COMPILED {
            self.compiled.clear();
        }
        self.compiled.insert(sha.to_owned(), function.clone());
        Ok(function)
    }

    /// Compiles a text in pieces, between which [`Control`] can end it, because the time for some
    /// texts is quadratic in their length.
    fn load(&self, body: &[u8]) -> mlua::Result<Function> {
        /// Size of a piece in bytes.
        const PIECE: usize = 256;
        if body.first() == Some(&0x1B) {
            return Err(mlua::Error::runtime("attempt to load a binary chunk"));
        }
        let mut pieces = body.chunks(PIECE);
        let work = Work::of(&self.lua);
        self.lua.scope(|scope| {
            let reader = scope.create_function_mut(|lua, ()| {
                work.stretch().map_err(mlua::Error::runtime)?;
                pieces.next().map(|piece| lua.create_string(piece)).transpose()
            })?;
            match self.load.call::<(Option<Function>, Value)>((reader, CHUNK))? {
                (Some(function), _) => {
                    function.set_environment(self.env.clone())?;
                    Ok(function)
                }
                (None, Value::Error(error)) => Err(*error),
                (None, why) => {
                    let why = beginning(&why, LONGEST_ERROR);
                    Err(mlua::Error::runtime(String::from_utf8_lossy(&why)))
                }
            }
        })
    }

    /// Drops all compiled scripts.
    pub fn clear(&mut self) {
        self.compiled.clear();
        // This fails only if memory is exhausted, which the next script then reports.
        let _ = self.lua.gc_collect();
    }

    /// Runs a script and writes its reply, with at most `most` bytes. Returns whether the reply is
    /// an error of a command, which the statistics have already counted.
    #[expect(clippy::too_many_arguments, reason = "one caller, and each has another type")]
    pub fn run(
        &mut self,
        sha: &str,
        function: &Function,
        keys: &[&[u8]],
        arguments: &[&[u8]],
        host: &mut dyn Host,
        most: usize,
        out: &mut Replies,
    ) -> bool {
        let start = out.bytes.len();
        self.control.begin();
        *self.place.lock() = None;
        if let Some(mut settings) = self.lua.app_data_mut::<cjson::Settings>() {
            *settings = cjson::Settings::default();
        }
        let done = watch(&self.lua, &self.control, FIRST_INSTRUCTIONS)
            .and_then(|()| self.execute(function, keys, arguments, host, most, out));
        let is_counted = done.unwrap_or_else(|error| {
            out.bytes.truncate(start);
            out.error(self.located(&format!("ERR {}", text_of(&error)), sha));
            false
        });
        // Removes the variables of the script.
        for name in ["KEYS", "ARGV"] {
            let _ = self.globals.raw_set(name, Value::Nil);
        }
        if self.lua.used_memory() > COLLECTED {
            let _ = self.lua.gc_collect();
            if self.lua.used_memory() > KEPT {
                self.clear();
            }
        }
        if out.bytes[start..].starts_with(b"\0") {
            // `execute` has left the text of the script's error here.
            let text = out.bytes.split_off(start + 1);
            out.bytes.truncate(start);
            out.error(self.located(&String::from_utf8_lossy(&text), sha));
        }
        is_counted
    }

    /// Returns an error text that names the script and, if it is known, the line.
    fn located(&self, error: &str, sha: &str) -> String {
        match &*self.place.lock() {
            Some((chunk, line)) => format!("{error} script: {sha}, on {chunk}:{line}."),
            None => format!("{error} script: {sha}"),
        }
    }

    /// Writes the reply, or a zero and the error text. Returns whether the reply is an error that
    /// the statistics have already counted.
    fn execute(
        &self,
        function: &Function,
        keys: &[&[u8]],
        arguments: &[&[u8]],
        host: &mut dyn Host,
        most: usize,
        out: &mut Replies,
    ) -> mlua::Result<bool> {
        for (name, values) in [("KEYS", keys), ("ARGV", arguments)] {
            let table = self.lua.create_table_with_capacity(values.len(), 0)?;
            for (at, value) in values.iter().enumerate() {
                table.raw_set(at + 1, self.lua.create_string(value)?)?;
            }
            self.globals.raw_set(name, table)?;
        }
        let resp3 = std::cell::Cell::new(false);
        let host = std::cell::RefCell::new(host);
        let too_many = |arguments: &MultiValue| {
            let bytes = arguments.iter().map(size).fold(0, usize::saturating_add);
            (bytes > MOST_ARGUMENTS).then(|| {
                format!("ERR the arguments of a command of a script exceed {MOST_ARGUMENTS} bytes")
            })
        };
        let strings = |arguments: &MultiValue| -> Option<Vec<Vec<u8>>> {
            arguments.iter().map(argument).collect()
        };
        const ARGUMENTS: &str = "Lua redis lib command arguments must be strings or integers";
        let execute = |lua: &Lua, arguments: MultiValue| {
            if let Some(error) = too_many(&arguments) {
                return Ok(Err((error, false)));
            }
            let reply = match strings(&arguments) {
                Some(arguments) if arguments.is_empty() => {
                    const NONE: &str =
                        "Please specify at least one argument for this redis lib call";
                    return Ok(Err((format!("ERR {NONE}"), false)));
                }
                Some(arguments) => host.borrow_mut().call(&arguments, resp3.get()),
                None => return Ok(Err((format!("ERR {ARGUMENTS}"), false))),
            };
            match reply.strip_prefix(b"-") {
                Some(error) => {
                    let error = String::from_utf8_lossy(error);
                    Ok(Err((error.trim_end_matches("\r\n").to_owned(), true)))
                }
                None => conversion::to_lua(lua, &reply).map(Ok),
            }
        };
        let result = self.lua.scope(|scope| {
            let call = scope.create_function(|lua, arguments: MultiValue| {
                execute(lua, arguments)?.map_err(|(text, counted)| match counted {
                    true => mlua::Error::external(ScriptError::Counted(text)),
                    false => reply_error(text),
                })
            })?;
            let pcall = scope.create_function(|lua, arguments: MultiValue| {
                execute(lua, arguments)?
                    .or_else(|(text, counted)| error_table(lua, text, counted).map(Value::Table))
            })?;
            let set_resp = scope.create_function(|_, arguments: MultiValue| {
                if arguments.len() != 1 {
                    return Err(reply_error("ERR redis.setresp() requires one argument."));
                }
                let version = arguments.front().and_then(|value| match value {
                    Value::Integer(number) => Some(*number),
                    Value::Number(number) => Some(*number as i64),
                    _ => None,
                });
                match version {
                    Some(2) => resp3.set(false),
                    Some(3) => resp3.set(true),
                    _ => return Err(reply_error("ERR RESP version must be 2 or 3.")),
                }
                Ok(())
            })?;
            let may_call = scope.create_function(|_, arguments: MultiValue| {
                let refuse = |text: &str| Err(reply_error(format!("ERR {text}")));
                if let Some(error) = too_many(&arguments) {
                    return Err(reply_error(error));
                }
                match strings(&arguments) {
                    None => refuse(
                        "redis.acl_check_cmd() require each argument to be a string or an integer",
                    ),
                    Some(arguments) if arguments.is_empty() => refuse(
                        "Please specify at least one argument for this redis.acl_check_cmd() call",
                    ),
                    Some(arguments) => match host.borrow_mut().may_call(&arguments) {
                        Ok(may) => Ok(may),
                        Err(text) => refuse(&text),
                    },
                }
            })?;
            self.redis.raw_set("pcall", pcall)?;
            self.redis.raw_set("call", call)?;
            self.redis.raw_set("setresp", set_resp)?;
            self.redis.raw_set("acl_check_cmd", may_call)?;
            self.xpcall.call::<(bool, Value)>((function, &self.handler))
        });
        let (done, value) = result?;
        let is_counted = |error: &Table| matches!(error.raw_get(IS_COUNTED), Ok(true));
        if done {
            let (start, mut work) = (out.bytes.len(), Work::of(&self.lua));
            conversion::to_reply(&value, resp3.get(), most, &mut work, out);
            let error = value.as_table().filter(|_| out.bytes.get(start) == Some(&b'-'));
            return Ok(error.is_some_and(is_counted));
        }
        let (text, counted) = match &value {
            Value::Table(error) => match error.raw_get::<Value>("err") {
                Ok(text @ Value::String(_)) => {
                    let text = beginning(&text, LONGEST_ERROR);
                    let text = String::from_utf8_lossy(&text).trim_start_matches('-').to_owned();
                    (text, is_counted(error))
                }
                _ => ("ERR unknown error".to_owned(), false),
            },
            Value::Error(error) => match script_error(error) {
                ScriptError::Counted(text) => (text, true),
                ScriptError::Reply(text) => (text, false),
                ScriptError::Text(text) => (format!("ERR {text}"), false),
            },
            value => {
                let is_text =
                    matches!(value, Value::String(_) | Value::Integer(_) | Value::Number(_));
                let text = match is_text {
                    true => beginning(value, LONGEST_ERROR),
                    false => value.type_name().into(),
                };
                (format!("ERR {}", String::from_utf8_lossy(&text)), false)
            }
        };
        out.bytes.push(0);
        out.bytes.extend_from_slice(text.as_bytes());
        Ok(counted)
    }
}
