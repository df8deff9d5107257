//! An index that ends its process does not end the run. This test has its own program, because
//! children are forked, and no other thread may run at that time.

mod library;

use std::time::Duration;

use ordna_bench::driver::Plan;
use ordna_bench::info::RunInfo;
use ordna_bench::isolate::{Child, Death};
use ordna_bench::plugin;
use ordna_bench::progress::Progress;
use ordna_bench::registry::Registry;

use library::build;

#[test]
fn one_that_crashes_or_hangs_ends_alone() {
    crashes("aborts", "CRASH=1", "it aborted", &[true, false]);
    crashes("faults", "CRASH=2", "segmentation fault", &[true]);
    leaves("leaves", "CRASH=3");

    let second = Duration::from_secs(1);
    let start = || {
        Child::start(|| {
            |request: &str| match request {
                "hang" => loop {
                    std::thread::park();
                },
                "leave" => std::process::exit(7),
                "panic" => panic!("as planned"),
                text => text.to_uppercase(),
            }
        })
        .unwrap()
    };
    let mut child = start();
    assert_eq!(child.ask("hello", 60 * second).unwrap(), "HELLO\n");
    let soon = second / 4;
    assert_eq!(child.ask("hang", soon).unwrap_err(), Death::Silent(soon));
    assert_eq!(start().ask("leave", 60 * second).unwrap_err(), Death::Exit(7));
    assert_eq!(start().ask("panic", 60 * second).unwrap_err(), Death::Exit(1));
    stands_still();
}

/// An index with background work does not disturb others while it is not measured.
fn stands_still() {
    let mut child = Child::start(|| {
        std::thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
        |request: &str| request.to_owned()
    })
    .unwrap();
    let tenth = Duration::from_millis(300);
    assert_eq!(child.ask("begin", 100 * tenth).unwrap(), "begin\n");
    let busy = |child: &Child| {
        let before = child.ticks().unwrap();
        std::thread::sleep(tenth);
        child.ticks().unwrap() - before
    };
    // The child may have to wait for a processor, and the signal takes effect a moment later.
    assert!((0..100).any(|_| busy(&child) > 0));
    child.stand_still();
    assert!((0..100).any(|_| busy(&child) == 0));
    assert_eq!(busy(&child), 0);
    child.go_on();
    assert_eq!(child.ask("end", 100 * tenth).unwrap(), "end\n");
    child.stand_still();
    // A stopped child can be ended nevertheless.
    drop(child);
}

fn plan(library: &str, definition: &str, quick: bool) -> Plan {
    let library = build(library, &[definition]);
    let registry = Registry::with(vec![plugin::load(&library).unwrap()]).unwrap();
    Plan {
        experiment: None,
        indexes: ["array", "locked"].map(|name| registry.find(name).unwrap()).to_vec(),
        keys: "int".parse().unwrap(),
        workloads: ["load", "c", "scan:10"].map(|name| name.parse().unwrap()).to_vec(),
        n: 5000,
        ops: 2000,
        threads: vec![2],
        batches: vec![1],
        ordered: false,
        rounds: 2,
        latency: false,
        seed: 1,
        quick,
        apart: true,
        fresh_memory: false,
        info: RunInfo::now(),
    }
}

fn crashes(library: &str, definition: &str, how: &str, quick: &[bool]) {
    for &quick in quick {
        let cells = plan(library, definition, quick).run(&Progress::hidden(), &mut |_| ()).unwrap();
        assert_eq!(cells.len(), 6);
        for cell in cells {
            // An instance that has crashed is created again for what follows.
            if cell.index == "array" && cell.workload == "scan:10" {
                assert_eq!(cell.note.as_deref(), Some("crashed"), "{cell:?}");
                let detail = cell.detail.unwrap();
                assert!(detail.contains("during scan:10") && detail.contains(how), "{detail}");
            } else {
                assert!(cell.checked && cell.mops.is_some(), "{cell:?}");
                assert!(cell.rss_per_key.is_some());
            }
        }
    }
}

fn leaves(library: &str, definition: &str) {
    let cells = plan(library, definition, true).run(&Progress::hidden(), &mut |_| ()).unwrap();
    let detail = cells.iter().find_map(|cell| cell.detail.clone()).unwrap();
    assert!(detail.contains("left the program with code 3"), "{detail}");
}
