//! The allocator of the program: mimalloc, which gives free memory back to the system while the
//! server is idle.
//!
//! mimalloc gives a free page back after a delay, but only when a thread calls the allocator after
//! the delay has passed. An idle server makes no such call, so the memory of deleted values would
//! stay resident. A delay of 0 returns pages immediately, but then every value of a megabyte is
//! mapped and unmapped again, which takes several times as long as copying it. The program therefore
//! keeps a delay; in addition, each worker collects its memory before it waits for work, and a task
//! wakes one worker each second.
//!
//! The feature `no_thp` keeps mimalloc from requesting huge pages. With them, a buffer of 64 KiB
//! would occupy 128 KiB of resident memory, which no memory limit accounts for. The slabs of the
//! store request huge pages themselves.

#![expect(unsafe_code, reason = "two functions of the allocator have no safe wrapper")]

use std::cell::Cell;
use std::time::{Duration, Instant};

use libmimalloc_sys::{mi_collect, mi_option_set, mi_option_t};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The option `mi_option_purge_delay` of `mimalloc.h`, in milliseconds.
const PURGE_DELAY: mi_option_t = 15;

/// Time for which free pages stay resident, in milliseconds. A busy client sends its next request
/// within this time, so the next request reuses the pages of the previous one.
const DELAY: i64 = 250;

/// Shortest time between two collections of a thread.
const PAUSE: Duration = Duration::from_millis(20);

/// After a collection a thread waits for at least this many times its duration, so that collections
/// take at most 2 % of the thread's time.
const SHARE: u32 = 50;

/// Sets how long free pages stay resident. Call it once, at the start.
pub fn configure() {
    // SAFETY: the call sets one word of the allocator and is allowed at any time.
    unsafe { mi_option_set(PURGE_DELAY, DELAY) }
}

/// Gives back memory that the calling thread has freed, unless it did so a moment ago. A collection
/// takes time in proportion to the number of partly used pages of the thread, so a thread that has
/// many collects less often.
pub fn collect() {
    thread_local! {
        static NEXT: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    let begin = Instant::now();
    if NEXT.get().is_some_and(|next| begin < next) {
        return;
    }
    // SAFETY: the call is allowed at any time.
    unsafe { mi_collect(false) }
    let end = Instant::now();
    NEXT.set(Some(end + PAUSE.max((end - begin) * SHARE)));
}

/// Wakes a worker each second, so that it gives back the pages whose delay has passed.
pub async fn collect_while_idle() {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        collect();
    }
}
