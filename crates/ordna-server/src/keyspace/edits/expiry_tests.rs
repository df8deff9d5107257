//! Random histories of a hash with fields that expire, on a test clock, compared with a model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ordna::{Change, Options};
use proptest::prelude::*;

use super::hash::HashView;
use super::removal::ExpiredFields;
use crate::keyspace::Keyspace;
use crate::keyspace::collections::head::NEVER;
use crate::keyspace::snapshot::KeyspaceSnapshot;

/// Value and deadline of each field.
type Model = BTreeMap<Vec<u8>, (Vec<u8>, u64)>;

#[derive(Debug, Clone)]
enum Step {
    Set(u8),
    SetKeepingDeadline(u8),
    Remove(u8),
    /// Sets a deadline after some time, or none.
    Expire(u8, Option<u64>),
    /// Sets many fields, the first of which expire, so that the hash becomes large.
    Fill(u64),
    /// Advances the clock.
    Pass(u64),
    /// Does the work of the background task.
    RemoveExpired,
    TakeSnapshot,
    Rename,
    Copy,
    ExpireKey(Option<u64>),
    Overwrite,
}

/// Number of fields that [`Step::Fill`] sets: more than a small hash can have.
const FILLED: usize = 1300;

fn step() -> impl Strategy<Value = Step> {
    let field = 0..12_u8;
    let after = proptest::option::weighted(0.8, 1..60_u64);
    prop_oneof![
        6 => field.clone().prop_map(Step::Set),
        2 => field.clone().prop_map(Step::SetKeepingDeadline),
        3 => field.clone().prop_map(Step::Remove),
        8 => (field, after.clone()).prop_map(|(field, after)| Step::Expire(field, after)),
        1 => (1..60_u64).prop_map(Step::Fill),
        6 => (0..25_u64).prop_map(Step::Pass),
        4 => Just(Step::RemoveExpired),
        2 => Just(Step::TakeSnapshot),
        1 => Just(Step::Rename),
        1 => Just(Step::Copy),
        1 => after.prop_map(Step::ExpireKey),
        1 => Just(Step::Overwrite),
    ]
}

fn name(field: u8) -> Vec<u8> {
    // Some names are longer than those in a list may be.
    [b"f".repeat(if field > 9 { 70 } else { 1 }), vec![field]].concat()
}

fn shown(model: &Model, now: u64) -> Model {
    model
        .iter()
        .filter(|(_, (_, deadline))| *deadline > now)
        .map(|(f, v)| (f.clone(), v.clone()))
        .collect()
}

fn all(view: &HashView<'_>) -> Model {
    let mut found = Vec::new();
    view.for_each(|field, value| found.push((field.to_vec(), value.to_vec())));
    assert_eq!(view.len(), found.len());
    let with_deadline = |(field, value): (Vec<u8>, Vec<u8>)| {
        let deadline = view.deadline(&field).expect("the field is shown");
        assert_eq!(view.get_with(&field, <[u8]>::to_vec).as_ref(), Some(&value));
        (field, (value, deadline))
    };
    found.into_iter().map(with_deadline).collect()
}

struct History {
    keys: Keyspace,
    clock: Arc<AtomicU64>,
    key: &'static [u8],
    model: Model,
    expires_at: Option<u64>,
    snapshots: Vec<(KeyspaceSnapshot, &'static [u8], Model)>,
    number: u32,
}

const KEYS: [&[u8]; 2] = [b"hash", b"\xFEother"];

impl History {
    fn new() -> Self {
        let clock = Arc::new(AtomicU64::new(1000));
        let told = Arc::clone(&clock);
        let options = Options::new().background_collector(false);
        let keys = Keyspace::with_options(options.clock(move || told.load(Ordering::SeqCst)));
        let (model, snapshots) = (Model::new(), Vec::new());
        Self { keys, clock, key: KEYS[0], model, expires_at: None, snapshots, number: 0 }
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::SeqCst)
    }

