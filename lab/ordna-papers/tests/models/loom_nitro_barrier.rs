//! Models of the access barrier: no thread reads freed memory, and everything is freed.
//!
//! `cargo xtask loom` runs them; `cargo xtask faults nitro_barrier` shows that each detects its
//! fault.
#![allow(unsafe_code, reason = "retiring is unsafe by nature")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use ordna_base::reclaim::Retire;
use ordna_base::sync::explore;
use ordna_papers::nitro::barrier::AccessBarrier;

/// The data that readers read. Loom detects a free that does not happen after all reads.
struct Data {
    memory: UnsafeCell<()>,
    freed: AtomicBool,
}

// SAFETY: this is what the models check: the barrier separates readers from the freeing thread.
unsafe impl Sync for Data {}
// SAFETY: as above.
unsafe impl Send for Data {}

/// Represents memory: freeing it writes to the data and sets the flag.
struct Memory(Arc<Data>);

impl Retire for Memory {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: created by `Box::into_raw`, and retired once.
        let memory = unsafe { Box::from_raw(memory) };
        memory.0.memory.with_mut(|_| ());
        memory.0.freed.store(true, Ordering::Relaxed);
    }
}

struct Shared {
    barrier: AccessBarrier,
    /// 1 while the memory is linked.
    link: AtomicUsize,
    data: Arc<Data>,
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared {
        barrier: AccessBarrier::with_shards(2),
        link: AtomicUsize::new(1),
        data: Arc::new(Data { memory: UnsafeCell::new(()), freed: AtomicBool::new(false) }),
    })
}

fn read(shared: &Shared, shard: usize) {
    let token = shared.barrier.enter_shard(shard);
    if shared.link.load(Ordering::Acquire) == 1 {
        // The memory was linked when this thread was inside.
        thread::yield_now();
        shared.data.memory.with(|_| ());
        assert!(!shared.data.freed.load(Ordering::Relaxed), "read after it was freed");
    }
    drop(token);
}

fn unlink(shared: &Shared, shard: usize) {
    let token = shared.barrier.enter_shard(shard);
    shared.link.store(0, Ordering::Release);
    let memory = Box::into_raw(Box::new(Memory(shared.data.clone())));
    // SAFETY: unlinked above, and retired once.
    unsafe { token.retire(memory) };
}

#[test]
fn what_is_freed_nobody_reads() {
    explore(Some(3), || {
        let shared = shared();
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || read(&shared, 1))
        };
        unlink(&shared, 0);
        shared.barrier.close();
        reader.join().unwrap();
        assert!(shared.data.freed.load(Ordering::Relaxed), "kept without a reader inside");
        assert_eq!(shared.barrier.sessions().1, 0);
    });
}

#[test]
fn a_reader_of_an_older_session_holds_up_later_ones() {
    explore(Some(3), || {
        let shared = shared();
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || read(&shared, 1))
        };
        shared.barrier.close();
        unlink(&shared, 0);
        shared.barrier.close();
        reader.join().unwrap();
        assert!(shared.data.freed.load(Ordering::Relaxed), "kept without a reader inside");
    });
}

#[test]
fn sessions_are_used_again_and_late_counts_leave_no_trace() {
    explore(Some(3), || {
        let shared = shared();
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || {
                read(&shared, 0);
                read(&shared, 0);
            })
        };
        shared.barrier.close();
        shared.barrier.close();
        unlink(&shared, 0);
        shared.barrier.close();
        reader.join().unwrap();
        assert!(shared.data.freed.load(Ordering::Relaxed));
        assert_eq!(shared.barrier.sessions().1, 0, "a session never terminated");
    });
}
