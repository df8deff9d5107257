//! Tests of snapshot points under load: each must contain exactly the changes up to its vector.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ordna::tuple::Value;
use ordna_secondary::*;

use crate::common::{SOON, World, entries, int};

fn by_n() -> IndexDefinition {
    IndexDefinition::new("by_n", "").part(Part::new("n")).part(Part::new("partition"))
}

#[test]
fn a_snapshot_point_in_progress_brings_no_dropped_index_back() {
    let options = ServiceOptions::new().interval(Duration::from_micros(50));
    let world = World::new(options);
    for (prefix, count) in [("a", 3), ("b", 5)] {
        for n in 0..count {
            let document = Document::new().with("n", int(n)).with("partition", int(0));
            world.put(&format!("{prefix}{n}"), Some(document));
        }
    }
    let named = |prefix: &str| IndexDefinition { prefixes: vec![prefix.into()], ..by_n() };
    for round in 0..2000 {
        // Snapshot points may begin at any moment while the index exists.
        world.service.create(named("b")).unwrap();
        (0..round % 200).for_each(|_| std::hint::spin_loop());
        world.service.drop_index("by_n").unwrap();
        world.service.create(named("a")).unwrap();
        let read = Read::request_plus().timeout(SOON).wait_for_build();
        let found = world.service.count("by_n", &[], &Range::All, &read).unwrap();
        assert_eq!(found, 3, "round {round}");
        world.service.drop_index("by_n").unwrap();
    }
}

/// A source with a known history: for each partition, the change with each sequence number.
struct Known {
    history: Vec<Vec<Mutation>>,
}

const PARTITIONS: usize = 4;

impl Known {
    fn new(changes: usize) -> Self {
        let mut history = vec![Vec::new(); PARTITIONS];
        let mut random = 88_172_645_463_325_252_u64;
        for number in 0..changes {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (partition, id) = (number % PARTITIONS, random % 50);
            let mine: &mut Vec<Mutation> = &mut history[partition];
            let document = Document::new()
                .with("n", int(number as i128))
                .with("partition", int(partition as i128));
            mine.push(Mutation {
                partition: partition as u32,
                seq: mine.len() as u64 + 1,
                id: format!("{partition}-{id}").into_bytes().into(),
                document: (random >> 32 & 7 != 0).then_some(document),
            });
        }
        Self { history }
    }

    /// Computes the entries at a vector.
    fn at(&self, vector: &VersionVector) -> Vec<(Vec<Value>, Vec<u8>)> {
        let mut documents = BTreeMap::new();
        for (mine, position) in self.history.iter().zip(vector.positions()) {
            for change in &mine[..position.seq as usize] {
                documents.insert(change.id.to_vec(), change.document.clone());
            }
        }
        let mut rows: Vec<(i128, Vec<Value>, Vec<u8>)> = Vec::new();
        for (id, document) in documents {
            let Some(document) = document else { continue };
            let parts =
                ["n", "partition"].map(|name| document.get(name).cloned().unwrap()).to_vec();
            let Value::Number(ordna::tuple::Number::Int(n)) = parts[0] else { unreachable!() };
            rows.push((n, parts, id));
        }
        rows.sort_by_key(|row| row.0);
        rows.into_iter().map(|(_, parts, id)| (parts, id)).collect()
    }
}

impl ChangeSource for Known {
    fn partitions(&self) -> u32 {
        PARTITIONS as u32
    }

    fn newest(&self, partition: u32) -> Result<Position, SourceError> {
        let seq = self.history[partition as usize].len() as u64;
        Ok(Position { identity: 3, seq })
    }

    fn continues(&self, _: u32, _: Position) -> Result<bool, SourceError> {
        Ok(true)
    }

