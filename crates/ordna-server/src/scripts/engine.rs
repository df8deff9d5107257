//! The Lua state in which scripts run, one at a time.
//!
//! # Contract
//! A script reaches nothing but its arguments, the libraries, and the commands of its [`Host`]. What it leaves
//! in the state, the next script cannot see: all tables that outlive it are protected. Memory has a limit
//! ([`MOST_MEMORY`]). [`Control::kill`] ends a script that runs instructions of Lua; a function of a library
//! runs to its end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mlua::chunk::ChunkMode;
use mlua::{Function, HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Table, Value, VmState};
use ordna::sync::Lock;
use sha1::{Digest, Sha1};

use crate::scripts::{bits, cjson, cmsgpack, conversion, numbers, structs};
use crate::wire::reply::Replies;

/// Memory of all that scripts hold, in bytes: tables of some million entries fit. A script that needs more
/// fails with "not enough memory".
pub const MOST_MEMORY: usize = 256 << 20;
/// Memory from which on the state is collected after a script, in bytes.
const COLLECTED: usize = 16 << 20;
/// Instructions between two looks at the clock and at [`Control`].
const INSTRUCTIONS: u32 = 1000;
/// Time after which the worker of the runtime is handed to another thread, so that the connections of this
/// worker are served.
const HANDED_OVER: Duration = Duration::from_millis(10);
/// Functions that are kept compiled.
const COMPILED: usize = 1000;

/// The name of a script's chunk.
const CHUNK: &str = "@user_script";
/// The error of a script that was ended.
const KILLED: &str = "Script killed by user with SCRIPT KILL.";

/// The server, as a script sees it.
pub trait Host {
    /// Executes a command and returns its reply, encoded. An error has its code first.
    fn call(&mut self, arguments: &[Vec<u8>], resp3: bool) -> Vec<u8>;

    /// Whether the user may execute a command; an error is a text without a code.
    fn may_call(&mut self, arguments: &[Vec<u8>]) -> Result<bool, String>;
}

/// Shared with other threads while a script runs.
#[derive(Debug, Default)]
pub struct Control {
    killed: AtomicBool,
}

impl Control {
    /// Ends the script that runs, at its next instruction.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
    }
}

/// A Lua state with the sandbox.
#[derive(Debug)]
pub struct Engine {
    lua: Lua,
    env: Table,
    globals: Table,
    /// The functions of `redis`; some are those of the script that runs.
    redis: Table,
    xpcall: Function,
    handler: Function,
    /// Compiled scripts by their SHA-1.
    compiled: HashMap<String, Function>,
    control: Arc<Control>,
    /// When the script began, and whether its worker was handed over.
    began: Arc<Lock<(Instant, bool)>>,
    /// Chunk and line of the last error.
    place: Arc<Lock<Option<(String, usize)>>>,
}

/// SHA-1 in hexadecimal digits.
pub fn sha1(text: &[u8]) -> String {
    Sha1::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The text of an error of mlua, without a trace.
fn text_of(error: &mlua::Error) -> String {
    match error {
        mlua::Error::CallbackError { cause, .. } => text_of(cause),
        mlua::Error::RuntimeError(text) => text.clone(),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        mlua::Error::MemoryError(_) => "not enough memory".to_owned(),
        other => other.to_string(),
    }
}

/// Bytes of an argument of a command.
fn argument(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(number) => Some(number.to_string().into_bytes()),
        Value::Number(number) => Some(numbers::general(*number, 17).into_bytes()),
        _ => None,
    }
}

/// An error that a script may catch.
#[derive(Debug, Clone, thiserror::Error)]
enum ScriptError {
    /// A text, as `error` of Lua raises it.
    #[error("{0}")]
    Text(String),
    /// A reply: a table with the field `err`.
    #[error("{0}")]
    Reply(String),
}

/// The error of a script within an error of mlua.
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

/// Registers a function. `is_positioned`: its errors begin with the line of the script, and are texts.
fn add(
    lua: &Lua,
    native: &Table,
    name: &str,
    is_positioned: bool,
    function: impl Fn(&Lua, MultiValue) -> Result<MultiValue, String> + Send + 'static,
) -> mlua::Result<()> {
    let called = move |lua: &Lua, arguments: MultiValue| {
        function(lua, arguments).map_err(|text| {
            if !is_positioned {
                return reply_error(format!("ERR {text}"));
            }
            let position = lua.inspect_stack(1, |frame| {
                let source = frame.source().short_src.map(|source| source.into_owned());
                source.zip(frame.current_line()).map(|(source, line)| format!("{source}:{line}: "))
            });
            let position = position.flatten().unwrap_or_default();
            mlua::Error::external(ScriptError::Text(format!("{position}{text}")))
        })
    };
    native.raw_set(name, lua.create_function(called)?)
}

/// One result.
fn one(value: Value) -> MultiValue {
    MultiValue::from_iter([value])
}

