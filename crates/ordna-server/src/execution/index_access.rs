//! Rights to read indexes: whoever may read all keys with the prefixes of an index may read the index.
//!
//! # Contract
//! A command on an index names it, and runs after its rights were checked, without a lock. Meanwhile the
//! index may be dropped, and another one created under its name. So the task of a user whose rights depend
//! on the definitions remembers their version of before the check, and its reply is an error if they have
//! changed since.

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

/// Makes the task of a command that [`reads`](crate::execution::command::Command::reads) an index.
///
/// # Errors
/// The user may not read the index any more.
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
    // Before the check: a change after this is noticed.
    let version = indexes.version();
    let checked = user.check(spec, arguments, indexes);
    checked.map_err(|refusal| denied(context, refusal))?;
    Ok(CommandOutcome::Task(task.of_indexes(version)))
}

/// Leaves those of some indexes, given with their prefixes, that the user may read.
///
/// # Errors
/// The user is gone.
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
