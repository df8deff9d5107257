//! Compares large lists with a model, and checks the invariants of their nodes.

use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow};

use ordna::durability::OpenOptions;
use ordna::{Direction, Options, OrderedIndex, Store};
use proptest::prelude::*;

use crate::keyspace::Keyspace;
use crate::keyspace::collections::head::Head;
use crate::keyspace::list::{self, End, ListView};
use crate::keyspace::stored_key;
use crate::keyspace::value_kind::ValueKind;

const KEY: &[u8] = b"list";

/// A change of a list. Positions are fractions of the length, in 1/256.
#[derive(Debug, Clone)]
enum Edit {
    Push(Vec<Vec<u8>>, End),
    Pop(usize, End),
    Set(u8, Vec<u8>),
    Insert(u8, Vec<u8>),
    Remove(Vec<u8>),
    Trim(u8, u8),
    /// Copies the list to another key and back.
    Copy,
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let len = prop_oneof![6 => 0..20_usize, 2 => 100..140_usize, 1 => 250..2000_usize];
    (len, any::<u8>()).prop_map(|(len, byte)| vec![byte; len])
}

fn edit() -> impl Strategy<Value = Edit> {
    let end = || prop_oneof![Just(End::Front), Just(End::Back)];
    prop_oneof![
        6 => (proptest::collection::vec(value(), 1..60), end()).prop_map(|(v, end)| Edit::Push(v, end)),
        4 => (value(), end()).prop_map(|(v, end)| Edit::Push(vec![v], end)),
        4 => (1..60_usize, end()).prop_map(|(count, end)| Edit::Pop(count, end)),
        4 => end().prop_map(|end| Edit::Pop(1, end)),
        2 => (any::<u8>(), value()).prop_map(|(at, v)| Edit::Set(at, v)),
        2 => (any::<u8>(), value()).prop_map(|(at, v)| Edit::Insert(at, v)),
        1 => proptest::collection::vec(any::<u8>(), 1..10).prop_map(Edit::Remove),
        1 => (0..30_u8, 225..=255_u8).prop_map(|(start, end)| Edit::Trim(start, end)),
        1 => Just(Edit::Copy),
    ]
}

fn place(at: u8, len: usize) -> usize {
    usize::from(at) * len / 256
}

/// Applies an edit to the list and to the model.
fn apply(keyspace: &Keyspace, model: &mut VecDeque<Vec<u8>>, edit: &Edit) {
    let len = model.len();
    let run = |change: &mut dyn FnMut(&mut crate::keyspace::collections::Body<'_>)| {
        let done = keyspace.edit_collection(KEY, ValueKind::List, true, |body| {
            change(body);
            Ok(())
        });
        done.unwrap();
    };
    match edit {
        Edit::Push(values, end) => {
            let done = match values.as_slice() {
                [value] => keyspace.push_at_end(KEY, value, *end).unwrap(),
                _ => None,
            };
            if done.is_none() {
                run(&mut |body| values.iter().for_each(|value| list::push(body, value, *end)));
            }
            for value in values {
                match end {
                    End::Front => model.push_front(value.clone()),
                    End::Back => model.push_back(value.clone()),
                }
            }
            assert!(done.is_none_or(|count| count == model.len()));
        }
        Edit::Pop(count, end) => {
            let mut popped: Vec<_> = match count {
                1 => keyspace.pop_at_end(KEY, *end).unwrap().into_iter().collect(),
                _ => Vec::new(),
            };
            if popped.is_empty() {
                run(&mut |body| popped = list::pop_some(body, *end, *count, usize::MAX).unwrap());
            }
            let expected: Vec<_> = (0..*count)
                .map_while(|_| match end {
                    End::Front => model.pop_front(),
                    End::Back => model.pop_back(),
                })
                .collect();
            assert_eq!(popped, expected);
        }
        Edit::Set(at, value) if len > 0 => {
            let at = place(*at, len);
            run(&mut |body| list::set(body, at, value));
            model[at] = value.clone();
        }
        Edit::Insert(at, value) if len > 0 => {
            let at = place(*at, len + 1);
            run(&mut |body| list::insert(body, at, value));
            model.insert(at, value.clone());
        }
        Edit::Remove(places) if len > 0 => {
            let mut indices: Vec<_> = places.iter().map(|at| place(*at, len)).collect();
            indices.sort_unstable();
            indices.dedup();
            run(&mut |body| list::remove_all(body, &indices));
            indices.iter().rev().for_each(|at| drop(model.remove(*at)));
        }
        Edit::Trim(start, end) if len > 0 => {
            let (start, end) = (place(*start, len), place(*end, len));
            run(&mut |body| list::trim(body, start, end.saturating_sub(start)));
            *model = model.range(start.min(end)..end).cloned().collect();
        }
        Edit::Copy => {
            let Some(value) = keyspace.get_with(KEY, <[u8]>::to_vec) else { return };
            if let crate::keyspace::edits::build::NewValue::Large(large) =
                keyspace.copy_of(value, None)
            {
                keyspace.put_large(KEY, &large, None, None).unwrap();
                while keyspace.remove_elements().unwrap() > 0 {}
            }
        }
        _ => {}
    }
}

