//! The execution of scripts, and of the commands that they call.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::execution::atomic::{Aftermath, Atomic};
use crate::execution::command::{Context, Result};
use crate::execution::dispatch::{deny, instead_of, writes_itself};
use crate::execution::eviction;
use crate::scripts::control::{Control, KILLED};
use crate::scripts::engine::Host;
use crate::state::acl::user::{Refusal, User};
use crate::state::command_spec::{CommandFlags, CommandSpec};
use crate::state::scripts::Script;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, OwnedRequest};

/// Commands that write nothing but that Redis sends to replicas, so that a read-only script may not
/// call them.
const REPLICATED: [&str; 2] = ["publish", "spublish"];

/// The server, from the view of a script.
struct CommandHost<'c, 'a> {
    context: &'c mut Context<'a>,
    control: Arc<Control>,
    atomic: Atomic,
    read_only: bool,
    /// The last reply.
    out: Replies,
}

impl<'a> CommandHost<'_, 'a> {
    /// Returns the command of a call if the user may call it.
    fn permitted(
        &self,
        arguments: Arguments<'_>,
    ) -> std::result::Result<&'static CommandSpec, String> {
        let unknown = "ERR Unknown Redis command called from script";
        let Some(spec) = self.context.table.catalog.find(arguments.get(0)) else {
            return Err(match instead_of(arguments.get(0)) {
                Some(instead) => {
                    let name = String::from_utf8_lossy(arguments.get(0));
                    format!("{unknown}: '{name}': {instead}")
                }
                None => unknown.to_owned(),
            });
        };
        let spec = spec.of_call(arguments);
        if !spec.subcommands.is_empty() && arguments.len() > 1 {
            return Err(unknown.to_owned());
        }
        if !spec.suits(arguments.len()) {
            return Err("ERR Wrong number of args calling Redis command from script".to_owned());
        }
        if spec.has(CommandFlags::NOSCRIPT) {
            return Err("ERR This Redis command is not allowed from script".to_owned());
        }
        if self.context.state.refuses_writes() && writes_itself(spec) {
            return Err(CommandError::ReadOnly.to_string());
        }
        if self.read_only && (spec.is_write() || REPLICATED.contains(&spec.name)) {
            return Err("ERR Write commands are not allowed from read-only scripts.".to_owned());
        }
        let Some(user) = &self.context.session.user else {
            return Err(CommandError::NotAuthenticated.to_string());
        };
        user.check(spec, arguments, &self.context.state.indexes).map_err(|refusal| {
            let why = match &refusal {
                Refusal::Command(_) => "run this command or subcommand",
                Refusal::Key(_) => {
                    "access at least one of the keys mentioned in the command arguments"
                }
                Refusal::Channel(_) => "publish to the channel mentioned in the command",
            };
            deny(self.context.state, self.context.session, refusal, "lua");
            format!("ERR The user executing the script can't {why}")
        })?;
        Ok(spec)
    }

    /// Returns the command of a call if it may begin.
    fn admitted(
        &self,
        arguments: Arguments<'_>,
    ) -> std::result::Result<&'static CommandSpec, String> {
        let spec = self.permitted(arguments)?;
        if spec.has(CommandFlags::DENYOOM) {
            let needed = arguments.iter_from(1).map(<[u8]>::len).sum();
            eviction::make_room(self.context.state, &self.context.keys, needed)
                .map_err(|error| CommandError::from(error).to_string())?;
        }
        Ok(spec)
    }

    fn execute(&mut self, arguments: Arguments<'_>) -> std::result::Result<(), String> {
        let state = self.context.state;
        let spec = self.admitted(arguments).inspect_err(|error| {
            state.errors.count(format!("-{error}").as_bytes());
            let spec = self.context.table.catalog.find(arguments.get(0));
            let spec = spec.map(|spec| spec.of_call(arguments));
            // An unknown subcommand is not a call of its command.
            if let Some(spec) =
                spec.filter(|spec| spec.subcommands.is_empty() || arguments.len() == 1)
            {
                state.stats.rejected(spec.id);
            }
        })?;
        if spec.is_write() && !self.control.begin_write() {
            return Err(format!("ERR {KILLED}"));
        }
        let outcome = self.context.call(spec, arguments, &mut self.out);
        let end = state.settings.reply_limit();
        let done = self.atomic.finish(self.context, spec, outcome, end, &mut self.out);
        match done.map_err(|error| error.to_string())? {
            Aftermath::None | Aftermath::Delay(_) | Aftermath::Close => {}
        }
        if self.out.bytes.len() > end && !self.out.bytes.starts_with(b"-") {
            return Err(format!("ERR the reply would exceed {end} bytes; ask for less"));
        }
        Ok(())
    }
}

