//! Models of a leaf's undo records and of its published order: push, prune, end and lookup at once.
//!
//! `cargo xtask loom` runs them; `cargo xtask faults undo_order` and `leaf_order` show what they notice.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use ordna::LiveTerms;
use ordna::model::OneLeaf;

fn model(body: impl Fn(Arc<OneLeaf>) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 20_000;
    builder.check(move || body(Arc::new(OneLeaf::new(10))));
}

fn beside(
    leaf: &Arc<OneLeaf>,
    work: impl FnOnce(&OneLeaf) + Send + 'static,
) -> thread::JoinHandle<()> {
    let leaf = Arc::clone(leaf);
    thread::spawn(move || work(&leaf))
}

#[test]
fn a_reader_beside_a_push_sees_the_old_value() {
    model(|leaf| {
        let writer = beside(&leaf, |leaf| leaf.write(2, 1, 20, None));
        assert_eq!(leaf.read(1), 10);
        writer.join().unwrap();
        assert_eq!((leaf.read(1), leaf.read(2)), (10, 20));
    });
}

#[test]
fn readers_at_two_snapshots_beside_a_push() {
    model(|leaf| {
        leaf.write(2, 1, 20, None);
        let writer = beside(&leaf, |leaf| leaf.write(3, 2, 30, None));
        assert_eq!((leaf.read(1), leaf.read(2)), (10, 20));
        writer.join().unwrap();
        assert_eq!((leaf.read(1), leaf.read(2), leaf.read(3)), (10, 20, 30));
    });
}

#[test]
fn a_reader_beside_a_prune_sees_the_old_value() {
    model(|leaf| {
        leaf.write(2, 1, 20, None);
        leaf.write(3, 2, 30, None);
        // The snapshot of term 2 has ended: the record of its value goes.
        let live = || LiveTerms { terms: vec![1], settled: 3 };
        let writer = beside(&leaf, move |leaf| leaf.write(4, 1, 40, Some(live())));
        assert_eq!(leaf.read(1), 10);
        writer.join().unwrap();
        assert_eq!((leaf.read(1), leaf.read(4)), (10, 40));
    });
}

#[test]
fn a_reader_and_a_writer_beside_the_end_of_records() {
    model(|leaf| {
        leaf.write(2, 1, 20, None);
        // The snapshot of term 1 has ended, that of term 2 lives.
        let end = beside(&leaf, |leaf| leaf.free(2));
        let writer = beside(&leaf, |leaf| leaf.write(3, 2, 30, None));
        assert_eq!(leaf.read(2), 20);
        end.join().unwrap();
        writer.join().unwrap();
        assert_eq!((leaf.read(2), leaf.read(3)), (20, 30));
    });
}

#[test]
fn an_order_is_of_its_version() {
    model(|leaf| {
        leaf.publish(1, 1);
        let publisher = beside(&leaf, |leaf| leaf.publish(5, 5));
        if let Some(places) = leaf.order(1) {
            assert!(places.iter().all(|place| *place == 1), "{places:?}");
        }
        publisher.join().unwrap();
        let places = leaf.order(5).expect("published");
        assert!(places.iter().all(|place| *place == 5), "{places:?}");
    });
}
