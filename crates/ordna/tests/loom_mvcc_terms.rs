//! Models of the terms: announcement of writers, the cut, the gate, snapshots one after the other.
//!
//! `cargo xtask loom` runs them; `cargo xtask faults mvcc_terms` shows that each notices its fault.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use loom::thread;
use ordna::store::epochs::Terms;
use ordna_base::sync::explore;

/// What a write leaves: the term it was written in, in two places.
struct Shared {
    terms: Terms,
    a: AtomicU64,
    b: AtomicU64,
}

fn model(body: impl Fn(Arc<Shared>) + Send + Sync + 'static) {
    // More preemptions find nothing more here and take hours.
    explore(Some(3), move || {
        let shared = Shared { terms: Terms::new(2), a: AtomicU64::new(0), b: AtomicU64::new(0) };
        body(Arc::new(shared));
    });
}

/// One batch of two writes.
fn write(shared: &Shared, stripe: usize) {
    let writing = shared.terms.enter(stripe);
    shared.a.store(writing.term, Relaxed);
    shared.b.store(writing.term, Relaxed);
}

/// Which of the two writes the settled snapshot sees.
fn sees(shared: &Shared, term: u64) -> (bool, bool) {
    shared.terms.settle(term);
    let seen = |cell: &AtomicU64| (1..=term).contains(&cell.load(Relaxed));
    (seen(&shared.a), seen(&shared.b))
}

#[test]
fn a_snapshot_sees_a_batch_wholly_or_not_and_for_good() {
    model(|shared| {
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || write(&shared, 1))
        };
        let term = shared.terms.snapshot();
        let seen = sees(&shared, term);
        assert_eq!(seen.0, seen.1, "half a batch");
        writer.join().unwrap();
        assert_eq!(sees(&shared, term), seen, "the snapshot has changed");
    });
}

#[test]
fn a_term_that_another_thread_settled_is_settled_here() {
    model(|shared| {
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || write(&shared, 1))
        };
        let term = shared.terms.snapshot();
        let settled = Arc::new(AtomicBool::new(false));
        let settler = {
            let (shared, settled) = (shared.clone(), settled.clone());
            thread::spawn(move || {
                shared.terms.settle(term);
                settled.store(true, Relaxed);
            })
        };
        // Of two threads that wait, loom would run none but these.
        let seen = settled.load(Relaxed).then(|| sees(&shared, term));
        writer.join().unwrap();
        settler.join().unwrap();
        if let Some(seen) = seen {
            assert_eq!(seen.0, seen.1, "half a batch");
            assert_eq!(sees(&shared, term), seen, "the snapshot has changed");
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
                shared.terms.snapshot()
            })
        };
        let other = shared.terms.snapshot();
        let term = writer.join().unwrap();
        assert_eq!(sees(&shared, term), (true, true));
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
        let terms = [shared.terms.snapshot(), shared.terms.snapshot()];
        let seen = sees(&shared, terms[1]);
        assert_eq!(seen.0, seen.1, "half a batch");
        writer.join().unwrap();
        assert_eq!(sees(&shared, terms[1]), seen, "the snapshot has changed");
    });
}

#[test]
fn terms_never_run_backwards_among_writes() {
    model(|shared| {
        let writers = [0, 1].map(|stripe| {
            let shared = shared.clone();
            thread::spawn(move || {
                let writing = shared.terms.enter(stripe);
                let before = shared.a.load(Relaxed);
                assert!(before <= writing.term, "written in {before} before {}", writing.term);
                shared.a.store(writing.term, Relaxed);
            })
        });
        let term = shared.terms.snapshot();
        for writer in writers {
            writer.join().unwrap();
        }
        // Who was in the later term wrote last.
        assert!(shared.a.load(Relaxed) > 0 && term == 1);
    });
}

#[test]
fn a_writer_of_a_later_term_does_not_overlook_the_snapshot() {
    model(|shared| {
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                let writing = shared.terms.enter(1);
                // It would unlink a version born in term 1 that dies now.
                (writing.term, shared.terms.youngest() < 1)
            })
        };
        let snapshot = shared.terms.snapshot();
        let (term, unseen) = writer.join().unwrap();
        assert!(term <= snapshot || !unseen, "ended in {term}, seen by snapshot {snapshot}");
    });
}

#[test]
fn of_two_holders_of_a_term_the_last_releases_it() {
    model(|shared| {
        let writing = shared.terms.enter(0);
        let released = Arc::new(AtomicBool::new(false));
        let first = shared.terms.snapshot();
        let other = {
            let (shared, released) = (shared.clone(), released.clone());
            thread::spawn(move || {
                shared.terms.release(first);
                released.store(true, Relaxed);
            })
        };
        let second = shared.terms.snapshot();
        drop(writing);
        assert_eq!(first, second, "nothing was written between them");
        other.join().unwrap();
        assert!(shared.terms.youngest() == 1, "the second one lives");
        shared.terms.release(second);
        assert_eq!(shared.terms.youngest(), 0);
    });
}
