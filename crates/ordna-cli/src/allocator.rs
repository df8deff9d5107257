//! The allocator of the program: mimalloc, which gives free memory back to the system while the
//! server is idle.
//!
//! mimalloc purges free pages when a later call of a thread finds that their delay is over. An idle
//! server makes no such call, so a deleted value would stay resident. A delay of 0 purges at once,
//! but then each value of a megabyte is mapped and unmapped anew, which costs several times its
//! copy. So pages keep a delay, workers collect their memory before they wait for work, and a task
//! wakes one each second.
//!
//! The feature `no_thp` keeps mimalloc from asking for huge pages: with them a buffer of 64 KiB has
//! 128 KiB resident, which no limit counts. The slabs of the store ask for theirs themselves.

#![expect(unsafe_code, reason = "two functions of the allocator have no safe wrapper")]

use std::cell::Cell;
use std::time::{Duration, Instant};

use libmimalloc_sys::{mi_collect, mi_option_set, mi_option_t};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The option `mi_option_purge_delay` of `mimalloc.h`, in milliseconds.
const PURGE_DELAY: mi_option_t = 15;

/// Time for which free pages stay resident, in milliseconds. A busy client sends its next request
/// sooner, so the pages of one request serve the next.
const DELAY: i64 = 250;

/// Shortest time between two collections of a thread.
const PAUSE: Duration = Duration::from_millis(20);

/// A thread pauses for at least this many times the duration of its last collection, so that
/// collections take at most 2 % of its time.
const SHARE: u32 = 50;

/// Sets how long free pages stay resident. Call it once, at the start.
pub fn configure() {
    // SAFETY: sets a word of the allocator; may be called at any time.
    unsafe { mi_option_set(PURGE_DELAY, DELAY) }
}

/// Gives back memory that the calling thread has freed, unless it did so a moment ago. Takes time
/// in proportion to the thread's partly used pages, so a thread with many collects more rarely.
pub fn collect() {
    thread_local! {
        static NEXT: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    let begin = Instant::now();
    if NEXT.get().is_some_and(|next| begin < next) {
        return;
    }
    // SAFETY: may be called at any time.
    unsafe { mi_collect(false) }
    let end = Instant::now();
    NEXT.set(Some(end + PAUSE.max((end - begin) * SHARE)));
}

/// Wakes a worker each second, so that pages whose delay has ended in the meantime are purged.
pub async fn collect_while_idle() {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        collect();
    }
}
