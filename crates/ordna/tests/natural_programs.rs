//! Short programs as users of `BTreeMap`, crossbeam-skiplist, papaya or redb would write them
//! first.
//!
//! Each compiles as it would there, or differs as described in the table of `ordna::typed`. What
//! must not compile is a `compile_fail` example of the types in that table.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use ordna::{Batch, Change, Error, Map, OpenOptions, Options, Store, SyncPolicy, Table};

type Outcome = Result<(), Error>;

#[test]
fn p01_a_store_needs_no_trait() -> Outcome {
    let store: Store<[u8], u64> = Store::new();
    store.insert(b"a", &1)?;
    assert_eq!(store.get(b"a"), Some(1));
    assert!(store.contains_key(b"a") && !store.is_empty());
    Ok(())
}

#[test]
fn p02_strings_and_values_by_value() -> Outcome {
    let store: Store<[u8], u64> = Store::new();
    store.insert("a", 1)?;
    let key = String::from("b");
    store.insert(&key, 2)?;
    store.put(vec![99], 3)?;
    assert_eq!(store.get("b"), Some(2));
    let bytes: Store<u64, [u8]> = Store::new();
    bytes.insert(1, "one")?;
    assert_eq!(bytes.get(1).as_deref(), Some(&b"one"[..]));
    Ok(())
}

#[test]
fn p03_every_integer_is_a_key() -> Outcome {
    let small: Map<u8, i8> = Map::new();
    let wide: Map<i128, u16> = Map::new();
    small.insert(1, -1)?;
    wide.insert(-1, 1)?;
    wide.insert(i128::MIN, 2)?;
    assert_eq!(wide.first(), Some((i128::MIN, 2)));
    assert_eq!(small.get(1), Some(-1));
    Ok(())
}

#[test]
fn p04_times_are_keys() -> Outcome {
    let events: Map<SystemTime, String> = Map::new();
    let now = SystemTime::now();
    events.insert(now, "now")?;
    events.insert(now - Duration::from_secs(1), "before")?;
    assert_eq!(events.range(now..).count(), 1);
    assert_eq!(events.last().unwrap().0, now);
    Ok(())
}

#[test]
fn p05_copy_values_by_value() -> Outcome {
    let map: Map<String, i64> = Map::new();
    map.insert("a", 5)?;
    map.insert(String::from("b"), 6)?;
    map.insert(&String::from("c"), &7)?;
    assert_eq!(map.values().sum::<i64>(), 18);
    Ok(())
}

#[test]
fn p06_ranges_of_slices() -> Outcome {
    let store: Store<[u8], u64> = Store::new();
    store.insert_many(&[("a", 1), ("b", 2), ("c", 3)])?;
    let (a, c): (&[u8], &[u8]) = (b"a", b"c");
    assert_eq!(store.range(a..c).count(), 2);
    assert_eq!(store.range(b"a"..=b"c").count(), 3);
    assert_eq!(store.range("b"..).next().unwrap().1, 2);
    assert_eq!(store.range(..).next_back().unwrap().1, 3);
    Ok(())
}

#[test]
fn p07_contains_key_and_index() -> Outcome {
    let map: Map<u32, u32> = Map::from([(1, 10)]);
    assert!(map.contains_key(1) && map.contains_key(&1));
    // Differs: `map[&1]` returns a reference.
    assert_eq!(map.get(1).unwrap(), 10);
    Ok(())
}

#[test]
fn p08_entry() -> Outcome {
    let counts: Map<String, u64> = Map::new();
    for word in ["a", "b", "a"] {
        // Differs: `*counts.entry(word).or_insert(0) += 1` needs a reference.
        counts.entry(word).and_modify(|count| *count += 1).or_insert(1)?;
    }
    assert_eq!(counts.get("a"), Some(2));
    assert_eq!(counts.entry("c").or_default()?, 0);
    assert_eq!(counts.entry("d").or_insert_with(|| 9)?, 9);
    Ok(())
}

