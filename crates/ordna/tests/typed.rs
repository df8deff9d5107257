//! Tests of typed maps: compared with `BTreeMap`, with several in one store, in batches and
//! snapshots, and with bad input.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordna::{Change, Error, Map, Options, Store, Table};
use proptest::prelude::*;

type Key = (String, Option<i32>);
type Model = BTreeMap<Key, u64>;

#[derive(Debug, Clone)]
enum Step {
    Insert(Key, u64),
    InsertIfAbsent(Key, u64),
    Remove(Key),
    Add(Key),
    Swap(Key, u64, u64),
    PopFirst,
    PopLast,
    RemoveRange(Key, Key),
    Batch(Vec<(Key, Option<u64>)>),
}

fn key() -> impl Strategy<Value = Key> {
    let names = ["", "\0", "\0\0", "a", "a\0", "a\u{1}", "ab", "é"].map(str::to_owned).to_vec();
    (prop::sample::select(names), prop::option::of(-2..3))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (key(), 0..4_u64).prop_map(|(k, v)| Step::Insert(k, v)),
        1 => (key(), 0..4_u64).prop_map(|(k, v)| Step::InsertIfAbsent(k, v)),
        2 => key().prop_map(Step::Remove),
        1 => key().prop_map(Step::Add),
        1 => (key(), 0..4_u64, 0..4_u64).prop_map(|(k, a, b)| Step::Swap(k, a, b)),
        1 => Just(Step::PopFirst),
        1 => Just(Step::PopLast),
        1 => (key(), key()).prop_map(|(a, b)| Step::RemoveRange(a, b)),
        1 => prop::collection::vec((key(), prop::option::of(0..4_u64)), 0..4).prop_map(Step::Batch),
    ]
}

fn apply(map: &Table<Key, u64>, model: &mut Model, step: Step) -> Result<(), TestCaseError> {
    match step {
        Step::Insert(k, v) => prop_assert_eq!(map.insert(&k, &v).unwrap(), model.insert(k, v)),
        Step::InsertIfAbsent(k, v) => {
            prop_assert_eq!(map.insert_if_absent(&k, &v).unwrap(), model.get(&k).copied());
            let now = *model.entry(k.clone()).or_insert(v);
            prop_assert_eq!(map.get_or_insert_with(&k, || 99).unwrap(), now);
        }
        Step::Remove(k) => prop_assert_eq!(map.remove(&k).unwrap(), model.remove(&k)),
        Step::Add(k) => {
            let put = |old: Option<u64>| old.map_or(Change::Keep, |old| Change::Put(old + 1));
            map.modify(&k, put).unwrap();
            model.entry(k).and_modify(|value| *value += 1);
        }
        Step::Swap(k, expected, new) => {
            let matches = model.get(&k) == Some(&expected);
            let done = map.compare_and_set(&k, Some(&expected), Some(&new)).unwrap();
            prop_assert_eq!(done, matches);
            if matches {
                model.insert(k, new);
            }
        }
        Step::PopFirst => prop_assert_eq!(map.pop_first().unwrap(), model.pop_first()),
        Step::PopLast => prop_assert_eq!(map.pop_last().unwrap(), model.pop_last()),
        Step::RemoveRange(a, b) => {
            let before = model.len();
            model.retain(|key, _| !(a <= *key && *key < b));
            prop_assert_eq!(map.remove_range(a..b).unwrap(), before - model.len());
        }
        Step::Batch(writes) => {
            let mut batch = map.batch();
            for (k, v) in writes {
                match v {
                    Some(v) => {
                        batch.insert(map, &k, &v).unwrap();
                        model.insert(k, v);
                    }
                    None => {
                        batch.remove(map, &k).unwrap();
                        model.remove(&k);
                    }
                }
            }
            batch.commit().unwrap();
        }
    }
    Ok(())
}

