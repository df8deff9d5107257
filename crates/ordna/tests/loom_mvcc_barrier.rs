//! Models of the access barrier: what is freed, nobody reads; and everything is freed.
//!
//! `cargo xtask loom` runs them; `cargo xtask faults mvcc_barrier` shows that each notices what it is
//! there for.
#![cfg(loom)]
#![allow(unsafe_code, reason = "retiring is unsafe by nature")]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use ordna::reclaim::Retire;
use ordna::reclaim::barrier::AccessBarrier;

/// Stands for memory: freeing it sets the flag.
struct Memory(Arc<AtomicBool>);

impl Retire for Memory {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: made by `Box::into_raw`, retired once.
        let memory = unsafe { Box::from_raw(memory) };
        memory.0.store(true, Ordering::Relaxed);
    }
}

struct Shared {
    barrier: AccessBarrier,
    /// 1: the memory is linked.
    link: AtomicUsize,
    freed: Arc<AtomicBool>,
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared {
        barrier: AccessBarrier::with_shards(2),
        link: AtomicUsize::new(1),
        freed: Arc::new(AtomicBool::new(false)),
    })
}

fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

fn read(shared: &Shared, shard: usize) {
    let token = shared.barrier.enter_shard(shard);
    if shared.link.load(Ordering::Acquire) == 1 {
        // It was linked when we were inside.
        thread::yield_now();
        assert!(!shared.freed.load(Ordering::Relaxed), "read after it was freed");
    }
    drop(token);
}

fn unlink(shared: &Shared, shard: usize) {
    let token = shared.barrier.enter_shard(shard);
    shared.link.store(0, Ordering::Release);
    let memory = Box::into_raw(Box::new(Memory(shared.freed.clone())));
    // SAFETY: unlinked above, and retired once.
    unsafe { token.retire(memory) };
}

#[test]
fn what_is_freed_nobody_reads() {
    model(|| {
        let shared = shared();
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || read(&shared, 1))
        };
        unlink(&shared, 0);
        shared.barrier.close();
        reader.join().unwrap();
        assert!(shared.freed.load(Ordering::Relaxed), "nobody is inside, and it is not freed");
        assert_eq!(shared.barrier.sessions().1, 0);
    });
}

#[test]
fn a_reader_of_an_older_session_holds_up_later_ones() {
    model(|| {
        let shared = shared();
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || read(&shared, 1))
        };
        shared.barrier.close();
        unlink(&shared, 0);
        shared.barrier.close();
        reader.join().unwrap();
        assert!(shared.freed.load(Ordering::Relaxed), "nobody is inside, and it is not freed");
    });
}

#[test]
fn sessions_are_used_again_and_late_counts_leave_no_trace() {
    model(|| {
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
        assert!(shared.freed.load(Ordering::Relaxed));
        assert_eq!(shared.barrier.sessions().1, 0, "a session never terminated");
    });
}
