//! Plug-in peers: a library built from a few lines of C runs like every other index.

mod library;

use std::path::Path;

use ordna_bench::driver::Plan;
use ordna_bench::info::RunInfo;
use ordna_bench::plugin;
use ordna_bench::progress::Progress;
use ordna_bench::registry::Registry;
use ordna_bench::table::Cell;

use library::build;

fn run(library: &Path, keys: &str, workloads: &[&str]) -> Vec<Cell> {
    let registry = Registry::with(vec![plugin::load(library).unwrap()]).unwrap();
    let plan = Plan {
        experiment: None,
        indexes: ["array", "locked"].map(|name| registry.find(name).unwrap()).to_vec(),
        keys: keys.parse().unwrap(),
        workloads: workloads.iter().map(|name| name.parse().unwrap()).collect(),
        n: 5000,
        ops: 2000,
        threads: vec![2],
        batches: vec![1],
        ordered: false,
        rounds: 1,
        latency: false,
        seed: 1,
        quick: false,
        apart: false,
        fresh_memory: false,
        info: RunInfo::now(),
    };
    let cells = plan.run(&Progress::hidden(), &mut |_| ()).unwrap();
    assert!(cells.iter().filter(|cell| cell.index == "locked").all(|cell| cell.checked));
    cells.into_iter().filter(|cell| cell.index == "array").collect()
}

#[test]
fn a_few_lines_of_c_run_like_every_other_index() {
    let library = build("array", &[]);
    let cells = run(&library, "int", &["load", "a", "e", "scan:10", "mix:50"]);
    for cell in &cells {
        assert!(cell.checked && cell.mops.is_some() && !cell.ours, "{cell:?}");
        // The statistics of our allocator do not include its memory.
        assert!(cell.bytes_per_key.is_none() && cell.rss_per_key.is_some());
    }
    assert_eq!(cells.len(), 5);
    // An unsupported operation is n/a and not a failure.
    let note = |keys: &str, workload: &str| run(&library, keys, &[workload])[0].note.clone();
    assert_eq!(note("int", "delmix").unwrap(), "n/a: does not support remove");
    assert!(note("email", "c").unwrap().starts_with("n/a: does not take these keys"));
}

#[test]
fn a_plug_in_that_is_wrong_is_told() {
    let wrong = build("wrong", &["WRONG=1"]);
    assert_eq!(run(&wrong, "int", &["load"])[0].note.as_deref(), Some("wrong"));
    let greedy = build("greedy", &["TOO_MANY=1"]);
    let cell = run(&greedy, "int", &["scan:10"]).remove(0);
    assert_eq!(cell.note.as_deref(), Some("failed"));
    assert!(cell.detail.as_ref().unwrap().contains("ordna_peer_scan"), "{cell:?}");
}

#[test]
fn a_missing_function_is_named() {
    let error = |path: &Path| plugin::load(path).err().unwrap();
    let library = build("partial", &["WITHOUT_SCAN"]);
    let text = error(&library);
    assert!(text.contains("libpartial.so has no function ordna_peer_scan"), "{text}");
    let text = error(&build("newer", &["VERSION_OFF=6"]));
    assert!(text.contains("version 7 of ordna_peer.h, not 1"), "{text}");
    let text = error(Path::new("/nowhere/libfoo.so"));
    assert!(text.starts_with("cannot load /nowhere/libfoo.so: cannot open"), "{text}");
    assert_eq!(text.matches("/nowhere/libfoo.so").count(), 1, "{text}");
}