/// Compares all reading methods, on a map or on a snapshot of it.
macro_rules! reads_agree {
    ($map:expr, $model:expr, $a:expr, $b:expr) => {{
        let (map, model, a, b): (_, &Model, &Key, &Key) = ($map, $model, $a, $b);
        let all: Vec<(Key, u64)> = model.clone().into_iter().collect();
        prop_assert_eq!(&map.iter().map(Result::unwrap).collect::<Vec<_>>(), &all);
        let backwards: Vec<_> = map.iter().rev().map(Result::unwrap).collect();
        prop_assert_eq!(backwards, all.iter().rev().cloned().collect::<Vec<_>>());
        prop_assert_eq!(map.len(), all.len());
        prop_assert_eq!(map.is_empty(), all.is_empty());
        prop_assert_eq!(map.get(a).unwrap(), model.get(a).copied());
        prop_assert_eq!(map.contains_key(b), model.contains_key(b));
        let entry = |(key, value): (&Key, &u64)| (key.clone(), *value);
        prop_assert_eq!(map.first_key_value().unwrap(), model.first_key_value().map(entry));
        prop_assert_eq!(map.last_key_value().unwrap(), model.last_key_value().map(entry));
        let floor = model.range(..=a.clone()).next_back().map(entry);
        prop_assert_eq!(map.floor(a).unwrap(), floor);
        let ceiling = model.range(a.clone()..).next().map(entry);
        prop_assert_eq!(map.ceiling(a).unwrap(), ceiling);
        let within: Vec<_> = map.range(a.clone()..=b.clone()).map(Result::unwrap).collect();
        let want = model.iter().filter(|(key, _)| a <= *key && *key <= b).map(entry);
        prop_assert_eq!(within, want.collect::<Vec<_>>());
        let begins: Vec<_> = map.prefix(&(a.0.as_str(),)).map(Result::unwrap).collect();
        let want = model.iter().filter(|(key, _)| key.0 == a.0).map(entry);
        prop_assert_eq!(begins, want.collect::<Vec<_>>());
        // From both ends at once.
        let mut ends = map.keys();
        if let (Some(first), Some(last)) = (ends.next(), ends.next_back()) {
            prop_assert_eq!(&first.unwrap(), &all[0].0);
            prop_assert_eq!(&last.unwrap(), &all[all.len() - 1].0);
            prop_assert_eq!(ends.count(), all.len() - 2);
        }
    }};
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Two maps in one store and one that occupies a whole store, each compared with a model.
    /// Snapshots must not change.
    #[test]
    fn maps_are_btree_maps(steps in prop::collection::vec((0..3_usize, step()), 1..60),
            a in key(), b in key()) {
        let store = Arc::new(Store::new());
        let maps = [
            Table::named(&store, "first").unwrap(),
            Table::named(&store, "").unwrap(),
            Table::over(Arc::new(Store::new())),
        ];
        let mut models = [Model::new(), Model::new(), Model::new()];
        let middle = steps.len() / 2;
        let mut kept = Vec::new();
        for (at, (which, step)) in steps.into_iter().enumerate() {
            if at == middle {
                kept.extend(maps.iter().map(Table::snapshot).zip(models.clone()));
            }
            apply(&maps[which], &mut models[which], step)?;
        }
        for (map, model) in maps.iter().zip(&models) {
            reads_agree!(map, model, &a, &b);
            let keys: Vec<Key> = model.keys().cloned().chain([a.clone()]).collect();
            let values: Vec<_> = keys.iter().map(|key| model.get(key).copied()).collect();
            prop_assert_eq!(map.get_many(&keys).unwrap(), values);
        }
        for (snapshot, model) in &kept {
            reads_agree!(snapshot, model, &a, &b);
        }
        prop_assert_eq!(format!("{:?}", maps[0]), format!("{:?}", models[0]));
        // The same name leads to the same map.
        let again: Table<Key, u64> = Table::named(&store, "first").unwrap();
        prop_assert_eq!(again.len(), models[0].len());
        maps[0].clear().unwrap();
        prop_assert_eq!((again.len(), maps[1].len()), (0, models[1].len()));
    }
}

#[test]
fn values_of_all_kinds() {
    fn comes_back<V>(value: V)
    where
        V: ordna::typed::Stored + ordna::typed::StoreAs<V> + PartialEq + std::fmt::Debug,
    {
        let map: Map<u8, V> = Map::new();
        map.insert(&1, &value).unwrap();
        assert_eq!(map.get(1), Some(value));
    }
    comes_back(-5_i8);
    comes_back(u128::MAX);
    comes_back(f64::NEG_INFINITY);
    comes_back(true);
    comes_back('é');
    comes_back(());
    comes_back("text".to_owned());
    comes_back(vec![0_u8, 1]);
    comes_back([7_u8; 5]);
    let map: Map<u8, String> = Map::new();
    map.insert(&1, "borrowed").unwrap();
    assert_eq!(map.values().next().unwrap(), "borrowed");
}

