//! Models of the version lock: every interleaving, and the reorderings that the language allows.
//!
//! `cargo xtask loom` runs them; `cargo xtask faults version_lock` shows that each notices its
//! fault.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use ordna_base::sync::{VersionLock, explore};

struct Protected {
    lock: VersionLock,
    a: AtomicU64,
    b: AtomicU64,
    unlinked: AtomicBool,
}

fn protected() -> Arc<Protected> {
    Arc::new(Protected {
        lock: VersionLock::new(),
        a: AtomicU64::new(0),
        b: AtomicU64::new(0),
        unlinked: AtomicBool::new(false),
    })
}

/// Reads both fields under a version; `None` if that did not validate.
fn read(shared: &Protected) -> Option<(u64, u64)> {
    let version = shared.lock.try_read().ok()??;
    let b = shared.b.load(Ordering::Relaxed);
    let a = shared.a.load(Ordering::Relaxed);
    shared.lock.validate(version).then_some((a, b))
}

#[test]
fn a_validated_read_is_of_one_moment() {
    explore(None, || {
        let shared = protected();
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                let version = shared.lock.try_read().unwrap().unwrap();
                let guard = shared.lock.try_upgrade(version).unwrap();
                shared.a.store(1, Ordering::Relaxed);
                shared.b.store(1, Ordering::Relaxed);
                drop(guard);
            })
        };
        if let Some((a, b)) = read(&shared) {
            assert_eq!(a, b, "half a write was validated");
        }
        writer.join().unwrap();
        assert_eq!(read(&shared), Some((1, 1)));
    });
}

#[test]
fn a_validated_read_beside_a_writer_that_owns_the_node_is_of_one_moment() {
    explore(None, || {
        let shared = protected();
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                let guard = shared.lock.enter_owned();
                shared.a.store(1, Ordering::Relaxed);
                shared.b.store(1, Ordering::Relaxed);
                drop(guard);
            })
        };
        if let Some((a, b)) = read(&shared) {
            assert_eq!(a, b, "half a write was validated");
        }
        writer.join().unwrap();
        assert_eq!(read(&shared), Some((1, 1)));
    });
}

#[test]
fn of_two_upgrades_from_one_version_one_wins() {
    explore(None, || {
        let shared = protected();
        let contenders: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let Ok(Some(version)) = shared.lock.try_read() else { return 0 };
                    let before = shared.a.load(Ordering::Relaxed);
                    let Some(guard) = shared.lock.try_upgrade(version) else { return 0 };
                    shared.a.store(before + 1, Ordering::Relaxed);
                    drop(guard);
                    1
                })
            })
            .collect();
        let added: u64 = contenders.into_iter().map(|contender| contender.join().unwrap()).sum();
        assert_eq!(shared.a.load(Ordering::Relaxed), added, "an update was lost");
    });
}

#[test]
fn an_unlinked_node_is_never_read_as_alive() {
    explore(None, || {
        let shared = protected();
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                let guard = shared.lock.lock().unwrap();
                shared.unlinked.store(true, Ordering::Relaxed);
                guard.unlock_obsolete();
            })
        };
        if let Ok(Some(version)) = shared.lock.try_read() {
            let unlinked = shared.unlinked.load(Ordering::Relaxed);
            assert!(!(unlinked && shared.lock.validate(version)), "an unlinked node validated");
        }
        writer.join().unwrap();
        assert!(shared.lock.try_read().is_err());
    });
}
