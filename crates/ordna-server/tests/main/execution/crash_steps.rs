//! The power fails at each file operation while a collection becomes large, moves, expires or is
//! removed, and while the keys of an older server are converted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ordna::durability::OpenOptions;
use ordna_server::{Config, DataConfig, LogSync};
use ordna_testkit::random::Random;

use super::crashes::disk::{Fault, Model};
use super::crashes::{self, End, Session, Step, run, words};
use crate::common::start;
use crate::state::persistence::{Dir, loaded, say};

/// Number of file operations at which the power fails. A start takes about 10, each write of a
/// large collection one or two, and the removal of one about 10.
const OPERATIONS: u64 = 48;
/// Number of threads. Each waits for its server most of the time.
const THREADS: u64 = 4;

fn elements(form: impl Fn(u64) -> String) -> String {
    (0..1400).map(form).collect()
}

#[test]
fn a_power_failure_at_any_step_leaves_a_collection_whole() {
    let hash = |key: &str| format!("HSET {key}{}", elements(|at| format!(" f{at} v{at}")));
    let list = format!("RPUSH big:2{}", elements(|at| format!(" v{at}")));
    let zset = format!("ZADD big:1{}", elements(|at| format!(" {at} m{at}")));
    // The initial contents, and the commands between which the server cleans up.
    let lives: [(&str, Vec<String>, Vec<String>); 8] = [
        ("grows", vec!["HSET big:0 f1 old".to_owned()], vec![hash("big:0")]),
        ("is removed", vec![list.clone()], vec!["DEL big:2".to_owned(), "SLEEP@90".to_owned()]),
        (
            "expires",
            vec![zset],
            vec!["PEXPIRE big:1 200".to_owned(), "SLEEP@300".to_owned(), "SET big:1 v".to_owned()],
        ),
        ("has nodes that are filled, cut and emptied", vec![list.clone()], {
            let pushed = |at: u64| format!(" {at:060}");
            let pushed: String = (0..12).map(pushed).collect();
            vec![
                format!("LPUSH big:2{pushed}"),
                format!("RPUSH big:2 last{pushed}"),
                "LPOP big:2 30".to_owned(),
                "RPOP big:2 30".to_owned(),
                format!("LINSERT big:2 BEFORE v700{}", pushed.replace(' ', "")),
                "LREM big:2 1 v900".to_owned(),
                "LSET big:2 300 changed".to_owned(),
                "LTRIM big:2 600 900".to_owned(),
                "RPOP big:2 299".to_owned(),
                "LPOP big:2".to_owned(),
            ]
        }),
        (
            "moves",
            vec![hash("d:0"), list],
            vec![
                "PEXPIREAT d:0 99999999999999".to_owned(),
                "RENAME d:0 big:2".to_owned(),
                "COPY big:2 d:0".to_owned(),
                "SLEEP@60".to_owned(),
            ],
        ),
        ("empties", vec!["SADD big:1 1".to_owned()], {
            let all = elements(|at| format!(" m{at}"));
            vec![
                format!("SADD big:1{all}"),
                "SPOP big:1 2000".to_owned(),
                "SADD big:1 x".to_owned(),
            ]
        }),
        (
            "is stored in stretches",
            vec![format!("SADD big:1{}", elements(|at| format!(" a{at} b{at} c{at}")))],
            vec!["SUNIONSTORE big:0 big:1".to_owned(), "COPY big:1 big:2 REPLACE".to_owned()],
        ),
        (
            "is changed in stretches",
            vec![format!(
                "ZADD big:1{}",
                elements(|at| format!(" {at} a{at} 1 b{at} 2 c{at} 3 d{at}"))
            )],
            vec!["ZREMRANGEBYRANK big:1 10 -1000".to_owned(), "ZPOPMIN big:1 5000".to_owned()],
        ),
    ];
    let steps =
        |lines: &[String]| -> Vec<Step> { lines.iter().map(|line| vec![words(line)]).collect() };
    let next = AtomicU64::new(0);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some((name, before, after)) = lives.get((number / OPERATIONS) as usize) else {
                break;
            };
            let at = 1 + number % OPERATIONS;
            let session = |fault, steps, end| Session {
                log: LogSync::Always,
                fault,
                backups: None,
                steps,
                end,
            };
            let sessions = [
                session(None, steps(before), End::Stop),
                session(Some((at, Fault::PowerCut)), steps(after), End::PowerFailure(number)),
            ];
            // The number is part of the directory's name, and differs from those of the random
            // histories.
            if let Err(error) = run(&sessions, (1 << 40) + number) {
                panic!("{name}, power failure at operation {at}: {error}");
            }
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
}

#[test]
fn a_power_failure_at_any_step_loses_no_key_of_an_older_server() {
    let keys: [&[u8]; 5] = [b"a", b"\xFE", b"\xFE\x00", b"\xFF\x01\x01", b"\xFF\xFF"];
    for at in 1..24 {
        let (disk, dir) = (Model::new(), Dir::new(&format!("older-power-{at}")));
        let open = |disk: &Model| {
            let options = OpenOptions::new().storage(Arc::new(disk.clone()));
            ordna::Store::<[u8], [u8]>::open(&dir.0, options)
        };
        {
            let store = open(&disk).unwrap();
            for key in keys {
                ordna::OrderedIndex::insert(&store, key, key).unwrap();
            }
        }
        let config = |disk: &Model| {
            let storage = Arc::new(disk.clone());
            let data = DataConfig {
                log: LogSync::Always,
                reserve: 0,
                storage,
                ..DataConfig::new(dir.0.clone())
            };
            Config { data: Some(data), ..Config::default() }
        };
        let failing = disk.after_exit().fault(at, Fault::PowerCut);
        if let Ok(running) = crashes::start(config(&failing)) {
            let _ = running.stop();
        }
        for seed in 0..3 {
            let disk = failing.after_power_cut(&mut Random::new(seed));
            let mut server = start(config(&disk));
            let mut client = loaded(&server);
            for key in keys {
                assert!(
                    client.ask(&[b"GET", key]).starts_with(&format!("${}", key.len())),
                    "{at} {key:?}"
                );
            }
            assert_eq!(say(&mut client, "DBSIZE"), ":5", "power failure at {at}");
            server.stop();
        }
        let _ = std::fs::remove_dir_all(&dir.0);
    }
}
