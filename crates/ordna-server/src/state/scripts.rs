//! Cached scripts, and the running script.
//!
//! One script runs at a time: its caller has locked the keyspace exclusively.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ordna::sync::Lock;
use sha1::{Digest, Sha1};

#[cfg(feature = "scripts")]
use crate::scripts::engine::{Control, Engine};
use crate::wire::request::{Arguments, number};

/// Maximum number of cached scripts. When there are more, scripts that no `SCRIPT LOAD` has loaded
/// are evicted first, then the oldest.
const MOST_SCRIPTS: usize = 10_000;
/// Maximum total size in bytes of the cached scripts.
const MOST_BYTES: usize = 64 << 20;
/// Maximum size in bytes of a script that is cached.
const LONGEST_SCRIPT: usize = 1 << 20;

/// The version of Redis that is reported to scripts.
#[cfg(feature = "scripts")]
const VERSION: (&str, u32) = ("7.0.15", 0x0007_000F);

#[cfg(feature = "scripts")]
fn log(level: i64, text: &str) {
    match level {
        0 => tracing::debug!("script: {text}"),
        1 | 2 => tracing::info!("script: {text}"),
        _ => tracing::warn!("script: {text}"),
    }
}

/// The options in the first line of a script, `#!lua flags=…`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScriptFlags {
    /// Whether the script has such a line.
    pub are_given: bool,
    pub no_writes: bool,
    pub allow_oom: bool,
}

impl ScriptFlags {
    /// Parses the first line of a script.
    ///
    /// # Errors
    /// The text of the error.
    fn parse(body: &[u8]) -> Result<Self, String> {
        let Some(line) = body.strip_prefix(b"#!") else { return Ok(Self::default()) };
        let end = line.iter().position(|byte| *byte == b'\n');
        let end = end.ok_or("ERR Invalid script shebang")?;
        let line = String::from_utf8_lossy(&line[..end]).into_owned();
        let mut words = line.split_ascii_whitespace();
        let engine = words.next().unwrap_or_default();
        if engine != "lua" {
            return Err(format!("ERR Unexpected engine in script shebang: #!{engine}"));
        }
        let mut flags = Self { are_given: true, ..Self::default() };
        for word in words {
            let names = word
                .strip_prefix("flags=")
                .ok_or_else(|| format!("ERR Unknown lua shebang option: {word}"))?;
            for name in names.split(',').filter(|_| !names.is_empty()) {
                match name {
                    "no-writes" => flags.no_writes = true,
                    "allow-oom" => flags.allow_oom = true,
                    "allow-stale" | "no-cluster" | "allow-cross-slot-keys" => {}
                    _ => return Err(format!("ERR Unexpected flag in script shebang: {name}")),
                }
            }
        }
        Ok(flags)
    }
}

/// A script.
#[derive(Debug)]
pub struct Script {
    /// SHA-1 of the text, in hexadecimal digits.
    pub sha: String,
    pub body: Vec<u8>,
    #[cfg_attr(not(feature = "scripts"), expect(dead_code, reason = "no script runs"))]
    pub flags: ScriptFlags,
}

#[derive(Debug, Default)]
struct Cache {
    scripts: HashMap<String, Arc<Script>>,
    /// The scripts that `SCRIPT LOAD` has loaded, oldest first.
    loaded: VecDeque<String>,
    bytes: usize,
}

impl Cache {
    fn has_room(&self, bytes: usize) -> bool {
        self.scripts.len() < MOST_SCRIPTS && self.bytes + bytes <= MOST_BYTES
    }

    /// Removes the scripts that were not loaded.
    fn forget_others(&mut self) {
        let loaded = self.loaded.iter().filter_map(|sha| self.scripts.remove_entry(sha));
        self.scripts = loaded.collect();
        self.bytes = self.scripts.values().map(|script| script.body.len()).sum();
    }

    fn remove(&mut self, sha: &str) {
        if let Some(script) = self.scripts.remove(sha) {
            self.bytes -= script.body.len();
            self.loaded.retain(|loaded| loaded != sha);
        }
    }
}

