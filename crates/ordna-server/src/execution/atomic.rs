//! Several commands as one step, of a transaction or of a script.
//!
//! The caller has locked the keyspace exclusively. What a command leaves to its connection is done at once.

use std::time::{Duration, Instant};

use ordna::sync::check;

use crate::execution::command::{CommandOutcome, Context, Result};
use crate::state::command_spec::{CommandFlags, CommandSpec};
use crate::wire::reply::Replies;

/// Time that the queries of indexes take together before further ones are refused. All other clients wait
/// meanwhile, each query may wait half a second for its index, and there may be many.
const MOST_QUERY_TIME: Duration = Duration::from_secs(2);

/// What a command leaves to the connection, after the replies of all.
pub enum Aftermath {
    None,
    /// They are sent later.
    Delay(Duration),
    /// The connection is closed.
    Close,
}

/// The state of the step: the indexes show none of its writes until [`end`](Self::end).
pub struct Atomic {
    /// It is no step within another one, as a script in a transaction is.
    is_outer: bool,
    /// Time of the queries so far.
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
                // It may wait for a cut of the indexes, which the transaction holds back.
                context.indexed = None;
                task.run(context.state, Some(&context.keys), out);
                self.queried += begin.elapsed();
                context.indexed = context.state.indexes.transaction();
            }
            CommandOutcome::Close => return Ok(Aftermath::Close),
            CommandOutcome::Delayed(delay) => return Ok(Aftermath::Delay(delay)),
            // Nothing waits within a step: a wait ends as it is dropped. Nor do its commands ask for a snapshot.
            CommandOutcome::Done
            | CommandOutcome::Freeing(_)
            | CommandOutcome::Blocked(_)
            | CommandOutcome::Read(_)
            | CommandOutcome::AwaitsTurn
            | CommandOutcome::Paused => {}
        }
        Ok(Aftermath::None)
    }
}
