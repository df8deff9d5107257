//! Reads and changes of collections by commands. Changes are reported to watchers, waiting clients
//! and indexes.

use ordna::Direction;

use crate::execution::command::{Context, Result};
use crate::keyspace::collections::Body;
use crate::keyspace::collections::names::MOST_NAME;
use crate::keyspace::edits::collection::Effect;
use crate::keyspace::edits::hash::{HashChange, HashView};
use crate::keyspace::list::End;
use crate::keyspace::sorted_set::Scored;
use crate::keyspace::value_kind::ValueKind;
use crate::state::events::{Classes, Wrote};

impl Context<'_> {
    /// Changes the hash of a key, whose deadline is kept. A hash without fields is removed.
    /// `change` may be called several times.
    ///
    /// # Errors
    /// The key holds no hash.
    pub fn modify_hash<R>(
        &self,
        key: &[u8],
        change: impl FnMut(&mut HashChange<'_>) -> Result<R>,
    ) -> Result<R> {
        self.edit_hash(None, key, change)
    }

    pub(super) fn edit_hash<R>(
        &self,
        event: Option<(Classes, &'static str)>,
        key: &[u8],
        change: impl FnMut(&mut HashChange<'_>) -> Result<R>,
    ) -> Result<R> {
        let done = self.keys.edit_hash(key, self.keys.is_exclusive(), change);
        let edited = self.settle([key], done)?;
        self.report_edit(key, edited.effect, event);
        Ok(edited.result)
    }

    /// Works like [`modify_hash`](Self::modify_hash), with events that `events` derives from the
    /// result.
    ///
    /// # Errors
    /// Those of `modify_hash`.
    pub fn modify_hash_and_tell<R>(
        &self,
        key: &[u8],
        change: impl FnMut(&mut HashChange<'_>) -> Result<R>,
        events: impl FnOnce(&R) -> Vec<&'static str>,
    ) -> Result<R> {
        let done = self.keys.edit_hash(key, self.keys.is_exclusive(), change);
        let edited = self.settle([key], done)?;
        if edited.effect != Effect::Nothing {
            self.report([key]);
            if self.state.events.are_on() {
                if edited.effect == Effect::Made {
                    self.state.notify(Classes::NEW, "new", key);
                }
                let events = events(&edited.result);
                events.iter().for_each(|event| self.state.notify(Classes::HASH, event, key));
                if edited.effect == Effect::Removed {
                    self.state.notify(Classes::GENERIC, "del", key);
                }
            }
        }
        Ok(edited.result)
    }

    /// Reports a change of a collection. `event` is its class and name, unless they follow from the
    /// command.
    pub(super) fn report_edit(
        &self,
        key: &[u8],
        effect: Effect,
        event: Option<(Classes, &'static str)>,
    ) {
        let wrote = match effect {
            Effect::Nothing => return,
            Effect::Made => Wrote::Value { is_new: true, new_deadline: false },
            Effect::Changed => Wrote::Value { is_new: false, new_deadline: false },
            Effect::Removed => Wrote::Removal,
        };
        self.report([key]);
        match event {
            None => self.notify(key, wrote),
            Some((class, event)) => self.notify_as(class, event, key, wrote),
        }
    }

    /// Changes a list, set or sorted set, whose deadline is kept. A collection without elements is
    /// removed. `change` may be called several times.
    ///
    /// # Errors
    /// The key holds a value of another type.
    pub fn modify_collection<R>(
        &self,
        key: &[u8],
        kind: ValueKind,
        change: impl FnMut(&mut Body<'_>) -> Result<R>,
    ) -> Result<R> {
        self.edit(None, key, kind, change)
    }

    /// Works like [`modify_collection`](Self::modify_collection), with an event that differs from
    /// the command's name.
    ///
    /// # Errors
    /// The key holds a value of another type.
    pub fn modify_as<R>(
        &self,
        event: (Classes, &'static str),
        key: &[u8],
        kind: ValueKind,
        change: impl FnMut(&mut Body<'_>) -> Result<R>,
    ) -> Result<R> {
        self.edit(Some(event), key, kind, change)
    }

    /// Adds to one collection and then removes from another: if there is no room for the addition,
    /// both stay as they are. The events are reported in Redis' order, that of the removal first.
    /// The caller excludes other commands.
    ///
    /// # Errors
    /// A key holds a value of another type, the memory limit is reached, or the log has failed.
    pub fn modify_both(
        &self,
        kind: ValueKind,
        to: ((Classes, &'static str), &[u8]),
        add: impl FnMut(&mut Body<'_>) -> Result<()>,
        from: ((Classes, &'static str), &[u8]),
        remove: impl FnMut(&mut Body<'_>) -> Result<()>,
    ) -> Result<()> {
        let done = self.keys.edit_collection(to.1, kind, self.keys.is_exclusive(), add);
        let added = self.settle([to.1], done)?;
        let removed = self.edit(Some(from.0), from.1, kind, remove);
        self.report_edit(to.1, added.effect, Some(to.0));
        removed
    }

    pub(super) fn edit<R>(
        &self,
        event: Option<(Classes, &'static str)>,
        key: &[u8],
        kind: ValueKind,
        change: impl FnMut(&mut Body<'_>) -> Result<R>,
    ) -> Result<R> {
        let done = self.keys.edit_collection(key, kind, self.keys.is_exclusive(), change);
        let edited = self.settle([key], done)?;
        self.report_edit(key, edited.effect, event);
        Ok(edited.result)
    }

    /// Calls [`put_element`](crate::keyspace::KeyspaceStore::put_element) and reports the change.
    /// Also returns `None` if the command is executed on a snapshot.
    ///
    /// # Errors
    /// Those of the called method.
    pub fn put_element(
        &self,
        key: &[u8],
        kind: ValueKind,
        name: &[u8],
        value: &[u8],
    ) -> Result<Option<bool>> {
        if self.keys.snapshot().is_some() {
            return Ok(None);
        }
        let done = self.keys.put_element(key, kind, name, value);
        Ok(self.settle([key], done)?.map(|edited| {
            self.report_edit(key, edited.effect, None);
            edited.result
        }))
    }

    /// Calls [`remove_element`](crate::keyspace::KeyspaceStore::remove_element), like
    /// [`put_element`](Self::put_element).
    ///
    /// # Errors
    /// Those of the called method.
    pub fn remove_element(&self, key: &[u8], kind: ValueKind, name: &[u8]) -> Result<Option<bool>> {
        if self.keys.snapshot().is_some() {
            return Ok(None);
        }
        let done = self.keys.remove_element(key, kind, name);
        Ok(self.settle([key], done)?.map(|edited| {
            self.report_edit(key, edited.effect, None);
            edited.result
        }))
    }

    /// Calls [`pop_member`](crate::keyspace::KeyspaceStore::pop_member), like
    /// [`put_element`](Self::put_element).
    ///
    /// # Errors
    /// Those of the called method.
    pub fn pop_member(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if self.keys.snapshot().is_some() || !self.replies_any_element() {
            return Ok(None);
        }
        let member = self.settle([key], self.keys.pop_member(key))?;
        if member.is_some() {
            self.report_edit(key, Effect::Changed, None);
        }
        Ok(member)
    }

    /// Calls [`set_score`](crate::keyspace::KeyspaceStore::set_score), like
    /// [`put_element`](Self::put_element). Returns `false` if the caller has to use a general
    /// write.
    ///
    /// # Errors
    /// Those of the called method.
    pub fn set_score(
        &self,
        event: Option<(Classes, &'static str)>,
        key: &[u8],
        member: &[u8],
        decide: impl FnOnce(Option<f64>) -> Result<Option<f64>>,
    ) -> Result<bool> {
        if self.keys.snapshot().is_some() {
            return Ok(false);
        }
        let effect = self.settle([key], self.keys.set_score(key, member, decide))?;
        if let Some(effect) = effect {
            self.report_edit(key, effect, event);
        }
        Ok(effect.is_some())
    }

    /// Calls [`pop_scored`](crate::keyspace::KeyspaceStore::pop_scored), like
    /// [`put_element`](Self::put_element).
    ///
    /// # Errors
    /// Those of the called method.
    pub fn pop_scored(&self, key: &[u8], direction: Direction) -> Result<Option<Scored>> {
        if self.keys.snapshot().is_some() || !self.replies_any_element() {
            return Ok(None);
        }
        let member = self.settle([key], self.keys.pop_scored(key, direction))?;
        if member.is_some() {
            self.report_edit(key, Effect::Changed, None);
        }
        Ok(member)
    }

    /// Returns whether the command may reply with any single element.
    fn replies_any_element(&self) -> bool {
        self.state.settings.reply_limit() > MOST_NAME + 64
    }

    /// Calls [`push_at_end`](crate::keyspace::KeyspaceStore::push_at_end) and reports the change.
    ///
    /// # Errors
    /// Those of the called method.
    pub fn push_at_end(&self, key: &[u8], value: &[u8], end: End) -> Result<Option<usize>> {
        let len = self.settle([key], self.keys.push_at_end(key, value, end))?;
        if len.is_some() {
            self.report_edit(key, Effect::Changed, None);
        }
        Ok(len)
    }

    /// Calls [`pop_at_end`](crate::keyspace::KeyspaceStore::pop_at_end) and reports the change.
    ///
    /// # Errors
    /// Those of the called method.
    pub fn pop_at_end(&self, key: &[u8], end: End) -> Result<Option<Vec<u8>>> {
        let value = self.settle([key], self.keys.pop_at_end(key, end))?;
        if value.is_some() {
            self.report_edit(key, Effect::Changed, None);
        }
        Ok(value)
    }

    /// Calls `read` with the hash of a key.
    ///
    /// # Errors
    /// The key holds no hash.
    pub fn hash<R>(&self, key: &[u8], read: impl FnOnce(&HashView<'_>) -> R) -> Result<Option<R>> {
        let found = match self.keys.snapshot() {
            Some(snapshot) => snapshot.read_typed_hash(key, read)?,
            None => self.keys.read_hash(key, read)?,
        };
        self.note_miss(key, found.is_none());
        Ok(found)
    }
}
