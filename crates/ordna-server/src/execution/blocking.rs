//! Commands such as BLPOP, which take elements of lists and sorted sets and may wait for them.
//!
//! A command that finds no elements is executed again with the keyspace locked exclusively, and
//! then begins to wait ([`BlockedClients`](crate::state::blocked::BlockedClients)). The command
//! that writes an awaited key serves the waiting clients. It does so on its own thread, under the
//! exclusive lock, after all commands of its transaction or script, and in the same group of the
//! log.

use std::time::{Duration, Instant};

use ordna::Direction;
use ordna::sync::check;

use crate::execution::command::{CommandOutcome, Context, Result};
use crate::execution::large_reads::too_large;
use crate::execution::prepared_edits::within_large;
use crate::keyspace::Keyspace;
use crate::keyspace::float::LongDouble;
use crate::keyspace::list::{self, End, ListView};
use crate::keyspace::sorted_set;
use crate::keyspace::value_kind::ValueKind;
use crate::state::blocked::{Answer, KEY_BYTES, Wanted};
use crate::state::command_spec::CommandSpec;
use crate::state::events::Classes;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::Arguments;

/// Time limits above 30 years count as no limit. The runtime's timers have the same bound.
const LONGEST: Duration = Duration::from_secs(30 * 365 * 86_400);

/// Parses the time limit of a command that waits, in seconds; `None` means no limit.
///
/// # Errors
/// The text is not a number, or it is negative or too large.
pub fn parse_timeout(text: &[u8]) -> Result<Option<Duration>> {
    const NEGATIVE: &str = "ERR timeout is negative";
    let seconds = LongDouble::parse(text).ok_or("ERR timeout is not a float or out of range")?;
    // As in Redis, a number that 64 bits cannot hold becomes the smallest number.
    let millis = seconds.thousandfold().ok_or(NEGATIVE)?;
    let millis = u64::try_from(millis).map_err(|_| NEGATIVE)?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // Redis stores the end of the wait, in milliseconds since 1970, as a signed number.
    let end = now.unwrap_or_default().as_millis() + u128::from(millis);
    if i64::try_from(end).is_err() {
        return Err("ERR timeout is out of range".into());
    }
    let time = Duration::from_millis(millis);
    Ok(Some(time).filter(|time| !time.is_zero() && *time < LONGEST))
}

const fn pop_event(end: End) -> &'static str {
    if matches!(end, End::Front) { "lpop" } else { "rpop" }
}

const fn push_event(end: End) -> &'static str {
    if matches!(end, End::Front) { "lpush" } else { "rpush" }
}

