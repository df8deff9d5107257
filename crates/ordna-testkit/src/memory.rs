//! Checks with a counting allocator that freed memory is returned.

use std::alloc::{GlobalAlloc, Layout, System};
use std::borrow::Borrow;
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use ordna_base::OrderedIndex;

use crate::erased::{Erased, Subject};
use crate::kinds::{TestKey, TestValue};

thread_local! {
    static HERE: Cell<i64> = const { Cell::new(0) };
}
static EVERYWHERE: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, with counts of the live bytes per thread and for the process.
#[derive(Debug)]
pub struct Counting;

fn count(bytes: i64) {
    // A thread that is ending no longer counts.
    let _ = HERE.try_with(|here| here.set(here.get() + bytes));
    EVERYWHERE.fetch_add(bytes, Ordering::Relaxed);
}

#[expect(unsafe_code, reason = "an allocator that counts and hands on")]
// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Returns the number of bytes allocated minus bytes freed by the calling thread.
pub fn live_here() -> i64 {
    HERE.with(Cell::get)
}

/// Returns the number of bytes allocated minus bytes freed by all threads.
pub fn live_everywhere() -> i64 {
    EVERYWHERE.load(Ordering::Relaxed)
}

/// Locked by tests that measure, so that one does not count another's structures.
static TURN: Mutex<()> = Mutex::new(());

const ENTRIES: u64 = 4000;
const CYCLES: usize = 6;

/// Maximum garbage that may wait for its batch: a share of the data and a constant.
const SLACK: i64 = 96 << 10;

/// Fills and empties an index repeatedly on one thread. It must not exceed the memory of the first
/// cycle, and dropping it must free every byte.
///
/// # Panics
/// Panics if memory is not freed.
pub fn check<S: Subject<Key: TestKey, Value: TestValue>>(new: impl Fn() -> S) {
    run(&|| new().erase());
}

pub(crate) fn run<K: TestKey + ?Sized, V: TestValue + ?Sized>(new: &dyn Fn() -> Erased<K, V>) {
    assert!(live_everywhere() > 0, "the program lacks ordna_testkit::count_memory!()");
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // The first index allocates ids and caches of the thread.
    cycle(&new());
    let before = live_here();
    let index = new();
    let mut after = Vec::new();
    let mut full = Vec::new();
    for _ in 0..CYCLES {
        full.push(cycle(&index) - before);
        after.push(live_here() - before);
    }
    let limit = after[0].max(full[0] / 20) + SLACK;
    assert!(
        after.iter().all(|bytes| *bytes <= limit),
        "bytes alive after each insert/remove cycle: {after:?}; full: {full:?}"
    );
    assert!(
        full.iter().all(|bytes| *bytes <= full[0] + full[0] / 5 + SLACK),
        "bytes alive when full, cycle by cycle: {full:?}"
    );
    let said = index.memory_usage().total() as i64;
    assert!(said >= 0, "memory_usage of an empty index: {said}");
    index.check_invariants().unwrap_or_else(|broken| panic!("{broken}"));
    drop((index, after, full));
    assert_eq!(live_here() - before, 0, "bytes alive after the drop");
}

/// Inserts, overwrites and removes [`ENTRIES`] keys. Returns the number of live bytes when the
/// index is full.
fn cycle<K: TestKey + ?Sized, V: TestValue + ?Sized>(index: &Erased<K, V>) -> i64 {
    for round in 0..2 {
        for n in 0..ENTRIES {
            let value = V::dress(n + round);
            index.insert(K::number(n).borrow(), value.borrow()).expect("within the limits");
        }
    }
    let full = live_here();
    for n in 0..ENTRIES {
        assert!(index.remove(K::number(n).borrow()).is_some());
    }
    full
}
