//! A model of the switch between two tables: readers stall in either table, and a keeper changes
//! the standby and swaps them.
//!
//! `cargo xtask loom` runs it; `cargo xtask faults twin` shows that it detects the faults for which
//! it exists.
#![allow(unsafe_code, reason = "plays the reader, the keeper and the reclamation")]

use std::sync::Mutex;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering, fence};
use loom::thread;
use ordna_base::sync::explore;
use ordna_papers::wormhole::twin::{Grace, Twin, Watch};

/// A table with two fields that must change together. Loom detects concurrent accesses.
struct Table {
    left: UnsafeCell<u64>,
    right: UnsafeCell<u64>,
}

impl Clone for Table {
    fn clone(&self) -> Self {
        // SAFETY: loom's cell passes a valid pointer, and fails the model if a thread writes
        // concurrently.
        let [left, right] = [&self.left, &self.right].map(|f| f.with(|field| unsafe { *field }));
        Self { left: UnsafeCell::new(left), right: UnsafeCell::new(right) }
    }
}

// SAFETY: represents the index's guarantee for its tables. Loom fails the model if two threads
// access a field concurrently, which the protocol must prevent.
unsafe impl Sync for Table {}

impl Table {
    fn set(&mut self, value: u64) {
        // SAFETY: `&mut self`; loom checks that no other thread accesses either field.
        self.left.with_mut(|field| unsafe { *field = value });
        // SAFETY: as above.
        self.right.with_mut(|field| unsafe { *field = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: loom's cell passes a valid pointer, and fails the model if a thread writes
        // concurrently.
        let [left, right] = [&self.left, &self.right].map(|f| f.with(|field| unsafe { *field }));
        assert_eq!(left, right, "a table was read while it was changed");
        left
    }
}

/// A collector for a fixed number of readers. Each of them announces itself, and reports when it
/// leaves. What is passed on while a reader is inside waits for a check at which all of these
/// readers have left.
struct Readers {
    inside: Vec<AtomicUsize>,
    waiting: Mutex<Vec<(Vec<usize>, Watch)>>,
    retired: Mutex<Vec<*mut Table>>,
}

// SAFETY: the pointers are only stored, and the model's own thread frees them at its end.
unsafe impl Send for Readers {}
// SAFETY: as above; the lists are protected by locks.
unsafe impl Sync for Readers {}

impl Readers {
    fn new(count: usize) -> Self {
        Self {
            inside: (0..count).map(|_| AtomicUsize::new(0)).collect(),
            waiting: Mutex::new(Vec::new()),
            retired: Mutex::new(Vec::new()),
        }
    }

    /// Enters the section of a reader. Its number is odd while it is inside.
    fn enter(&self, reader: usize) {
        self.inside[reader].fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn leave(&self, reader: usize) {
        self.inside[reader].fetch_add(1, Ordering::SeqCst);
    }

    /// Sets the watches whose readers have all left.
    fn look(&self) {
        self.waiting.lock().unwrap().retain(|(seen, watch)| {
            let now = self.inside.iter().map(|inside| inside.load(Ordering::SeqCst));
            let gone = seen.iter().zip(now).all(|(seen, now)| seen % 2 == 0 || now != *seen);
            if gone {
                watch.store(true, Ordering::Release);
            }
            !gone
        });
    }
}

impl Grace for Readers {
    fn watch(&self, watch: Watch) {
        fence(Ordering::SeqCst);
        let seen = self.inside.iter().map(|inside| inside.load(Ordering::SeqCst)).collect();
        self.waiting.lock().unwrap().push((seen, watch));
        self.look();
    }

    // SAFETY: requires nothing of the caller, because it frees nothing.
    unsafe fn retire<T: Send>(&self, table: *mut T) {
        // Freed at the end of the model, which is later than any collector would.
        self.retired.lock().unwrap().push(table.cast());
    }
}

/// Runs the keeper, which makes `steps` changes as the index does. `renews` says whether it
/// replaces a busy standby.
fn keep(
    twin: &Twin<Table>,
    standby: &mut ordna_papers::wormhole::twin::Standby<Table>,
    readers: &Readers,
    steps: u64,
    renews: bool,
) {
    for step in 1..=steps {
        readers.look();
        if !standby.is_quiet() {
            if !renews {
                return;
            }
            twin.renew(standby, readers);
        }
        // SAFETY: the standby is quiet, which the model checks.
        unsafe { standby.table() }.set(step);
        twin.publish(standby, readers);
    }
}

fn model(count: usize, steps: u64, renews: bool) {
    explore(Some(3), move || {
        let table = Table { left: UnsafeCell::new(0), right: UnsafeCell::new(0) };
        let (twin, mut standby) = Twin::new(table);
        let twin = Arc::new(twin);
        let readers = Arc::new(Readers::new(count));
        let threads: Vec<_> = (0..count)
            .map(|reader| {
                let (twin, readers) = (twin.clone(), readers.clone());
                thread::spawn(move || {
                    readers.enter(reader);
                    // SAFETY: this reader is inside, and leaves after its last access to the table.
                    let table = unsafe { twin.read() };
                    let first = table.read();
                    // The reader stalls here, and then reads its table again.
                    thread::yield_now();
                    assert_eq!(table.read(), first, "the reader's table was changed under it");
                    readers.leave(reader);
                })
            })
            .collect();
        keep(&twin, &mut standby, &readers, steps, renews);
        for thread in threads {
            thread.join().unwrap();
        }
        readers.look();
        // SAFETY: all readers have ended; each table is freed once.
        unsafe {
            twin.free(&standby);
            for table in readers.retired.lock().unwrap().drain(..) {
                drop(Box::from_raw(table));
            }
        }
    });
}

#[test]
fn no_table_is_changed_under_its_reader() {
    model(1, 3, false);
}

#[test]
fn readers_stall_in_both_tables_and_the_keeper_goes_on() {
    model(2, 3, true);
}
