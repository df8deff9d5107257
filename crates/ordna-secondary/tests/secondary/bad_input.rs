//! Tests of what the service refuses, and with which errors.

use std::sync::Arc;
use std::time::Duration;

use ordna::tuple::Value;
use ordna_secondary::*;

use crate::common::{SOON, World, int, text};

fn names() -> IndexDefinition {
    IndexDefinition::new("names", "").part(Part::new("name")).part(Part::new("n"))
}

#[test]
fn definitions_names_and_queries_that_do_not_fit_are_refused() {
    let world = World::new(ServiceOptions::new());
    let none = IndexDefinition::new("none", "");
    assert!(matches!(world.service.create(none), Err(Error::BadDefinition { .. })));
    let twice = Part::new("a").explode(Explode::Array);
    let twice = IndexDefinition::new("twice", "").part(twice.clone()).part(twice);
    assert!(matches!(world.service.create(twice), Err(Error::BadDefinition { .. })));
    world.create(names());
    assert!(
        matches!(world.service.create(names()), Err(Error::DuplicateIndex(name)) if name == "names")
    );
    let read = Read::any();
    let ask = |query: Query| world.service.query("names", &query, &read);
    assert!(matches!(world.service.query("x", &Query::new(), &read), Err(Error::UnknownIndex(_))));
    let long = Query::new().prefix([text("a"), int(1), int(2)]);
    assert!(matches!(ask(long), Err(Error::BadQuery { .. })));
    let behind_all = Query::new().prefix([text("a"), int(1)]).range(Range::StartsWith("a".into()));
    assert!(matches!(ask(behind_all), Err(Error::BadQuery { .. })));
    assert!(matches!(ask(Query::new().distinct(3)), Err(Error::BadQuery { .. })));
    assert!(matches!(world.service.drop_index("x"), Err(Error::UnknownIndex(_))));
    assert!("1-2*0".parse::<VersionVector>().is_err());
    assert!("1-2*99999999999".parse::<VersionVector>().is_err());
    assert!("x".parse::<VersionVector>().is_err());
    let other = Read::at_plus(VersionVector::new(vec![Position::default(); 3]));
    assert!(matches!(world.service.view(&other), Err(Error::PartitionCount { found: 3, .. })));
    let foreign = VersionVector::new(vec![Position { identity: 99, seq: 1 }; 8]);
    assert!(matches!(world.service.view(&Read::at_plus(foreign)), Err(Error::OtherHistory { .. })));
}

#[test]
fn cursors_of_other_queries_and_dropped_indexes_are_refused() {
    let world = World::new(ServiceOptions::new());
    world.create(names());
    for number in 0..10 {
        let document = Document::new().with("name", text("a")).with("n", int(number));
        world.put(&number.to_string(), Some(document));
    }
    world.all("names");
    let read = Read::any();
    let two = Query::new().limit(2);
    let cursor = world.service.query("names", &two, &read).unwrap().cursor.unwrap();
    let mut damaged = cursor.as_bytes().to_vec();
    damaged[15] ^= 1;
    assert!(matches!(Cursor::from_bytes(&damaged), Err(Error::BadCursor(_))));
    assert!(Cursor::from_bytes(b"").is_err());
    assert!("zz".parse::<Cursor>().is_err());
    let other = Query { reverse: true, ..two.clone().cursor(cursor.clone()) };
    assert!(matches!(world.service.query("names", &other, &read), Err(Error::BadCursor(_))));
    let elsewhere = two.clone().prefix([text("b")]).cursor(cursor.clone());
    assert!(matches!(world.service.query("names", &elsewhere, &read), Err(Error::BadCursor(_))));
    world.service.drop_index("names").unwrap();
    world.create(names());
    let of_dropped = world.service.query("names", &two.cursor(cursor), &read);
    assert!(matches!(of_dropped, Err(Error::CursorOfDroppedIndex)), "{of_dropped:?}");
}

#[test]
fn oversized_documents_are_counted_and_lose_their_entries() {
    let world = World::new(ServiceOptions::new());
    let part = Part::new("tags").explode(Explode::Array);
    world.create(IndexDefinition::new("tags", "").part(part));
    let of = |items: Vec<Value>| Some(Document::new().with("tags", Value::Tuple(items)));
    world.put("d", of(vec![int(1)]));
    assert_eq!(world.all("tags").len(), 1);
    let many = of((0..2000).map(int).collect());
    assert!(world.service.check(b"d", many.as_ref().unwrap()).is_err());
    world.put("d", many);
    assert_eq!(world.all("tags").len(), 0);
    world.put("d", of(vec![text(&"x".repeat(100_000))]));
    assert_eq!(world.all("tags").len(), 0);
    assert_eq!(world.service.info("tags").unwrap().too_large, 2);
    world.put("d", of(vec![int(1)]));
    assert_eq!(world.all("tags").len(), 1);
}