#[test]
fn borrowed_keys_and_bounds() {
    let map: Map<String, u64> = [("b", 2_u64), ("a", 1), ("c", 3)].into_iter().collect();
    assert_eq!(map.get("a"), Some(1));
    let names: Vec<String> = map.range("b"..).map(|entry| entry.0).collect();
    assert_eq!(names, ["b", "c"]);
    assert_eq!(map.range(..).count(), 3);
    assert_eq!(map.range("c".."a").count(), 0);
    assert_eq!(map.prefix("b").count(), 1);
    let numbers: Map<i64, ()> = (-3..3).map(|number| (number, ())).collect();
    let some: Vec<i64> = numbers.range(-1..=1).map(|entry| entry.0).collect();
    assert_eq!(some, [-1, 0, 1]);
    let mut numbers = numbers;
    numbers.extend([(7_i64, ())]);
    assert_eq!(numbers.len(), 7);
}

#[test]
fn entries_of_other_types_are_errors_that_show_them() {
    let store = Arc::new(Store::new());
    let texts: Table<String, String> = Table::named(&store, "m").unwrap();
    texts.insert("seven", "7").unwrap();
    let numbers: Table<u32, u64> = Table::named(&store, "m").unwrap();
    let error = numbers.iter().next().unwrap().unwrap_err();
    assert!(error.to_string().contains("expected a number of the type u32, found 0x50"), "{error}");
    assert!(matches!(numbers.pop_first(), Err(Error::WrongKey(_))));
    let wide: Table<String, u64> = Table::named(&store, "m").unwrap();
    let error = wide.get("seven").unwrap_err();
    assert_eq!(error.to_string(), "a value of 1 bytes is not a value of the type u64");
    assert!(wide.modify("seven", |_| Change::Put(1)).is_err());
    assert_eq!(texts.get("seven").unwrap().as_deref(), Some("7"));
}

#[test]
fn what_the_store_refuses_changes_nothing() {
    let map: Map<String, String> = Map::with_options(Options::new().memory_limit(100_000));
    let long = "k".repeat(70_000);
    assert!(matches!(map.insert(&long, "v"), Err(Error::KeyTooLong { .. })));
    assert_eq!(map.get(&long), None);
    assert!(map.insert("k", &"v".repeat(200_000)).is_err());
    let mut batch = map.batch();
    batch.insert(&map, "a", "1").unwrap().insert(&map, &long, "v").unwrap();
    assert_eq!(batch.len(), 2);
    assert!(batch.commit().is_err());
    assert!(map.is_empty());
    let other: Map<String, String> = Map::new();
    let mut batch = map.batch();
    assert!(matches!(batch.insert(&other, "a", "1"), Err(Error::OtherStore)));
    assert!(matches!(batch.remove(&other, "a"), Err(Error::OtherStore)));
    assert!(batch.is_empty());
}

#[test]
fn a_batch_over_two_maps_is_whole_in_every_snapshot() {
    let store = Arc::new(Store::new());
    let towns: Table<String, u64> = Table::named(&store, "towns").unwrap();
    let sizes: Table<(u64, String), ()> = Table::named(&store, "sizes").unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for size in 0..2000_u64 {
                let mut batch = towns.batch();
                batch.insert(&towns, "Lund", &size).unwrap();
                if size > 0 {
                    batch.remove(&sizes, &(size - 1, "Lund")).unwrap();
                }
                batch.insert(&sizes, &(size, "Lund"), &()).unwrap();
                batch.commit().unwrap();
            }
        });
        while !writer.is_finished() {
            let moment = store.snapshot();
            let size = towns.at(&moment).unwrap().get("Lund").unwrap();
            let sizes: Vec<_> = sizes.at(&moment).unwrap().keys().map(Result::unwrap).collect();
            let want: Vec<_> = size.map(|size| (size, "Lund".to_owned())).into_iter().collect();
            assert_eq!(sizes, want);
        }
    });
}

