//! Changes of a key.
//!
//! # Contract
//! One call of [`Engine::apply`] is one step for readers of the latest state, and is completely in
//! the epoch of its announcement. It holds an announcement and a guard for its whole duration.
//!
//! # Protocol
//! At any time, all writers write in one epoch *t* (see [`ordna::store::epochs`]). A write of a key
//! finds one of three cases:
//!
//! 1. *A version born in t.* No snapshot sees it. It is replaced or unlinked, in one step.
//! 2. *A live version V born before t.* A removal sets its epoch of death, in one step. A put first
//!    *claims* V (its death becomes [`CLAIMED`]), then inserts the new version after it, which is
//!    the linearization point, and then ends V. Other writers of the key wait for the insertion.
//! 3. *No version, or a dead one.* A put inserts a version.
//!
//! Without the claim, a removal that has found V could end it after the put's insertion, and the
//! put would report a predecessor that no longer existed. V must not be claimed any more when the
//! new version is unlinked in the same epoch, because V would become the latest version again. So
//! the remover of a version born in *t* first ends the claimed one before it, on behalf of its
//! claimer.
//!
//! In case 3, if a closure decides to do nothing, a dead version is not enough: another writer may
//! have inserted the next one between the search and the load of the death. So the writer checks
//! that the place is still current.
//!
//! # The ended version
//! A version that a write has ended is unlinked at once if no live snapshot sees it. Otherwise the
//! writer adds it to its garbage list, and reads the live set again: the last snapshot that sees
//! the version may have ended between the first read and the addition to the list.
//!
//! # Progress
//! Blocking per key, between a claim and its insertion; otherwise lock-free, after the gate of the
//! epochs.
//!
//! Source: the Nitro paper, §3.1 (where an update is a removal and an insertion, in two steps).

use std::borrow::Borrow;

use super::engine::{Engine, VersionPlace};
use super::version::{CLAIMED, DeadVersion, LIVE, NewVersion, Node, Rank};
use ordna_base::index::Change;
use ordna_base::reclaim::Guard;
use ordna_base::sync::{Backoff, check, fault, notice, point};
use ordna_base::{Error, Key, Value};

