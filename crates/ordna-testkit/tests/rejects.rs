//! Checks that the suite detects defects: an index with one fault fails the check for that fault.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ordna_base::Locked;
use ordna_base::reclaim::Guard;
use ordna_base::{Change, Direction, Error, InvariantReport, OrderedIndex, Violation};
use ordna_testkit::{adversarial, concurrent, history, memory, model};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Wrong {
    /// No fault, as the control.
    Nowhere,
    /// Drops the insert of some keys.
    LosesInserts,
    /// Returns every tenth entry of a scan twice.
    RepeatsInScans,
    /// Omits every tenth entry of a scan.
    SkipsInScans,
    /// Includes an excluded upper bound in scans.
    IgnoresBounds,
    /// Reads, decides and writes in separate steps.
    NotAtomic,
    /// Keeps the memory of removed entries.
    Leaks,
    /// Reports that its structure is broken.
    Invalid,
}

struct Broken {
    inner: Locked<u64, u64>,
    wrong: Wrong,
}

impl OrderedIndex for Broken {
    type Key = u64;
    type Value = u64;

    ordna_testkit::forward!(self, self.inner; get_with, approximate_len, memory_usage);

    fn modify<T, F>(&self, key: &u64, mut change: F) -> Result<(), Error>
    where
        T: Borrow<u64>,
        F: FnMut(Option<&u64>) -> Change<T>,
    {
        match self.wrong {
            Wrong::LosesInserts if key % 16 == 5 && !self.inner.contains(key) => {
                change(None);
                Ok(())
            }
            Wrong::NotAtomic => {
                let seen = self.inner.get(key);
                let decided = change(seen.as_ref());
                std::thread::yield_now();
                match decided {
                    Change::Keep => Ok(()),
                    Change::Put(value) => self.inner.insert(key, value.borrow()).map(drop),
                    Change::Remove => {
                        self.inner.remove(key);
                        Ok(())
                    }
                }
            }
            Wrong::Leaks => {
                Box::leak(vec![0_u8; 64].into_boxed_slice());
                self.inner.modify(key, change)
            }
            _ => self.inner.modify(key, change),
        }
    }

    fn scan_with(
        &self,
        (lower, upper): ordna_base::index::Bounds<'_, u64>,
        direction: Direction,
        _limit: usize,
        mut visit: impl FnMut(&u64, &u64) -> ControlFlow<()>,
    ) {
        let upper = match upper {
            Bound::Excluded(key) if self.wrong == Wrong::IgnoresBounds => Bound::Included(key),
            upper => upper,
        };
        let mut count = 0;
        self.inner.visit(lower, upper, direction, |key, value| {
            count += 1;
            match self.wrong {
                Wrong::SkipsInScans if count % 10 == 0 => return ControlFlow::Continue(()),
                Wrong::RepeatsInScans if count % 10 == 0 => visit(key, value)?,
                _ => {}
            }
            visit(key, value)
        });
    }

    fn pin(&self) -> Option<Guard<'_>> {
        None
    }

    fn check_invariants(&self) -> Result<InvariantReport, Violation> {
        if self.wrong == Wrong::Invalid {
            return Err(Violation("a link is out of order".to_owned()));
        }
        self.inner.check_invariants()
    }
}

type Check = fn(Wrong);

fn new(wrong: Wrong) -> Broken {
    Broken { inner: Locked::new(), wrong }
}

const MODEL: Check = |wrong| model::check(|| new(wrong));
const KEYS: Check = |wrong| adversarial::check(|| new(wrong));
const OWNERS: Check = |wrong| concurrent::check_owners(|| new(wrong));
const SCANS: Check = |wrong| concurrent::check_scans(|| new(wrong));
const HISTORY: Check = |wrong| history::check(|| new(wrong));
const MEMORY: Check = |wrong| memory::check(|| new(wrong));

/// Returns whether the check fails for an index with this fault.
fn fails(wrong: Wrong, check: Check) -> bool {
    catch_unwind(AssertUnwindSafe(|| check(wrong))).is_err()
}

#[test]
fn the_control_passes_every_check() {
    for (at, check) in [MODEL, KEYS, OWNERS, SCANS, HISTORY, MEMORY].into_iter().enumerate() {
        assert!(!fails(Wrong::Nowhere, check), "check {at}");
    }
}

#[test]
fn each_fault_fails_the_checks_that_are_there_for_it() {
    for (wrong, checks) in [
        (Wrong::LosesInserts, &[MODEL, KEYS, OWNERS][..]),
        (Wrong::RepeatsInScans, &[MODEL, KEYS, SCANS]),
        (Wrong::SkipsInScans, &[MODEL, KEYS, SCANS]),
        (Wrong::IgnoresBounds, &[MODEL, KEYS, SCANS]),
        (Wrong::NotAtomic, &[HISTORY]),
        (Wrong::Leaks, &[MEMORY]),
        (Wrong::Invalid, &[MODEL, KEYS, OWNERS, SCANS, HISTORY, MEMORY]),
    ] {
        for (at, check) in checks.iter().enumerate() {
            assert!(fails(wrong, *check), "{wrong:?} passes check {at}");
        }
    }
}
