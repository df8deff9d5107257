use super::*;
use crate::registry::Registry;

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
        rounds: 2,
        latency: true,
        seed: 1,
        quick: true,
        apart: false,
        info: RunInfo::now(),
    }
}

#[test]
fn a_quick_run_builds_once_and_groups_are_for_point_operations() {
    let builds = |plan: &Plan| -> Vec<(usize, usize, usize)> {
        plan.builds().iter().map(|b| (b.threads, b.batch, b.cases.len())).collect()
    };
    let mut plan = plan();
    // In groups: delmix and a.
    assert_eq!(builds(&plan), [(1, 1, 5 + 2)]);
    // Loaded once, by two threads.
    plan.threads = vec![1, 2];
    assert_eq!(builds(&plan), [(2, 1, 8 + 4)]);
    plan.quick = false;
    assert_eq!(builds(&plan).len(), 2 * (4 + 3) + 1);
}

#[test]
fn rounds_share_operations_unless_they_insert_into_the_same_instance() {
    let mut plan = plan();
    plan.workloads = ["a", "mix:50"].map(|name| name.parse().unwrap()).to_vec();
    (plan.batches, plan.rounds) = (vec![1], 3);
    let phases = |plan: &Plan| {
        let build = &plan.builds()[0];
        let script = Script::write(plan, build, 3000);
        assert_eq!(script.turns.len(), script::turns(build, 3, true));
        let turns = |turn: &script::Turn| (turn.case, turn.phase);
        script.turns.iter().map(turns).collect::<Vec<_>>()
    };
    assert_eq!(phases(&plan), [(0, 0), (1, 1), (0, 0), (1, 2), (0, 0), (1, 3), (0, 4), (1, 5)]);
    plan.quick = false;
    assert_eq!(phases(&plan), [(0, 0), (0, 0), (0, 0), (0, 1)]);
}

/// What was measured is told before the end too.
#[test]
fn cells_are_told_after_every_round() {
    let mut rounds = Vec::new();
    let cells = plan().run(&Progress::hidden(), &mut |cells| {
        rounds.push(cells.iter().map(|cell| cell.rounds).max().unwrap());
    });
    assert_eq!(cells.unwrap().len(), 2 * 7);
    assert_eq!(rounds, [1, 2, 2, 2]);
}

#[test]
fn one_thread_indexes_are_measured_where_one_thread_runs() {
    let mut plan = plan();
    plan.threads = vec![1, 2];
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
    assert_eq!(cells.len(), 2 * 7);
    for cell in &cells {
        if cell.workload.starts_with("contend") && cell.index == "btree" {
            assert!(cell.note.as_ref().unwrap().contains("one thread only"));
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
