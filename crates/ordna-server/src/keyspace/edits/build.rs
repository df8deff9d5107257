//! Collections that are created as a whole, by RESTORE, COPY and commands that store their result.

use std::ops::{Bound, ControlFlow};

use ordna::{Direction, Put, Write};

use crate::keyspace::KeyspaceStore;
use crate::keyspace::collections::Body;
use crate::keyspace::collections::ends::Ends;
use crate::keyspace::collections::head::Head;
use crate::keyspace::collections::large::{Large, Source};
use crate::keyspace::collections::names::MOST_NAME;
use crate::keyspace::collections::packed::{MOST_INTEGERS, Packed};
use crate::keyspace::edits::staging::Staged;
use crate::keyspace::expiring_hash::{self, DeadlineMap};
use crate::keyspace::hash::Edit;
use crate::keyspace::list::{self, End};
use crate::keyspace::set;
use crate::keyspace::snapshot::KeyspaceSnapshot;
use crate::keyspace::sorted_set::{self, Scored};
use crate::keyspace::stored_key::{removal, stored};
use crate::keyspace::value_kind::ValueKind;
use crate::wire::error::CommandError;

/// A value that is not stored yet.
#[expect(clippy::large_enum_variant, reason = "a command has one, on its stack")]
#[derive(Debug)]
pub enum NewValue {
    /// A record in its stored form.
    Record(Vec<u8>),
    Large(Large<'static>),
}

impl KeyspaceStore {
    /// Creates a hash of these fields, each followed by its value, with their deadlines. Returns
    /// `None` if a field is too long or occurs twice.
    pub fn build_hash(&self, texts: &[Vec<u8>], deadlines: &DeadlineMap) -> Option<NewValue> {
        /// Number of fields up to which a single record is tried first.
        const TRIED: usize = 2048;
        let pairs = texts.chunks_exact(2);
        if texts.len() <= TRIED {
            let mut edit = Edit::of(None);
            let fits =
                |pair: &[Vec<u8>]| pair[0].len() <= MOST_NAME && edit.set(&pair[0], &pair[1]);
            if !pairs.clone().all(fits) {
                return None;
            }
            let len = edit.len();
            if let Ok(record) = edit.finish_small() {
                if deadlines.is_empty() {
                    return Some(NewValue::Record(record));
                }
                let mut small = self.new_large(ValueKind::Hash);
                small.head.count = len as u64;
                small.head.soonest = expiring_hash::soonest(deadlines);
                small.inline = Some(expiring_hash::stored(&record, deadlines));
                return Some(NewValue::Large(small));
            }
        }
        let mut large = self.new_large(ValueKind::Hash);
        for pair in pairs {
            if pair[0].len() > MOST_NAME || large.get_named(&pair[0], |_| ()).is_some() {
                return None;
            }
            large.put_named(&pair[0], &pair[1], true);
            large.head.count += 1;
            large.set_deadline(&pair[0], deadlines.get(&pair[0]).copied());
        }
        Some(NewValue::Large(large))
    }

    /// Creates a sorted set of these distinct members.
    ///
    /// # Errors
    /// A member is too long.
    pub fn build_sorted_set(&self, members: &[Scored]) -> Result<NewValue, CommandError> {
        self.build(ValueKind::ZSet, members, |body, (member, score)| {
            sorted_set::set_score(body, member, None, *score)
        })
    }

    /// Creates a set of these members.
    ///
    /// # Errors
    /// A member is too long.
    pub fn build_set(&self, members: &[Vec<u8>]) -> Result<NewValue, CommandError> {
        self.build(ValueKind::Set, members, |body, member| set::add(body, member).map(drop))
    }

    /// Creates a list of these values.
    ///
    /// # Errors
    /// Never fails.
    pub fn build_list(&self, values: &[Vec<u8>]) -> Result<NewValue, CommandError> {
        self.build(ValueKind::List, values, |body, value| {
            list::push(body, value, End::Back);
            Ok(())
        })
    }

    /// Creates a collection of these elements, in one record if they fit.
    fn build<T>(
        &self,
        kind: ValueKind,
        elements: &[T],
        add: impl Fn(&mut Body<'_>, &T) -> Result<(), CommandError>,
    ) -> Result<NewValue, CommandError> {
        if elements.len() <= MOST_INTEGERS {
            let mut body = Body::Packed(Packed::new(kind));
            elements.iter().try_for_each(|element| add(&mut body, element))?;
            if let Body::Packed(packed) = body
                && !packed.is_full
            {
                return Ok(NewValue::Record(packed.stored()));
            }
        }
        let mut body = Body::Large(self.new_large(kind));
        elements.iter().try_for_each(|element| add(&mut body, element))?;
        match body {
            Body::Large(mut large) => {
                large.keep_id();
                Ok(NewValue::Large(large))
            }
            Body::Packed(packed) => Ok(NewValue::Record(packed.stored())),
        }
    }

    /// Returns a copy of a stored value. A large collection gets copies of its elements, which are
    /// read from the snapshot or, if there is none, from the store; the caller then excludes other
    /// commands.
    pub fn copy_of(&self, value: Vec<u8>, snapshot: Option<&KeyspaceSnapshot>) -> NewValue {
        let Some(head) = Head::read(&value) else { return NewValue::Record(value) };
        let mut copy = self.new_large(head.kind);
        let all = (Bound::Unbounded, Bound::Unbounded);
        let from = match snapshot {
            Some(snapshot) => Large::new(Source::Snapshot(snapshot.stored()), head),
            None => self.live(head),
        };
        copy.inline = Head::inline(&value).map(<[u8]>::to_vec);
        copy.ends = Ends::of(&value);
        if copy.inline.is_none() {
            from.visit(all, Direction::Ascending, |part, value| {
                copy.put(&[part], value, true);
                ControlFlow::Continue(())
            });
            from.visit_deadlines(|part, deadline| {
                copy.set_deadline_of_part(part, Some(deadline));
            });
        }
        copy.head = Head { id: copy.head.id, ..head };
        NewValue::Large(copy)
    }

    /// Sets a key to a large collection, whose elements may already be stored. The caller excludes
    /// other commands.
    ///
    /// # Errors
    /// The memory limit is reached, or the log has failed.
    pub fn put_large(
        &self,
        key: &[u8],
        large: &Large<'_>,
        expires_at: Option<u64>,
        staged: Option<&Staged>,
    ) -> Result<(), CommandError> {
        let (stored_key, head) = (stored(key), large.stored_head());
        let read = |put: Put<&[u8]>| Some((Head::read(put.value)?, put.expires_at));
        let gone = self.store.get_entry_with(&stored_key, read).flatten();
        let listed = staged.map(|staged| removal(staged.id));
        let mut batch: Vec<Write<'_, [u8], [u8]>> = match &listed {
            Some(listed) => vec![Write::Remove(listed.as_slice())],
            None => large.elements().map(|(key, value)| Write::put(key, value)).collect(),
        };
        let (mut added, listed) = if listed.is_some() { (-1, -1) } else { (large.added, 0) };
        batch.push(Write::Put(&*stored_key, Put { value: &head[..], expires_at }));
        let entry = large.head.deadline_entry(expires_at);
        batch.extend(entry.as_ref().map(|entry| Write::put(entry.as_slice(), key)));
        added += i64::from(entry.is_some());
        self.write_with_removals(batch, gone.as_slice(), added, listed)?;
        Ok(())
    }
}
