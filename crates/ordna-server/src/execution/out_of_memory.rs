//! Commands that the memory limit has refused: they evict keys and are executed again.

use std::time::Instant;

use ordna::sync::{check, point};

use crate::execution::command::{CommandOutcome, Context, Result};
use crate::execution::eviction::{self, Room};
use crate::state::command_spec::CommandSpec;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::Arguments;

impl Context<'_> {
    /// Makes room for a command that the memory limit has refused, and which has changed nothing,
    /// and executes it again.
    #[cold]
    pub fn call_after_eviction(
        &mut self,
        spec: &CommandSpec,
        arguments: Arguments<'_>,
        out: &mut Replies,
    ) -> Result {
        /// Number of attempts, each with room for four times as much, because a command may need
        /// more than its arguments, as `SETRANGE` does.
        const ATTEMPTS: usize = 12;
        /// Upper bound of the bytes of an entry in addition to its key and value.
        const ENTRY: usize = 128;
        let before = out.bytes.len();
        let sizes = arguments.iter_from(1).map(|argument| argument.len() + ENTRY);
        let mut needed: usize = sizes.sum();
        for _ in 0..ATTEMPTS {
            out.bytes.truncate(before);
            if let Some(stopped) = self.evict(spec, arguments, needed)? {
                return Ok(stopped);
            }
            let outcome = self.execute(spec, arguments, out);
            if !matches!(outcome, Err(CommandError::OutOfMemory)) {
                return outcome;
            }
            needed = needed.saturating_mul(4);
        }
        Err(CommandError::OutOfMemory)
    }

    /// Evicts until `needed` bytes fit, in several calls if necessary. Other commands run between
    /// the calls, unless this command excludes them. They may make it impossible for this command
    /// to continue; the result is then its outcome.
    ///
    /// # Errors
    /// The bytes do not fit, or the user may no longer call the command.
    fn evict(
        &mut self,
        spec: &CommandSpec,
        arguments: Arguments<'_>,
        needed: usize,
    ) -> Result<Option<CommandOutcome>> {
        let (state, begin) = (self.state, Instant::now());
        loop {
            let made = eviction::evict(state, &self.keys, needed);
            let is_over = begin.elapsed() > eviction::LONGEST_WRITE || self.session.executing;
            if check!("concurrent.eviction.goes_on", made != Room::Unfinished || is_over) {
                let has_room = made == Room::Enough;
                return if has_room { Ok(None) } else { Err(CommandError::OutOfMemory) };
            }
            if !self.keys.is_exclusive() {
                self.keys.release_for_a_moment(|| {
                    point("command.evict.released");
                    state.keys()
                });
                if let Some(stopped) = self.stopped(spec, arguments)? {
                    return Ok(Some(stopped));
                }
            }
        }
    }
}