impl Host for CommandHost<'_, '_> {
    fn call(&mut self, arguments: &[Vec<u8>], resp3: bool) -> Vec<u8> {
        self.out = Replies { resp3, ..Replies::default() };
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        let request = OwnedRequest::of(&arguments);
        if let Err(error) = self.execute(request.arguments()) {
            self.out.bytes.clear();
            self.out.error(error);
        }
        std::mem::take(&mut self.out.bytes)
    }

    fn may_call(&mut self, arguments: &[Vec<u8>]) -> std::result::Result<bool, String> {
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        let request = OwnedRequest::of(&arguments);
        let arguments = request.arguments();
        let invalid = "Invalid command passed to redis.acl_check_cmd()";
        let spec = self.context.table.catalog.find(arguments.get(0)).ok_or(invalid)?;
        let user = self.context.session.user.as_ref();
        let indexes = &self.context.state.indexes;
        let may = |user: &User| user.check(spec.of_call(arguments), arguments, indexes).is_ok();
        Ok(user.is_some_and(|user| may(user)))
    }
}

/// Checks that a script compiles.
///
/// # Errors
/// The script does not compile.
pub fn check(context: &Context<'_>, script: &Script) -> Result<()> {
    let scripts = &context.state.scripts;
    scripts.compile(&mut scripts.engine.lock(), script)?;
    Ok(())
}

/// Runs a script and writes its reply. The caller has locked the keyspace exclusively.
///
/// # Errors
/// The script does not compile, or may not begin.
pub fn run(
    context: &mut Context<'_>,
    script: &Script,
    keys: &[&[u8]],
    arguments: &[&[u8]],
    read_only: bool,
    out: &mut Replies,
) -> Result<()> {
    let state = context.state;
    let mut engine = state.scripts.engine.lock();
    let (engine, function) = state.scripts.compile(&mut engine, script)?;
    let flags = script.flags;
    if flags.are_given
        && !flags.allow_oom
        && !flags.no_writes
        && eviction::make_room(state, &context.keys, 1).is_err()
    {
        return Err("OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'".into());
    }
    let control = engine.control();
    // A key that one call of the script finds does not expire before the next call.
    let held = context.keys.hold_time();
    let lifted = flags.allow_oom.then(|| context.keys.lift_limit());
    let executing = std::mem::replace(&mut context.session.executing, true);
    let atomic = Atomic::new(context);
    let read_only = read_only || flags.no_writes;
    let mut host = CommandHost { context, control, atomic, read_only, out: Replies::default() };
    let most = state.settings.reply_limit();
    let is_counted = engine.run(&script.sha, &function, keys, arguments, &mut host, most, out);
    let CommandHost { context, control, atomic, .. } = host;
    if state.scripts.is_cut.load(Ordering::Relaxed) && control.has_written() {
        // The log is closed first, so that it rejects the writes of the script and of the
        // transaction around it. Otherwise half of them could become durable.
        tracing::warn!(
            "the server stops: a script that has written was ended, and none of its writes is kept"
        );
        let _ = context.keys.store().close_log();
    }
    atomic.end(context);
    context.session.error_is_counted = is_counted;
    context.session.executing = executing;
    drop((lifted, held));
    control.finish();
    state.scripts.memory.store(engine.memory(), Ordering::Relaxed);
    Ok(())
}
