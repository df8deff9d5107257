//! Tests of random documents, indexes and queries against results that are recomputed by sorting.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

use ordna::tuple::{Number, Value};
use ordna_secondary::*;
use proptest::prelude::*;
use proptest::sample::select;

use crate::common::{World, entries};

const FIELDS: [&str; 3] = ["a", "b", "c"];

fn value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (-3_i128..4).prop_map(|n| Value::Number(Number::Int(n))),
        select(vec![-0.0, 0.5, -2.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300])
            .prop_map(|n| Value::Number(Number::from(n))),
        select(vec![i128::MAX, i128::MIN]).prop_map(|n| Value::Number(Number::from(n))),
        select(vec!["", "a", "a\0", "a\0b", "\u{1}", "é", "Ab", "ab", "7"])
            .prop_map(|text| Value::String(text.to_owned())),
        select(vec![&b"\0\x01"[..], b"\xff\xff", b"x"]).prop_map(|b| Value::Bytes(b.to_vec())),
    ];
    let array = prop::collection::vec(scalar.clone(), 0..4).prop_map(Value::Tuple);
    prop_oneof![5 => scalar, 1 => array]
}

fn document() -> impl Strategy<Value = Document> {
    prop::collection::vec((select(&FIELDS[..]), value()), 0..4).prop_map(|fields| {
        let mut document = Document::new();
        fields.into_iter().for_each(|(name, value)| document.push(name, value));
        document
    })
}

fn part() -> impl Strategy<Value = Part> {
    let kinds = vec![
        Kind::Any,
        Kind::Number,
        Kind::Text,
        Kind::LowerText,
        Kind::Bytes,
        Kind::Bool,
        Kind::Natural,
    ];
    (select(&FIELDS[..]), any::<bool>(), prop_oneof![Just(Kind::Any), select(kinds)]).prop_map(
        |(field, descending, kind)| {
            let part = Part::new(field).kind(kind);
            if descending { part.descending() } else { part }
        },
    )
}

fn definition() -> impl Strategy<Value = IndexDefinition> {
    let filters = vec![None, Some("a >= 0 OR EXISTS b"), Some("NOT a = 'a'")];
    let parts = prop::collection::vec(part(), 1..4);
    (parts, select(vec!["d", "d1"]), any::<bool>(), select(filters), any::<bool>()).prop_map(
        |(mut parts, prefix, explodes, filter, counts)| {
            if explodes {
                parts[0].explode = Explode::Array;
            }
            let mut definition = IndexDefinition::new("index", prefix);
            definition.parts = parts;
            definition.filter = filter.map(|text| Filter::parse(text).unwrap());
            let wrong = if counts { OnWrongType::Count } else { OnWrongType::Null };
            definition.on_wrong_type(wrong)
        },
    )
}

#[derive(Debug, Clone)]
enum Step {
    Put(u8, Document),
    Delete(u8),
    Create(usize, IndexDefinition),
    Drop(usize),
    Check,
    Ask(usize, Vec<Value>, (Bound<Value>, Bound<Value>), bool, usize, usize),
}

