//! When retired memory is freed.

use std::sync::atomic::{AtomicBool, Ordering};

use ordna_base::reclaim::{Collector, Retire};
use ordna_base::sync::stripe_of_this_thread;

static FREED: AtomicBool = AtomicBool::new(false);

struct Watched;

impl Retire for Watched {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: boxed by the test, which owns it exclusively.
        drop(unsafe { Box::from_raw(memory) });
        FREED.store(true, Ordering::Release);
    }
}

#[test]
fn an_idle_thread_keeps_nothing() {
    let collector = Collector::new();
    // Threads whose numbers are equal modulo 16 share a list.
    let list = || stripe_of_this_thread() % 16;
    let own = list();
    let retire = || {
        let has_another = list() != own;
        if has_another {
            // SAFETY: no thread but the collector knows the box.
            unsafe { collector.pin().retire(Box::into_raw(Box::new(Watched))) };
        }
        has_another
    };
    while !std::thread::scope(|scope| scope.spawn(retire).join().unwrap()) {}
    collector.pin().flush();
    assert!(!FREED.load(Ordering::Acquire), "the list of another thread");
    collector.pin().flush_all();
    assert!(FREED.load(Ordering::Acquire));
}
