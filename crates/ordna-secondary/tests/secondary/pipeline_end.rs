//! A flush beside the end of a service; the lag.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use ordna_secondary::*;

use crate::common::{World, int};

/// All documents are removed while the service stops: one worker has ended, another has work.
#[test]
fn a_flush_beside_the_end_of_a_service_does_not_hang() {
    for round in 0..50 {
        let world = World::new(ServiceOptions::new().workers(2).queue(4096));
        world.create(IndexDefinition::new("by_n", "").part(Part::new("n")));
        // Documents of one worker only.
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
    // As the server: one sequence for all partitions, which begins with the time.
    let source = Embedded::new(16, 7, Arc::clone(&documents) as Arc<_>)
        .sequence(move || next.fetch_add(1, Ordering::Relaxed));
    let source = Arc::new(source);
    let options = ServiceOptions::new().interval(Duration::from_secs(3600));
    let service = Service::start(options, Arc::clone(&source) as Arc<_>).unwrap();
    let world = World { documents, source, service };
    world.create(IndexDefinition::new("by_n", "").part(Part::new("n")));
    world.all("by_n");
    for number in 0..100 {
        world.put(&format!("d{number}"), Some(Document::new().with("n", int(number))));
    }
    assert_eq!(world.service.lag(), 100);
}
