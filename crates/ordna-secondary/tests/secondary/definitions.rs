//! Tests of index definitions: filters, the types of parts, and parts with an entry for each element
//! of a text or an array.

use ordna::tuple::Value;
use ordna_secondary::*;

use crate::common::{World, ids, int, text};

#[test]
fn filters_pass_what_their_text_says() {
    let town = Document::new()
        .with("name", text("Lund"))
        .with("people", int(94_393))
        .with("age", text("1034"))
        .with("odd name", Value::Bool(true))
        .with("none", Value::Null);
    for (filter, passes) in [
        ("people >= 94393", true),
        ("people > 94393", false),
        ("people < 94393.5 and name = 'Lund'", true),
        ("name != \"Lund\"", false),
        ("absent != 1", false),
        ("NOT absent = 1", true),
        ("exists none AND none = null", true),
        ("none < 5", false),
        ("age > 99", true),
        ("age > '99'", false),
        ("name > 5 OR people > 5", true),
        ("(people > 5 OR name = 'x') AND NOT (name = 'Lund')", false),
        ("`odd name` = true", true),
        ("name = 'Lu''nd'", false),
    ] {
        let parsed = Filter::parse(filter).unwrap();
        assert_eq!(parsed.passes(&town), passes, "{filter}");
        assert_eq!(parsed.to_string(), filter);
    }
    for (filter, at) in
        [("", 0), ("a", 1), ("a = ", 4), ("a = 'b", 4), ("(a = 1", 6), ("a = 1 b", 6), ("a ~ 1", 2)]
    {
        match Filter::parse(filter) {
            Err(Error::BadFilter { at: found, .. }) => assert_eq!(found, at, "{filter}"),
            other => panic!("{filter}: {other:?}"),
        }
    }
    assert!(Filter::parse(&"(".repeat(100_000)).is_err());
    assert!(Filter::parse(&"NOT ".repeat(100_000)).is_err());
}

#[test]
fn split_texts_and_arrays_make_an_entry_for_each_piece() {
    let world = World::new(ServiceOptions::new());
    let tags = Part::new("tags").kind(Kind::LowerText).explode(Explode::Split(','));
    world.create(IndexDefinition::new("tags", "d").part(tags));
    world.put("d1", Some(Document::new().with("tags", text(" Red, blue,,red "))));
    world.put("d2", Some(Document::new().with("tags", Value::Bytes(b"blue".to_vec()))));
    world.put("d3", Some(Document::new()));
    world.put("other", Some(Document::new().with("tags", text("blue"))));
    let all = world.all("tags");
    let expected =
        [(Value::Missing, "d3"), (text("blue"), "d1"), (text("blue"), "d2"), (text("red"), "d1")];
    let expected: Vec<_> =
        expected.into_iter().map(|(tag, id)| (vec![tag], id.as_bytes().to_vec())).collect();
    assert_eq!(all, expected);
    let starts = Query::new().range(Range::StartsWith("BL".to_owned()));
    let page = world.service.query("tags", &starts, &Read::any()).unwrap();
    assert_eq!(ids(&page), ["d1", "d2"]);
}

#[test]
fn wrong_types_are_null_or_counted_or_refused() {
    let world = World::new(ServiceOptions::new());
    for (name, wrong) in [
        ("null", OnWrongType::Null),
        ("count", OnWrongType::Count),
        ("refuse", OnWrongType::Refuse),
    ] {
        let part = Part::new("n").kind(Kind::Number);
        world.create(IndexDefinition::new(name, "").part(part).on_wrong_type(wrong));
    }
    let bad = Document::new().with("n", text("many"));
    let refused = world.service.check(b"d", &bad);
    assert!(matches!(refused, Err(Error::WrongType { index, .. }) if index == "refuse"));
    world.service.check(b"d", &Document::new().with("n", text("12"))).unwrap();
    world.put("d", Some(bad));
    assert_eq!(world.all("null"), [(vec![Value::Null], b"d".to_vec())]);
    assert_eq!(world.all("count"), []);
    assert_eq!(world.service.info("count").unwrap().wrong_type, 1);
    assert_eq!(world.service.info("null").unwrap().wrong_type, 0);
}

#[test]
fn an_update_of_other_fields_writes_nothing() {
    let world = World::new(ServiceOptions::new());
    let part = Part::new("tags").explode(Explode::Array);
    world.create(IndexDefinition::new("tags", "").part(part));
    let tags = |number| {
        let tags = Value::Tuple(vec![text("a"), text("b"), text("a")]);
        Some(Document::new().with("tags", tags).with("other", int(number)))
    };
    world.put("d", tags(0));
    let before = world.all("tags");
    assert_eq!(before.len(), 2);
    let writes = world.service.info("tags").unwrap().writes;
    assert_eq!(writes, 2);
    for number in 1..50 {
        world.put("d", tags(number));
    }
    assert_eq!(world.all("tags"), before);
    assert_eq!(world.service.info("tags").unwrap().writes, writes);
}

#[test]
fn pages_that_end_by_their_bytes_continue_where_they_ended() {
    let world = World::new(ServiceOptions::new());
    world.create(IndexDefinition::new("n", "").part(Part::new("n")).part(Part::new("m")));
    for number in 0..60 {
        let id = format!("d{number:02}{}", "x".repeat(number * 37 % 50));
        let document = Document::new().with("n", int(number as i128 / 5)).with("m", int(7));
        world.put(&id, Some(document));
    }
    let view = world.service.view(&Read::request_plus()).unwrap();
    for (reverse, distinct, offset) in
        [(false, None, 0), (true, None, 3), (false, Some(1), 0), (true, Some(1), 2)]
    {
        let all = Query { reverse, distinct, offset, limit: 1000, ..Query::new() };
        let whole = ids(&view.query("n", &all).unwrap());
        for max_bytes in [0, 1, 100, 150, 1000, 10_000] {
            let (mut found, mut cursor, mut pages) = (Vec::new(), None, 0);
            loop {
                let query = Query { cursor, ..all.clone().max_bytes(max_bytes) };
                let page = view.query("n", &query).unwrap();
                let bytes: usize = page.entries.iter().map(|entry| entry.id.len()).sum();
                assert!(bytes <= max_bytes || page.entries.len() == 1, "{bytes} of {max_bytes}");
                found.extend(ids(&page));
                pages += 1;
                cursor = page.cursor;
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(found, whole, "{reverse} {distinct:?} {max_bytes}");
            assert!(pages > 1 || max_bytes >= 1000, "{max_bytes}: {pages}");
        }
    }
}
