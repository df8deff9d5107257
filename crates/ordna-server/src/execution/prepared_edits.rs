//! Changes of many elements of a large collection, prepared on a snapshot.
//!
//! # Contract
//! A command that is about to change many elements declines to do so in place ([`within`],
//! [`Context::check_work`]), before it has changed anything. When it is executed again, it changes
//! the collection of the snapshot, which records the changes, and commits them as
//! [`prepared_writes`](super::prepared_writes) describes: in one short step, or not at all.
//!
//! # Protocol
//! The step is one of three. If no element remains, the head is removed, and the background removal
//! does the rest. If few entries change, they are written in one batch. Otherwise the remaining
//! entries are stored in several steps under a new id, and the final step assigns this id to the
//! key, because a batch of many entries would delay every other write. If far more entries remain
//! than were added or set, they are written in one batch, too.
//!
//! A collection that becomes large is stored in several steps in the same way.

use ordna::sync::fault;

use crate::execution::command::{Context, Result};
use crate::keyspace::collections::Body;
use crate::keyspace::edits::collection::{Changed, Effect};
use crate::keyspace::edits::growth::Grown;
use crate::keyspace::edits::hash::HashChange;
use crate::keyspace::value_kind::ValueKind;
use crate::state::events::Classes;
use crate::wire::error::CommandError;

/// Number of elements that a command may pass in the time of one change.
pub const WALKED: usize = 16;

/// Returns an error if a command must not change this many elements in place. `most` is the number
/// that it may change there ([`Context::most_work`]).
///
/// # Errors
/// [`CommandError::NeedsSnapshot`]
pub fn within(most: usize, elements: usize) -> Result<()> {
    if elements < most { Ok(()) } else { Err(CommandError::NeedsSnapshot) }
}

/// Works like [`within`], for a collection that may be small, because its changes are one record.
///
/// # Errors
/// Those of [`within`].
pub fn within_large(most: usize, body: &Body<'_>, elements: usize) -> Result<()> {
    match body {
        Body::Packed(_) => Ok(()),
        Body::Large(_) => within(most, elements.min(body.len())),
    }
}

impl Context<'_> {
    /// Works like [`modify_collection`](Self::modify_collection), for a change that may ask for a
    /// snapshot before it has changed anything.
    ///
    /// # Errors
    /// Those of `modify_collection`, and [`CommandError::NeedsSnapshot`] if the command has to be
    /// executed on a snapshot or has to start again.
    pub fn modify_much<R>(
        &mut self,
        key: &[u8],
        kind: ValueKind,
        change: impl FnMut(&mut Body<'_>) -> Result<R>,
    ) -> Result<R> {
        self.edit_much(None, key, kind, change)
    }

    /// Works like [`modify_much`](Self::modify_much), with an event that differs from the command's
    /// name, or without one.
    ///
    /// # Errors
    /// Those of [`modify_much`](Self::modify_much).
    pub fn edit_much<R>(
        &mut self,
        event: Option<(Classes, &'static str)>,
        key: &[u8],
        kind: ValueKind,
        mut change: impl FnMut(&mut Body<'_>) -> Result<R>,
    ) -> Result<R> {
        let Some(snapshot) = self.keys.snapshot().cloned() else {
            return self.edit(event, key, kind, change);
        };
        let Some((large, expires_at)) = snapshot.large(key, kind)? else {
            return match snapshot.grown(&self.keys, key, kind, &mut change)? {
                Some((result, grown)) => self.commit_grown(event, key, &grown).map(|()| result),
                None => self.commit(|context| context.edit(event, key, kind, change)),
            };
        };
        let before = large.head;
        let mut body = Body::Large(large);
        let result = change(&mut body)?;
        if let Body::Large(large) = body {
            self.commit_changed(event, key, Changed { before, expires_at, large })?;
        }
        Ok(result)
    }

    /// Works like [`modify_hash`](Self::modify_hash), for a change that may ask for a snapshot
    /// before it has changed anything.
    ///
    /// # Errors
    /// Those of [`modify_much`](Self::modify_much).
    pub fn modify_much_of_hash<R>(
        &mut self,
        key: &[u8],
        change: impl FnMut(&mut HashChange<'_>) -> Result<R>,
    ) -> Result<R> {
        self.edit_much_of_hash(None, key, change)
    }

    /// Works like [`modify_much_of_hash`](Self::modify_much_of_hash), with an event that differs
    /// from the command's name.
    ///
    /// # Errors
    /// Those of [`modify_much`](Self::modify_much).
    pub fn edit_much_of_hash<R>(
        &mut self,
        event: Option<(Classes, &'static str)>,
        key: &[u8],
        mut change: impl FnMut(&mut HashChange<'_>) -> Result<R>,
    ) -> Result<R> {
        let Some(snapshot) = self.keys.snapshot().cloned() else {
            return self.edit_hash(event, key, change);
        };
        let Some((large, expires_at)) = snapshot.large(key, ValueKind::Hash)? else {
            return match snapshot.grown_hash(&self.keys, key, &mut change)? {
                Some((result, grown)) => self.commit_grown(event, key, &grown).map(|()| result),
                None => self.commit(|context| context.edit_hash(event, key, change)),
            };
        };
        let before = large.head;
        let mut body = HashChange::Large(large);
        let result = change(&mut body)?;
        if let HashChange::Large(large) = body {
            self.commit_changed(event, key, Changed { before, expires_at, large })?;
        }
        Ok(result)
    }

    /// Assigns a collection that has become large to a key.
    fn commit_grown(
        &mut self,
        event: Option<(Classes, &'static str)>,
        key: &[u8],
        grown: &Grown,
    ) -> Result<()> {
        let Grown { was_there, expires_at, large } = grown;
        let staged = self.stage_large(large)?;
        self.commit(|context| {
            let done = context.keys.put_large(key, large, *expires_at, staged.as_ref());
            context.settle([key], done)?;
            let effect = if *was_there { Effect::Changed } else { Effect::Made };
            context.report_edit(key, effect, event);
            Ok(())
        })
    }

    fn commit_changed(
        &mut self,
        event: Option<(Classes, &'static str)>,
        key: &[u8],
        mut changed: Changed<'_>,
    ) -> Result<()> {
        if !fault!("large_writes.keeps_the_id") {
            changed.large.keep_id();
        }
        let changed = &changed;
        if !changed.large.is_changed() {
            return Ok(());
        }
        let mut rewritten = changed.rewritten(&self.keys);
        let staged = match &mut rewritten {
            Some(rewritten) => {
                let head = rewritten.large.head;
                self.stage_stretches(&head, || rewritten.next_stretch())?
            }
            None => None,
        };
        let anew = rewritten.map(|rewritten| rewritten.large);
        self.commit(|context| {
            let done = context.keys.put_changed(key, changed, anew.as_ref().zip(staged.as_ref()));
            // The task that removes expired fields may have written the head without a report.
            if !context.settle([key], done)? {
                return Err(CommandError::NeedsSnapshot);
            }
            let is_gone = changed.large.head.count == 0;
            let effect = if is_gone { Effect::Removed } else { Effect::Changed };
            context.report_edit(key, effect, event);
            Ok(())
        })
    }
}