#[test]
fn p09_clone_is_a_handle() -> Outcome {
    let map: Map<u64, u64> = Map::new();
    let other = map.clone();
    thread::spawn(move || other.insert(1, 2)).join().unwrap()?;
    assert_eq!(map.get(1), Some(2));
    let store: Arc<Store<u64, u64>> = Arc::new(Store::new());
    let shared = Arc::clone(&store);
    thread::spawn(move || shared.put(1, 2)).join().unwrap()?;
    assert_eq!(store.len(), 1);
    Ok(())
}

#[test]
fn p10_collect_into_a_btreemap_and_back() -> Outcome {
    let model = BTreeMap::from([(1, "a".to_owned()), (2, "b".to_owned())]);
    let map: Map<i32, String> = model.clone().into_iter().collect();
    assert_eq!(map.iter().collect::<BTreeMap<_, _>>(), model);
    for (key, value) in &map {
        assert_eq!(model[&key], value);
    }
    Ok(())
}

#[test]
fn p11_tuples_options_and_vectors_are_values() -> Outcome {
    let pairs: Map<u64, (u64, String)> = Map::new();
    pairs.insert(1, (2, "x"))?;
    assert_eq!(pairs.get(1), Some((2, "x".to_owned())));
    let options: Map<u64, Option<u64>> = Map::new();
    options.insert(1, None::<u64>)?;
    options.insert(2, Some(3))?;
    assert_eq!((options.get(1), options.get(2), options.get(3)), (Some(None), Some(Some(3)), None));
    let lists: Map<String, Vec<String>> = Map::new();
    lists.insert("a", ["x", "y"])?;
    lists.entry("a").and_modify(|list| list.push("z".into())).or_default()?;
    assert_eq!(lists.get("a").unwrap(), ["x", "y", "z"]);
    Ok(())
}

#[cfg(all(feature = "serde", feature = "derive"))]
mod with_serde {
    use super::*;
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize, ordna::Stored, Debug, Clone, PartialEq)]
    struct Point {
        x: f64,
        y: f64,
    }

    #[derive(Serialize, Deserialize, ordna::Stored, Debug, PartialEq)]
    enum Shape<T> {
        Dot,
        Line(T, T),
    }

    #[test]
    fn p12_a_struct_is_a_value() -> Outcome {
        let points: Map<u64, Point> = Map::new();
        let point = Point { x: 1.0, y: 2.0 };
        points.insert(1, &point)?;
        points.insert(2, point.clone())?;
        assert_eq!(points.get(1), Some(point));
        let shapes: Map<u64, Shape<u8>> = Map::new();
        shapes.insert(1, Shape::Line(1, 2))?;
        shapes.insert(2, Shape::Dot)?;
        assert_eq!(shapes.get(1), Some(Shape::Line(1, 2)));
        Ok(())
    }

    #[test]
    fn p13_types_of_other_crates_by_reference() -> Outcome {
        use ordna::typed::Serde;
        let maps: Map<u64, Serde<BTreeMap<String, u8>>> = Map::new();
        let value = BTreeMap::from([("a".to_owned(), 1)]);
        maps.insert(1, Serde(&value))?;
        assert_eq!(maps.get(1).unwrap().0, value);
        Ok(())
    }
}

#[cfg(feature = "derive")]
#[test]
fn p14_a_struct_is_a_key() -> Outcome {
    #[derive(ordna::TupleKey, Debug, PartialEq, Clone)]
    struct Key {
        country: String,
        #[ordna(descending)]
        size: u64,
    }
    let map: Map<Key, ()> = Map::new();
    let key = Key { country: "SE".into(), size: 5 };
    map.insert(&key, ())?;
    assert_eq!(map.range(key.clone()..=key.clone()).count(), 1);
    assert_eq!(map.prefix(("SE",)).next().unwrap().0, key);
    Ok(())
}