#[test]
fn an_index_beyond_the_memory_limit_fails_alone() {
    let store = ordna::Options::new().memory_limit(200_000);
    let world = World::new(ServiceOptions::new().store(store));
    world.create(names());
    let few = IndexDefinition::new("few", "d1").part(Part::new("n"));
    world.create(few);
    for number in 0..10_000 {
        let document = Document::new().with("name", text("somebody")).with("n", int(number));
        world.put(&format!("d{number:04}"), Some(document));
    }
    let read = Read::request_plus();
    let failed = world.service.query("names", &Query::new(), &read);
    assert!(matches!(failed, Err(Error::Failed { .. })), "{failed:?}");
    assert_eq!(world.service.count("few", &[], &Range::All, &read).unwrap(), 1000);
    world.service.drop_index("names").unwrap();
}

/// A source that repeats changes and goes back to earlier ones.
struct Jumping;

impl ChangeSource for Jumping {
    fn partitions(&self) -> u32 {
        1
    }
    fn newest(&self, _: u32) -> Result<Position, SourceError> {
        Ok(Position { identity: 1, seq: 3 })
    }
    fn continues(&self, _: u32, _: Position) -> Result<bool, SourceError> {
        Ok(true)
    }
    fn documents(&self, _: &VersionVector, _: usize) -> Result<Vec<Documents>, SourceError> {
        Ok(Vec::new())
    }
    fn run(&self, feed: &Feed, _: &VersionVector) -> Result<(), SourceError> {
        while !feed.has_indexes() {
            std::thread::yield_now();
        }
        let mut repeated: Vec<bool> = Vec::new();
        for (seq, number) in [(1, 1), (2, 2), (1, 1), (2, 2), (3, 3)] {
            let document = Some(Document::new().with("n", int(number)));
            let taken =
                feed.push(Mutation { partition: 0, seq, id: Box::from(&b"d"[..]), document })?;
            repeated.push(!taken);
        }
        assert_eq!(repeated, [false, false, true, true, false]);
        let elsewhere = Mutation { partition: 1, seq: 1, id: Box::default(), document: None };
        assert!(matches!(feed.push(elsewhere), Err(SourceError::UnknownPartition { .. })));
        let (place, reason) = ("here".to_owned(), "the end".to_owned());
        Err(SourceError::Failed { place, reason })
    }
}

#[test]
fn a_source_that_repeats_is_counted_and_one_that_fails_is_told() {
    let service = Service::start(ServiceOptions::new(), Arc::new(Jumping)).unwrap();
    service.create(IndexDefinition::new("n", "").part(Part::new("n"))).unwrap();
    service.wait_until_built("n", SOON).unwrap();
    let page = service.query("n", &Query::new().covering(), &Read::request_plus()).unwrap();
    assert_eq!(page.entries[0].parts, [int(3)]);
    assert_eq!(service.repeated(), 2);
    let later = VersionVector::new(vec![Position { identity: 1, seq: 9 }]);
    let read = Read::at_plus(later).timeout(Duration::from_secs(5));
    assert!(matches!(service.view(&read), Err(Error::Source(_))));
    assert!(service.source_error().is_some());
}

#[test]
fn a_dropped_index_frees_its_memory() {
    // There is memory for one index only. A second one fits after the first one is dropped.
    let budget = ordna::MemoryBudget::new(2_500_000);
    let world =
        World::new(ServiceOptions::new().store(ordna::Options::new().memory_budget(&budget)));
    let fill = |world: &World| {
        for number in 0..20_000 {
            let document = Document::new().with("name", text("somebody")).with("n", int(number));
            world.put(&number.to_string(), Some(document));
        }
        world.service.count("names", &[], &Range::All, &Read::request_plus())
    };
    for _ in 0..3 {
        world.create(names());
        assert_eq!(fill(&world).unwrap(), 20_000);
        let view = world.service.view(&Read::any()).unwrap();
        world.service.drop_index("names").unwrap();
        assert_eq!(view.count("names", &[], &Range::All).unwrap(), 20_000);
        drop(view);
        world.documents.0.lock().unwrap().clear();
        // The last thread that holds a reference frees the memory. It may be another one, a moment
        // later.
        let began = std::time::Instant::now();
        let store = || {
            ordna::Store::<[u8], u64>::with_options(ordna::Options::new().memory_budget(&budget))
        };
        while store().check_room(2_400_000).is_err() {
            assert!(began.elapsed() < SOON, "the memory is still held");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    // Three indexes do not fit.
    let all = ["names", "again", "more"];
    all.iter().for_each(|name| world.create(IndexDefinition { name: (*name).into(), ..names() }));
    let _ = fill(&world);
    let count = |name: &&str| world.service.count(name, &[], &Range::All, &Read::request_plus());
    assert!(all.iter().map(count).any(|count| matches!(count, Err(Error::Failed { .. }))));
}
