use ordna_base::Locked;

use ordna_papers::Pi;
use ordna_papers::pi::PiOptions;

use super::broken::Broken;
use super::*;
use crate::batches::Batched;
use crate::check::ranks;
use crate::keys::KeySet;
use crate::target::{Alone, Ours, Session, Shared};

/// Runs the workloads one after the other on one instance. Returns the first problem.
fn outcome<T: Target<u64> + 'static>(
    workloads: &[&str],
    batch: usize,
    threads: usize,
    new: impl Fn() -> T,
) -> Result<Vec<Measured>, Problem> {
    of_operations(6000, workloads, batch, threads, new)
}

/// Scans the whole index after every workload.
fn of_operations<T: Target<u64> + 'static>(
    total: usize,
    workloads: &[&str],
    batch: usize,
    threads: usize,
    new: impl Fn() -> T,
) -> Result<Vec<Measured>, Problem> {
    of_calls(total, workloads, (batch, false), threads, new)
}

/// Works like `of_operations`. With `ordered`, calls have operations of all kinds.
fn of_calls<T: Target<u64> + 'static>(
    total: usize,
    workloads: &[&str],
    (batch, ordered): (usize, bool),
    threads: usize,
    new: impl Fn() -> T,
) -> Result<Vec<Measured>, Problem> {
    let loaded = 2000;
    let mut fresh = loaded;
    let phases: Vec<Phase> = workloads
        .iter()
        .map(|name| {
            let workload: Workload = name.parse().unwrap();
            let extra = workload.extra_keys(total, threads);
            let total = if workload == Workload::Load { 0 } else { total };
            let written = workload.operations(loaded, fresh, extra, total, threads, 1);
            let written = if ordered { written } else { written.grouped(batch) };
            fresh += extra;
            Phase { workload, batch, written, latency: false }
        })
        .collect();
    let keys = KeySet::Int.integers(fresh, 1);
    let ranks = ranks::<u64>(&keys, loaded);
    let ranks = Some(ranks.as_slice());
    let job = Job { keys: &keys, loaded, threads, batch, ordered, phases: &phases, ranks };
    let built = measure(&job, &|| Ok(Box::new(new())));
    built.load?;
    built.phases.into_iter().collect()
}

fn oracle() -> Shared<Ours<Locked<u64, u64>>> {
    Shared(Ours(Locked::new()))
}

const ALL: &str = "load a b c d e f c-uniform mix:50 scan:20 contend:0.99 delmix remove c";

#[test]
fn every_workload_passes_on_the_oracle() {
    for batch in [1, 16] {
        for workload in ALL.split(' ') {
            outcome(&[workload], batch, 2, oracle).unwrap();
        }
        outcome(&ALL.split(' ').collect::<Vec<_>>(), batch, 2, oracle).unwrap();
    }
}

fn pi(one_caller: bool) -> Batched<u64> {
    let options = PiOptions { workers: 1, piece: 8, ..PiOptions::default() };
    Batched { index: Ours(Pi::with(&options)), one_caller }
}

#[test]
fn ordered_batches_pass_on_the_oracle_and_on_pi() {
    for workload in ALL.split(' ') {
        of_calls(6000, &[workload], (50, true), 2, oracle).unwrap();
        of_calls(6000, &[workload], (50, true), 2, || pi(false)).unwrap();
    }
    let all: Vec<&str> =
        ALL.split(' ').filter(|name| !["d", "contend:0.99"].contains(name)).collect();
    of_calls(6000, &all, (50, true), 2, || pi(true)).unwrap();
    // Roles and the latest keys belong to threads, so they do not exist for a single caller.
    for workload in ["d", "contend:0.99"] {
        let refused = of_calls(6000, &[workload], (50, true), 2, || pi(true)).unwrap_err();
        assert!(matches!(refused, Problem::NotApplicable(_)), "{refused:?}");
    }
}

