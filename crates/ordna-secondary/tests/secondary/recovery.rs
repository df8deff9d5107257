//! Backups of an embedded source's indexes, and recovery from them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ordna::durability::BackupOptions;
use ordna_secondary::*;

use crate::common::{Documents, World, directory, entries, int};

fn document(number: i128) -> Option<Document> {
    Some(Document::new().with("n", int(number)))
}

/// Simulates a new process: it has the documents, and the log has its position and the later
/// changes.
fn restart(
    documents: &Arc<Documents>,
    options: ServiceOptions,
    identity: u64,
    changed: Changed,
    at: u64,
) -> World {
    let log = Arc::new(AtomicU64::new(at));
    let source = Embedded::new(8, identity, Arc::clone(documents) as Arc<_>)
        .sequence(move || log.fetch_add(1, Ordering::Relaxed))
        .resume(changed);
    let (source, documents) = (Arc::new(source), Arc::clone(documents));
    let service = Service::start(options, Arc::clone(&source) as Arc<_>).unwrap();
    World { documents, source, service }
}

fn assert_whole(world: &World) {
    let view = world.service.view(&Read::request_plus()).unwrap();
    let documents = world.documents.0.lock().unwrap();
    let mut expected: Vec<_> = (documents.iter())
        .map(|(id, document)| (vec![document.get("n").unwrap().clone()], id.to_vec()))
        .collect();
    expected.sort_by_key(|(parts, _)| ordna::tuple::encode(&parts[0]));
    assert_eq!(entries(&view, "n"), expected);
}

fn write_all(world: &World, range: std::ops::Range<i128>) {
    for number in range {
        world.put(&format!("d{}", number % 1000), document(number));
    }
}

fn recovered(reverse: Reverse) {
    let dir = directory(&format!("embedded-{reverse:?}"));
    let options = ServiceOptions::new().workers(3).backups(&dir).reverse(reverse);
    let documents = Arc::new(Documents::default());
    let changed = Changed { behind: 0, ids: Vec::new() };
    let world = restart(&documents, options.clone(), 5, changed, 1);
    world.create(IndexDefinition::new("n", "d").part(Part::new("n")));
    write_all(&world, 0..5000);
    assert_whole(&world);
    let backup = world.service.back_up(1, &BackupOptions::new()).unwrap();
    assert_eq!(backup.entries, 1000);
    let behind = backup.vector.positions().iter().map(|position| position.seq).min().unwrap();
    drop(world.service);

    // The log has the later changes: some documents changed and one was removed.
    let changes = [("d7", document(1)), ("d8", None), ("d2000", document(2))];
    for (id, change) in changes.clone() {
        let mut documents = documents.0.lock().unwrap();
        match change {
            Some(change) => documents.insert(id.as_bytes().into(), change),
            None => documents.remove(id.as_bytes()),
        };
    }
    let ids = changes.iter().map(|(id, _)| id.as_bytes().into()).collect();
    let changed = Changed { behind, ids };
    let world = restart(&documents, options.clone(), 5, changed.clone(), 6000);
    assert_whole(&world);
    assert_eq!(world.service.info("n").unwrap().built, 0);
    write_all(&world, 5000..6000);
    assert_whole(&world);
    drop(world.service);

    // The source has another identity, or a log that does not reach back far enough: all documents
    // are read again.
    documents.0.lock().unwrap().remove(&b"d9"[..]);
    let world = restart(&documents, options.clone(), 6, changed.clone(), 9000);
    assert_whole(&world);
    drop(world.service);
    documents.0.lock().unwrap().remove(&b"d10"[..]);
    let late = Changed { behind: u64::MAX, ids: Vec::new() };
    let world = restart(&documents, options, 5, late, 9000);
    assert_whole(&world);
    write_all(&world, 6000..7000);
    assert_whole(&world);
    drop(world.service);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn an_embedded_source_resumes_or_rebuilds() {
    recovered(Reverse::Pointers);
}

#[test]
fn so_with_maps_of_copies() {
    recovered(Reverse::Copies);
}

/// A source of which some partitions continue and others have a new history.
struct Half(Arc<Embedded>);

impl ChangeSource for Half {
    fn partitions(&self) -> u32 {
        self.0.partitions()
    }
    fn newest(&self, partition: u32) -> Result<Position, SourceError> {
        self.0.newest(partition)
    }
    fn continues(&self, partition: u32, from: Position) -> Result<bool, SourceError> {
        Ok(partition.is_multiple_of(2) && self.0.continues(partition, from)?)
    }
    fn documents(
        &self,
        at: &VersionVector,
        parts: usize,
    ) -> Result<Vec<ordna_secondary::Documents>, SourceError> {
        self.0.documents(at, parts)
    }
    fn run(&self, feed: &Feed, from: &VersionVector) -> Result<(), SourceError> {
        let goes_on = from.positions().iter().map(|position| position.seq > 0);
        assert!(goes_on.eq([true, false].into_iter().cycle().take(8)), "{from}");
        self.0.run(feed, from)
    }
}

#[test]
fn only_buckets_of_another_history_are_rebuilt() {
    let dir = directory("partitions");
    let options = ServiceOptions::new().workers(2).backups(&dir);
    let documents = Arc::new(Documents::default());
    let changed = Changed { behind: 0, ids: Vec::new() };
    let world = restart(&documents, options.clone(), 5, changed.clone(), 1);
    world.create(IndexDefinition::new("n", "d").part(Part::new("n")));
    write_all(&world, 0..1000);
    assert_whole(&world);
    world.service.back_up(1, &BackupOptions::new()).unwrap();
    drop(world.service);
    // This change is not in the log: it appears only in the partitions that are rebuilt.
    for id in 0..1000 {
        let mut documents = documents.0.lock().unwrap();
        documents.insert(format!("d{id}").into_bytes().into(), document(id + 1_000_000).unwrap());
    }
    let source = Embedded::new(8, 5, Arc::clone(&documents) as Arc<_>).sequence(|| 5000);
    let source = Half(Arc::new(source.resume(changed)));
    let service = Service::start(options, Arc::new(source)).unwrap();
    let view = service.view(&Read::request_plus()).unwrap();
    let rebuilt = view
        .count(
            "n",
            &[],
            &Range::Between(std::ops::Bound::Included(int(1_000_000)), std::ops::Bound::Unbounded),
        )
        .unwrap();
    assert_eq!(view.count("n", &[], &Range::All).unwrap(), 1000);
    assert!((300..700).contains(&rebuilt), "{rebuilt}");
    drop(service);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn backups_at_once_are_all_whole() {
    let dir = directory("at-once");
    let options = ServiceOptions::new().workers(2).backups(&dir);
    let documents = Arc::new(Documents::default());
    let changed = Changed { behind: 0, ids: Vec::new() };
    let world = restart(&documents, options.clone(), 5, changed.clone(), 1);
    world.create(IndexDefinition::new("n", "d").part(Part::new("n")));
    write_all(&world, 0..1000);
    assert_whole(&world);
    let made: Vec<Backup> = std::thread::scope(|scope| {
        let back_up = || world.service.back_up(100, &BackupOptions::new()).unwrap();
        let threads = [(); 4].map(|()| scope.spawn(move || [(); 5].map(|()| back_up())));
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    for backup in made {
        let options = options.clone().restore(Some(backup.path));
        assert_whole(&restart(&documents, options, 5, changed.clone(), 6000));
    }
    drop(world.service);
    std::fs::remove_dir_all(dir).unwrap();
}