fn all(list: &ListView<'_, '_>, start: usize, len: usize, direction: Direction) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    list.visit(start, len, direction, |value| {
        found.push(value.to_vec());
        ControlFlow::Continue(())
    });
    found
}

/// Compares the list with the model in both directions, and checks its entries.
fn check(keyspace: &Keyspace, model: &VecDeque<Vec<u8>>, start: usize, len: usize) {
    let expected: Vec<Vec<u8>> = model.iter().cloned().collect();
    let read = |list: ListView<'_, '_>| {
        assert_eq!(list.len(), expected.len());
        assert_eq!(all(&list, 0, usize::MAX, Direction::Ascending), expected);
        let mut back = all(&list, 0, usize::MAX, Direction::Descending);
        back.reverse();
        assert_eq!(back, expected);
        let part: Vec<_> = expected.iter().skip(start).take(len).cloned().collect();
        assert_eq!(all(&list, start, len, Direction::Ascending), part);
        let mut back = all(&list, start, len, Direction::Descending);
        back.reverse();
        assert_eq!(back, part);
        for at in [0, start, start + len, expected.len().saturating_sub(1)] {
            assert_eq!(list.get(at), expected.get(at).cloned());
        }
    };
    let found = keyspace.read_collection(KEY, ValueKind::List, |body| read(ListView(body)));
    assert_eq!(found.unwrap().is_none(), expected.is_empty());
    let snapshot = crate::keyspace::snapshot::KeyspaceSnapshot::of(keyspace);
    let found = snapshot.read_collection(KEY, ValueKind::List, |body| read(ListView(body)));
    assert_eq!(found.unwrap().is_none(), expected.is_empty());
    // The counter of reserved entries must be exact.
    let users = usize::from(!expected.is_empty());
    assert_eq!(keyspace.approximate_len(), users);
    let head = keyspace.get_with(KEY, |value| (Head::read(value), value.len()));
    let Some((Some(head), stored)) = head else { return };
    assert!(stored <= 27 + 2 + 2 * 256, "a head of {stored} bytes");
    let mut position = head.first;
    let elements = (Bound::Included(stored_key::USER_END), Bound::Unbounded);
    keyspace.store().scan_with(elements, Direction::Ascending, usize::MAX, |key, value| {
        if key == stored_key::LAYOUT_KEY {
            return ControlFlow::Continue(());
        }
        let part = &key[stored_key::elements_of(head.id).len()..];
        if part == [0; 9] {
            assert!(value.is_empty(), "the anchor");
            return ControlFlow::Continue(());
        }
        let start = u64::from_be_bytes(part[..8].try_into().unwrap()) ^ 1 << 63;
        assert!(start.cast_signed() >= position, "nodes overlap");
        let values = crate::keyspace::collections::large::Large::values_in(part, value);
        assert!(values == 1 || value.len() <= 1024, "a node of {} bytes", value.len());
        position = start.cast_signed() + values as i64;
        ControlFlow::Continue(())
    });
    assert!(position <= head.first + head.count as i64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_list_is_what_was_done_to_it(
        edits in proptest::collection::vec((edit(), 0..300_usize, 0..120_usize), 1..60),
    ) {
        let keyspace = Keyspace::with_options(Options::new());
        let mut model = VecDeque::new();
        for (edit, start, len) in &edits {
            apply(&keyspace, &mut model, edit);
            check(&keyspace, &model, *start, *len);
        }
    }
}

fn push_all(
    keyspace: &Keyspace,
    model: &mut VecDeque<Vec<u8>>,
    numbers: std::ops::Range<u32>,
    end: End,
) {
    for number in numbers {
        let value = format!("{number:010}").into_bytes();
        apply(keyspace, model, &Edit::Push(vec![value], end));
    }
}

fn nodes(keyspace: &Keyspace) -> usize {
    keyspace.count_reserved()
}

/// Pushes and pops one by one fill nodes, and empty them again, at both ends.
#[test]
fn nodes_are_filled_and_emptied_at_both_ends() {
    for end in [End::Front, End::Back] {
        for other in [End::Front, End::Back] {
            let keyspace = Keyspace::with_options(Options::new());
            let mut model = VecDeque::new();
            push_all(&keyspace, &mut model, 0..5000, end);
            check(&keyspace, &model, 1000, 100);
            // Each value takes 11 bytes.
            let full = 5000 * 11 / 1024;
            assert!((full..full * 3 / 2).contains(&nodes(&keyspace)), "{}", nodes(&keyspace));
            for count in (1..5000).rev() {
                apply(&keyspace, &mut model, &Edit::Pop(1, other));
                if count % 97 == 0 {
                    check(&keyspace, &model, count / 2, 50);
                }
            }
            // Only the anchor is left.
            assert_eq!((model.len(), nodes(&keyspace)), (1, 1));
            apply(&keyspace, &mut model, &Edit::Pop(1, other));
            check(&keyspace, &model, 0, 1);
            assert_eq!(nodes(&keyspace), 0);
        }
    }
}

/// A value that grows within a node divides it, and one that is too long becomes a separate node.
#[test]
fn a_node_that_grows_is_divided() {
    let keyspace = Keyspace::with_options(Options::new());
    let mut model = VecDeque::new();
    push_all(&keyspace, &mut model, 0..2000, End::Back);
    let before = nodes(&keyspace);
    for at in 100..120_u8 {
        apply(&keyspace, &mut model, &Edit::Set(at, vec![at; 120]));
    }
    check(&keyspace, &model, 700, 300);
    assert!(nodes(&keyspace) > before);
    let before = nodes(&keyspace);
    apply(&keyspace, &mut model, &Edit::Set(110, vec![b'x'; 5000]));
    check(&keyspace, &model, 800, 100);
    // The value's own node, and the nodes on both sides.
    assert!((before + 1..=before + 2).contains(&nodes(&keyspace)));
}

/// Both ends of the part that is kept are within one node.
#[test]
fn a_list_is_cut_within_one_node() {
    let keyspace = Keyspace::with_options(Options::new());
    for start in (300..500).step_by(9) {
        let mut model = VecDeque::new();
        push_all(&keyspace, &mut model, 0..1000, End::Back);
        let cut = |body: &mut crate::keyspace::collections::Body<'_>| {
            list::trim(body, start, 40);
            Ok(())
        };
        keyspace.edit_collection(KEY, ValueKind::List, true, cut).unwrap();
        model = model.range(start..start + 40).cloned().collect();
        check(&keyspace, &model, 10, 20);
        apply(&keyspace, &mut model, &Edit::Pop(100, End::Front));
        check(&keyspace, &model, 0, 1);
        assert_eq!(nodes(&keyspace), 0);
    }
}

