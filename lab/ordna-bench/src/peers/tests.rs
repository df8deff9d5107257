use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::check::ranks;
use crate::entry::Switches;
use crate::figures::Problem;
use crate::job::{Job, Phase};
use crate::keys::KeySet;
use crate::run::{Built, measure};
use crate::target::Session;
use crate::workload::Workload;

fn run<K: Key + ?Sized>(make: &Maker<K>, keys: &K::Sequence, threads: usize) -> Built {
    use ordna_base::entries::Sequence;
    let loaded = keys.len() / 2;
    let mut fresh = loaded;
    let phases: Vec<Phase> = ["c", "a", "e", "mix:20", "delmix"]
        .iter()
        .map(|name| {
            let workload: Workload = name.parse().unwrap();
            let extra = workload.extra_keys(3000, threads);
            let written = workload.operations(loaded, fresh, extra, 3000, threads, 1);
            fresh += extra;
            Phase { workload, batch: 1, written, latency: false }
        })
        .collect();
    assert!(fresh <= keys.len());
    let ranks = ranks::<K>(keys, loaded);
    let ranks = Some(ranks.as_slice());
    let job = Job { keys, loaded, threads, batch: 1, ordered: false, phases: &phases, ranks };
    measure(&job, &|| make(&Switches::default(), threads))
}

/// Checks the adapters: on one thread, each peer gives correct results for all operations that it
/// offers and reports those that it lacks.
#[test]
fn every_peer_answers_rightly_on_one_thread() {
    let integers = KeySet::Int.integers(20_000, 1);
    let strings = KeySet::Email.byte_strings(20_000, 1).unwrap();
    for peer in all() {
        let mut built = vec![("int", run(peer.integers.as_ref().ok().unwrap(), &integers, 1))];
        if let Ok(bytes) = &peer.bytes {
            built.push(("email", run(bytes, &strings, 1)));
        }
        for (keys, built) in built {
            let name = &peer.name;
            assert!(built.load.is_ok(), "{name}, {keys}: {:?}", built.load);
            for phase in &built.phases {
                match phase {
                    Ok(_) => {}
                    Err(Problem::NotApplicable(why)) if why.contains("no order") => {
                        assert_eq!(name, "dashmap");
                    }
                    other => panic!("{name}, {keys}: {other:?}"),
                }
            }
        }
    }
}

#[test]
fn keys_that_a_peer_cannot_hold_are_not_applicable() {
    let refusal = |name: &str, keys: KeySet| {
        let keys = keys.byte_strings(20_000, 1).unwrap();
        let peer = all().into_iter().find(|peer| peer.name == name).unwrap();
        match run(peer.bytes.as_ref().ok().unwrap(), &keys, 1).load {
            Err(Problem::NotApplicable(why)) => why,
            other => panic!("{name}: {other:?}"),
        }
    };
    assert!(refusal("arctic", KeySet::Fixed(8)).contains("zero bytes"));
    assert!(refusal("masstree", KeySet::Fixed(300)).contains("at most 256 bytes, not 300"));
}

/// Shows why crossbeam-skiplist is marked `wrong` where one thread overwrites and another reads:
/// gets find nothing although no thread removes the key. If this test fails, remove the note on the
/// page.
#[test]
fn crossbeam_shows_a_gap_while_it_overwrites() {
    let map = crossbeam::new::<u64>().0;
    (&map).put(&1, 0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = &map;
            let mut value = 0;
            while !stop.load(Ordering::Relaxed) {
                value += 1;
                session.put(&1, value);
            }
        });
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let mut session = &map;
        let missed = loop {
            if session.get(&1).is_none() {
                break true;
            }
            if std::time::Instant::now() > end {
                break false;
            }
        };
        stop.store(true, Ordering::Relaxed);
        assert!(missed, "no gap was seen in a minute");
    });
}
