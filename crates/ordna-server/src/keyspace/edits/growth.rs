//! Changes on a snapshot with which a small or absent collection becomes large.

use super::collection::SmallForm;
use super::hash::{HashChange, SmallHash};
use crate::keyspace::KeyspaceStore;
use crate::keyspace::collections::Body;
use crate::keyspace::collections::large::Large;
use crate::keyspace::collections::packed::Packed;
use crate::keyspace::snapshot::KeyspaceSnapshot;
use crate::keyspace::stored_value;
use crate::keyspace::value_kind::ValueKind;
use crate::wire::error::CommandError;

type Result<T> = std::result::Result<T, CommandError>;

/// A collection that has become large and is not yet assigned to a key.
#[derive(Debug)]
pub struct Grown {
    /// Whether the key was present, and its deadline.
    pub was_there: bool,
    pub expires_at: Option<u64>,
    pub large: Large<'static>,
}

impl KeyspaceSnapshot {
    /// Returns the result of `change` on a small or absent list, set or sorted set, or `None` if it
    /// still fits into a record. `change` is called at most twice.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn grown<R>(
        &self,
        keys: &KeyspaceStore,
        key: &[u8],
        kind: ValueKind,
        change: &mut impl FnMut(&mut Body<'_>) -> Result<R>,
    ) -> Result<Option<(R, Grown)>> {
        let found = self.get_entry(key);
        let small = || match &found {
            Some((value, _)) => Packed::read(value).filter(|packed| packed.kind == kind),
            None => Some(Packed::new(kind)),
        };
        let Some(packed) = small() else { return Ok(None) };
        let mut body = Body::Packed(packed);
        change(&mut body)?;
        if !matches!(&body, Body::Packed(packed) if packed.is_full) {
            return Ok(None);
        }
        let mut large = keys.new_large(kind);
        if let Some(small) = small() {
            small.spread(&mut large);
        }
        let mut body = Body::Large(large);
        let result = change(&mut body)?;
        let Body::Large(mut large) = body else { return Ok(None) };
        large.keep_id();
        let expires_at = found.as_ref().and_then(|(_, expires_at)| *expires_at);
        Ok(Some((result, Grown { was_there: found.is_some(), expires_at, large })))
    }

    /// Works like [`grown`](Self::grown), for a hash. Also returns `None` if some of its fields
    /// expire.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn grown_hash<R>(
        &self,
        keys: &KeyspaceStore,
        key: &[u8],
        change: &mut impl FnMut(&mut HashChange<'_>) -> Result<R>,
    ) -> Result<Option<(R, Grown)>> {
        let found = self.get_entry(key);
        let hash = found.as_ref().map(|(value, _)| stored_value::hash(value));
        if hash.is_some_and(|hash| hash.is_none()) {
            return Ok(None);
        }
        let mut body = HashChange::Small(SmallHash::of(hash.flatten()));
        let result = change(&mut body)?;
        let HashChange::Small(small) = body else { return Ok(None) };
        let Some(edit) = small.outgrown() else { return Ok(None) };
        let mut large = keys.new_large(ValueKind::Hash);
        edit.spread(&mut large);
        let expires_at = found.as_ref().and_then(|(_, expires_at)| *expires_at);
        Ok(Some((result, Grown { was_there: found.is_some(), expires_at, large })))
    }
}
