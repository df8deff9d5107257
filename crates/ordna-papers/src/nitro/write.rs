//! How a key is changed.
//!
//! # Contract
//! One call of [`Engine::apply`] is one step for readers of the latest state, and lies wholly in
//! the term of its announcement. It holds an announcement and a guard throughout.
//!
//! # Protocol
//! All writers at one time write in one term *t* (see [`super::terms`]). A write of a key finds one
//! of three:
//!
//! 1. *A version born in t.* No snapshot sees it. It is replaced or unlinked, in one step.
//! 2. *A live version V born before t.* A removal sets its term of death, in one step. A put first
//!    *claims* V (its death becomes [`CLAIMED`]), inserts the new version behind it, which is the step
//!    that counts, and then ends V's life. Other writers of the key wait for the insertion.
//! 3. *None, or a dead one.* A put inserts.
//!
//! Without the claim a removal that has found V could end it after the put's insertion, and the put
//! would report a predecessor that was gone. Nor may V be still claimed once the new version is
//! unlinked in the same term, or V would rise again: who removes a version born in *t* first ends
//! the claimed one in front of it, in its claimer's stead.
//!
//! In case 3 a closure that decides to do nothing needs more than a dead version: the next one may
//! have been inserted between finding the dead one and reading its death. So it looks whether the
//! place is still current.
//!
//! # What is ended
//! A version ended by a write is unlinked at once if no live snapshot sees it. Otherwise it goes to
//! the writer's list of dead versions, and the writer looks once more: the last snapshot that sees
//! it may have gone between the first look and the entry in the list, too early to find it there.
//!
//! # Progress
//! Blocking per key, between a claim and its insertion; otherwise lock-free. And see the gate in
//! [`super::terms`].
//!
//! Source: the Nitro paper, §3.1 (there an update is a removal and an insertion, two steps).

use std::borrow::Borrow;

use super::engine::{Engine, Place, Versions};
use super::payment::Payment;
use super::raw::{CLAIMED, Corpse, LIVE, NewVersion, Node, cost};
use super::structure::Structure;
use ordna_base::index::Change;
use ordna_base::reclaim::Guard;
use ordna_base::sync::{Backoff, fault, point};
use ordna_base::{Error, Key, Value};

/// A key's present entry, as a conditional write sees it.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found<'a, V: ?Sized> {
    /// The value.
    pub value: &'a V,
    /// The term it was written in; see [`super::Store::get_versioned`] for what it proves.
    pub version: u64,
    /// When it expires, in milliseconds on the store's clock.
    pub expires_at: Option<u64>,
}

impl<V: ?Sized> Clone for Found<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<V: ?Sized> Copy for Found<'_, V> {}

/// What a conditional write puts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put<T> {
    /// The value.
    pub value: T,
    /// When it expires, in milliseconds on the store's clock.
    pub expires_at: Option<u64>,
}