/// `?` converts the errors of all of these.
#[test]
fn p15_one_error_for_all() -> Outcome {
    let dir = std::env::temp_dir().join(format!("ordna-natural-{}", std::process::id()));
    let options = OpenOptions::new().sync(SyncPolicy::Always);
    let store: Arc<Store<[u8], [u8]>> = Arc::new(Store::open(&dir, options)?);
    let names: Table<u64, String> = Table::named(&store, "names")?;
    names.insert(1, "ann")?;
    assert_eq!(names.get(1)?.as_deref(), Some("ann"));
    drop((names, store));
    // The directory holds a table and not a plain map.
    let map = Map::<u64, u64>::open(&dir, OpenOptions::new());
    assert!(matches!(map, Err(Error::WrongKey(_))), "{map:?}");
    std::fs::remove_dir_all(&dir).unwrap();
    let file = Store::<[u8], [u8]>::open("/dev/null/x", OpenOptions::new()).map(drop);
    assert!(matches!(file.map_err(Error::from), Err(Error::Durability(_))));
    Ok(())
}

#[test]
fn p16_an_opened_map() -> Outcome {
    let dir = std::env::temp_dir().join(format!("ordna-natural-map-{}", std::process::id()));
    let log: Map<u64, String> = Map::open(&dir, OpenOptions::new())?;
    let next = log.last().map_or(0, |(last, _)| last + 1);
    log.insert(next, "event")?;
    log.sync_log()?;
    drop(log);
    let log: Map<u64, String> = Map::open(&dir, OpenOptions::new())?;
    assert_eq!(log.len(), 1);
    drop(log);
    std::fs::remove_dir_all(&dir).unwrap();
    Ok(())
}

#[test]
fn p17_iterators_from_both_ends() {
    let map: Map<u8, char> = Map::from([(1, 'a'), (2, 'b'), (3, 'c')]);
    assert_eq!(map.iter().rev().map(|(key, _)| key).collect::<Vec<_>>(), [3, 2, 1]);
    let mut both = map.iter();
    assert_eq!((both.next(), both.next_back()), (Some((1, 'a')), Some((3, 'c'))));
    assert_eq!((both.next(), both.next(), both.next_back()), (Some((2, 'b')), None, None));
}

#[test]
fn p18_first_last_and_pop() -> Outcome {
    let queue: Map<(Reverse<u8>, u64), String> = Map::new();
    queue.try_extend([((Reverse(1), 3), "c"), ((Reverse(9), 1), "a"), ((Reverse(5), 2), "b")])?;
    assert_eq!(queue.first_key_value(), queue.first());
    assert_eq!(queue.pop_first()?.unwrap().0, (Reverse(9), 1));
    assert_eq!(queue.pop_last()?.unwrap().0, (Reverse(1), 3));
    assert_eq!((queue.len(), queue.pop_first()?.is_some(), queue.pop_first()?), (1, true, None));
    Ok(())
}

#[test]
fn p19_cursors() {
    let map: Map<u64, u64> = (0..100).map(|key| (key * 2, key)).collect();
    let mut cursor = map.lower_bound(Bound::Included(11));
    assert_eq!(cursor.peek_prev(), Some((10, 5)));
    assert_eq!(cursor.next(), Some((12, 6)));
    assert_eq!(cursor.next(), Some((14, 7)));
    assert_eq!(cursor.prev(), Some((14, 7)));
    assert_eq!(cursor.prev(), Some((12, 6)));
    assert_eq!(cursor.peek_next(), Some((12, 6)));
    assert_eq!(cursor.prev(), Some((10, 5)));
    let mut end = map.upper_bound(Bound::<u64>::Unbounded);
    assert_eq!((end.next(), end.prev()), (None, Some((198, 99))));
    let mut below = map.upper_bound(Bound::Excluded(10));
    assert_eq!((below.peek_next(), below.prev()), (Some((10, 5)), Some((8, 4))));
    let mut start = map.lower_bound(Bound::<u64>::Unbounded);
    assert_eq!((start.prev(), start.next()), (None, Some((0, 0))));
    let mut none = Map::<u64, u64>::new();
    assert_eq!(none.upper_bound(Bound::<u64>::Unbounded).prev(), None);
    none.extend([(1, 1)]);
    assert_eq!(none.upper_bound(Bound::Included(1)).prev(), Some((1, 1)));
}

#[test]
fn p20_removal_of_ranges_and_retain() -> Outcome {
    let map: Map<u64, u64> = (0..100).map(|key| (key, key % 3)).collect();
    assert_eq!(map.remove_range(50..)?, 50);
    assert_eq!(map.retain(|_, value| *value == 0)?, 33);
    assert_eq!(map.keys().take(3).collect::<Vec<_>>(), [0, 3, 6]);
    map.clear()?;
    assert!(map.is_empty());
    Ok(())
}

