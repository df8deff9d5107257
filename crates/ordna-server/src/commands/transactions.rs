//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.
//!
//! EXEC holds the keyspace alone: no other client, and no snapshot, sees a part of what it does. It is
//! not a batch of the store. A batch is a list of writes that is complete before the first of them is
//! done, and commands are none: what INCR or SETNX writes, and what they reply, follows from what the
//! commands before them have left. Nor would a batch do: it is whole for snapshots, but a GET of another
//! client, which reads the latest state, may come between two of its writes; in Redis it never does.
//! (MSET and MSETNX, whose writes are known, are batches, and hold the keyspace alone for such a GET.)
//!
//! Nor does the memory limit leave a part of it undone. As in Redis, a command that needs memory is
//! refused when it is queued if there is none, EXEC is if there is none any more, and once begun it is
//! executed to its end. Here each counts as if it set new keys, so it is begun only if there is room
//! for those; what copies of older values take, kept by snapshots, may exceed the limit.

use super::{Command, Context, NEEDS_MEMORY, Outcome, Result, refused};
use crate::reply::Replies;
use crate::request::{Arguments, Command as Request};
use crate::state::{Keys, State};
use crate::watches::Watch;

/// Bytes of commands that one client may have queued: Redis' `client-query-buffer-limit`.
const MOST: usize = 1 << 30;

/// What a client has said since MULTI.
#[derive(Default)]
pub struct Transaction {
    queued: Vec<(&'static Command, Request)>,
    bytes: usize,
    /// About what those that need memory may take.
    needed: usize,
    /// A command was refused; EXEC will refuse all.
    pub broken: bool,
}

impl Transaction {
    /// Keeps a command for EXEC.
    pub fn queue(
        &mut self,
        command: &'static Command,
        arguments: Arguments<'_>,
        state: &State,
    ) -> std::result::Result<(), String> {
        let request = arguments.to_command();
        if command.flags.contains(&NEEDS_MEMORY) {
            self.needed += request.size();
            if let Err(error) = state.keys().check_room(self.needed) {
                self.broken = true;
                return Err(refused(error));
            }
        }
        self.bytes += request.size();
        if self.bytes > MOST {
            *self = Self { broken: true, ..Self::default() };
            return Err(format!("ERR a transaction may hold {MOST} bytes of commands"));
        }
        self.queued.push((command, request));
        Ok(())
    }
}

/// A key as it was when it was watched.
pub struct Watched {
    key: Vec<u8>,
    /// Which of the keyspaces since the start.
    flushes: u64,
    before: Before,
}

enum Before {
    Present { version: u64 },
    Absent(Watch),
}

impl Watched {
    fn new(key: &[u8], state: &State, keys: &Keys<'_>) -> Self {
        // First, so that no write between the look and the watch is missed.
        let watch = state.watches.watch(key);
        let before = match keys.get_versioned(key) {
            Some((_, version)) => Before::Present { version },
            None => Before::Absent(watch),
        };
        Self { key: key.to_owned(), flushes: state.flushes(), before }
    }

    fn is_unchanged(&self, state: &State, keys: &Keys<'_>) -> bool {
        let now = keys.get_versioned(&self.key).map(|(_, version)| version);
        match &self.before {
            Before::Present { version } => now == Some(*version) && self.flushes == state.flushes(),
            Before::Absent(watch) => now.is_none() && !watch.was_written(),
        }
    }
}

pub fn multi(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    if context.session.transaction.is_some() {
        return Err("ERR MULTI calls can not be nested".to_owned());
    }
    context.session.transaction = Some(Transaction::default());
    out.simple("OK");
    Ok(Outcome::Done)
}

pub fn discard(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    if context.session.transaction.take().is_none() {
        return Err("ERR DISCARD without MULTI".to_owned());
    }
    context.session.watched.clear();
    out.simple("OK");
    Ok(Outcome::Done)
}

pub fn watch(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    if context.session.transaction.is_some() {
        return Err("ERR WATCH inside MULTI is not allowed".to_owned());
    }
    for key in arguments.iter_from(1) {
        if context.session.watched.iter().all(|watched| watched.key != key) {
            let watched = Watched::new(key, context.state, &context.keys);
            context.session.watched.push(watched);
        }
    }
    out.simple("OK");
    Ok(Outcome::Done)
}

pub fn unwatch(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    context.session.watched.clear();
    out.simple("OK");
    Ok(Outcome::Done)
}

pub fn exec(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    let Some(transaction) = context.session.transaction.take() else {
        return Err("ERR EXEC without MULTI".to_owned());
    };
    let watched = std::mem::take(&mut context.session.watched);
    if transaction.broken {
        return Err("EXECABORT Transaction discarded because of previous errors.".to_owned());
    }
    context.keys.check_room(transaction.needed).map_err(|error| {
        format!("EXECABORT Transaction discarded because of: {}", refused(error))
    })?;
    if !watched.iter().all(|watched| watched.is_unchanged(context.state, &context.keys)) {
        out.null_array();
        return Ok(Outcome::Done);
    }
    let _lifted = context.keys.lift_limit();
    let most = context.state.config.max_reply;
    let start = out.bytes.len();
    out.array(transaction.queued.len());
    for (command, request) in &transaction.queued {
        let before = out.bytes.len();
        let outcome = (command.execute)(context, request.arguments(), out);
        let outcome = outcome.and_then(|outcome| finish(context, outcome, out));
        if let Err(error) = outcome {
            out.error(&error);
        }
        let is_error = out.bytes.get(before) == Some(&b'-');
        if out.bytes.len() - start > most && !is_error {
            out.bytes.truncate(before);
            out.error(&format!(
                "ERR the replies of the transaction would exceed {most} bytes; this command was executed"
            ));
        }
    }
    Ok(Outcome::Done)
}

/// Does at once what a command has left to be done.
fn finish(
    context: &mut Context<'_>,
    outcome: Outcome,
    out: &mut Replies,
) -> std::result::Result<(), String> {
    if let Outcome::Walk(mut walk) = outcome {
        while !walk.step(&context.keys, context.state.config.max_reply)? {}
        walk.reply(out);
    }
    Ok(())
}

/// Writes that no other client sees a part of.
pub fn write_all(
    context: &Context<'_>,
    pairs: &[(&[u8], &[u8])],
) -> std::result::Result<(), String> {
    let put = |(key, value): &(_, _)| ordna::Write::put(*key, *value);
    let writes: Vec<_> = pairs.iter().map(put).collect();
    context.keys.write_batch(&writes).map_err(refused)?;
    context.report(pairs.iter().map(|(key, _)| *key));
    Ok(())
}