#[test]
fn faults_in_ordered_batches_are_found() {
    for (fault, workload) in [
        ("mixes up", "a"),
        ("forgets in a group", "c"),
        ("loses", "load"),
        ("ignores overwrites", "a"),
        ("loses deletes", "delmix"),
        ("skips", "scan:20"),
        ("turns around", "scan:20"),
        ("starts behind", "scan:20"),
        ("goes on", "e"),
        ("mixes up values", "e"),
    ] {
        let broken = || Shared(Broken(Locked::new(), fault));
        let found = of_calls(6000, &[workload], (50, true), 2, broken);
        assert!(matches!(found, Err(Problem::Wrong(_))), "{fault}: {found:?}");
    }
}

#[test]
fn one_caller_has_the_operations_of_all_in_turn() {
    let of = |keys: &[u32]| -> Vec<Operation> {
        keys.iter().map(|key| Operation { action: Action::Read, key: *key }).collect()
    };
    let merged = in_one(&[of(&[1, 2, 3]), of(&[4, 5])], 2);
    assert_eq!(merged, [of(&[1, 2, 4, 5, 3])]);
}

#[test]
fn roles_have_figures_of_their_own() {
    // Enough operations, so that neither thread ends before the other has begun.
    let measured = of_operations(500_000, &["contend:2"], 1, 2, oracle).unwrap();
    assert_eq!(measured[0].roles.len(), 2);
    assert!(measured[0].roles.iter().all(|mops| *mops > 0.0));
    assert!(outcome(&["a"], 1, 2, oracle).unwrap()[0].roles.is_empty());
}

#[test]
fn an_index_without_synchronization_runs_on_one_thread_only() {
    let new = || Alone::new(std::collections::BTreeMap::<u64, u64>::new());
    let one = ["a", "e", "delmix"];
    assert_eq!(outcome(&one, 1, 1, new).unwrap().len(), 3);
    let two = outcome(&one, 1, 2, new).unwrap_err();
    assert!(matches!(&two, Problem::NotApplicable(why) if why.contains("one thread")), "{two:?}");
}

#[test]
fn a_wrong_index_gets_no_figure() {
    for (fault, workload) in [
        ("loses", "c-uniform"),
        ("mixes up", "c-uniform"),
        ("mixes up fingerprints", "c"),
        ("keeps", "delmix"),
        ("keeps", "contend:0"),
        ("forgets in a group", "c"),
        ("ignores overwrites", "a"),
        ("ignores overwrites", "f"),
        ("overwrites with what was there", "b"),
        ("ignores overwrites", "a in a group"),
        ("loses deletes", "delmix"),
        ("loses deletes", "remove"),
        ("loses deletes", "delmix in a group"),
        ("repeats always", "load"),
        ("skips always", "load"),
        ("turns around", "scan:20"),
        ("starts behind", "scan:20"),
        ("skips", "scan:20"),
        ("skips", "e"),
        ("repeats", "scan:20"),
        ("mixes up values", "scan:20"),
        ("stops short", "scan:20"),
        ("goes on", "scan:20"),
    ] {
        let grouped = workload.strip_suffix(" in a group");
        let batch = if fault.ends_with("group") || grouped.is_some() { 8 } else { 1 };
        let workload = grouped.unwrap_or(workload);
        // Threads with roles stop when one of them is done, so there are enough operations for the
        // other to begin.
        let total = if workload.starts_with("contend") { 4_000_000 } else { 6000 };
        let new = || Shared(Broken(Locked::new(), fault));
        let outcome = of_operations(total, &[workload], batch, 2, new);
        assert!(matches!(outcome, Err(Problem::Wrong(_))), "{fault}, {workload}: {outcome:?}");
    }
}

