//! Tests of the end of services, indexes and their threads, of a flush during the end, and of the
//! lag.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ordna_secondary::*;

use crate::common::{SOON, World, int};

/// All documents are removed while the service stops. One worker has ended already; another one
/// still has work.
#[test]
fn a_flush_beside_the_end_of_a_service_does_not_hang() {
    for round in 0..50 {
        let world = World::new(ServiceOptions::new().workers(2).queue(4096));
        world.create(IndexDefinition::new("by_n", "").part(Part::new("n")));
        // All of these documents belong to one worker.
        let ids: Vec<String> = (0..100_000)
            .map(|number| format!("d{number}"))
            .filter(|id| ordna::checksum::crc32(id.as_bytes()).is_multiple_of(2))
            .take(4000)
            .collect();
        for (number, id) in ids.iter().enumerate() {
            world.put(id, Some(Document::new().with("n", int(number as i128))));
        }
        let (source, service) = (Arc::clone(&world.source), world.service);
        let flusher = std::thread::spawn(move || {
            for _ in 0..20 {
                source.clear(|| ());
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let (done, told) = channel();
        std::thread::spawn(move || {
            drop(service);
            let _ = done.send(());
        });
        told.recv_timeout(Duration::from_secs(20))
            .unwrap_or_else(|_| panic!("round {round}: the service does not stop"));
        flusher.join().unwrap();
    }
}

/// The lag is the number of changes that are not in the newest snapshot point.
#[test]
fn the_lag_is_a_number_of_changes() {
    let documents = Arc::new(crate::common::Documents::default());
    let next = std::sync::atomic::AtomicU64::new(1 << 50);
    // Like in the server, all partitions share one sequence, which begins with the time.
    let source = Embedded::new(16, 7, Arc::clone(&documents) as Arc<_>)
        .sequence(move || next.fetch_add(1, Ordering::Relaxed));
    let source = Arc::new(source);
    let options = ServiceOptions::new().interval(Duration::from_secs(3600));
    let service = Service::start(options, Arc::clone(&source) as Arc<_>).unwrap();
    let world = World { documents, source, service };
    world.create(IndexDefinition::new("by_n", "").part(Part::new("n")));
    // The thread of the source may not have started yet. A read before that waits for the interval.
    let (began, read) = (Instant::now(), Read::request_plus().timeout(Duration::from_millis(10)));
    while world.service.view(&read).is_err() {
        assert!(began.elapsed() < SOON, "the source has not begun");
    }
    for number in 0..100 {
        world.put(&format!("d{number}"), Some(Document::new().with("n", int(number))));
    }
    assert_eq!(world.service.lag(), 100);
}

/// Returns the number of memory mappings of this process. The stack of a thread that was not joined
/// is one of them.
#[cfg(target_os = "linux")]
fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

#[cfg(target_os = "linux")]
#[test]
fn threads_end_with_their_index() {
    let world = World::new(ServiceOptions::new().workers(2));
    let cycle = || {
        let index = IndexDefinition::new("by_n", "").part(Part::new("n"));
        world.service.create(index).unwrap();
        world.service.drop_index("by_n").unwrap();
    };
    (0..20).for_each(|_| cycle());
    let before = mappings();
    (0..1000).for_each(|_| cycle());
    // Other tests of this process start threads, too, but not more than some hundreds.
    let after = mappings();
    assert!(after < before + 600, "{before} mappings, {after} after 1000 indexes");
}

/// A dropped index is freed by the thread that drops it or by the timer's thread, while the workers
/// continue. An assertion in the index fails otherwise.
#[test]
fn a_dropped_index_is_freed_by_no_worker() {
    let world = World::new(ServiceOptions::new().workers(2).interval(Duration::from_millis(1)));
    for round in 0..50 {
        world.create(IndexDefinition::new("by_n", "").part(Part::new("n")));
        for number in 0..100 {
            world.put(&format!("d{number}"), Some(Document::new().with("n", int(number + round))));
        }
        assert_eq!(world.all("by_n").len(), 100);
        world.service.drop_index("by_n").unwrap();
        assert_eq!(world.service.failure().map(|error| error.to_string()), None);
    }
}

/// A source whose thread panics.
struct Breaks;

impl ChangeSource for Breaks {
    fn partitions(&self) -> u32 {
        1
    }
    fn newest(&self, _: u32) -> Result<Position, SourceError> {
        Ok(Position { identity: 1, seq: 0 })
    }
    fn continues(&self, _: u32, _: Position) -> Result<bool, SourceError> {
        Ok(true)
    }
    fn documents(&self, _: &VersionVector, _: usize) -> Result<Vec<Documents>, SourceError> {
        Ok(Vec::new())
    }
    fn run(&self, _: &Feed, _: &VersionVector) -> Result<(), SourceError> {
        panic!("the source broke")
    }
}

#[test]
fn the_panic_of_a_thread_is_told_to_each_query() {
    let service = Service::start(ServiceOptions::new().workers(2), Arc::new(Breaks)).unwrap();
    let began = std::time::Instant::now();
    while service.failure().is_none() {
        assert!(began.elapsed() < crate::common::SOON);
        std::thread::sleep(Duration::from_millis(1));
    }
    let refused = service.view(&Read::any());
    let Err(Error::Panicked { thread, message }) = refused else { panic!("{refused:?}") };
    assert_eq!((&thread[..], &message[..]), ("index-source", "the source broke"));
}
