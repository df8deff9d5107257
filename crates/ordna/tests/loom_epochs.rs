//! Models of the epochs: registration of writers, the cut, the barrier, consecutive snapshots.
//!
//! `cargo xtask loom` runs them. `cargo xtask faults epochs` checks that each of them notices its
//! planted fault.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use loom::thread;
use ordna::store::epochs::{Epoch, Epochs};
use ordna_base::sync::explore;

/// What a write stores: the epoch in which it was made, in two places.
struct Shared {
    epochs: Epochs,
    a: AtomicU64,
    b: AtomicU64,
}

fn model(body: impl Fn(Arc<Shared>) + Send + Sync + 'static) {
    // With more preemptions the model finds nothing more, and takes hours.
    explore(Some(3), move || {
        let shared = Shared { epochs: Epochs::new(2), a: AtomicU64::new(0), b: AtomicU64::new(0) };
        body(Arc::new(shared));
    });
}

/// One batch of two writes.
fn write(shared: &Shared, stripe: usize) {
    let writer = shared.epochs.enter(stripe);
    shared.a.store(writer.epoch.get(), Relaxed);
    shared.b.store(writer.epoch.get(), Relaxed);
}

/// Returns which of the two writes the quiesced snapshot sees.
fn sees(shared: &Shared, epoch: Epoch) -> (bool, bool) {
    shared.epochs.wait_quiesced(epoch);
    let seen = |cell: &AtomicU64| (1..=epoch.get()).contains(&cell.load(Relaxed));
    (seen(&shared.a), seen(&shared.b))
}

#[test]
fn a_snapshot_sees_a_batch_wholly_or_not_and_for_good() {
    model(|shared| {
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || write(&shared, 1))
        };
        let epoch = shared.epochs.snapshot();
        let seen = sees(&shared, epoch);
        assert_eq!(seen.0, seen.1, "half a batch");
        writer.join().unwrap();
        assert_eq!(sees(&shared, epoch), seen, "the snapshot has changed");
    });
}

/// Writes like a commit: no other write is in progress, and none begins before this one ends.
fn write_alone(shared: &Shared, stripe: usize) {
    let writer = shared.epochs.enter_alone(stripe);
    let seen = (shared.a.load(Relaxed), shared.b.load(Relaxed));
    assert_eq!(seen.0, seen.1, "half a write");
    assert!(seen.0 <= writer.epoch.get(), "a write of a later epoch");
    shared.a.store(writer.epoch.get(), Relaxed);
    thread::yield_now();
    assert_eq!(shared.b.load(Relaxed), seen.1, "another write meanwhile");
    shared.b.store(writer.epoch.get(), Relaxed);
}

#[test]
fn a_writer_that_is_alone_meets_no_other() {
    model(|shared| {
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || write(&shared, 1))
        };
        write_alone(&shared, 0);
        writer.join().unwrap();
    });
}

#[test]
fn a_snapshot_beside_a_writer_that_is_alone_is_a_cut() {
    model(|shared| {
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || write_alone(&shared, 1))
        };
        let epoch = shared.epochs.snapshot();
        let seen = sees(&shared, epoch);
        assert_eq!(seen.0, seen.1, "half a write");
        writer.join().unwrap();
        assert_eq!(sees(&shared, epoch), seen, "the snapshot has changed");
    });
}

#[test]
fn an_epoch_that_another_thread_saw_quiesce_is_quiesced_here() {
    model(|shared| {
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || write(&shared, 1))
        };
        let epoch = shared.epochs.snapshot();
        let quiesced = Arc::new(AtomicBool::new(false));
        let waiter = {
            let (shared, quiesced) = (shared.clone(), quiesced.clone());
            thread::spawn(move || {
                shared.epochs.wait_quiesced(epoch);
                quiesced.store(true, Relaxed);
            })
        };
        // If two threads waited, loom would only ever run these two.
        let seen = quiesced.load(Relaxed).then(|| sees(&shared, epoch));
        writer.join().unwrap();
        waiter.join().unwrap();
        if let Some(seen) = seen {
            assert_eq!(seen.0, seen.1, "half a batch");
            assert_eq!(sees(&shared, epoch), seen, "the snapshot has changed");
        }
    });
}

#[test]
fn a_snapshot_holds_what_ended_before_it() {
    model(|shared| {
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                write(&shared, 1);
                shared.epochs.snapshot()
            })
        };
        let other = shared.epochs.snapshot();
        let epoch = writer.join().unwrap();
        assert_eq!(sees(&shared, epoch), (true, true));
        let seen = sees(&shared, other);
        assert_eq!(seen.0, seen.1);
    });
}

#[test]
fn snapshots_in_a_row_do_not_outrun_the_writers() {
    model(|shared| {
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || write(&shared, 1))
        };
        let epochs = [shared.epochs.snapshot(), shared.epochs.snapshot()];
        let seen = sees(&shared, epochs[1]);
        assert_eq!(seen.0, seen.1, "half a batch");
        writer.join().unwrap();
        assert_eq!(sees(&shared, epochs[1]), seen, "the snapshot has changed");
    });
}

#[test]
fn epochs_never_run_backwards_among_writes() {
    model(|shared| {
        let writers = [0, 1].map(|stripe| {
            let shared = shared.clone();
            thread::spawn(move || {
                let writer = shared.epochs.enter(stripe);
                let before = shared.a.load(Relaxed);
                assert!(
                    before <= writer.epoch.get(),
                    "written in {before:?} before {:?}",
                    writer.epoch
                );
                shared.a.store(writer.epoch.get(), Relaxed);
            })
        });
        let epoch = shared.epochs.snapshot();
        for writer in writers {
            writer.join().unwrap();
        }
        // The thread in the later epoch wrote last.
        assert!(shared.a.load(Relaxed) > 0 && epoch == Epoch::FIRST);
    });
}

#[test]
fn a_writer_of_a_later_epoch_does_not_overlook_the_snapshot() {
    model(|shared| {
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                let writer = shared.epochs.enter(1);
                // If so, the writer would unlink a version that was written in epoch 1 and is
                // replaced now.
                (writer.epoch, shared.epochs.youngest() < Epoch::FIRST)
            })
        };
        let snapshot = shared.epochs.snapshot();
        let (epoch, unseen) = writer.join().unwrap();
        assert!(epoch <= snapshot || !unseen, "ended in {epoch:?}, seen by snapshot {snapshot:?}");
    });
}

#[test]
fn of_two_holders_of_an_epoch_the_last_releases_it() {
    model(|shared| {
        let writer = shared.epochs.enter(0);
        let released = Arc::new(AtomicBool::new(false));
        let first = shared.epochs.snapshot();
        let other = {
            let (shared, released) = (shared.clone(), released.clone());
            thread::spawn(move || {
                shared.epochs.release(first);
                released.store(true, Relaxed);
            })
        };
        let second = shared.epochs.snapshot();
        drop(writer);
        assert_eq!(first, second, "nothing was written between them");
        other.join().unwrap();
        assert!(shared.epochs.youngest() == Epoch::FIRST, "the second one lives");
        shared.epochs.release(second);
        assert_eq!(shared.epochs.youngest(), Epoch::ZERO);
    });
}
