//! Rights to read indexes: a user may read an index if it may read all keys with the index's
//! prefixes.
//!
//! # Contract
//! A command names its index, and runs without a lock after the rights were checked. In the
//! meantime, the index may be dropped and another one created with the same name. So if a user's
//! rights depend on the definitions, the task remembers their version from before the check, and
//! its reply is an error if they have changed.

use crate::execution::command::{CommandOutcome, Context, Result, Task, TaskFunction};
use crate::execution::dispatch::deny;
use crate::state::acl::user::Refusal;
use crate::state::command_spec::CommandSpec;
use crate::wire::error::CommandError;
use crate::wire::request::Arguments;

fn spec_of(context: &Context<'_>, arguments: Arguments<'_>) -> Result<&'static CommandSpec> {
    let spec = context.table.catalog.find(arguments.get(0)).ok_or("ERR unknown command")?;
    Ok(spec.of_call(arguments))
}

fn denied(context: &Context<'_>, refusal: Refusal) -> CommandError {
    let is_queued = context.session.transaction.is_some();
    let place = if is_queued { "multi" } else { "toplevel" };
    deny(context.state, context.session, refusal, place)
}

/// Creates the task of a command that [`reads`](crate::execution::command::Command::reads) an
/// index.
///
/// # Errors
/// The user may no longer read the index.
pub fn read_index(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    work: TaskFunction,
) -> Result {
    let task = Task::new(arguments, work);
    let Some(user) = &context.session.user else { return Err(CommandError::NotAuthenticated) };
    let spec = spec_of(context, arguments)?;
    if user.reads_prefixes(spec, &[Vec::new()]) {
        return Ok(CommandOutcome::Task(task));
    }
    let indexes = &context.state.indexes;
    // Read before the check, so that a later change is noticed.
    let version = indexes.version();
    let checked = user.check(spec, arguments, indexes);
    checked.map_err(|refusal| denied(context, refusal))?;
    Ok(CommandOutcome::Task(task.of_indexes(version)))
}

/// Returns those of the indexes, given with their prefixes, that the user may read.
///
/// # Errors
/// The user no longer exists.
pub fn readable(
    context: &Context<'_>,
    arguments: Arguments<'_>,
    indexes: Vec<(String, Vec<Vec<u8>>)>,
) -> Result<Vec<String>> {
    let Some(user) = &context.session.user else { return Err(CommandError::NotAuthenticated) };
    let spec = spec_of(context, arguments)?;
    let readable = indexes.into_iter().filter(|(_, prefixes)| user.reads_prefixes(spec, prefixes));
    Ok(readable.map(|(name, _)| name).collect())
}

/// Checks that the user may read indexes over any keys.
///
/// # Errors
/// [`CommandError::KeyDenied`]
pub fn check_all(context: &Context<'_>, arguments: Arguments<'_>) -> Result<()> {
    match readable(context, arguments, vec![(String::new(), vec![Vec::new()])])?.is_empty() {
        true => Err(denied(context, Refusal::Key(b"*".to_vec()))),
        false => Ok(()),
    }
}