    fn set(&mut self, field: u8, keeps_deadline: bool) {
        self.number += 1;
        let (field, value) = (name(field), self.number.to_string().into_bytes());
        let before = shown(&self.model, self.now()).get(&field).map(|(_, deadline)| *deadline);
        let edited = self.keys.edit_hash(self.key, true, |hash| match keeps_deadline {
            true => hash.set_keeping_deadline(&field, &value),
            false => hash.set(&field, &value),
        });
        assert_eq!(edited.unwrap().result, before.is_none());
        let deadline = before.filter(|_| keeps_deadline).unwrap_or(NEVER);
        self.model.insert(field, (value, deadline));
    }

    fn step(&mut self, step: &Step) {
        let now = self.now();
        // A key that has expired or lost its last field counts as a new key afterwards.
        if self.expires_at.is_some_and(|at| at <= now) || !self.keys.contains(self.key) {
            assert!(!self.keys.contains(self.key));
            self.model.clear();
            self.expires_at = None;
        }
        match *step {
            Step::Set(field) => self.set(field, false),
            Step::SetKeepingDeadline(field) => self.set(field, true),
            Step::Remove(field) => {
                let field = name(field);
                let was_there = shown(&self.model, now).contains_key(&field);
                let edited = self.keys.edit_hash(self.key, true, |hash| Ok(hash.remove(&field)));
                assert_eq!(edited.unwrap().result, was_there);
                if was_there {
                    self.model.remove(&field);
                }
            }
            Step::Expire(field, after) => {
                let (field, deadline) = (name(field), after.map_or(NEVER, |after| now + after));
                let edited = self.keys.edit_hash(self.key, true, |hash| {
                    let former = hash.deadline(&field);
                    if former.is_some() {
                        hash.set_deadline(&field, deadline);
                    }
                    Ok(former)
                });
                let known = shown(&self.model, now).get(&field).map(|(_, deadline)| *deadline);
                assert_eq!(edited.unwrap().result, known);
                if let Some(found) = self.model.get_mut(&field).filter(|_| known.is_some()) {
                    found.1 = deadline;
                }
            }
            Step::Fill(after) => {
                for at in 0..FILLED {
                    let (field, expires) = (format!("many{at}").into_bytes(), at % 2 == 0);
                    let deadline = if expires { now + after } else { NEVER };
                    self.model.insert(field, (b"x".to_vec(), deadline));
                }
                let filled: Vec<_> =
                    self.model.iter().filter(|(field, _)| field.starts_with(b"many")).collect();
                let edited = self.keys.edit_hash(self.key, true, |hash| {
                    for (field, (value, deadline)) in &filled {
                        hash.set(field, value)?;
                        hash.set_deadline(field, *deadline);
                    }
                    Ok(())
                });
                edited.unwrap();
            }
            Step::Pass(time) => drop(self.clock.fetch_add(time, Ordering::SeqCst)),
            Step::RemoveExpired => self.remove_expired(),
            Step::TakeSnapshot => {
                let snapshot = KeyspaceSnapshot::of(&self.keys);
                self.snapshots.push((snapshot, self.key, shown(&self.model, now)));
                self.snapshots.drain(..self.snapshots.len().saturating_sub(4));
            }
            Step::Rename => {
                let to = KEYS[usize::from(self.key == KEYS[0])];
                let value = self.keys.get_with(self.key, <[u8]>::to_vec);
                if let Some(value) = value {
                    self.keys.rename(self.key, to, &value, self.expires_at).unwrap();
                    self.key = to;
                }
            }
            Step::Copy => {
                let to = KEYS[usize::from(self.key == KEYS[0])];
                if let Some(value) = self.keys.get_with(self.key, <[u8]>::to_vec) {
                    self.store(to, value);
                    self.clear(self.key);
                    (self.key, self.expires_at) = (to, None);
                }
            }
            Step::ExpireKey(after) => {
                let expires_at = after.map(|after| now + after);
                self.keys.modify_expiry(self.key, |_| Change::Put(expires_at)).unwrap();
                if self.keys.contains(self.key) {
                    self.expires_at = expires_at;
                }
            }
            Step::Overwrite => {
                self.clear(self.key);
                self.model.clear();
                self.expires_at = None;
            }
        }
    }