impl<K: Key + ?Sized, V: Value + ?Sized> Engine<K, V> {
    /// Calls `change` with the value of `key` and applies its decision. The key must have been
    /// checked.
    pub fn apply<T, F>(
        &self,
        key: &K,
        epoch: u64,
        guard: &Guard<'_>,
        mut change: F,
    ) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        let rank = Rank { key, born: epoch };
        let mut backoff = Backoff::new();
        loop {
            let mut place = self.versions.find(rank, guard);
            if let Some(node) = place.found {
                match node.with_value(|value| change(Some(value))) {
                    Change::Keep => return Ok(()),
                    Change::Put(value) => {
                        let new = prepare(key, value.borrow(), epoch)?;
                        if self.versions.replace(&mut place, node, &new, guard) {
                            return Ok(());
                        }
                    }
                    Change::Remove => {
                        end_claimed(place.last, key, epoch, guard);
                        point("nitro.remove.before_unlink");
                        if self.versions.remove(&mut place, node, guard) {
                            self.epochs.items.add(-1);
                            return Ok(());
                        }
                    }
                }
                continue;
            }
            let older = place.last.filter(|node| node.key(guard) == key);
            point("nitro.apply.found_older");
            match older.map(|node| (node, node.dead())) {
                Some((_, CLAIMED)) => backoff.wait(),
                Some((node, LIVE)) => match node.with_value(|value| change(Some(value))) {
                    Change::Keep => return Ok(()),
                    Change::Put(value) => {
                        let new = prepare(key, value.borrow(), epoch)?;
                        point("nitro.put.before_claim");
                        if !claim(node) {
                            continue;
                        }
                        point("nitro.put.claimed");
                        // No other writer inserts a version of a key whose last one is claimed.
                        while !self.versions.insert(&mut place, &new, guard) {
                            place = self.versions.find(rank, guard);
                        }
                        point("nitro.put.inserted");
                        // This fails if a concurrent remover of the new version has already ended
                        // it.
                        node.end(claimed(), epoch);
                        self.dispose(node, epoch, guard);
                        return Ok(());
                    }
                    Change::Remove => {
                        point("nitro.remove.before_death");
                        if end_live(node, epoch) {
                            self.epochs.items.add(-1);
                            self.dispose(node, epoch, guard);
                            return Ok(());
                        }
                    }
                },
                dead => match change(None) {
                    Change::Keep | Change::Remove => {
                        if dead.is_none() || is_current(&place) {
                            return Ok(());
                        }
                    }
                    Change::Put(value) => {
                        let new = prepare(key, value.borrow(), epoch)?;
                        if self.versions.insert(&mut place, &new, guard) {
                            self.epochs.items.add(1);
                            return Ok(());
                        }
                    }
                },
            }
        }
    }

    /// Disposes of a version that this thread's write has ended.
    fn dispose(&self, node: Node<K, V>, epoch: u64, guard: &Guard<'_>) {
        let dead = DeadVersion::new(node, epoch);
        let born = self.garbage.first_that_keeps(&dead);
        if self.is_unseen(born) {
            let mut place = self.versions.find(dead.rank(guard), guard);
            self.unlink(dead, &mut place, guard);
            return;
        }
        point("nitro.dispose.seen");
        let is_full = self.garbage.list(dead);
        if is_full || self.became_unseen(born) {
            self.leave_to_collectors();
        }
    }

    /// Returns whether no live or future snapshot has an epoch of at least `born`, for a writer
    /// that has ended the version in its own epoch. May return `false` although there is none.
    fn is_unseen(&self, born: u64) -> bool {
        self.epochs.youngest().get() < born
    }

    /// Returns whether the last snapshot that sees a version ended before the version was in its
    /// list.
    fn became_unseen(&self, born: u64) -> bool {
        notice!("nitro.dispose.second_look", self.is_unseen(born))
    }

    /// Unlinks a dead version that no snapshot sees, at its place.
    pub fn unlink(
        &self,
        dead: DeadVersion<K, V>,
        place: &mut VersionPlace<K, V>,
        guard: &Guard<'_>,
    ) {
        self.garbage.count_collected();
        self.versions.remove(place, dead.into_node(), guard);
    }
}

fn prepare<'a, K, V>(key: &'a K, value: &'a V, born: u64) -> Result<NewVersion<'a, K, V>, Error>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
{
    value.check()?;
    Ok(NewVersion { key, value, born })
}

/// Claims a live version. Returns `false` if it is no longer live.
fn claim<K: Key + ?Sized, V: Value + ?Sized>(node: Node<K, V>) -> bool {
    check!("nitro.put.claims", node.end(LIVE, CLAIMED))
}

/// Returns the death of a version that this thread has claimed.
fn claimed() -> u64 {
    if fault!("nitro.put.claims") { LIVE } else { CLAIMED }
}

/// Ends a live version. Returns `true` in exactly one of several concurrent calls.
fn end_live<K: Key + ?Sized, V: Value + ?Sized>(node: Node<K, V>, epoch: u64) -> bool {
    check!("nitro.remove.every_racer_wins", node.end(LIVE, epoch))
}

/// Ends the claimed version before one born in `epoch`, whose insertion used the claim.
fn end_claimed<K, V>(last: Option<Node<K, V>>, key: &K, epoch: u64, guard: &Guard<'_>)
where
    K: Key + ?Sized,
    V: Value + ?Sized,
{
    if fault!("nitro.remove.ends_claimed") {
        return;
    }
    if let Some(claimed) = last.filter(|last| last.key(guard) == key) {
        claimed.end(CLAIMED, epoch);
    }
}

/// Returns whether the versions around the place are still neighbours, and linked.
fn is_current<K: Key + ?Sized, V: Value + ?Sized>(place: &VersionPlace<K, V>) -> bool {
    check!("nitro.apply.absent_is_current", place.is_current())
}