impl Context<'_> {
    /// Returns an error if this many elements of large collections cannot be taken without a
    /// snapshot.
    ///
    /// # Errors
    /// [`CommandError::NeedsSnapshot`]; the key holds a value of another type.
    pub fn check_taken(&self, keys: &[&[u8]], kind: ValueKind, count: usize) -> Result<()> {
        let most = self.most_work();
        if count < most {
            return Ok(());
        }
        for key in keys {
            let len = self.collection(key, kind, |body| {
                within_large(most, body, count).map(|()| body.len())
            })?;
            // The first key that has elements decides.
            if len.transpose()?.is_some_and(|len| len > 0) {
                break;
            }
        }
        Ok(())
    }

    /// Takes the elements that `wanted` describes from one key and writes the reply. Returns
    /// `false`, without a reply, if the key is absent.
    ///
    /// # Errors
    /// The key, or that of the destination, holds a value of another type.
    pub fn take(&mut self, key: &[u8], wanted: &Wanted, out: &mut Replies) -> Result<bool> {
        match wanted {
            Wanted::Values { end, count } => {
                let event = (Classes::LIST, pop_event(*end));
                let (number, most) = (count.unwrap_or(1), self.state.settings.reply_limit());
                let popped = self.edit_much(Some(event), key, ValueKind::List, |body| {
                    let popped = list::pop_some(body, *end, number, most);
                    popped.ok_or_else(|| too_large(most))
                })?;
                if popped.is_empty() {
                    return Ok(false);
                }
                out.array(2);
                out.bulk(key);
                if count.is_some() {
                    out.array(popped.len());
                }
                popped.iter().for_each(|value| out.bulk(value));
            }
            Wanted::Move { from, to, destination } => {
                let Some(value) = self.move_value(key, destination, *from, *to)? else {
                    return Ok(false);
                };
                out.bulk(&value);
            }
            Wanted::Members { direction, count } => {
                let event = match direction {
                    Direction::Ascending => "zpopmin",
                    Direction::Descending => "zpopmax",
                };
                let (number, most) = (count.unwrap_or(1), self.state.settings.reply_limit());
                let event = (Classes::SORTED_SET, event);
                let popped = self.edit_much(Some(event), key, ValueKind::ZSet, |body| {
                    let popped = sorted_set::pop(body, number, *direction, most);
                    popped.ok_or_else(|| too_large(most))
                })?;
                if popped.is_empty() {
                    return Ok(false);
                }
                out.array(if count.is_some() { 2 } else { 3 });
                out.bulk(key);
                if count.is_some() {
                    out.array(popped.len());
                }
                for (member, score) in &popped {
                    if count.is_some() {
                        out.array(2);
                    }
                    out.bulk(member);
                    out.double(*score);
                }
            }
        }
        Ok(true)
    }

    /// Moves a value from an end of a list to an end of the same or another list. Returns the
    /// value, or `None` if the list is absent. The keyspace must be locked exclusively.
    ///
    /// # Errors
    /// One of the keys holds a value of another type.
    pub fn move_value(
        &self,
        from: &[u8],
        to: &[u8],
        from_end: End,
        to_end: End,
    ) -> Result<Option<Vec<u8>>> {
        let value = self.keys.read_collection(from, ValueKind::List, |body| {
            let list = ListView(body);
            list.get(if from_end == End::Front { 0 } else { list.len().saturating_sub(1) })
        })?;
        let Some(value) = value.flatten() else { return Ok(None) };
        let pushed = (Classes::LIST, push_event(to_end));
        let popped = (Classes::LIST, pop_event(from_end));
        if from == to {
            self.modify_as(pushed, from, ValueKind::List, |body| {
                if let Some(value) = list::pop(body, from_end) {
                    list::push(body, &value, to_end);
                }
                Ok(())
            })?;
            self.state.notify(popped.0, popped.1, from);
        } else {
            // The value is added first: if there is no room for it, nothing is moved.
            self.modify_as(pushed, to, ValueKind::List, |body| {
                list::push(body, &value, to_end);
                Ok(())
            })?;
            self.modify_as(popped, from, ValueKind::List, |body| {
                list::pop(body, from_end);
                Ok(())
            })?;
        }
        Ok(Some(value))
    }

    /// Takes elements from the first of the keys that has some, or begins to wait for them.
    /// `timeout` is the text of the time limit.
    ///
    /// # Errors
    /// The time limit is invalid, a key before the first one with elements holds a value of another
    /// type, or the keys take more memory than a client may have.
    pub fn take_or_wait(
        &mut self,
        keys: &[&[u8]],
        wanted: Wanted,
        timeout: &[u8],
        arguments: Arguments<'_>,
        out: &mut Replies,
    ) -> Result {
        let timeout = parse_timeout(timeout)?;
        match &wanted {
            Wanted::Values { count: Some(count), .. } => {
                self.check_taken(keys, ValueKind::List, *count)?;
            }
            Wanted::Members { count: Some(count), .. } => {
                self.check_taken(keys, ValueKind::ZSet, *count)?;
            }
            _ => {}
        }
        for key in keys {
            if self.take(key, &wanted, out)? {
                return Ok(CommandOutcome::Done);
            }
        }
        if self.session.executing {
            match wanted {
                Wanted::Move { .. } => out.null(),
                _ => out.null_array(),
            }
            return Ok(CommandOutcome::Done);
        }
        // The snapshot has shown that there are no elements; the command waits on the current
        // state.
        if self.keys.snapshot().is_some() {
            return Err(CommandError::NeedsSnapshot);
        }
        // Otherwise another command could write a key before this client is in the table.
        if !check!("blocking.enter.is_exclusive", self.keys.is_exclusive()) {
            return Err(CommandError::NeedsExclusive);
        }
        let request = arguments.to_owned_request();
        let most = self.state.settings.query_limit.size();
        let bytes = keys.iter().map(|key| key.len() + KEY_BYTES).sum::<usize>() + request.size();
        if bytes > most {
            return Err(format!("ERR a client may wait for {most} bytes of keys").into());
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let client = &self.session.client;
        let blocked = &self.state.blocked;
        let waiting = blocked.enter(client, request, keys, wanted, deadline, out.resp3);
        // A change of users since the command began may not have found this client in the table.
        self.check_changed_rights(arguments)?;
        Ok(CommandOutcome::Blocked(Box::new(waiting)))
    }

    /// Checks the user's rights to this command again if users have changed since it began.
    ///
    /// # Errors
    /// The user may no longer call the command with these arguments.
    pub fn check_changed_rights(&self, arguments: Arguments<'_>) -> Result<()> {
        if self.session.acl_version == self.state.acl.version() {
            return Ok(());
        }
        let Some(user) = &self.session.user else { return Ok(()) };
        self.state.check_rights(&self.session.client, &user.name, arguments)
    }

    /// Locks the keyspace exclusively if a call may write a key for which clients wait, so that
    /// they are served before another command runs. Returns whether the call may write such a key.
    #[inline]
    pub fn exclude_if_awaited(&mut self, spec: &CommandSpec, arguments: Arguments<'_>) -> bool {
        self.state.blocked.are_any() && spec.is_write() && self.exclude_now(spec, arguments)
    }

    fn exclude_now(&mut self, spec: &CommandSpec, arguments: Arguments<'_>) -> bool {
        let mut keys = spec.key_positions(arguments);
        let is_awaited = keys.any(|at| self.state.blocked.awaits(arguments.get(at)));
        if is_awaited {
            self.keys.make_exclusive(|| self.state.keys_exclusive());
        }
        is_awaited
    }

    /// Records that a key was written if it has elements for which clients wait.
    pub fn signal(&self, key: &[u8]) {
        if self.state.blocked.awaits(key)
            && let Some(kind) = self.keys.get_with(key, ValueKind::of)
            && matches!(kind, ValueKind::List | ValueKind::ZSet)
        {
            self.state.blocked.signal(key, kind);
        }
    }

    /// Serves the clients that wait for keys that have been written.
    #[inline]
    pub fn serve_blocked(&mut self) {
        if self.state.blocked.has_ready() {
            self.serve_now();
        }
    }

    #[cold]
    fn serve_now(&mut self) {
        let state = self.state;
        self.keys.make_exclusive(|| state.keys_exclusive());
        let keys = Keyspace::clone(&self.keys);
        let serve = || {
            // As in Redis, a waiting client is served even beyond the memory limit.
            let _lifted = keys.lift_limit();
            while let Some(key) = state.blocked.next_ready() {
                self.serve_key(&key);
            }
        };
        if let Err(error) = keys.store().log_group(serve) {
            // The clients get the error when they wait for their replies to become durable.
            tracing::error!(%error, "the log failed while waiting clients were served");
        }
    }

    /// Serves the clients that wait for a key, as long as it has elements.
    fn serve_key(&mut self, key: &[u8]) {
        while let Some(kind) = self.keys.get_with(key, ValueKind::of)
            && matches!(kind, ValueKind::List | ValueKind::ZSet)
            && let Some(waiter) = self.state.blocked.take_first(key, kind)
        {
            let mut out = Replies { resp3: waiter.resp3, ..Replies::default() };
            match self.take(key, &waiter.wanted, &mut out) {
                Ok(true) => {}
                Ok(false) => {
                    // The key has expired.
                    self.state.blocked.put_back(waiter);
                    return;
                }
                // The client's connection counts the error.
                Err(error) => out.error(&error),
            }
            waiter.answer(Answer { reply: out.bytes, wrote: true });
        }
    }
}
