//! Acknowledgement of writes: replies are sent when the log is as durable as the server promises.
//!
//! # Contract
//! The reply to a write is sent when its record is as durable as `--log` says: on the device with
//! `always`, and otherwise with the operating system, so that a crash of the process loses no
//! acknowledged write. All writes of a command that has locked the keyspace exclusively (`EXEC`,
//! `MSET`, `DEL` of several keys, …) form one group of the log: after a crash, all or none of them
//! are present.

use std::future::poll_fn;
use std::time::Duration;

use ordna::durability::SyncPolicy;
use ordna::sync::notice;

use crate::execution::command::{CommandOutcome, Context};
use crate::keyspace::Keyspace;
use crate::state::ServerState;
use crate::state::command_spec::{CommandFlags, CommandSpec};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::Arguments;

/// Returns whether a call may write. `EXEC` may write if one of its queued commands may.
fn writes(context: &Context<'_>, spec: &CommandSpec, arguments: Arguments<'_>) -> bool {
    if spec.has(CommandFlags::EXECUTES_QUEUE) {
        let catalog = &context.table.catalog;
        return context.session.transaction.as_ref().is_some_and(|transaction| {
            transaction.queued.iter().map(|request| request.arguments()).any(|arguments| {
                let spec = catalog.find(arguments.get(0));
                spec.is_some_and(|spec| writes(context, spec.of_call(arguments), arguments))
            })
        });
    }
    let only_reads = spec.has(CommandFlags::READS_WITHOUT_OPTIONS) && arguments.len() <= 2;
    spec.is_write() && !only_reads
}

/// Executes a command on a server that logs its writes.
pub fn call_logged(
    context: &mut Context<'_>,
    spec: &CommandSpec,
    is_exclusive: bool,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> CommandOutcome {
    if !writes(context, spec, arguments) {
        return context.call(spec, arguments, out);
    }
    context.session.wrote = true;
    if let Err(error) = context.keys.store().check_log() {
        if spec.has(CommandFlags::EXECUTES_QUEUE) {
            context.session.end_transaction();
        }
        out.error(CommandError::from(error));
        return CommandOutcome::Done;
    }
    if !is_exclusive {
        return context.call(spec, arguments, out);
    }
    // A separate handle, because FLUSHALL replaces the one in the context.
    let keys = Keyspace::clone(&context.keys);
    let before = out.bytes.len();
    let call = || {
        let outcome = context.call(spec, arguments, out);
        // The writes of the command and those for clients that it serves form one group.
        context.serve_blocked();
        outcome
    };
    keys.store().log_group(call).unwrap_or_else(|error| {
        out.bytes.truncate(before);
        out.error(CommandError::from(error));
        CommandOutcome::Done
    })
}

/// Waits until all writes so far are durable enough to send their replies. `was_served` says that
/// one of them was made by another client's command, and only that command knows whether the log
/// accepted it.
///
/// # Errors
/// The log failed.
pub async fn wait_until_durable(state: &ServerState, was_served: bool) -> Result<(), ordna::Error> {
    let Some(persistence) = &state.data_directory else { return Ok(()) };
    let mut delayed = None;
    if state.keyspace_lock().is_held_long() {
        delayed = Some(state.keyspace_lock().not_held_long(Duration::MAX).await);
    }
    let keys = Keyspace::clone(&state.keys());
    drop(delayed);
    // The other command holds the keyspace until its group was accepted or rejected by the log.
    if notice!("concurrent.served.asks_log", was_served) {
        keys.store().check_log()?;
    }
    let (position, always) =
        (keys.store().log_position(), persistence.sync_policy() == SyncPolicy::Always);
    if !always {
        // Lets other ready connections append first, so that one write of the log serves them all.
        tokio::task::yield_now().await;
    }
    poll_fn(|context| match always {
        true => keys.store().poll_durable(position, context),
        false => keys.store().poll_flushed(position, context),
    })
    .await
}
