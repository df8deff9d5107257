use std::str::FromStr;

use ordna_base::Locked;

use super::*;
use crate::info::RunInfo;
use crate::keys::KeySet;
use crate::registry::Registry;
use crate::run::broken::Broken;
use crate::target::Shared;
use crate::workload::Series;

fn plan() -> Plan {
    let registry = Registry::new();
    Plan {
        experiment: None,
        indexes: ["locked", "btree"].map(|name| registry.find(name).unwrap()).to_vec(),
        keys: KeySet::Email,
        workloads: ["load", "delmix", "a", "contend:1", "scan:9"]
            .map(|name| name.parse().unwrap())
            .to_vec(),
        n: 3000,
        ops: 1000,
        threads: vec![1],
        batches: vec![1, 8],
        ordered: false,
        rounds: 2,
        latency: true,
        seed: 1,
        quick: true,
        apart: false,
        fresh_memory: false,
        info: RunInfo::now(),
    }
}

#[test]
fn a_quick_run_builds_once_and_loads_by_every_number_of_threads() {
    let builds = |plan: &Plan| -> Vec<(usize, usize, usize)> {
        plan.builds().iter().map(|b| (b.threads, b.batch, b.cases.len())).collect()
    };
    let mut plan = plan();
    // In groups, except for the load.
    assert_eq!(builds(&plan), [(1, 1, 5 + 4)]);
    // Loaded once by one thread; everything else uses the instance that two threads loaded.
    plan.threads = vec![1, 2];
    assert_eq!(builds(&plan), [(1, 1, 1), (2, 1, 8 + 7)]);
    plan.quick = false;
    assert_eq!(builds(&plan).len(), 2 * (4 + 4) + 2);
}

#[test]
fn what_no_call_for_groups_does_is_said_and_not_run() {
    let mut plan = plan();
    plan.workloads = ["scan:9", "e", "a"].map(|name| name.parse().unwrap()).to_vec();
    plan.latency = false;
    for quick in [true, false] {
        plan.quick = quick;
        let cells = plan.run(&Progress::hidden(), &mut |_| ()).unwrap();
        assert_eq!(cells.len(), 2 * 6);
        for cell in cells {
            let note = (cell.batch == 8 && cell.workload != "a")
                .then(|| "n/a: there is no call for groups of scans".to_owned());
            assert_eq!(cell.note, note, "{cell:?}");
            assert_eq!(cell.mops.is_some(), note.is_none());
            assert_eq!(cell.groups.gets.is_some(), cell.batch == 8 && note.is_none());
        }
    }
}

#[test]
fn rounds_have_operations_of_their_own() {
    let mut plan = plan();
    plan.workloads = ["c", "mix:50"].map(|name| name.parse().unwrap()).to_vec();
    (plan.batches, plan.rounds) = (vec![1], 3);
    for quick in [true, false] {
        plan.quick = quick;
        let build = &plan.builds()[0];
        let script = Script::write(&plan, build, 3000);
        assert_eq!(script.turns.len(), script::turns(&plan, build));
        let mut seen = Vec::new();
        for turn in &script.turns {
            let operations = &script.phases[turn.phase].written.operations;
            assert!(!seen.contains(operations), "{quick}: the same operations twice");
            seen.push(operations.clone());
        }
        // The same seed leads to the same operations.
        let again = Script::write(&plan, build, 3000);
        let all = again.phases.iter().map(|phase| &phase.written.operations);
        assert!(all.eq(script.phases.iter().map(|phase| &phase.written.operations)));
        let looks = |turn: &script::Turn| turn.look == build.cases[turn.case].workload.writes();
        assert!(script.turns.iter().all(looks));
    }
}

/// An index that is wrong in one way has no figure for that, but is measured for the rest.
#[test]
fn what_went_wrong_once_does_not_spoil_what_follows() {
    let entry = IndexEntry {
        name: "broken".to_owned(),
        ours: true,
        switches: &[],
        integers: Ok(Box::new(|_, _| Ok(Box::new(Shared(Broken(Locked::new(), "loses deletes")))))),
        bytes: Err("no".to_owned()),
    };
    let registry = Registry::with(vec![entry]).unwrap();
    let mut plan = plan();
    plan.keys = KeySet::Int;
    plan.indexes = ["broken", "locked"].map(|name| registry.find(name).unwrap()).to_vec();
    plan.workloads =
        ["c", "delmix", "remove", "a", "d", "scan:9"].map(|name| name.parse().unwrap()).to_vec();
    plan.ops = 20_000;
    let cells = plan.run(&Progress::hidden(), &mut |_| ()).unwrap();
    assert_eq!(cells.len(), 2 * 12);
    for cell in cells {
        let deletes = ["delmix", "remove"].contains(&cell.workload.as_str());
        if cell.index == "broken" && deletes {
            assert_eq!(cell.note.as_deref(), Some("wrong"), "{cell:?}");
            assert!(cell.mops.is_none() && cell.latency.is_empty() && cell.p50_ns.is_none());
        } else if cell.workload == "scan:9" && cell.batch > 1 {
            assert!(cell.note.is_some());
        } else {
            assert!(cell.checked && cell.mops.is_some() && cell.detail.is_none(), "{cell:?}");
            assert!(cell.p50_ns.is_some());
        }
    }
}