/// A list of an older server has an entry for each value. It can be read and changed in that form.
/// A change raises the version of the layout, so that the older server refuses to open it.
#[test]
fn a_list_of_an_older_server_is_read_and_changed() {
    let dir = std::env::temp_dir().join(format!("ordna-older-list-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let mut model: VecDeque<Vec<u8>> = (0..300).map(|at| vec![b'v'; at % 7]).collect();
    {
        let store = Store::<[u8], [u8]>::open(&dir, OpenOptions::new()).unwrap();
        let head = Head { count: 300, first: -50, ..Head::new(ValueKind::List, 1) };
        store.insert(KEY, &head.stored()).unwrap();
        store.insert(stored_key::LAYOUT_KEY, &stored_key::layout(2)).unwrap();
        for (at, value) in model.iter().enumerate() {
            let position = (at as i64 - 50).cast_unsigned() ^ 1 << 63;
            let key = [&stored_key::elements_of(1)[..], &position.to_be_bytes()].concat();
            store.insert(&key, value).unwrap();
        }
    }
    let open = || Keyspace::of_opened(Store::open(&dir, OpenOptions::new()).unwrap()).unwrap();
    let keyspace = open();
    let layout = keyspace.store().get(stored_key::LAYOUT_KEY).unwrap();
    assert_eq!(stored_key::layout_version(&layout), Some(stored_key::LAYOUT_VERSION));
    check(&keyspace, &model, 100, 50);
    let edits = [
        Edit::Push(vec![b"one".to_vec()], End::Front),
        Edit::Push(vec![b"two".to_vec()], End::Back),
        Edit::Pop(3, End::Front),
        Edit::Pop(1, End::Back),
        Edit::Pop(1, End::Back),
        Edit::Set(128, b"three".to_vec()),
        Edit::Copy,
        Edit::Insert(30, b"four".to_vec()),
        Edit::Remove(vec![20, 200]),
        Edit::Trim(20, 230),
    ];
    for edit in &edits {
        apply(&keyspace, &mut model, edit);
        check(&keyspace, &model, 100, 50);
    }
    drop(keyspace);
    let keyspace = open();
    check(&keyspace, &model, 100, 50);
    apply(&keyspace, &mut model, &Edit::Pop(1000, End::Front));
    assert_eq!(keyspace.count_reserved(), 1, "the layout");
    drop(keyspace);
    let _ = std::fs::remove_dir_all(&dir);
}

/// A list whose values are all in the head keeps its id after a restart: no other collection gets
/// the same one.
#[test]
fn a_list_without_nodes_keeps_its_id() {
    let dir = std::env::temp_dir().join(format!("ordna-list-id-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let open = || Keyspace::of_opened(Store::open(&dir, OpenOptions::new()).unwrap()).unwrap();
    let mut model = VecDeque::new();
    {
        let keyspace = open();
        push_all(&keyspace, &mut model, 0..500, End::Back);
        apply(&keyspace, &mut model, &Edit::Pop(495, End::Front));
        check(&keyspace, &model, 0, 5);
    }
    let keyspace = open();
    let id = |key: &[u8]| keyspace.get_with(key, |stored| Head::read(stored).unwrap().id).unwrap();
    let values: Vec<Vec<u8>> = (0..300).map(|at: i32| at.to_string().into_bytes()).collect();
    let crate::keyspace::edits::build::NewValue::Large(other) =
        keyspace.build_list(&values).unwrap()
    else {
        panic!("300 values are a large list");
    };
    keyspace.put_large(b"other", &other, None, None).unwrap();
    assert_ne!(id(KEY), id(b"other"));
    drop(keyspace);
    let _ = std::fs::remove_dir_all(&dir);
}

/// If a large collection was seen under a key, and the key then holds something else, reads and
/// changes are still correct.
#[test]
fn a_key_that_held_a_large_list_may_hold_anything() {
    let keyspace = Keyspace::with_options(Options::new());
    let mut model = VecDeque::new();
    let read = |kind| keyspace.read_collection(KEY, kind, |body| body.len());
    let edit = |kind| keyspace.edit_collection(KEY, kind, true, |body| Ok(body.len()));
    for _ in 0..2 {
        push_all(&keyspace, &mut model, 0..500, End::Back);
        for _ in 0..2 {
            assert_eq!(read(ValueKind::List).unwrap(), Some(500));
            assert!(read(ValueKind::Set).is_err());
            assert!(edit(ValueKind::ZSet).is_err());
            check(&keyspace, &model, 100, 300);
        }
        apply(&keyspace, &mut model, &Edit::Pop(500, End::Front));
        while keyspace.remove_elements().unwrap() > 0 {}
        assert_eq!(read(ValueKind::List).unwrap(), None);
        assert_eq!(edit(ValueKind::Set).unwrap().result, 0);
        push_all(&keyspace, &mut model, 0..5, End::Front);
        assert_eq!(read(ValueKind::List).unwrap(), Some(5));
        assert!(read(ValueKind::Set).is_err());
        assert!(edit(ValueKind::ZSet).is_err());
        check(&keyspace, &model, 1, 3);
        let string = || ordna::Put { value: b"a string".to_vec(), expires_at: None };
        keyspace.modify_entry(KEY, |_| ordna::Change::Put(string())).unwrap();
        assert!(read(ValueKind::List).is_err());
        assert!(edit(ValueKind::List).is_err());
        keyspace.modify_entry::<&[u8]>(KEY, |_| ordna::Change::Remove).unwrap();
        model.clear();
    }
}

#[test]
fn a_key_that_was_absent_is_found_once_it_is_there() {
    let keyspace = Keyspace::with_options(Options::new());
    assert!(!keyspace.is_absent_again(KEY), "nothing was popped from it");
    keyspace.saw_absent(KEY);
    assert!(keyspace.is_absent_again(KEY) && keyspace.is_absent_again(KEY));
    let push = |body: &mut crate::keyspace::collections::Body<'_>| {
        list::push(body, b"value", End::Back);
        Ok(())
    };
    keyspace.edit_collection(KEY, ValueKind::List, true, push).unwrap();
    assert!(!keyspace.is_absent_again(KEY));
    keyspace.store().remove(KEY).unwrap();
    assert!(!keyspace.is_absent_again(KEY), "nothing was popped since");
}
