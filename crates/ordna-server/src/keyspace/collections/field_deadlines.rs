//! Deadlines of the fields of a large hash.
//!
//! In addition to its own entry, a field that expires has two entries in the reserved space: its
//! deadline by its part, and its part by its deadline. The head has a time before which no field is
//! due. So reads have to look for deadlines only between that time and the removal of the due
//! fields, some milliseconds later.

use std::ops::{Bound, ControlFlow};

use ordna::Direction;
use ordna::key::prefix_end;
use ordna::sync::notice;

use super::changes::{EntryKey, key_of};
use super::head::NEVER;
use super::large::Large;
use crate::keyspace::stored_key;

/// Number of entries that are read before their deadlines are looked up.
const CHUNK: usize = 256;

/// Fields that are due, and the deadline that follows.
#[derive(Debug)]
pub struct DueFields {
    /// Deadline and part of each field.
    pub fields: Vec<(u64, Vec<u8>)>,
    /// The deadline of the next field, which may also be due; [`NEVER`] if there is none.
    pub next: u64,
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?))
}

impl Large<'_> {
    /// Returns the collection as it is read at a time: fields that have expired by then are hidden.
    pub fn at(mut self, now: u64) -> Self {
        self.now = now;
        self
    }

    /// Returns whether some fields may have expired.
    pub(super) fn hides_fields(&self) -> bool {
        notice!("field_expiry.large_hides", self.head.soonest <= self.now)
    }

    fn deadline_key(&self, part: &[u8]) -> EntryKey {
        key_of(&[&stored_key::deadlines_of_fields(self.head.id), part])
    }

    fn due_key(&self, deadline: u64, part: &[u8]) -> EntryKey {
        key_of(&[&stored_key::fields_by_deadline(self.head.id), &deadline.to_be_bytes(), part])
    }

    fn deadline_of_part(&self, part: &[u8]) -> Option<u64> {
        if self.head.soonest == NEVER {
            return None;
        }
        self.get_key_with(&self.deadline_key(part), number).flatten()
    }

    /// Returns whether a field has expired.
    pub(super) fn is_due(&self, part: &[u8]) -> bool {
        self.deadline_of_part(part).is_some_and(|deadline| deadline <= self.now)
    }

    /// Returns whether a field has expired.
    pub fn is_due_named(&self, field: &[u8]) -> bool {
        self.hides_fields() && self.with_part(field, |part| self.is_due(part))
    }

    /// Returns the deadline of a field.
    pub fn deadline_of(&self, field: &[u8]) -> Option<u64> {
        self.with_part(field, |part| self.deadline_of_part(part))
    }

    /// Sets or removes the deadline of a field that is present or about to be removed.
    pub fn set_deadline(&mut self, field: &[u8], deadline: Option<u64>) {
        if self.head.soonest == NEVER && deadline.is_none() {
            return;
        }
        let part = self.with_part(field, <[u8]>::to_vec);
        self.set_deadline_of_part(&part, deadline);
    }

    /// Works like [`set_deadline`](Self::set_deadline), for a part.
    pub fn set_deadline_of_part(&mut self, part: &[u8], deadline: Option<u64>) {
        let former = self.deadline_of_part(part);
        if former == deadline {
            return;
        }
        if let Some(former) = former {
            self.remove_key(self.due_key(former, part));
        }
        let key = self.deadline_key(part);
        match deadline {
            Some(deadline) => {
                self.put_key(key, &deadline.to_be_bytes(), former.is_none());
                self.put_key(self.due_key(deadline, part), &[], true);
                self.head.soonest = self.head.soonest.min(deadline);
            }
            None => self.remove_key(key),
        }
    }

    /// Returns the number of fields that have not expired. O(1), or O(log n + l) while there are
    /// expired fields in l leaves.
    pub fn shown_len(&self) -> usize {
        if !self.hides_fields() {
            return self.head.len();
        }
        let lower = stored_key::fields_by_deadline(self.head.id);
        let upper = [&lower[..], &self.now.saturating_add(1).to_be_bytes()[..]].concat();
        let due = self.count_keys(Bound::Included(&lower), Bound::Excluded(&upper));
        self.head.len().saturating_sub(due)
    }

    /// Returns the fields that are due at a time, at most `limit`.
    pub fn due_fields(&self, now: u64, limit: usize) -> DueFields {
        let prefix = stored_key::fields_by_deadline(self.head.id);
        let (mut fields, mut next) = (Vec::new(), NEVER);
        self.visit_prefix(&prefix, |key, _| {
            let Some((deadline, part)) = number(key).zip(key.get(8..)) else {
                return ControlFlow::Continue(());
            };
            if deadline > now || fields.len() == limit {
                next = deadline;
                return ControlFlow::Break(());
            }
            fields.push((deadline, part.to_vec()));
            ControlFlow::Continue(())
        });
        DueFields { fields, next }
    }

    /// Visits part and deadline of each field that expires.
    pub fn visit_deadlines(&self, mut visit: impl FnMut(&[u8], u64)) {
        if self.head.soonest != NEVER {
            let prefix = stored_key::deadlines_of_fields(self.head.id);
            self.visit_prefix(&prefix, |part, deadline| {
                visit(part, number(deadline).unwrap_or(NEVER));
                ControlFlow::Continue(())
            });
        }
    }

    /// Visits the keys with a prefix, without the prefix, and their values.
    fn visit_prefix(&self, prefix: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) {
        let end = prefix_end(prefix);
        let upper = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let bounds = (Bound::Included(prefix), upper);
        self.visit_keys(bounds, Direction::Ascending, usize::MAX, &mut |key, value| {
            visit(key.get(prefix.len()..).unwrap_or_default(), value)
        });
    }

    /// Visits the fields whose CRC is at or after `from`, except those that have expired.
    #[cold]
    pub(super) fn visit_shown(
        &self,
        from: u32,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) {
        let mut lower = Bound::Included(from.to_be_bytes().to_vec());
        loop {
            let mut chunk: Vec<(Vec<u8>, Vec<u8>)> = Vec::with_capacity(CHUNK);
            let bounds = (lower.as_ref().map(Vec::as_slice), Bound::Unbounded);
            self.visit(bounds, Direction::Ascending, |part, value| {
                chunk.push((part.to_vec(), value.to_vec()));
                match chunk.len() < CHUNK {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            });
            for (part, value) in &chunk {
                if !self.is_due(part) && visit(part.get(4..).unwrap_or_default(), value).is_break()
                {
                    return;
                }
            }
            match chunk.pop() {
                Some((last, _)) if chunk.len() + 1 == CHUNK => lower = Bound::Excluded(last),
                _ => return,
            }
        }
    }
}