#[test]
fn what_a_run_needs_counts_everything() {
    let mut plan = plan();
    let needs = |plan: &Plan| plan.needs().at_the_fullest();
    let before = plan.needs();
    plan.workloads.push(Workload::Mix(100));
    let more = plan.needs();
    assert!(more.keys > before.keys && more.growth > before.growth);
    let once = needs(&plan);
    plan.rounds = 200;
    assert!(needs(&plan) > once, "each round has keys of its own");
    plan.rounds = 2;
    plan.quick = false;
    plan.rounds = 20;
    let (short, plan) = (needs(&plan), Plan { ops: 1_000_000, ..plan });
    assert!(needs(&plan) > short + 19 * 8_000_000, "and operations");
    // More keys than fit into the memory are reduced to the number that fits.
    let most = plan.largest_n(plan.n);
    assert_eq!(most, plan.n);
}

#[test]
fn numbers_that_cannot_be_are_refused_and_none_panics() {
    let refused = |change: fn(&mut Plan)| {
        let mut plan = plan();
        change(&mut plan);
        plan.check().unwrap_err()
    };
    assert!(refused(|plan| plan.ops = 0).contains("--ops is 2, one for every thread"));
    assert!(refused(|plan| plan.ops = usize::MAX).contains("--ops is"));
    assert!(
        refused(|plan| {
            (plan.ops, plan.workloads) = (u32::MAX as usize, vec![Workload::Mix(100)]);
        })
        .contains("keys with those to insert")
    );
    assert!(refused(|plan| plan.n = usize::MAX).contains("--n is 1"));
    assert!(refused(|plan| plan.rounds = usize::MAX).contains("--rounds is 1"));
    assert!(refused(|plan| plan.rounds = 0).contains("--rounds is 1"));
    assert!(refused(|plan| plan.threads = vec![usize::MAX]).contains("--threads are"));
    assert!(refused(|plan| plan.batches = vec![0]).contains("--batch is"));
    assert!(
        refused(|plan| {
            (plan.threads, plan.ops) = (vec![1, 4], 3);
        })
        .contains("--ops is 4")
    );
    let file = |path: &str| KeySet::File(path.to_owned());
    let of_file = |path: &str| Plan { keys: file(path), ..plan() }.check().unwrap_err();
    assert!(of_file("/nowhere/keys.txt").contains("cannot read keys from \"/nowhere/keys.txt\""));
    assert!(of_file("/").contains("it is no file") && of_file("").contains("needs a path"));
    // The minimum that is possible.
    for quick in [true, false] {
        let mut plan = plan();
        plan.workloads = Series::from_str("all").unwrap().0;
        plan.workloads.extend(["contend:1", "remove", "mix:50"].map(|name| name.parse().unwrap()));
        (plan.quick, plan.n, plan.ops, plan.rounds, plan.threads) = (quick, 1, 2, 1, vec![2, 1]);
        plan.check().unwrap();
        let cells = plan.run(&Progress::hidden(), &mut |_| ()).unwrap();
        for cell in cells.iter().filter(|cell| cell.index == "locked" && cell.note.is_none()) {
            assert!(cell.checked && cell.mops.is_some_and(|mops| mops.median > 0.0), "{cell:?}");
        }
    }
}

#[test]
fn each_number_is_measured_once() {
    let plan = Plan { threads: vec![2, 1, 2], batches: vec![8, 8], ..plan() }.distinct();
    assert_eq!((plan.threads, plan.batches), (vec![2, 1], vec![8]));
}

/// Results are passed on before the end, too.
#[test]
fn cells_are_told_after_every_round() {
    let mut rounds = Vec::new();
    let cells = plan().run(&Progress::hidden(), &mut |cells| {
        rounds.push(cells.iter().map(|cell| cell.rounds).max().unwrap());
    });
    assert_eq!(cells.unwrap().len(), 2 * 9);
    assert_eq!(rounds, [1, 2, 2, 2]);
}

#[test]
fn one_thread_indexes_are_measured_where_one_thread_runs() {
    let mut plan = plan();
    (plan.threads, plan.batches) = (vec![1, 2], vec![1]);
    let cells = plan.run(&Progress::hidden(), &mut |_| ()).unwrap();
    for cell in cells.iter().filter(|cell| cell.index == "btree") {
        assert_eq!(cell.checked, cell.threads == 1, "{cell:?}");
    }
    assert!(cells.iter().all(|cell| cell.index == "btree" || cell.checked));
}

#[test]
fn every_cell_has_a_figure_or_a_reason() {
    let plan = plan();
    let cells = plan.run(&Progress::hidden(), &mut |_| ()).unwrap();
    assert_eq!(cells.len(), 2 * 9);
    for cell in &cells {
        if cell.workload.starts_with("contend") && cell.index == "btree" {
            assert!(cell.note.as_ref().unwrap().contains("one thread only"));
            continue;
        }
        if cell.workload == "scan:9" && cell.batch > 1 {
            continue;
        }
        assert!(cell.checked && cell.mops.is_some(), "{cell:?}");
        assert!(cell.bytes_per_key.unwrap() >= 0.0 && cell.rss_per_key.is_some());
        assert_eq!(cell.roles.len(), if cell.workload.starts_with("contend") { 2 } else { 0 });
        assert_eq!(cell.p50_ns.is_some(), cell.workload != "load", "{cell:?}");
    }
}

#[test]
fn too_little_memory_is_said_before_the_run() {
    let mut plan = plan();
    plan.check().unwrap();
    plan.n = u32::MAX as usize / 4;
    plan.keys = KeySet::Fixed(60_000);
    let text = plan.check().unwrap_err();
    assert!(text.contains("GiB are needed") && text.contains("--n"), "{text}");
    assert!(plan.largest_n(plan.n) < plan.n);
    plan.n = 0;
    assert!(plan.check().unwrap_err().contains("--n is 1"));
}