impl Engine {
    /// Creates a state. `log` receives what scripts log, with a level from 0 to 3.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(version: (&str, u32), log: fn(i64, &str)) -> mlua::Result<Self> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::default())?;
        let native = lua.create_table()?;
        native.raw_set("version", version.0)?;
        native.raw_set("version_number", version.1)?;
        native.raw_set("null", Value::NULL)?;
        let since = Instant::now();
        native.raw_set(
            "clock",
            lua.create_function(move |_, ()| Ok(since.elapsed().as_secs_f64()))?,
        )?;
        add(&lua, &native, "sha1hex", false, |lua, arguments| {
            let text = match (arguments.len(), arguments.front()) {
                (1, Some(value)) => argument(value).unwrap_or_default(),
                _ => return Err("wrong number of arguments".to_owned()),
            };
            lua.create_string(sha1(&text))
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
            let parts: Vec<_> = parts.iter().filter_map(argument).collect();
            log(level, &String::from_utf8_lossy(&parts.join(&b' ')));
            Ok(MultiValue::new())
        })?;
        for (name, field) in [("error_reply", "err"), ("status_reply", "ok")] {
            add(&lua, &native, name, false, move |lua, arguments| {
                let (text, field) = match (arguments.len(), arguments.front()) {
                    (1, Some(Value::String(text))) => (text.as_bytes().to_vec(), field),
                    _ => (b"ERR wrong number or type of arguments".to_vec(), "err"),
                };
                let begins = field == "err" && !text.starts_with(b"-");
                let text = [if begins { &b"-"[..] } else { b"" }, &text].concat();
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
        ] {
            for (name, function) in functions {
                add(&lua, &native, &format!("{library}.{name}"), true, function)?;
            }
        }
        let control = Arc::new(Control::default());
        let running = Arc::clone(&control);
        let convert = lua.create_function(move |lua, error: Value| {
            // Nothing that the script does catches the end of the script.
            if running.killed.load(Ordering::Relaxed) {
                return Err(mlua::Error::runtime(KILLED));
            }
            let Value::Error(error) = &error else { return Ok(error) };
            match script_error(error) {
                ScriptError::Text(text) => lua.create_string(text).map(Value::String),
                ScriptError::Reply(text) => {
                    let table = lua.create_table()?;
                    table.raw_set("err", lua.create_string(text)?)?;
                    Ok(Value::Table(table))
                }
            }
        })?;
        native.raw_set("convert", convert)?;
        let xpcall = lua.globals().get("xpcall")?;
        let prelude = lua.load(include_str!("prelude.lua")).set_name("=redis");
        let (env, redis, globals) = prelude.call::<(Table, Table, Table)>(native)?;
        lua.set_globals(env.clone())?;
        let place = Arc::new(Lock::new(None));
        let last = Arc::clone(&place);
        let handler = lua.create_function(move |lua, error: Value| {
            let place = |level| {
                lua.inspect_stack(level, |frame| {
                    let source = frame.source().source.map(|source| source.into_owned());
                    // Functions of the server and of the prelude have names that begin otherwise.
                    let source = source.filter(|source| !source.starts_with('='));
                    source.zip(frame.current_line())
                })
            };
            // The first function of the script itself.
            *last.lock() = (1..64).map_while(place).flatten().next();
            Ok(error)
        })?;
        let began = Arc::new(Lock::new((Instant::now(), false)));
        lua.set_memory_limit(MOST_MEMORY)?;
        let engine = Self {
            lua,
            env,
            globals,
            redis,
            xpcall,
            handler,
            compiled: HashMap::new(),
            control,
            began,
            place,
        };
        engine.watch()?;
        Ok(engine)
    }

    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.control)
    }

    /// Memory of the state, in bytes.
    pub fn memory(&self) -> usize {
        self.lua.used_memory()
    }

    /// Compiles a script.
    ///
    /// # Errors
    /// The text of the error.
    pub fn compile(&mut self, sha: &str, body: &[u8]) -> Result<Function, String> {
        if let Some(function) = self.compiled.get(sha) {
            return Ok(function.clone());
        }
        // The first line of a script with flags is none of Lua; its number counts.
        let body = match body.starts_with(b"#!") {
            true => &body[body.iter().position(|byte| *byte == b'\n').unwrap_or(body.len())..],
            false => body,
        };
        let chunk = self.lua.load(body).set_name(CHUNK).set_mode(ChunkMode::Text);
        let function = chunk
            .set_environment(self.env.clone())
            .into_function()
            .map_err(|error| text_of(&error))?;
        if self.compiled.len() >= COMPILED {
            self.compiled.clear();
        }
        self.compiled.insert(sha.to_owned(), function.clone());
        Ok(function)
    }

    /// Drops all compiled scripts.
    pub fn clear(&mut self) {
        self.compiled.clear();
        // Out of memory at worst, which the next script finds as well.
        let _ = self.lua.gc_collect();
    }

    /// Has the state look at the clock and at [`Control`] while a script runs.
    fn watch(&self) -> mlua::Result<()> {
        let (control, began) = (Arc::clone(&self.control), Arc::clone(&self.began));
        let triggers = HookTriggers::new().every_nth_instruction(INSTRUCTIONS);
        self.lua.set_global_hook(triggers, move |_, _| {
            if control.killed.load(Ordering::Relaxed) {
                return Err(mlua::Error::runtime(KILLED));
            }
            let mut began = began.lock();
            if !began.1 && began.0.elapsed() > HANDED_OVER {
                began.1 = true;
                drop(began);
                hand_over();
            }
            Ok(VmState::Continue)
        })
    }

    /// Runs a script and writes its reply.
    pub fn run(
        &mut self,
        sha: &str,
        function: &Function,
        keys: &[&[u8]],
        arguments: &[&[u8]],
        host: &mut dyn Host,
        out: &mut Replies,
    ) {
        let start = out.bytes.len();
        self.control.killed.store(false, Ordering::Relaxed);
        *self.began.lock() = (Instant::now(), false);
        *self.place.lock() = None;
        let done = self.execute(function, keys, arguments, host, out);
        if let Err(error) = done {
            out.bytes.truncate(start);
            out.error(self.located(&format!("ERR {}", text_of(&error)), sha));
        }
        if self.lua.used_memory() > COLLECTED {
            let _ = self.lua.gc_collect();
        }
        if out.bytes[start..].starts_with(b"\0") {
            // An error of the script, as `execute` left it.
            let text = out.bytes.split_off(start + 1);
            out.bytes.truncate(start);
            out.error(self.located(&String::from_utf8_lossy(&text), sha));
        }
    }

    /// An error with the script, and the line if it is known.
    fn located(&self, error: &str, sha: &str) -> String {
        match &*self.place.lock() {
            Some((chunk, line)) => format!("{error} script: {sha}, on {chunk}:{line}."),
            None => format!("{error} script: {sha}"),
        }
    }

    /// Writes the reply, or a zero and the text of the error.
    fn execute(
        &self,
        function: &Function,
        keys: &[&[u8]],
        arguments: &[&[u8]],
        host: &mut dyn Host,
        out: &mut Replies,
    ) -> mlua::Result<()> {
        for (name, values) in [("KEYS", keys), ("ARGV", arguments)] {
            let table = self.lua.create_table_with_capacity(values.len(), 0)?;
            for (at, value) in values.iter().enumerate() {
                table.raw_set(at + 1, self.lua.create_string(value)?)?;
            }
            self.globals.raw_set(name, table)?;
        }
        let resp3 = std::cell::Cell::new(false);
        let host = std::cell::RefCell::new(host);
        let strings = |arguments: &MultiValue| -> Option<Vec<Vec<u8>>> {
            arguments.iter().map(argument).collect()
        };
        const ARGUMENTS: &str = "Lua redis lib command arguments must be strings or integers";
        let execute = |lua: &Lua, arguments: MultiValue| {
            let reply = match strings(&arguments) {
                Some(arguments) if arguments.is_empty() => {
                    const NONE: &str =
                        "Please specify at least one argument for this redis lib call";
                    format!("-ERR {NONE}\r\n").into_bytes()
                }
                Some(arguments) => host.borrow_mut().call(&arguments, resp3.get()),
                None => format!("-ERR {ARGUMENTS}\r\n").into_bytes(),
            };
            match reply.strip_prefix(b"-") {
                Some(error) => {
                    let error = String::from_utf8_lossy(error);
                    Ok(Err(error.trim_end_matches("\r\n").to_owned()))
                }
                None => conversion::to_lua(lua, &reply).map(Ok),
            }
        };
        let result = self.lua.scope(|scope| {
            let call = scope.create_function(|lua, arguments: MultiValue| {
                execute(lua, arguments)?.map_err(reply_error)
            })?;
            let pcall = scope.create_function(|lua, arguments: MultiValue| {
                execute(lua, arguments)?.or_else(|error| {
                    let table = lua.create_table()?;
                    table.raw_set("err", lua.create_string(error)?)?;
                    Ok(Value::Table(table))
                })
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
        if done {
            conversion::to_reply(&value, resp3.get(), out);
            return Ok(());
        }
        let text = match &value {
            Value::Table(error) => match error.raw_get::<Value>("err") {
                Ok(Value::String(text)) => {
                    String::from_utf8_lossy(&text.as_bytes()).trim_start_matches('-').to_owned()
                }
                _ => "ERR unknown error".to_owned(),
            },
            Value::Error(error) => match script_error(error) {
                ScriptError::Reply(text) => text,
                ScriptError::Text(text) => format!("ERR {text}"),
            },
            value => {
                let text = argument(value).unwrap_or_else(|| value.type_name().into());
                format!("ERR {}", String::from_utf8_lossy(&text))
            }
        };
        out.bytes.push(0);
        out.bytes.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Hands the worker of the runtime, with the connections that wait in it, to another thread.
fn hand_over() {
    /// Ample for a thread to begin.
    const MOMENT: Duration = Duration::from_millis(1);
    if tokio::runtime::Handle::try_current().is_ok() {
        tokio::task::block_in_place(|| std::thread::sleep(MOMENT));
    }
}
