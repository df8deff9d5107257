//! A model of the updates of HydraList's search layers after splits and merges: one anchor is
//! added, removed and added again, logged by two threads, while a third one combines and applies.
//!
//! `cargo xtask loom` runs it; `cargo xtask faults hydralist_updates` shows which faults it
//! detects.

use std::sync::atomic::{AtomicUsize as Count, Ordering as StdOrdering};

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use ordna_base::reclaim::{Collector, Guard};
use ordna_base::sync::explore;
use ordna_papers::hydralist::updates::{Anchored, NodeEvent, Updates};
use ordna_papers::search_layer::SearchLayer;

use crate::locked_layer::LockedLayer;

/// A replacement of a data node.
struct Toy {
    anchor: u64,
    dead: AtomicBool,
    references: Count,
}

impl Toy {
    /// Creates a toy with two references: one of the list, and one of the line that logs it.
    fn new() -> Arc<Self> {
        Arc::new(Self { anchor: 7, dead: AtomicBool::new(false), references: Count::new(2) })
    }
}

#[expect(unsafe_code, reason = "a stand-in that outlives the model")]
// SAFETY: the test keeps all toys alive until its end.
unsafe impl Anchored for Toy {
    type Key = u64;

    fn anchor(&self) -> &u64 {
        &self.anchor
    }

    fn place(&self) -> usize {
        std::ptr::from_ref(self).expose_provenance() + std::mem::offset_of!(Toy, anchor)
    }

    fn at_place(place: usize) -> usize {
        place - std::mem::offset_of!(Toy, anchor)
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    unsafe fn release(&self, times: usize, _: &Guard<'_>) {
        let before = self.references.fetch_sub(times, StdOrdering::Relaxed);
        assert!(before >= times, "a reference was given up twice");
    }
}

struct Shared {
    updates: Updates<Toy, LockedLayer<u64>>,
    /// Represents the locks of data nodes: there is one split or merge of the anchor at a time.
    nodes: Mutex<Vec<Arc<Toy>>>,
    collector: Collector,
}

impl Shared {
    /// If the anchor's node exists, it dies; otherwise, a new one is created.
    fn restructure(&self, log: usize) {
        let mut nodes = self.nodes.lock().unwrap();
        let time = nodes.len() as u64;
        match nodes.last().filter(|node| !node.is_dead()) {
            Some(node) => {
                // The list's reference becomes the line's.
                node.dead.store(true, Ordering::Release);
                #[expect(unsafe_code, reason = "gives up a reference")]
                // SAFETY: there is one replica, and the list's reference is passed to it.
                unsafe {
                    self.updates.log_at(log, time, NodeEvent::Died, node);
                }
            }
            None => {
                let node = Toy::new();
                #[expect(unsafe_code, reason = "gives up a reference")]
                // SAFETY: a toy is created with a reference for the only replica.
                unsafe {
                    self.updates.log_at(log, time, NodeEvent::Made, &node);
                }
                nodes.push(node);
            }
        }
    }
}

#[test]
fn a_replica_ends_with_exactly_the_live_node() {
    explore(Some(3), || {
        let shared = Arc::new(Shared {
            updates: Updates::new(1, 100),
            nodes: Mutex::new(Vec::new()),
            collector: Collector::new(),
        });
        let writers: Vec<_> = (0..2)
            .map(|log| {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.restructure(log);
                    if log == 0 {
                        shared.restructure(log);
                    }
                })
            })
            .collect();
        shared.updates.run(&shared.collector.pin());
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        shared.updates.run(&shared.collector.pin());
        let nodes = shared.nodes.lock().unwrap();
        let live: Vec<&Arc<Toy>> = nodes.iter().filter(|node| !node.is_dead()).collect();
        let mut led = Vec::new();
        let layer = shared.updates.layers().next().unwrap();
        layer.for_each(|_, place| led.push(place));
        let expected: Vec<usize> = live.iter().map(|node| node.place()).collect();
        assert_eq!(led, expected, "the replica leads to other nodes than the live ones");
        for node in nodes.iter() {
            // References of the list and of the layer, or none.
            let expected = if node.is_dead() { 0 } else { 2 };
            assert_eq!(node.references.load(StdOrdering::Relaxed), expected);
        }
        assert_eq!(shared.updates.lag(), 0);
    });
}
