//! Detection of closures that use their own store, in debug builds.
//!
//! # Contract
//! The closure of a conditional write runs under the lock of its key's leaf, and within an epoch.
//! A read, a write or a snapshot of the same store may then wait for that lock or that epoch for
//! ever. Debug builds panic in its place. Release builds do not look.

#[cfg(debug_assertions)]
use std::cell::RefCell;

#[cfg(debug_assertions)]
thread_local! {
    /// Addresses of the stores whose closures this thread runs, outermost first.
    static DECIDING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Runs the closure of a conditional write of the store at this address.
#[inline]
pub fn deciding<T, R>(store: *const T, decide: impl FnOnce() -> R) -> R {
    #[cfg(debug_assertions)]
    let _deciding = {
        struct Deciding;
        impl Drop for Deciding {
            fn drop(&mut self) {
                DECIDING.with(|stores| _ = stores.borrow_mut().pop());
            }
        }
        DECIDING.with(|stores| stores.borrow_mut().push(store.addr()));
        Deciding
    };
    #[cfg(not(debug_assertions))]
    let _ = store;
    decide()
}

/// Checks that no closure of a conditional write of this store runs on this thread.
///
/// # Panics
/// If one does, in debug builds.
#[inline]
#[track_caller]
pub fn check<T>(store: *const T) {
    #[cfg(debug_assertions)]
    {
        let is_inside = DECIDING.with(|stores| stores.borrow().contains(&store.addr()));
        assert!(
            !is_inside,
            "the closure of a conditional write uses its own store, or a snapshot of it: in a \
             release build it may wait for itself for ever"
        );
    }
    #[cfg(not(debug_assertions))]
    let _ = store;
}