/// The scripts of the server.
#[derive(Debug, Default)]
pub struct Scripts {
    cache: Lock<Cache>,
    /// Whether a script that is about to run is being compiled.
    pub is_preparing: AtomicBool,
    /// Whether the server is stopping and ends the running script even though it has written.
    pub is_cut: AtomicBool,
    /// Memory in bytes of the Lua state after the last script was compiled or run.
    pub memory: AtomicUsize,
    #[cfg(feature = "scripts")]
    pub engine: Lock<Option<Engine>>,
    #[cfg(feature = "scripts")]
    pub control: Lock<Option<Arc<Control>>>,
}

impl Scripts {
    /// Returns the script with a text and caches it if there is room. If `is_loaded`, it is always
    /// cached, and may replace the oldest loaded script.
    ///
    /// # Errors
    /// The text of the error.
    pub fn add(&self, body: &[u8], is_loaded: bool) -> Result<Arc<Script>, String> {
        let is_long = body.len() > LONGEST_SCRIPT;
        if is_loaded && is_long {
            return Err(format!(
                "ERR the script has {} bytes, of {LONGEST_SCRIPT} that SCRIPT LOAD caches at most; EVAL runs it",
                body.len()
            ));
        }
        let sha: String = Sha1::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut cache = self.cache.lock();
        if let Some(script) = cache.scripts.get(&sha) {
            let script = Arc::clone(script);
            if is_loaded && !cache.loaded.contains(&sha) {
                cache.loaded.push_back(sha);
            }
            return Ok(script);
        }
        let flags = ScriptFlags::parse(body)?;
        let script = Arc::new(Script { sha: sha.clone(), body: body.to_vec(), flags });
        if is_long {
            return Ok(script);
        }
        if !cache.has_room(body.len()) && cache.scripts.len() > cache.loaded.len() {
            cache.forget_others();
        }
        while is_loaded
            && !cache.has_room(body.len())
            && let Some(oldest) = cache.loaded.front().cloned()
        {
            cache.remove(&oldest);
        }
        if cache.has_room(body.len()) {
            cache.bytes += body.len();
            cache.scripts.insert(sha.clone(), Arc::clone(&script));
            if is_loaded {
                cache.loaded.push_back(sha);
            }
        }
        Ok(script)
    }