#[test]
fn p21_ranges_over_the_first_fields() -> Outcome {
    let index: Map<(String, u32, u64), ()> = Map::new();
    for year in 2020..2030 {
        index.insert(("SE", year, 1), ())?;
        index.insert(("NO", year, 1), ())?;
    }
    assert_eq!(index.range_prefix(("SE", 2022)..("SE", 2025)).count(), 3);
    assert_eq!(index.range_prefix(("NO", 2028)..=("SE", 2020)).count(), 3);
    assert_eq!(index.range_prefix((Bound::Excluded(("NO",)), Bound::Unbounded)).count(), 10);
    assert_eq!(index.prefix(("NO",)).count(), 10);
    Ok(())
}

#[test]
fn p22_reads_without_a_copy() {
    let texts: Map<u64, String> = Map::from([(1, "one"), (2, "two")]);
    assert_eq!(texts.get_with(1, |text| text.len()), Some(3));
    let blobs: Map<u64, Vec<u8>> = Map::from([(1, b"one")]);
    assert_eq!(blobs.get_with(1, |bytes: &[u8]| bytes[0]), Some(b'o'));
    let mut all = texts.iter();
    assert_eq!(all.next_with(|key, text| (key, text.starts_with('o'))), Some((1, true)));
}

#[test]
fn p23_a_map_debugs_as_a_map() {
    let map: Map<u64, String> = Map::from([(1, "one")]);
    assert_eq!(format!("{map:?} {:?}", map.snapshot()), r#"{1: "one"} {1: "one"}"#);
}

#[test]
fn p24_iterators_that_tasks_may_own() -> Outcome {
    fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        thread::spawn(work).join().unwrap()
    }
    let map: Map<u64, u64> = (0..100).map(|key| (key, key)).collect();
    let (all, some) = (map.clone().into_iter(), map.clone().into_range(10..20));
    let frozen = map.snapshot().into_iter();
    map.clear()?;
    assert_eq!(spawn(move || (all.count(), some.count(), frozen.count())), (0, 0, 100));
    Ok(())
}

#[test]
fn p25_get_or_insert_with() -> Outcome {
    let cache: Map<String, u64> = Map::new();
    // The closure may use the map.
    let value = cache.get_or_insert_with("a", || cache.len() as u64 + 7)?;
    assert_eq!((value, cache.get_or_insert_with("a", || 0)?), (7, 7));
    Ok(())
}

#[test]
fn p26_modify_and_compare() -> Outcome {
    let map: Map<String, u64> = Map::from([("a", 1)]);
    map.modify("a", |old| old.map_or(Change::Keep, |old| Change::Put(old + 1)))?;
    assert_eq!(map.update("a", |old| old * 10)?, Some(20));
    assert!(map.compare_and_set("a", Some(20), Some(21))?);
    assert!(map.compare_and_set("b", None, Some(1))?);
    assert!(!map.compare_and_set("b", None, Some(2))?);
    assert!(map.compare_and_set("b", Some(1), None)?);
    assert_eq!(map.insert_if_absent("a", 5)?, Some(21));
    Ok(())
}

#[test]
fn p27_deadlines_in_durations() -> Outcome {
    let hour = Duration::from_secs(3600);
    let sessions: Map<u64, String> = Map::new();
    sessions.insert_for(1, "ann", hour)?;
    let left = sessions.expires_in(1).unwrap().unwrap();
    assert!(left <= hour && left > hour / 2, "{left:?}");
    // A change of the value keeps the deadline, unless it explicitly removes it.
    sessions.modify(1, |name| Change::Put(name.unwrap() + "!"))?;
    sessions.update(1, |name| name + "!")?;
    sessions.entry(1).and_modify(|name| name.push('!')).or_insert("")?;
    assert!(sessions.compare_and_set(1, Some("ann!!!"), Some("bob"))?);
    assert!(sessions.expires_in(1).unwrap().is_some());
    assert!(sessions.expire_in(1, hour * 2)? && !sessions.expire_in(2, hour)?);
    assert!(sessions.expires_in(1).unwrap().unwrap() > hour);
    assert!(sessions.persist(1)?);
    assert_eq!((sessions.expires_in(1), sessions.expires_in(2)), (Some(None), None));
    sessions.insert_for(1, "ann", hour)?;
    sessions.insert(1, "ann")?;
    assert_eq!(sessions.expires_in(1), Some(None), "a new entry, which does not expire");
    Ok(())
}