    fn store(&self, key: &[u8], value: Vec<u8>) {
        use super::build::NewValue;
        match self.keys.copy_of(value, None) {
            NewValue::Large(large) => self.keys.put_large(key, &large, None, None).unwrap(),
            NewValue::Record(value) => {
                let put = |_: Option<ordna::Found<'_, [u8]>>| {
                    Change::Put(ordna::Put { value: value.as_slice(), expires_at: None })
                };
                self.keys.modify_entry(key, put).unwrap();
            }
        }
    }

    fn clear(&self, key: &[u8]) {
        self.keys.modify_entry::<&[u8]>(key, |_| Change::Remove).unwrap();
    }

    /// Removes everything that has expired, and what is left of former values.
    fn remove_expired(&mut self) {
        let now = self.now();
        let (mut count, mut is_gone) = (0, false);
        let key = self.key;
        while self
            .keys
            .remove_expired(|found, ExpiredFields { count: more, is_gone: gone }| {
                assert_eq!(found, key);
                assert!(more > 0);
                count += more;
                is_gone |= gone;
            })
            .unwrap()
        {}
        while self.keys.remove_elements().unwrap() > 0 {}
        let before = self.model.len();
        self.model = shown(&self.model, now);
        // The key itself may have expired first.
        if self.expires_at.is_none_or(|at| at > now) {
            assert_eq!(before - self.model.len(), count);
            assert_eq!(is_gone, before > 0 && self.model.is_empty());
        }
        let reserved = self.keys.collections().reserved.sum();
        assert_eq!(reserved, self.keys.count_reserved(), "the counter is right");
    }

    fn check(&self) {
        let now = self.now();
        let model = match self.expires_at.is_some_and(|at| at <= now) {
            true => Model::new(),
            false => shown(&self.model, now),
        };
        let found = self.keys.read_hash(self.key, all).unwrap();
        assert_eq!(found.is_some(), !model.is_empty());
        assert_eq!(found.unwrap_or_default(), model);
        let next = self.keys.next_deadline(self.key);
        let first = model.values().map(|(_, deadline)| *deadline).min().unwrap_or(NEVER);
        let first = first.min(self.expires_at.filter(|at| *at > now).unwrap_or(NEVER));
        assert!(model.is_empty() || next.unwrap_or(NEVER) <= first, "indexes look again in time");
        for (snapshot, key, model) in &self.snapshots {
            assert_eq!(snapshot.read_hash(key, all).unwrap_or_default(), *model);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 32 } else { 512 }))]
    #[test]
    fn fields_are_there_until_they_expire(steps in proptest::collection::vec(step(), 1..60)) {
        let mut history = History::new();
        for step in &steps {
            history.step(step);
            history.check();
        }
        history.clock.fetch_add(1 << 20, Ordering::SeqCst);
        history.step(&Step::Pass(0));
        history.remove_expired();
        history.check();
        history.clear(history.key);
        while history.keys.remove_elements().unwrap() > 0 {}
        prop_assert_eq!(history.keys.count_reserved(), 0, "nothing is left");
    }
}

/// No step of the background task removes more than some fields; expired fields are hidden until
/// they are removed.
#[test]
fn many_fields_that_expire_at_once_are_removed_in_steps() {
    let mut history = History::new();
    history.step(&Step::Fill(10));
    history.step(&Step::Pass(10));
    history.check();
    let mut steps = 0;
    loop {
        let mut removed = 0;
        let more = history.keys.remove_expired(|_, expired| removed += expired.count).unwrap();
        assert!(removed <= 512, "{removed}");
        history.check();
        steps += 1;
        if !more {
            break;
        }
    }
    assert!(steps >= FILLED / 2 / 512);
    assert_eq!(history.keys.read_hash(history.key, |hash| hash.len()).unwrap(), Some(FILLED / 2));
    assert_eq!(history.keys.next_deadline(history.key), None);
}
