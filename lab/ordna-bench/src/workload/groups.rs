//! The order of operations that are executed in groups.
//!
//! A thread that works in groups delays gets, puts and removes, each kind separately, until it has
//! as many as a group contains. Then it executes them with one call. What may be delayed is decided
//! here, before the measurement: the operations are written in another order, in which those of one
//! call are neighbours. Two operations on one key keep their order where it matters: a get comes
//! after earlier puts and removes, a put after earlier removes, and a remove after earlier gets and
//! puts. If such a pair occurs, the earlier group is executed before it is full. Later puts may
//! overtake gets, which then find a newer value. The get of a read-update comes before its put.

use std::collections::HashSet;

use super::{Action, Call, Operation};

/// Delayed operations of one call.
#[derive(Default)]
struct Pending {
    operations: Vec<Operation>,
    keys: HashSet<u32>,
}

struct Groups {
    batch: usize,
    gets: Pending,
    puts: Pending,
    removes: Pending,
    /// Whether a delayed get must come before the puts.
    gets_first: bool,
    done: Vec<Operation>,
}

impl Groups {
    fn pending(&mut self, call: Call) -> &mut Pending {
        match call {
            Call::Get => &mut self.gets,
            Call::Put => &mut self.puts,
            Call::Remove => &mut self.removes,
        }
    }

    fn flush(&mut self, call: Call) {
        if call == Call::Put && self.gets_first {
            self.flush(Call::Get);
        }
        if call == Call::Get {
            self.gets_first = false;
        }
        let mut pending = std::mem::take(self.pending(call));
        self.done.append(&mut pending.operations);
        pending.keys.clear();
        // Keeps its capacity.
        *self.pending(call) = pending;
    }

    fn add(&mut self, call: Call, operation: Operation) {
        let before: &[Call] = match call {
            Call::Get => &[Call::Put, Call::Remove],
            Call::Put => &[Call::Remove],
            Call::Remove => &[Call::Get, Call::Put],
        };
        let batch = self.batch;
        // The latest key is not known yet, and no operation removes it.
        let has_key = operation.action != Action::Latest;
        for earlier in before {
            if has_key && self.pending(*earlier).keys.contains(&operation.key) {
                self.flush(*earlier);
            }
        }
        let pending = self.pending(call);
        if has_key {
            pending.keys.insert(operation.key);
        }
        pending.operations.push(operation);
        if pending.operations.len() == batch {
            self.flush(call);
        }
    }
}