    fn documents(
        &self,
        at: &VersionVector,
        _: usize,
    ) -> Result<Vec<ordna_secondary::Documents>, SourceError> {
        let part = |(mine, position): (&Vec<Mutation>, &Position)| {
            let until: Vec<_> = mine[..position.seq as usize].to_vec();
            Box::new(until.into_iter().map(Ok)) as ordna_secondary::Documents
        };
        Ok(self.history.iter().zip(at.positions()).map(part).collect())
    }

    fn run(&self, feed: &Feed, from: &VersionVector) -> Result<(), SourceError> {
        std::thread::scope(|scope| {
            let feeders = self.history.iter().zip(from.positions()).map(|(mine, position)| {
                scope.spawn(|| {
                    for change in &mine[position.seq as usize..] {
                        feed.push(change.clone())?;
                    }
                    Ok(())
                })
            });
            let feeders: Vec<_> = feeders.collect();
            feeders.into_iter().try_for_each(|feeder| feeder.join().unwrap())
        })
    }
}

#[test]
fn every_cut_under_load_equals_a_recomputation_at_its_vector() {
    let source = Arc::new(Known::new(150_000));
    let options = ServiceOptions::new().workers(3).interval(Duration::from_millis(1)).queue(500);
    let service = Service::start(options, Arc::clone(&source) as Arc<_>).unwrap();
    service.create(by_n()).unwrap();
    service.wait_until_built("by_n", SOON).unwrap();
    let (mut checked, mut last) = (0, 0);
    loop {
        let view = service.view(&Read::any()).unwrap();
        if view.number() != last {
            last = view.number();
            assert_eq!(entries(&view, "by_n"), source.at(view.vector()), "at {}", view.vector());
            checked += 1;
        }
        if view.vector().positions().iter().all(|position| position.seq == 37_500) {
            break;
        }
    }
    assert!(checked > 3, "only {checked} cuts were looked at");
    let end = service.view(&Read::request_plus()).unwrap();
    assert_eq!(entries(&end, "by_n"), source.at(end.vector()));
}

#[test]
fn a_build_under_load_ends_with_the_same_entries() {
    let source = Arc::new(Known::new(60_000));
    let options = ServiceOptions::new().workers(2).interval(Duration::from_millis(1)).queue(100);
    let service = Service::start(options, Arc::clone(&source) as Arc<_>).unwrap();
    for number in 0..6 {
        let name = format!("by_n_{number}");
        let definition = IndexDefinition { name: name.clone(), ..by_n() };
        service.create(definition).unwrap();
        service.wait_until_built(&name, SOON).unwrap();
        let view = service.view(&Read::any()).unwrap();
        assert_eq!(entries(&view, &name), source.at(view.vector()));
        assert!(service.info(&name).unwrap().state == IndexState::Ready);
    }
    let end = service.view(&Read::request_plus()).unwrap();
    for number in 0..6 {
        assert_eq!(entries(&end, &format!("by_n_{number}")), source.at(end.vector()));
    }
}

#[test]
fn one_document_from_many_threads_ends_with_its_final_entry() {
    let world = World::new(ServiceOptions::new().workers(2).queue(8));
    world.create(IndexDefinition::new("n", "").part(Part::new("n")));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let world = &world;
            scope.spawn(move || {
                for number in 0..2_000 {
                    let document = Document::new().with("n", int(thread * 10_000 + number));
                    let id = format!("{}", number % 5);
                    world.put(&id, (number % 7 != 0).then_some(document));
                }
            });
        }
    });
    let mut expected: Vec<_> = (world.documents.0.lock().unwrap().iter())
        .map(|(id, document)| (vec![document.get("n").unwrap().clone()], id.to_vec()))
        .collect();
    expected.sort_by_key(|(parts, _)| ordna::tuple::encode(&parts[0]));
    assert_eq!(world.all("n"), expected);
}

/// Stops other threads, even if this one panics.
struct StopAtDrop<'a>(&'a AtomicBool);