impl<T> Put<T> {
    /// A value that does not expire.
    pub fn forever(value: T) -> Self {
        Self { value, expires_at: None }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Engine<K, V> {
    /// Shows the entry of `key` to `change` and does what it says. An expired entry is shown as
    /// absent.
    pub fn apply<T, F>(
        &self,
        key: &K,
        term: u64,
        guard: &Guard<'_>,
        payment: Payment,
        mut change: F,
    ) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<Found<'_, V>>) -> Change<Put<T>>,
    {
        let mut backoff = Backoff::new();
        let mut rounds = 0;
        loop {
            rounds += 1;
            if rounds > 1 {
                self.retries.add(1);
            }
            let mut place = self.versions.place(key, term, guard);
            if let Some(node) = Versions::found(&place) {
                match self.show(node, &mut change) {
                    Change::Keep => return Ok(()),
                    Change::Put(put) => {
                        let new = self.prepare(key, &put, term, payment, node.cost())?;
                        if self.versions.exchange(&mut place, node, &new.version, guard) {
                            new.inserted();
                            self.forget_deadline(node, guard);
                            return Ok(());
                        }
                    }
                    Change::Remove => {
                        self.end_claimed(Versions::last(&place), key, term, guard);
                        point("mvcc.remove.before_unlink");
                        if self.versions.unlink(&mut place, node, guard) {
                            self.terms.items.add(-1);
                            self.budget.release(node.cost());
                            self.forget_deadline(node, guard);
                            return Ok(());
                        }
                    }
                }
                continue;
            }
            let older = Versions::last(&place).filter(|node| node.key(guard) == key);
            point("mvcc.apply.found_older");
            match older.map(|node| (node, node.dead())) {
                Some((_, CLAIMED)) => backoff.wait(),
                Some((node, LIVE)) => match self.show(node, &mut change) {
                    Change::Keep => return Ok(()),
                    Change::Put(put) => {
                        let new = self.prepare(key, &put, term, payment, 0)?;
                        point("mvcc.put.before_claim");
                        if !fault!("mvcc.put.claims") && !node.end(LIVE, CLAIMED) {
                            continue;
                        }
                        point("mvcc.put.claimed");
                        self.insert_behind(&mut place, key, term, &new.version, guard);
                        new.inserted();
                        point("mvcc.put.inserted");
                        // Not CLAIMED any more if a remover of the new version was faster.
                        node.end(if fault!("mvcc.put.claims") { LIVE } else { CLAIMED }, term);
                        self.bury(node, term, guard);
                        return Ok(());
                    }
                    Change::Remove => {
                        point("mvcc.remove.before_death");
                        if node.end(LIVE, term) || fault!("mvcc.remove.every_racer_wins") {
                            self.terms.items.add(-1);
                            self.bury(node, term, guard);
                            return Ok(());
                        }
                    }
                },
                dead => match change(None) {
                    Change::Keep | Change::Remove => {
                        if dead.is_none()
                            || Versions::is_current(&place)
                            || fault!("mvcc.apply.absent_is_current")
                        {
                            return Ok(());
                        }
                    }
                    Change::Put(put) => {
                        let new = self.prepare(key, &put, term, payment, 0)?;
                        if self.versions.link(&mut place, &new.version, guard) {
                            self.terms.items.add(1);
                            new.inserted();
                            return Ok(());
                        }
                    }
                },
            }
        }
    }

    fn show<T>(
        &self,
        node: Node<K, V>,
        change: &mut impl FnMut(Option<Found<'_, V>>) -> Change<T>,
    ) -> Change<T> {
        if self.is_expired(node) {
            return change(None);
        }
        let (version, expires_at) = (node.born(), node.expires_at());
        node.with_value(|value| change(Some(Found { value, version, expires_at })))
    }

    /// Checks what is to be put, and reserves what it takes beyond the bytes of the version that it
    /// replaces (0: none): whoever exchanges that has its bytes. Undone unless it is inserted.
    fn prepare<'a, T: Borrow<V>>(
        &'a self,
        key: &'a K,
        put: &'a Put<T>,
        term: u64,
        payment: Payment,
        replaced: usize,
    ) -> Result<Prepared<'a, K, V>, Error> {
        let value = put.value.borrow();
        value.check()?;
        let cost = match payment {
            Payment::Due | Payment::Forced => cost(key, value, put.expires_at.is_some()),
            Payment::Done => 0,
        };
        let (bytes, surplus) = (cost.saturating_sub(replaced), replaced.saturating_sub(cost));
        match payment {
            Payment::Forced => self.budget.reserve_forced(bytes),
            Payment::Due | Payment::Done => self.budget.reserve(bytes)?,
        }
        if let Some(deadline) = put.expires_at {
            self.deadlines.add(key, deadline);
        }
        let version = NewVersion::new(key, value, term, put.expires_at);
        Ok(Prepared { engine: self, key, bytes, surplus, deadline: put.expires_at, version })
    }

    /// Inserts a version of a key whose last one this thread has claimed: nobody else does.
    fn insert_behind(
        &self,
        place: &mut Place<K, V>,
        key: &K,
        term: u64,
        new: &NewVersion<'_, K, V>,
        guard: &Guard<'_>,
    ) {
        while !self.versions.link(place, new, guard) {
            *place = self.versions.place(key, term, guard);
        }
    }

    /// Ends the claimed version in front of one born in `term`, whose insertion proves the claim used.
    fn end_claimed(&self, last: Option<Node<K, V>>, key: &K, term: u64, guard: &Guard<'_>) {
        if let Some(claimed) = last.filter(|last| last.key(guard) == key)
            && !fault!("mvcc.remove.ends_claimed")
        {
            claimed.end(CLAIMED, term);
        }
    }

    /// This thread's write has ended the version.
    fn forget_deadline(&self, node: Node<K, V>, guard: &Guard<'_>) {
        if let Some(deadline) = node.expires_at() {
            self.deadlines.forget(node.key(guard), deadline);
        }
    }

    /// Disposes of a version that this thread's write has ended.
    fn bury(&self, node: Node<K, V>, term: u64, guard: &Guard<'_>) {
        self.forget_deadline(node, guard);
        let corpse = Corpse::new(node, term);
        let born = self.graves.first_that_keeps(&corpse);
        if self.terms.is_unseen(born) {
            let rank = corpse.rank(guard);
            let mut place = self.versions.place(rank.key, rank.born, guard);
            self.unlink(corpse, &mut place, guard);
            return;
        }
        point("mvcc.bury.seen");
        let long = self.graves.enlist(corpse);
        if long || (self.terms.is_unseen(born) && !fault!("mvcc.bury.second_look")) {
            self.leave_to_collectors();
        }
    }

    /// Removes a version that was born before `term` and is kept linked, if it is the latest of its
    /// key. O(1).
    pub fn end(&self, node: Node<K, V>, term: u64, guard: &Guard<'_>) -> bool {
        let mut backoff = Backoff::new();
        loop {
            match node.dead() {
                LIVE if node.end(LIVE, term) => {
                    self.terms.items.add(-1);
                    self.bury(node, term, guard);
                    return true;
                }
                LIVE => {}
                // Its claimer puts another in its place, or was about to: no more than that is left.
                CLAIMED => backoff.wait(),
                _ => return false,
            }
        }
    }

    /// Unlinks a dead version that no snapshot sees, at its place.
    pub fn unlink(&self, corpse: Corpse<K, V>, place: &mut Place<K, V>, guard: &Guard<'_>) {
        let dead = corpse.dead;
        let node = corpse.into_node();
        self.announce_removal(node, dead, guard);
        self.budget.release(node.cost());
        self.graves.count_collected();
        self.versions.unlink(place, node, guard);
    }
}

/// A version about to be inserted.
struct Prepared<'a, K: Key + ?Sized, V: Value + ?Sized> {
    engine: &'a Engine<K, V>,
    key: &'a K,
    /// Reserved for it.
    bytes: usize,
    /// What the version that it replaces takes more than it.
    surplus: usize,
    deadline: Option<u64>,
    version: NewVersion<'a, K, V>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Prepared<'_, K, V> {
    /// It is.
    fn inserted(mut self) {
        self.bytes = 0;
        if self.surplus > 0 {
            self.engine.budget.release(self.surplus);
        }
        if let Some(deadline) = self.deadline.take()
            && self.engine.deadlines.schedule(deadline)
        {
            self.engine.wake_for_deadline();
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Prepared<'_, K, V> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.engine.budget.release(self.bytes);
        }
        if let Some(deadline) = self.deadline {
            self.engine.deadlines.forget(self.key, deadline);
        }
    }
}