/// Returns the operations of a thread in the order in which groups of `batch` execute them. A
/// read-update becomes a read and an update.
pub fn grouped(operations: &[Operation], batch: usize) -> Vec<Operation> {
    let mut groups = Groups {
        batch,
        gets: Pending::default(),
        puts: Pending::default(),
        removes: Pending::default(),
        gets_first: false,
        done: Vec::with_capacity(operations.len()),
    };
    for operation in operations {
        let Operation { action, key } = *operation;
        match action.call() {
            Some(call) => groups.add(call, *operation),
            None if action == Action::ReadUpdate => {
                groups.add(Call::Get, Operation { action: Action::Read, key });
                groups.gets_first |= !groups.gets.operations.is_empty();
                groups.add(Call::Put, Operation { action: Action::Update, key });
            }
            None => groups.done.push(*operation),
        }
    }
    for call in [Call::Get, Call::Put, Call::Remove] {
        groups.flush(call);
    }
    groups.done
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::workload::Workload;

    /// Returns the lengths of the groups of each call, as in a run.
    fn lengths(
        operations: &[Operation],
        batch: usize,
    ) -> HashMap<Option<&'static str>, Vec<usize>> {
        let mut lengths: HashMap<_, Vec<usize>> = HashMap::new();
        for run in operations.chunk_by(|a, b| a.action.call() == b.action.call()) {
            let call = run[0].action.call().map(|call| match call {
                Call::Get => "get",
                Call::Put => "put",
                Call::Remove => "remove",
            });
            lengths.entry(call).or_default().extend(run.chunks(batch).map(<[_]>::len));
        }
        lengths
    }

    fn mean(lengths: &[usize]) -> f64 {
        lengths.iter().sum::<usize>() as f64 / lengths.len() as f64
    }

    fn written(name: &str, loaded: usize) -> (Vec<Operation>, Vec<Operation>) {
        let workload: Workload = name.parse().unwrap();
        let total = 40_000;
        let extra = workload.extra_keys(total, 2);
        let written = workload.operations(loaded, loaded, extra, total, 2, 1);
        let thread = 1;
        let before = written.operations[thread].clone();
        let grouped = written.grouped(64);
        assert_eq!(grouped.counted[thread], before.len());
        (before, grouped.operations[thread].clone())
    }

    #[test]
    fn groups_are_full_where_keys_do_not_meet() {
        for (name, call, least) in [
            ("c-uniform", "get", 60.0),
            ("a", "get", 15.0),
            ("a", "put", 12.0),
            ("b", "get", 50.0),
            ("d", "get", 60.0),
            ("d", "put", 55.0),
            ("f", "get", 10.0),
            ("mix:50", "put", 60.0),
            ("mix:50", "get", 60.0),
            ("delmix", "get", 50.0),
            ("delmix", "put", 40.0),
            ("delmix", "remove", 25.0),
            ("remove", "remove", 60.0),
        ] {
            let (_, after) = written(name, 1_000_000);
            let found = mean(&lengths(&after, 64)[&Some(call)]);
            println!("{name}, {call}: {found:.1}");
            assert!(found >= least && found <= 64.0, "{name}, {call}: {found}");
        }
    }

    /// In the new order, each operation finds the expected result.
    #[test]
    fn what_operations_find_stays() {
        for name in ["a", "b", "d", "f", "mix:50", "delmix", "remove", "contend:1"] {
            // There are few keys, so that operations use the same ones.
            for loaded in [10, 2000] {
                let (before, after) = written(name, loaded);
                let mut there: HashMap<u32, u32> = (0..loaded as u32).map(|key| (key, 0)).collect();
                for Operation { action, key } in &after {
                    match action {
                        Action::Read => assert!(there.contains_key(key), "{name}"),
                        Action::Update => assert!(there.insert(*key, 1).is_some(), "{name}"),
                        Action::Insert => assert!(there.insert(*key, 1).is_none(), "{name}"),
                        Action::Delete => assert!(there.remove(key).is_some(), "{name}"),
                        _ => {}
                    }
                }
                let split = before.iter().flat_map(|operation| match operation.action {
                    Action::ReadUpdate => vec![(0, operation.key), (1, operation.key)],
                    action => vec![(sort(action), operation.key)],
                });
                let mut sorted: Vec<_> = split.collect();
                let mut again: Vec<_> = after.iter().map(|o| (sort(o.action), o.key)).collect();
                sorted.sort_unstable();
                again.sort_unstable();
                assert_eq!(sorted, again, "{name}: nothing is lost or added");
            }
        }
    }

    fn sort(action: Action) -> u8 {
        match action {
            Action::Read => 0,
            Action::Update => 1,
            Action::Insert => 2,
            Action::Delete => 3,
            Action::Latest => 4,
            Action::Look => 5,
            Action::ReadUpdate | Action::Scan(_) => 6,
        }
    }

    #[test]
    fn the_last_write_of_a_key_stays_the_last_and_a_read_update_reads_first() {
        let update = |key| Operation { action: Action::Update, key };
        let read = |key| Operation { action: Action::Read, key };
        let both = |key| Operation { action: Action::ReadUpdate, key };
        let delete = |key| Operation { action: Action::Delete, key };
        let insert = |key| Operation { action: Action::Insert, key };
        assert_eq!(grouped(&[update(1), read(2), update(3)], 8), [read(2), update(1), update(3)]);
        assert_eq!(grouped(&[update(1), read(1), update(3)], 8), [update(1), read(1), update(3)]);
        assert_eq!(grouped(&[both(1), both(2)], 8), [read(1), read(2), update(1), update(2)]);
        assert_eq!(grouped(&[both(1), both(1)], 8), [read(1), update(1), read(1), update(1)]);
        assert_eq!(grouped(&[read(1), delete(1), insert(1)], 8), [read(1), delete(1), insert(1)]);
        assert_eq!(
            grouped(&[delete(1), delete(2), insert(1), read(1)], 8),
            [delete(1), delete(2), insert(1), read(1)]
        );
    }
}
