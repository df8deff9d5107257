//! The access barrier on one thread: the time at which it frees retired memory.
//! `loom_nitro_barrier` models its races.

#![expect(unsafe_code, reason = "retiring is unsafe by nature")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ordna_base::reclaim::Retire;
use ordna_papers::nitro::barrier::{AccessBarrier, Token};

/// A block of memory that counts when it is freed.
struct Memory(Arc<AtomicUsize>);

impl Retire for Memory {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: created by `Box::into_raw`, and retired once.
        let memory = unsafe { Box::from_raw(memory) };
        memory.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn retire(token: &Token<'_>, freed: &Arc<AtomicUsize>) {
    // SAFETY: no other thread knows it.
    unsafe { token.retire(Box::into_raw(Box::new(Memory(freed.clone())))) };
}

#[test]
fn the_last_accessor_frees() {
    let (barrier, freed) = (AccessBarrier::with_shards(3), Arc::default());
    let tokens = [2, 0, 1, 0].map(|shard| barrier.enter_shard(shard));
    retire(&tokens[0], &freed);
    barrier.close();
    for token in tokens {
        assert_eq!(freed.load(Ordering::Relaxed), 0, "an accessor is left");
        drop(token);
    }
    assert_eq!(freed.load(Ordering::Relaxed), 1);
    assert_eq!(barrier.sessions(), (2, 0, 0));
}

#[test]
fn without_accessors_the_closing_thread_frees_and_sessions_are_used_again() {
    let (barrier, freed) = (AccessBarrier::with_shards(3), Arc::default());
    for round in 1..10 {
        retire(&barrier.enter(), &freed);
        barrier.close();
        assert_eq!(freed.load(Ordering::Relaxed), round);
    }
    assert_eq!(barrier.sessions(), (2, 0, 0));
}