    /// Compiles a script in the existing engine or a new one.
    ///
    /// # Errors
    /// The text of the error.
    #[cfg(feature = "scripts")]
    pub fn compile<'e>(
        &self,
        engine: &'e mut Option<Engine>,
        script: &Script,
    ) -> Result<(&'e mut Engine, mlua::Function), String> {
        if engine.is_none() {
            let new = Engine::new(VERSION, log)
                .map_err(|error| format!("ERR scripts cannot be run: {error}"))?;
            *self.control.lock() = Some(new.control());
            *engine = Some(new);
        }
        let engine = engine.as_mut().ok_or("ERR scripts cannot be run")?;
        let function = engine.compile(&script.sha, &script.body);
        self.memory.store(engine.memory(), Ordering::Relaxed);
        let function = function.map_err(|why| {
            self.remove(&script.sha);
            format!("ERR Error compiling script (new function): {why}")
        })?;
        Ok((engine, function))
    }

    /// Caches and compiles the script of a call that is about to lock the keyspace, so that no
    /// client waits for this under the lock. The caller has the turn of the scripts. Returns `None`
    /// unless the call has a script to run or load.
    pub fn prepared(
        &self,
        name: &str,
        arguments: Arguments<'_>,
    ) -> Option<Result<Arc<Script>, String>> {
        let script = match name {
            "script|load" => self.add(arguments.get(2), true),
            "eval" | "eval_ro" => {
                let keys =
                    number(arguments.get(2)).and_then(|count| usize::try_from(count).ok())?;
                if keys > arguments.len() - 3 {
                    return None;
                }
                self.add(arguments.get(1), false)
            }
            _ => return None,
        };
        #[cfg(feature = "scripts")]
        let script = script.and_then(|script| {
            self.is_preparing.store(true, Ordering::Relaxed);
            let compiled = self.compile(&mut self.engine.lock(), &script).map(|_| ());
            self.is_preparing.store(false, Ordering::Relaxed);
            compiled.map(|()| script)
        });
        Some(script)
    }

    /// Removes a script that cannot be compiled.
    #[cfg(feature = "scripts")]
    fn remove(&self, sha: &str) {
        self.cache.lock().remove(sha);
    }

    /// Returns the cached script with this SHA-1, given in digits of any case.
    pub fn find(&self, sha: &[u8]) -> Option<Arc<Script>> {
        let sha = str::from_utf8(sha).ok()?.to_ascii_lowercase();
        self.cache.lock().scripts.get(&sha).cloned()
    }

    /// Returns the number and the bytes of the cached scripts.
    pub fn counts(&self) -> (usize, usize) {
        let cache = self.cache.lock();
        (cache.scripts.len(), cache.bytes)
    }

    /// Removes all scripts.
    pub fn flush(&self) {
        *self.cache.lock() = Cache::default();
    }

    /// Ends the running script even if it has written. Its writes are not logged.
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        #[cfg(feature = "scripts")]
        if let Some(control) = self.control.lock().as_ref() {
            control.cut();
        }
    }

    /// Ends the running script.
    ///
    /// # Errors
    /// The script has already written.
    pub fn kill(&self) -> Result<(), &'static str> {
        #[cfg(feature = "scripts")]
        if self.control.lock().as_ref().is_some_and(|control| !control.kill()) {
            return Err(
                "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
            );
        }
        Ok(())
    }

    /// Returns whether the running script was ended and is about to return.
    pub fn is_ending(&self) -> bool {
        #[cfg(feature = "scripts")]
        return self.control.lock().as_ref().is_some_and(|control| control.is_killed());
        #[cfg(not(feature = "scripts"))]
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_has_flags() {
        let parse = |text: &str| ScriptFlags::parse(text.as_bytes());
        assert_eq!(parse("return 1"), Ok(ScriptFlags::default()));
        let all = ScriptFlags { are_given: true, no_writes: true, allow_oom: true };
        assert_eq!(parse("#!lua flags=no-writes,allow-oom\nreturn 1"), Ok(all));
        let none = ScriptFlags { are_given: true, ..ScriptFlags::default() };
        assert_eq!(parse("#!lua flags=\nreturn 1"), Ok(none));
        for wrong in
            ["#!lua", "#!js\n", "#!lua x=1\n", "#!lua flags=x\n", "#!lua flags=,no-writes\n"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn scripts_that_were_not_loaded_make_room() {
        let scripts = Scripts::default();
        let loaded = scripts.add(b"return 'loaded'", true).unwrap();
        for number in 0..=MOST_SCRIPTS {
            scripts.add(format!("return {number}").as_bytes(), false).unwrap();
        }
        assert!(scripts.counts().0 < MOST_SCRIPTS);
        assert!(scripts.find(loaded.sha.to_ascii_uppercase().as_bytes()).is_some());
    }

    /// A client that loads many scripts does not keep others from running or loading scripts.
    #[test]
    fn loaded_scripts_leave_room_for_others() {
        let text = |number: usize, len: usize| {
            [format!("return {number:08}").into_bytes(), b" ".repeat(len - 15)].concat()
        };
        let all_long = MOST_BYTES / LONGEST_SCRIPT;
        for (count, len) in [(MOST_SCRIPTS, 15), (all_long, LONGEST_SCRIPT)] {
            let scripts = Scripts::default();
            let load = |number| scripts.add(&text(number, len), true).unwrap();
            let first = load(0);
            let second = load(1);
            for number in 2..count {
                load(number);
            }
            assert_eq!(scripts.counts().0, count);
            let run = scripts.add(b"return 1", false).unwrap();
            assert_eq!(run.body, b"return 1");
            assert!(scripts.find(run.sha.as_bytes()).is_none(), "it is not cached");
            assert!(scripts.find(first.sha.as_bytes()).is_some());
            let last = load(count);
            assert!(scripts.find(last.sha.as_bytes()).is_some());
            assert!(scripts.find(first.sha.as_bytes()).is_none(), "the oldest is forgotten");
            assert!(scripts.find(second.sha.as_bytes()).is_some());
            assert_eq!(scripts.counts(), (count, count * len));
        }
        let scripts = Scripts::default();
        let long = vec![b' '; LONGEST_SCRIPT + 1];
        assert!(scripts.add(&long, true).unwrap_err().contains("1048577 bytes"));
        assert_eq!(scripts.add(&long, false).unwrap().body, long);
        assert_eq!(scripts.counts(), (0, 0));
    }
}