#[test]
fn threads_that_name_maps_agree_on_their_numbers() {
    for _ in 0..50 {
        let store = Arc::new(Store::new());
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let store = &store;
                scope.spawn(move || {
                    for name in ["a", "b", "c"] {
                        let map: Table<u64, u64> = Table::named(store, name).unwrap();
                        map.insert(&thread, &thread).unwrap();
                    }
                });
            }
        });
        for name in ["a", "b", "c"] {
            let map: Table<u64, u64> = Table::named(&store, name).unwrap();
            assert_eq!(map.len(), 4);
        }
    }
}

#[test]
fn maps_and_iterators_cross_threads() {
    fn sent<T: Send>(value: T) -> T {
        value
    }
    let map: Map<u64, u64> = (0..100_u64).map(|n| (n, n)).collect();
    let snapshot = map.snapshot();
    let iter = sent(map.iter());
    let at = sent(snapshot.range(10..20));
    std::thread::scope(|scope| {
        scope.spawn(move || assert_eq!(iter.count(), 100));
        scope.spawn(move || assert_eq!(at.rev().count(), 10));
    });
    assert_eq!(map.len(), 100);
    let same = map.clone();
    same.insert(&100, &1).unwrap();
    assert_eq!(map.len(), 101);
}

#[cfg(feature = "derive")]
mod derived {
    use super::*;
    use ordna::TupleKey;
    use ordna::tuple::{decode, encode};

    #[derive(TupleKey, Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
    struct Place {
        country: String,
        region: Option<u8>,
        id: i64,
    }