fn bound() -> impl Strategy<Value = Bound<Value>> {
    prop_oneof![
        Just(Bound::Unbounded),
        value().prop_map(Bound::Included),
        value().prop_map(Bound::Excluded)
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let ask = (0..3_usize, prop::collection::vec(value(), 0..2), (bound(), bound()), any::<bool>());
    prop_oneof![
        20 => (0..24_u8, document()).prop_map(|(id, document)| Step::Put(id, document)),
        5 => (0..24_u8).prop_map(Step::Delete),
        2 => (0..3_usize, definition()).prop_map(|(at, index)| Step::Create(at, index)),
        1 => (0..3_usize).prop_map(Step::Drop),
        4 => Just(Step::Check),
        6 => (ask, 0..4_usize, 1..5_usize).prop_map(|((at, prefix, range, reverse), offset, limit)| {
            Step::Ask(at, prefix, range, reverse, offset, limit)
        }),
    ]
}

/// Converts a value as a part of this kind does. This implements the documented rules a second
/// time.
fn stored(value: &Value, kind: Kind) -> Option<Value> {
    let text = match value {
        Value::String(text) => Some(text.clone()),
        Value::Bytes(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    match (kind, value) {
        (Kind::Any, _) | (_, Value::Null | Value::Missing) => Some(value.clone()),
        (Kind::Number, Value::Number(_)) | (Kind::Bool, Value::Bool(_)) => Some(value.clone()),
        (Kind::Number, _) => Some(Value::Number(Number::Int(text?.parse().ok()?))),
        (Kind::Natural, _) => match text.and_then(|text| text.parse().ok()) {
            Some(number) => Some(Value::Number(Number::Int(number))),
            None => Some(value.clone()),
        },
        (Kind::Text, _) => text.map(Value::String),
        (Kind::LowerText, _) => text.map(|text| Value::String(text.to_lowercase())),
        (Kind::Bytes, Value::Bytes(_)) => Some(value.clone()),
        (Kind::Bytes, _) => text.map(|text| Value::Bytes(text.into_bytes())),
        (Kind::Bool, _) => None,
    }
}

/// Compares two values, by type first.
fn compare(a: &Value, b: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Missing => 0,
        Value::Null => 1,
        Value::Bool(_) => 2,
        Value::Number(_) => 3,
        Value::String(_) => 4,
        Value::Bytes(_) => 5,
        _ => 6,
    };
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::String(a), Value::String(b)) => a.as_bytes().cmp(b.as_bytes()),
        (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.to_f64(), b.to_f64());
            // NaN sorts above all numbers.
            a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
        }
        (Value::Tuple(a), Value::Tuple(b)) => {
            let pairs = a.iter().zip(b).map(|(a, b)| compare(a, b));
            pairs.fold(Ordering::Equal, Ordering::then).then(a.len().cmp(&b.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

fn in_order(parts: &[Part], a: &[Value], b: &[Value]) -> Ordering {
    let each = parts.iter().zip(a.iter().zip(b)).map(|(part, (a, b))| match part.order {
        Order::Ascending => compare(a, b),
        Order::Descending => compare(b, a),
    });
    each.fold(Ordering::Equal, Ordering::then)
}

type Model = BTreeMap<Vec<u8>, Document>;
type Row = (Vec<Value>, Vec<u8>);
type Rows = Vec<Row>;

/// Computes what an index must contain, from the documents.
fn recompute(definition: &IndexDefinition, documents: &Model) -> Rows {
    let mut rows = Rows::new();
    for (id, document) in documents {
        if !id.starts_with(&definition.prefixes[0])
            || definition.filter.as_ref().is_some_and(|filter| !filter.passes(document))
        {
            continue;
        }
        let value = |part: &Part| document.get(&part.field).cloned().unwrap_or(Value::Missing);
        let mut firsts = vec![value(&definition.parts[0])];
        if let (Explode::Array, Value::Tuple(items)) = (definition.parts[0].explode, &firsts[0]) {
            firsts = if items.is_empty() { vec![Value::Missing] } else { items.clone() };
        }
        let mut mine: Rows = Vec::new();
        for first in firsts {
            let rest = definition.parts[1..].iter().map(value);
            let all = std::iter::once(first).chain(rest).zip(&definition.parts);
            let parts: Option<Vec<Value>> = all
                .map(|(value, part)| match stored(&value, part.kind) {
                    None if definition.on_wrong_type == OnWrongType::Null => Some(Value::Null),
                    stored => stored,
                })
                .collect();
            match parts {
                Some(parts) => mine.push((parts, id.clone())),
                // A single value of the wrong type excludes the whole document.
                None => {
                    mine.clear();
                    break;
                }
            }
        }
        rows.extend(mine);
    }
    rows.sort_by(|a, b| in_order(&definition.parts, &a.0, &b.0).then(a.1.cmp(&b.1)));
    rows.dedup_by(|a, b| in_order(&definition.parts, &a.0, &b.0).is_eq() && a.1 == b.1);
    rows
}

fn assert_same(definition: &IndexDefinition, found: &Rows, expected: &Rows) {
    let same = |(a, b): (&Row, &Row)| in_order(&definition.parts, &a.0, &b.0).is_eq() && a.1 == b.1;
    let all = found.len() == expected.len() && found.iter().zip(expected).all(same);
    assert!(all, "{definition:?}\nfound    {found:?}\nexpected {expected:?}");
}

fn class(value: &Value) -> u8 {
    match value {
        Value::Missing => 0,
        Value::Null => 1,
        Value::Bool(_) => 2,
        Value::Number(_) => 3,
        Value::String(_) => 4,
        Value::Bytes(_) => 5,
        _ => 6,
    }
}

/// Returns whether a value is within bounds. A range with a single bound ends with that bound's
/// class.
fn lies_within(value: &Value, range: &(Bound<Value>, Bound<Value>)) -> bool {
    let above = match &range.0 {
        Bound::Included(low) => compare(value, low).is_ge(),
        Bound::Excluded(low) => compare(value, low).is_gt(),
        Bound::Unbounded => true,
    };
    let below = match &range.1 {
        Bound::Included(high) => compare(value, high).is_le(),
        Bound::Excluded(high) => compare(value, high).is_lt(),
        Bound::Unbounded => true,
    };
    let keeps = match range {
        (Bound::Included(only) | Bound::Excluded(only), Bound::Unbounded)
        | (Bound::Unbounded, Bound::Included(only) | Bound::Excluded(only)) => {
            class(value) == class(only)
        }
        _ => true,
    };
    above && below && keeps
}

fn run(steps: Vec<Step>, reverse: Reverse) {
    let world = World::new(ServiceOptions::new().workers(3).queue(2).reverse(reverse));
    let mut model = Model::new();
    let mut indexes: BTreeMap<String, IndexDefinition> = BTreeMap::new();
    for step in steps {
        match step {
            Step::Put(id, document) => {
                let id = format!("d{id}");
                world.put(&id, Some(document.clone()));
                model.insert(id.into_bytes(), document);
            }
            Step::Delete(id) => {
                let id = format!("d{id}");
                world.put(&id, None);
                model.remove(id.as_bytes());
            }
            Step::Create(at, mut definition) => {
                definition.name = at.to_string();
                let created = world.service.create(definition.clone());
                if indexes.contains_key(&definition.name) {
                    assert!(matches!(created, Err(Error::DuplicateIndex(_))));
                } else {
                    created.unwrap();
                    indexes.insert(definition.name.clone(), definition);
                }
            }
            Step::Drop(at) => {
                let name = at.to_string();
                let dropped = world.service.drop_index(&name);
                assert_eq!(dropped.is_ok(), indexes.remove(&name).is_some());
            }
            Step::Check => {
                for name in indexes.keys() {
                    world.service.wait_until_built(name, crate::common::SOON).unwrap();
                }
                let view = world.service.view(&Read::request_plus()).unwrap();
                for (name, definition) in &indexes {
                    let expected = recompute(definition, &model);
                    assert_same(definition, &entries(&view, name), &expected);
                }
            }
            Step::Ask(at, prefix, range, reverse, offset, limit) => {
                let Some(definition) = indexes.get(&at.to_string()) else { continue };
                ask(&world, definition, &model, prefix, range, reverse, offset, limit);
            }
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "the parts of a query")]
fn ask(
    world: &World,
    definition: &IndexDefinition,
    model: &Model,
    mut prefix: Vec<Value>,
    range: (Bound<Value>, Bound<Value>),
    reverse: bool,
    offset: usize,
    limit: usize,
) {
    prefix.truncate(definition.parts.len() - 1);
    let mut query = Query::new().prefix(prefix.clone()).offset(offset).limit(limit).covering();
    query.range = Range::Between(range.0.clone(), range.1.clone());
    query.reverse = reverse;
    let part = &definition.parts[prefix.len()];
    let convert = |bound: &Bound<Value>| match bound {
        Bound::Included(value) => stored(value, part.kind).map(Bound::Included),
        Bound::Excluded(value) => stored(value, part.kind).map(Bound::Excluded),
        Bound::Unbounded => Some(Bound::Unbounded),
    };
    let range = convert(&range.0).zip(convert(&range.1));
    let prefix: Option<Vec<Value>> = prefix
        .iter()
        .zip(&definition.parts)
        .map(|(value, part)| stored(value, part.kind))
        .collect();
    let read = Read::request_plus().wait_for_build();
    let name = &definition.name;
    let (Some(range), Some(prefix)) = (range, prefix) else {
        let refused = world.service.query(name, &query, &read);
        assert!(matches!(refused, Err(Error::BadQuery { .. })), "{refused:?}");
        return;
    };
    let mut expected = recompute(definition, model);
    expected.retain(|(parts, _)| {
        let agrees = prefix.iter().zip(parts).all(|(a, b)| compare(a, b).is_eq());
        agrees && lies_within(&parts[prefix.len()], &range)
    });
    let counted = world.service.count(name, &query.prefix, &query.range, &read).unwrap();
    assert_eq!(counted, expected.len(), "{query:?} of {definition:?}");
    let view = world.service.view(&read).unwrap();
    for most in [0, limit, expected.len(), usize::MAX] {
        let counted = view.count_up_to(name, &query.prefix, &query.range, most).unwrap();
        let (counted, exact) = (counted.min(most.saturating_add(1)), expected.len());
        assert_eq!(counted, exact.min(most.saturating_add(1)), "{query:?} up to {most}");
    }
    if reverse {
        expected.reverse();
    }
    let mut expected = expected.split_off(offset.min(expected.len()));
    let mut found = Rows::new();
    // Reads all pages, with cursors converted to text and back.
    loop {
        let page = world.service.query(name, &query, &read).unwrap();
        assert!(page.entries.len() <= limit);
        assert!(page.cursor.is_none() || page.entries.len() == limit);
        found.extend(page.entries.into_iter().map(|entry| (entry.parts, entry.id)));
        let Some(cursor) = page.cursor else { break };
        query.cursor = Some(cursor.to_string().parse().unwrap());
    }
    assert_same(definition, &found, &expected);
    query.cursor = None;
    query = query.distinct(1).limit(2).offset(0);
    if offset == 0 {
        expected.dedup_by(|a, b| compare(&a.0[0], &b.0[0]).is_eq());
        let page = world.service.query(name, &query, &read).unwrap();
        assert_eq!(page.cursor.is_some(), expected.len() > 2, "{query:?}");
        expected.truncate(2);
        let found = page.entries.into_iter().map(|entry| (entry.parts, entry.id)).collect();
        assert_same(definition, &found, &expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn indexes_hold_what_a_recomputation_gives(steps in prop::collection::vec(step(), 1..80)) {
        run(steps, Reverse::Pointers);
    }

    #[test]
    fn maps_of_copies_hold_the_same(steps in prop::collection::vec(step(), 1..60)) {
        run(steps, Reverse::Copies);
    }
}
