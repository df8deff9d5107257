//! Several commands as one step: those of a transaction or a script.
//!
//! The caller has locked the keyspace exclusively. Work that a command leaves to its connection is
//! done immediately.

use std::time::{Duration, Instant};

use ordna::sync::check;

use crate::execution::command::{CommandOutcome, Context, Result};
use crate::state::command_spec::{CommandFlags, CommandSpec};
use crate::wire::reply::Replies;

/// Total time of index queries after which further ones are refused. All other clients wait in the
/// meantime; each query may wait half a second for its index, and there may be many.
const MOST_QUERY_TIME: Duration = Duration::from_secs(2);

/// Work that a command leaves to the connection after all replies.
pub enum Aftermath {
    None,
    /// Delays the replies.
    Delay(Duration),
    /// Closes the connection.
    Close,
}

/// The state of the step. The indexes show none of its writes until [`end`](Self::end).
pub struct Atomic {
    /// Whether it is not part of another step, as a script in a transaction is.
    is_outer: bool,
    /// Total time of the queries so far.
    queried: Duration,
}

impl Atomic {
    pub fn new(context: &mut Context<'_>) -> Self {
        let is_outer = check!("scripts.nested.holds_once", context.indexed.is_none());
        if is_outer {
            context.indexed = context.state.indexes.transaction();
        }
        Self { is_outer, queried: Duration::ZERO }
    }

    /// Ends the step.
    pub fn end(self, context: &mut Context<'_>) {
        if self.is_outer {
            context.indexed = None;
        }
    }

    /// Does the work that a command has left. The replies must not grow beyond position `end`.
    pub fn finish(
        &mut self,
        context: &mut Context<'_>,
        spec: &CommandSpec,
        outcome: CommandOutcome,
        end: usize,
        out: &mut Replies,
    ) -> Result<Aftermath> {
        match outcome {
            CommandOutcome::LongScan(mut scan) => {
                while !scan.step(context.state, Some(&context.keys), out)? {
                    if out.bytes.len() > end {
                        return Err(
                            "ERR the reply would exceed the limit of replies; ask for less".into(),
                        );
                    }
                }
            }
            CommandOutcome::Lookup(mut lookup) => {
                while !lookup.step(end.saturating_sub(out.bytes.len()), out)? {}
            }
            CommandOutcome::Task(task) => {
                if self.queried > MOST_QUERY_TIME && spec.has(CommandFlags::READONLY) {
                    return Err(format!(
                        "ERR the queries of the transaction took more than {MOST_QUERY_TIME:?} together; ask outside of it"
                    )
                    .into());
                }
                let begin = Instant::now();
                // The query may wait for a state of the indexes that the transaction delays.
                context.indexed = None;
                task.run(context.state, Some(&context.keys), out);
                self.queried += begin.elapsed();
                context.indexed = context.state.indexes.transaction();
            }
            CommandOutcome::Awaits(awaited) => awaited.finish(context.state, out),
            CommandOutcome::Close => return Ok(Aftermath::Close),
            CommandOutcome::Delayed(delay) => return Ok(Aftermath::Delay(delay)),
            // Nothing waits within a step: dropping a wait ends it. Commands of a step do not ask
            // for a snapshot either.
            CommandOutcome::Done
            | CommandOutcome::Freeing(_)
            | CommandOutcome::Blocked(_)
            | CommandOutcome::Read(_)
            | CommandOutcome::AwaitsTurn
            | CommandOutcome::EndsRun
            | CommandOutcome::Paused => {}
        }
        Ok(Aftermath::None)
    }
}