#[test]
fn p28_removals_return_results() -> Outcome {
    let store: Store<[u8], u64> = Store::new();
    store.insert_many(&[("a", 1), ("b", 2), ("c", 3), ("d", 4)])?;
    assert_eq!(store.remove("a")?, Some(1));
    assert_eq!(store.remove_many(&["b", "x"])?, 1);
    assert_eq!(store.remove_range("c"..)?, 2);
    Ok(())
}

#[test]
fn p29_a_store_as_a_collection() -> Outcome {
    let store: Store<u64, u64> = Store::new();
    for key in 0..10 {
        store.put(key, key)?;
    }
    assert_eq!((&store).into_iter().count(), store.iter().count());
    assert_eq!(store.retain(|key, _| key % 2 == 0)?, 5);
    assert_eq!((store.pop_first()?, store.pop_last()?), (Some((0, 0)), Some((8, 8))));
    assert_eq!((store.floor(5), store.ceiling(5)), (Some((4, 4)), Some((6, 6))));
    assert_eq!(store.get_or_insert_with(7, || 70)?, 70);
    store.clear()?;
    assert_eq!(store.len(), 0);
    Ok(())
}

#[test]
fn p30_snapshots_read_as_stores_do() -> Outcome {
    let store: Store<[u8], u64> = Store::new();
    store.put("a", 1)?;
    let then = store.snapshot();
    store.put("b", 2)?;
    assert_eq!((then.get("b"), then.contains_key("a"), then.len()), (None, true, 1));
    assert_eq!(then.range("a"..).next(), then.first());
    assert_eq!(then.floor("z"), then.last());
    Ok(())
}

#[test]
fn p31_a_batch_over_tables() -> Outcome {
    let store = Arc::new(Store::new());
    let towns: Table<String, u64> = Table::named(&store, "towns")?;
    let by_size: Table<(u64, String), ()> = Table::named(&store, "towns by size")?;
    let mut batch = Batch::new(&store);
    batch.insert(&towns, "Lund", 94_393)?.insert(&by_size, (94_393, "Lund"), ())?;
    batch.commit()?;
    let then = store.snapshot();
    towns.clear()?;
    assert_eq!(towns.at(&then)?.len(), 1);
    assert_eq!(Map::<u64, u64>::new().at(&then).err(), Some(Error::OtherStore));
    Ok(())
}

#[test]
fn p32_sorted_input() -> Outcome {
    let map: Map<u64, String> =
        Map::from_sorted(Options::new(), (0..1000).map(|key| (key, key.to_string())))?;
    assert_eq!(map.get(999).as_deref(), Some("999"));
    let unsorted = Map::<u64, u64>::from_sorted(Options::new(), [(2, 0), (1, 0)]);
    assert_eq!(unsorted.err(), Some(Error::NotSorted { part: 0, at: 1 }));
    Ok(())
}

#[test]
fn p33_threads_share_a_map() -> Outcome {
    let map: Map<u64, u64> = Map::new();
    thread::scope(|scope| {
        for thread in 0..2 {
            let map = &map;
            scope.spawn(move || (0..100).try_for_each(|key| map.put(thread * 100 + key, key)));
        }
    });
    assert_eq!(map.len(), 200);
    assert_eq!((map.rank(150), map.select(150)), (150, Some((150, 50))));
    Ok(())
}

#[test]
fn p34_generic_code_takes_the_trait() {
    fn total<I: ordna::OrderedIndex<Key = u64, Value = u64>>(index: &I) -> u64 {
        index.range(..).map(|(_, value)| value).sum()
    }
    let store: Store<u64, u64> = Store::new();
    store.put(1, 2).unwrap();
    assert_eq!(total(&store), 2);
}