    #[derive(TupleKey, Debug, PartialEq)]
    struct Ranked<T>(String, #[ordna(descending)] T);

    #[derive(TupleKey, Debug, PartialEq)]
    struct Nothing;

    fn place() -> impl Strategy<Value = Place> {
        let names = prop::sample::select(vec!["", "NO", "SE", "SE\0"]);
        (names, prop::option::of(0..3_u8), -2..3_i64).prop_map(|(country, region, id)| Place {
            country: country.to_owned(),
            region,
            id,
        })
    }

    proptest! {
        #[test]
        fn structs_are_tuples_of_their_fields(a in place(), b in place()) {
            prop_assert_eq!(encode(&a).cmp(&encode(&b)), a.cmp(&b));
            prop_assert_eq!(encode(&a), encode(&(a.country.as_str(), a.region, a.id)));
            prop_assert_eq!(&decode::<Place>(&encode(&a))?, &a);
            let map: Map<Place, u64> = [(b.clone(), 1_u64)].into_iter().collect();
            let same = a.country == b.country;
            prop_assert_eq!(map.prefix(&(a.country.as_str(),)).count() == 1, same);
            let same = same && a.region == b.region;
            prop_assert_eq!(map.prefix(&(a.country.as_str(), a.region)).count() == 1, same);
            let (x, y) = (Ranked(a.country.clone(), a.id), Ranked(b.country.clone(), b.id));
            let order = a.country.cmp(&b.country).then(b.id.cmp(&a.id));
            prop_assert_eq!(encode(&x).cmp(&encode(&y)), order);
            prop_assert_eq!(&decode::<Ranked<i64>>(&encode(&x))?, &x);
        }
    }

    type P0 = u64;

    #[test]
    fn types_may_have_any_name() {
        #[derive(TupleKey, Debug, PartialEq)]
        struct Pair {
            first: P0,
            second: String,
        }
        let map: Map<Pair, ()> = Map::new();
        map.insert(&Pair { first: 1, second: "a".into() }, &()).unwrap();
        assert_eq!(map.prefix(&(1_u64,)).count(), 1);
    }

    #[test]
    fn a_struct_without_fields_is_the_empty_tuple() {
        assert_eq!(encode(&Nothing), encode(&()));
        assert_eq!(decode::<Nothing>(&encode(&())).unwrap(), Nothing);
    }
}

#[cfg(feature = "serde")]
#[test]
fn values_that_serde_knows() {
    use ordna::typed::Serde;

    #[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq)]
    struct Town {
        name: String,
        at: (f64, f64),
        aliases: Vec<String>,
    }
    let map: Table<u64, Serde<Town>> = Table::over(Arc::new(Store::new()));
    let lund = || Serde(Town { name: "Lund".into(), at: (55.7, 13.2), aliases: vec![] });
    map.insert(&1, &lund()).unwrap();
    assert_eq!(map.get(&1).unwrap(), Some(lund()));
    map.store().insert(&ordna::tuple::encode(&2_u64), b"\xFF").unwrap();
    assert!(matches!(map.get(&2), Err(Error::WrongValue(_))));
    map.store()
        .modify(&ordna::tuple::encode(&1_u64), |old| {
            Change::Put([old.unwrap_or_default(), b"x"].concat())
        })
        .unwrap();
    assert!(map.get(&1).unwrap_err().to_string().ends_with(": 1 bytes too many"));
}

#[test]
fn positions_are_those_within_the_map() {
    let store = Arc::new(Store::new());
    let maps: Vec<Table<u64, u64>> =
        ["a", "b", "c"].map(|name| Table::named(&store, name).unwrap()).into();
    for (map, from) in maps.iter().zip([0, 10, 20]) {
        (from..from + 100).step_by(2).for_each(|key| _ = map.insert(&key, &(key + 1)).unwrap());
    }
    let then = maps[1].snapshot();
    maps[1].remove(&10).unwrap();
    for (map, from) in maps.iter().zip([0, 12, 20]) {
        assert_eq!(map.rank(&(from + 5)), 3);
        assert_eq!(map.select(3).unwrap(), Some((from + 6, from + 7)));
        assert_eq!(map.select(map.len()).unwrap(), None);
    }
    assert_eq!((then.rank(&15), then.select(0).unwrap()), (3, Some((10, 11))));
    let whole: Map<u64, u64> = Map::new();
    whole.insert(&7, &8).unwrap();
    assert_eq!(whole.select(0), Some((7, 8)));
    assert_eq!(whole.select(1), None);
}

#[test]
fn names_of_zeros_are_names() {
    let store = Arc::new(Store::new());
    let names = ["", "\0", "\0\0", "\u{1}", "a"];
    let maps = names.map(|name| Table::<u64, u64>::named(&store, name).unwrap());
    for (map, at) in maps.iter().zip(0..) {
        map.insert(&at, &at).unwrap();
    }
    for (name, at) in names.iter().zip(0..) {
        let again: Table<u64, u64> = Table::named(&store, name).unwrap();
        assert_eq!(again.iter().map(Result::unwrap).collect::<Vec<_>>(), [(at, at)]);
    }
}

#[test]
fn a_damaged_or_full_counter_names_no_map() {
    for counter in [&[1, 2][..], &[255; 4]] {
        let store = Arc::new(Store::new());
        let map: Table<u64, u64> = Table::named(&store, "first").unwrap();
        map.insert(&1, &1).unwrap();
        store.insert(&[0], counter).unwrap();
        let refused = Table::<u64, u64>::named(&store, "second");
        match counter.len() {
            4 => assert!(matches!(refused, Err(Error::TooManyMaps))),
            _ => assert!(matches!(refused, Err(Error::WrongValue(_)))),
        }
        assert_eq!(store.get(&[0]).unwrap(), counter);
        assert_eq!(Table::<u64, u64>::named(&store, "first").unwrap().get(&1).unwrap(), Some(1));
    }
}

#[test]
fn entries_are_retained_and_long_keys_are_absent() {
    let store = Arc::new(Store::new());
    let map: Table<String, u64> = Table::named(&store, "map").unwrap();
    let other: Table<String, u64> = Table::named(&store, "other").unwrap();
    for (at, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        map.insert(name, &(at as u64)).unwrap();
        other.insert(name, &0).unwrap();
    }
    assert_eq!(map.retain(|key, value| key == "a" || *value == 2).unwrap(), 2);
    assert_eq!(map.keys().map(Result::unwrap).collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(other.len(), 4);
    let long = "k".repeat(70_000);
    assert_eq!(map.remove(long.as_str()).unwrap(), None);
    let mut batch = map.batch();
    batch.remove(&map, long.as_str()).unwrap();
    batch.remove(&map, "a").unwrap();
    batch.commit().unwrap();
    assert_eq!(map.len(), 1);
}
