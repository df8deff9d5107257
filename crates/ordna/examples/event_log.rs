//! An event log in a directory: several threads append, readers select by time, and the log is
//! complete after a restart. Run it with `cargo run --release -p ordna --example event_log`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use ordna::{Error, Map, OpenOptions, SyncPolicy};

/// The time in milliseconds, and a number that makes the key unique.
type When = (u64, u64);

pub(crate) fn main() -> Result<(), Error> {
    let dir = std::env::temp_dir().join(format!("ordna-event-log-{}", std::process::id()));
    // Each write is durable when it returns; threads share the syncs.
    let options = OpenOptions::new().sync(SyncPolicy::Always);
    {
        let log: Map<When, String> = Map::open(&dir, options.clone())?;
        let number = AtomicU64::new(0);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4_u64)
                .map(|thread| {
                    let (log, number) = (&log, &number);
                    scope.spawn(move || {
                        (0..100_u64).try_for_each(|at| {
                            let key = (at * 10, number.fetch_add(1, Ordering::Relaxed));
                            log.put(key, format!("event {at} of thread {thread}"))
                        })
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
        })?;
    }

    let log: Map<When, String> = Map::open(&dir, options)?;
    assert_eq!(log.len(), 400);
    // The events between 500 and 520 ms, four threads at each time.
    let some: Vec<_> = log.range_prefix((500,)..(520,)).collect();
    assert_eq!(some.len(), 8);
    for ((time, number), event) in &some {
        println!("{time:>6} {number:>4} {event}");
    }
    // Old events are removed in one step.
    let removed = log.remove_range(..(500, 0))?;
    assert_eq!((removed, log.len()), (200, 200));
    drop(log);
    std::fs::remove_dir_all(&dir).expect("the directory is ours");
    Ok(())
}
