//! A clock that counts only the time in which this process ran, so that a suspension does not
//! exceed time limits.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two ticks.
const TICK: Duration = Duration::from_millis(50);
/// Minimum time between two ticks that counts as a suspension.
const SUSPENDED: Duration = Duration::from_secs(2);

static MILLIS: AtomicU64 = AtomicU64::new(0);
static SUSPENSIONS: AtomicU64 = AtomicU64::new(0);

fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        thread::spawn(|| {
            let mut last = Instant::now();
            loop {
                thread::sleep(TICK);
                let passed = last.elapsed();
                last += passed;
                if passed > SUSPENDED {
                    SUSPENSIONS.fetch_add(1, Ordering::SeqCst);
                } else {
                    MILLIS.fetch_add(passed.as_millis() as u64, Ordering::SeqCst);
                }
            }
        });
    });
}

/// Returns how often the process was suspended.
pub fn suspensions() -> u64 {
    start();
    SUSPENSIONS.load(Ordering::SeqCst)
}

/// A moment, from which the running time of the process is measured.
#[derive(Debug, Clone, Copy)]
pub struct Moment(u64);

impl Moment {
    pub fn now() -> Self {
        start();
        Self(MILLIS.load(Ordering::SeqCst))
    }

    pub fn elapsed(self) -> Duration {
        Duration::from_millis(MILLIS.load(Ordering::SeqCst) - self.0)
    }
}