/// If puts lose keys, the read after the run detects this even if no thread reads the keys during
/// the run. The scan of the whole index detects an additional entry.
#[test]
fn what_a_run_leaves_is_checked() {
    let loaded = 2000;
    let keys = KeySet::Int.integers(4000, 1);
    let insert = |key| Operation { action: Action::Insert, key };
    let written =
        |keys: std::ops::Range<u32>| Written::new(vec![keys.map(insert).collect()], vec![0]);
    let phase = |written| Phase { workload: Workload::Mix(100), batch: 1, written, latency: false };
    let phases = [phase(written(2000..3000)), phase(written(3000..3001))];
    let job = Job {
        keys: &keys,
        loaded,
        threads: 1,
        batch: 1,
        ordered: false,
        phases: &phases,
        ranks: None,
    };
    let broken = |fault| Box::new(Shared(Broken(Locked::new(), fault)));
    let mut instance = Instance::new(&job, &|| Ok(broken("loses what is not loaded")));
    instance.load().unwrap();
    let Err(Problem::Wrong(what)) = instance.phase(0) else { panic!("the keys are lost") };
    assert!(what.contains("after the run") && what.contains("nothing instead of"), "{what}");
    // The instance is not measured any more.
    assert_eq!(instance.phase(1).unwrap_err(), Problem::Wrong(what));

    let mut instance = Instance::new(&job, &|| Ok(broken("repeats what is not loaded")));
    instance.load().unwrap();
    instance.phase(0).unwrap();
    let wrong = instance.look().unwrap().unwrap();
    assert!(wrong.contains("a scan of the whole index"), "{wrong}");
    // Point operations continue.
    instance.phase(1).unwrap();
    assert_eq!(instance.look().unwrap(), None, "told already");
}

/// The figures of point operations are kept, those of scans and of the load are not, and all have a
/// note.
#[test]
fn a_wrong_scan_is_told_with_every_figure() {
    let keys = KeySet::Int.integers(2000, 1);
    let phases = ["load", "c", "scan:20"].map(|name| {
        let workload: Workload = name.parse().unwrap();
        let total = if workload == Workload::Load { 0 } else { 100 };
        let written = workload.operations(2000, 2000, 0, total, 1, 1);
        Phase { workload, batch: 1, written, latency: false }
    });
    let ranks = ranks::<u64>(&keys, 2000);
    let job = Job {
        keys: &keys,
        loaded: 2000,
        threads: 1,
        batch: 1,
        ordered: false,
        phases: &phases,
        ranks: Some(&ranks),
    };
    let built = measure(&job, &|| Ok(Box::new(Shared(Broken(Locked::new(), "skips always")))));
    assert!(built.load.unwrap().wrong_scan.unwrap().contains("a scan of the whole index"));
    assert!(matches!(built.phases[0], Err(Problem::Wrong(_))));
    assert!(built.phases[1].is_ok());
    assert!(matches!(built.phases[2], Err(Problem::Wrong(_))));
}

#[test]
fn a_panic_anywhere_is_told_and_does_not_end_the_run() {
    for (fault, workload, when) in [
        ("panics at a put", "load", "while loading"),
        ("panics at a get", "load", "after loading"),
        ("panics at a remove", "delmix", ""),
        ("panics in a scan", "scan:20", ""),
        ("panics when dropped", "c", "while being dropped"),
    ] {
        let outcome = outcome(&[workload], 1, 2, || Shared(Broken(Locked::new(), fault)));
        let Err(Problem::Failed(what)) = outcome else { panic!("{fault}: {outcome:?}") };
        assert!(what.contains("as planned") && what.contains(when), "{fault}: {what}");
    }
    let outcome = outcome(&["c"], 1, 2, || -> Shared<Broken> { panic!("as planned") });
    let Err(Problem::Failed(what)) = outcome else { panic!("{outcome:?}") };
    assert!(what.contains("while being made") && what.contains("as planned"), "{what}");
}

/// Panics while a thread of the run enters it. The other threads must not wait forever.
struct Locks;

impl Target<u64> for Locks {
    fn session(&self, thread: usize, _: usize) -> Box<dyn Session<u64> + '_> {
        panic!("thread {thread} as planned");
    }
}

#[test]
fn a_panic_before_the_start_does_not_hang_the_others() {
    let Err(Problem::Failed(what)) = outcome(&["c"], 1, 2, || Locks) else { panic!() };
    assert!(what.contains("as planned"), "{what}");
}