impl Drop for StopAtDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_long_scan_under_updates_returns_one_cut() {
    let world = World::new(ServiceOptions::new().interval(Duration::from_millis(2)));
    world.create(IndexDefinition::new("n", "").part(Part::new("n")));
    let round = |round: i128| {
        for id in 0..500 {
            world.put(&format!("{id:03}"), Some(Document::new().with("n", int(round))));
        }
    };
    round(0);
    assert_eq!(world.all("n").len(), 500);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                round(number);
                if stop.load(Ordering::Acquire) {
                    return;
                }
            }
        });
        let _stops = StopAtDrop(&stop);
        // Number of scans during which a newer snapshot point was published.
        let mut overtaken = 0;
        while overtaken < 5 {
            let view = world.service.view(&Read::any()).unwrap();
            let first = entries(&view, "n");
            let mut pages = Vec::new();
            let mut query = Query::new().limit(7).covering();
            loop {
                let page = view.query("n", &query).unwrap();
                pages.extend(page.entries.into_iter().map(|entry| (entry.parts, entry.id)));
                std::thread::sleep(Duration::from_micros(100));
                let Some(cursor) = page.cursor else { break };
                query = query.cursor(cursor);
            }
            assert_eq!(pages, first);
            let newer = world.service.view(&Read::any()).unwrap();
            overtaken += u32::from(newer.number() > view.number());
        }
    });
    assert_eq!(world.all("n").len(), 500);
}

#[test]
fn reads_after_writes_see_them_and_vectors_are_waited_for() {
    let world = World::new(ServiceOptions::new().interval(Duration::from_secs(3600)));
    world.create(IndexDefinition::new("n", "").part(Part::new("n")));
    let read = Read::request_plus();
    for number in 0..50 {
        world.put("one", Some(Document::new().with("n", int(number))));
        let page = world.service.query("n", &Query::new().covering(), &read).unwrap();
        assert_eq!(page.entries[0].parts, [int(number)]);
        assert_eq!(page.entries.len(), 1);
    }
    let vector = world.service.fed();
    let view = world.service.view(&Read::at_plus(vector.clone())).unwrap();
    assert!(view.vector().reaches(&vector).unwrap());
    let mut later = vector.positions().to_vec();
    later[3].seq += 1000;
    let never = Read::at_plus(VersionVector::new(later)).timeout(Duration::from_millis(30));
    assert!(matches!(world.service.view(&never), Err(Error::Timeout { .. })));
}

/// Two documents that are always written together show the same number in every snapshot point.
#[test]
fn writes_that_belong_together_are_in_one_cut() {
    let options = ServiceOptions::new().workers(2).interval(Duration::from_micros(100)).queue(4);
    let world = World::new(options);
    world.create(IndexDefinition::new("n", "").part(Part::new("n")));
    let ids: Vec<String> = (0..8).map(|number| format!("d{number}")).collect();
    let ids: Vec<&[u8]> = ids.iter().map(|id| id.as_bytes()).collect();
    let document = |n: i128| Some(Document::new().with("n", int(n)));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                if number % 2 == 0 {
                    let write = || ((), vec![Some(document(number)); ids.len()]);
                    world.source.write_many(&ids, write).unwrap();
                } else {
                    let _transaction = world.source.transaction();
                    for id in &ids {
                        world.source.write(id, || ((), Some(document(number)))).unwrap();
                    }
                }
                if stop.load(Ordering::Acquire) {
                    return;
                }
            }
        });
        let _stops = StopAtDrop(&stop);
        let (mut last, mut looked) = (0, 0);
        while looked < 300 {
            let view = world.service.view(&Read::any()).unwrap();
            if view.number() == last {
                continue;
            }
            (last, looked) = (view.number(), looked + 1);
            let rows = entries(&view, "n");
            assert!(rows.is_empty() || rows.len() == ids.len(), "{rows:?}");
            assert!(rows.windows(2).all(|pair| pair[0].0 == pair[1].0), "{rows:?}");
        }
    });
}
