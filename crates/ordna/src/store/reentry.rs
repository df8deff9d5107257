//! Detection of closures that use their own store.
//!
//! # Contract
//! The closure of a conditional write runs under the lock of its key's leaf, within an epoch, and
//! under a lock of the log. If it read or wrote the same store, or read its snapshots, it could
//! wait for one of these forever. Such a use panics instead, and the write that runs the closure
//! changes nothing.
//!
//! Each read and write loads one thread-local word for this check.

use std::cell::Cell;

/// Maximum depth of closures of different stores for which the check works. Programs rarely need
/// more than two: a closure of one store that uses another one. At a greater depth a use may
/// deadlock.
const NESTED: usize = 4;

/// The stores whose closures this thread is running.
struct Deciding {
    depth: Cell<usize>,
    /// Addresses of the stores, outermost first.
    stores: [Cell<usize>; NESTED],
}

thread_local! {
    static DECIDING: Deciding =
        const { Deciding { depth: Cell::new(0), stores: [const { Cell::new(0) }; NESTED] } };
}

/// In these models, all threads share one thread of the system.
const IS_MODEL: bool = cfg!(any(loom, shuttle));

/// Runs the closure of a conditional write of the store at this address.
#[inline]
pub fn deciding<T, R>(store: *const T, decide: impl FnOnce() -> R) -> R {
    struct Inside;
    impl Drop for Inside {
        fn drop(&mut self) {
            DECIDING.with(|deciding| deciding.depth.set(deciding.depth.get() - 1));
        }
    }
    if IS_MODEL {
        return decide();
    }
    DECIDING.with(|deciding| {
        let depth = deciding.depth.get();
        if let Some(place) = deciding.stores.get(depth) {
            place.set(store.addr());
        }
        deciding.depth.set(depth + 1);
    });
    let _inside = Inside;
    decide()
}

/// Checks that this thread is not inside the closure of a conditional write of this store.
///
/// # Panics
/// If it is.
#[inline]
#[track_caller]
pub fn check<T>(store: *const T) {
    if DECIDING.with(|deciding| deciding.depth.get()) != 0 {
        check_closures(store.addr());
    }
}

#[cold]
#[track_caller]
fn check_closures(store: usize) {
    let is_inside = DECIDING.with(|deciding| {
        let running = deciding.stores.iter().take(deciding.depth.get());
        running.map(Cell::get).any(|running| running == store)
    });
    assert!(
        !is_inside,
        "the closure of a conditional write uses its own store, or a snapshot of it: it would wait \
         for itself forever"
    );
}
