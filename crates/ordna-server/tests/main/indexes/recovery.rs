//! Restarts and kills of a server with indexes.

use std::path::Path;
use std::time::{Duration, Instant};

use ordna_server::{Config, DataConfig, LogSync};

use crate::common::{Child, Client, Random, spawn, start};
use crate::indexes::{ids_of, towns, words};

fn durable(dir: &Path) -> Config {
    let data = DataConfig { log: LogSync::Always, ..DataConfig::new(dir.to_owned()) };
    Config { data: Some(data), ..Config::default() }
}

#[test]
fn indexes_come_back_after_a_restart() {
    let dir = std::env::temp_dir().join(format!("ordna-indexes-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let cursor;
    {
        let mut server = start(durable(&dir));
        let mut client = Client::new(server.address);
        while client.say("PING").contains("LOADING") || client.say("DBSIZE").contains("LOADING") {}
        client.say("ORDNA.INDEX CREATE gone ON t: PARTS name");
        client.say(
            "ORDNA.INDEX CREATE size ON t: PARTS country population DESC WHERE population > 5",
        );
        client.say("FT.CREATE towns PREFIX 1 t: SCHEMA country TAG");
        towns(&mut client);
        client.say("ORDNA.INDEX DROP gone");
        client.say("HSET t:1 population 10");
        cursor = words(&client.say("ORDNA.INDEX SCAN size LIMIT 1"))[0].clone();
        drop(client);
        server.stop();
    }
    let mut server = start(durable(&dir));
    let mut client = Client::new(server.address);
    while client.say("DBSIZE").contains("LOADING") {}
    assert_eq!(words(&client.say("ORDNA.INDEX LIST")), ["size"]);
    assert_eq!(words(&client.say("ORDNA.INDEX SCAN size EQ SE")), ["0", "t:2", "t:4", "t:1"]);
    let next = client.say(&format!("ORDNA.INDEX SCAN size LIMIT 1 CURSOR {cursor}"));
    assert_eq!(words(&next)[1..], ["t:2"], "{next}");
    let found = client.ask(&[b"FT.SEARCH", b"towns", b"@country:{SE}", b"LIMIT", b"0", b"0"]);
    assert_eq!(found, r"*1\r\n:4\r\n");
    client.say("HSET t:9 country SE population 99999999");
    assert_eq!(words(&client.say("ORDNA.INDEX SCAN size EQ SE LIMIT 1"))[1..], ["t:9"]);
    drop(client);
    server.stop();
    // A damaged file is reported and not changed.
    let file = dir.join("indexes.json");
    std::fs::write(&file, "{ damaged").unwrap();
    let server = start(durable(&dir));
    let mut client = Client::new(server.address);
    while client.say("DBSIZE").contains("LOADING") {}
    let refused = client.say("ORDNA.INDEX CREATE more ON t: PARTS name");
    assert!(refused.contains("indexes.json"), "{refused}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{ damaged");
    let _ = std::fs::remove_dir_all(&dir);
}

/// Backups of the indexes only make an opening faster. If old ones cannot be removed, all indexes
/// are available nevertheless.
#[test]
fn old_backups_that_stay_cost_no_index() {
    let dir = std::env::temp_dir().join(format!("ordna-indexes-stay-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let mut server = start(durable(&dir));
    let mut client = Client::new(server.address);
    while client.say("DBSIZE").contains("LOADING") {}
    client.say("FT.CREATE towns PREFIX 1 t: SCHEMA country TAG");
    towns(&mut client);
    drop(client);
    server.stop();
    // A directory with this name cannot be removed like a file.
    let backups = dir.join("indexes");
    let _ = std::fs::remove_dir_all(&backups);
    std::fs::write(&backups, "no directory").unwrap();
    let mut server = start(durable(&dir));
    let mut client = Client::new(server.address);
    while client.say("DBSIZE").contains("LOADING") {}
    assert_eq!(words(&client.say("FT._LIST")), ["towns"]);
    let search: [&[u8]; 6] = [b"FT.SEARCH", b"towns", b"@country:{SE}", b"LIMIT", b"0", b"0"];
    assert_eq!(client.ask(&search), r"*1\r\n:4\r\n");
    client.say("HSET t:9 country SE");
    assert_eq!(client.say("ORDNA.INDEX CREATE more ON t: PARTS country"), r"+OK\r\n");
    drop(client);
    server.stop();
    let _ = std::fs::remove_dir_all(&dir);
}

/// Returns a number from `ORDNA.INDEX INFO`.
fn number(client: &mut Client, index: &str, field: &str) -> u64 {
    let info = words(&client.say(&format!("ORDNA.INDEX INFO {index}")));
    let at = info.iter().position(|word| word == field).unwrap();
    info[at + 1].trim_start_matches(':').parse().unwrap()
}

fn killed_and_started(child: Child, dir: &Path) -> (Child, Client) {
    // The drop sends SIGKILL.
    drop(child);
    let child = spawn(&format!("dir={}", dir.display()));
    let mut client = Client::new(child.address);
    while client.say("DBSIZE").contains("LOADING") {}
    (child, client)
}

/// Checks that each index has the entries that follow from the hashes.
fn assert_current(client: &mut Client, ids: std::ops::Range<usize>) {
    let mut expected: Vec<(i64, String)> = Vec::new();
    for id in ids {
        let id = format!("d:{id:04}");
        if let Some(Ok(n)) = words(&client.say(&format!("HGET {id} n"))).first().map(|n| n.parse())
        {
            expected.push((n, id));
        }
    }
    expected.sort();
    let expected: Vec<String> = expected.into_iter().map(|(_, id)| id).collect();
    assert_eq!(words(&client.say("ORDNA.INDEX SCAN n LIMIT 10000"))[1..], expected);
    let search = "FT.SEARCH ft * SORTBY n LIMIT 0 10000 NOCONTENT";
    assert_eq!(ids_of(&client.say(search)), expected);
}

/// Kills a server that has written after its backup. The indexes continue from the backup.
#[test]
fn indexes_go_on_from_their_backup_after_a_kill() {
    let dir = std::env::temp_dir().join(format!("ordna-resume-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let child = spawn(&format!("dir={}", dir.display()));
    let mut client = Client::new(child.address);
    while client.say("DBSIZE").contains("LOADING") {}
    client.say("ORDNA.INDEX CREATE n ON d: PARTS n NUMERIC");
    client.say("ORDNA.INDEX CREATE dropped ON d: PARTS n");
    client.say("FT.CREATE ft PREFIX 1 d: SCHEMA n NUMERIC SORTABLE tag TAG");
    let write = |client: &mut Client, ids: std::ops::Range<usize>, shift: usize| {
        ids.for_each(|id| {
            client.say(&format!("HSET d:{id:04} n {} tag t", id * 7 % 1000 + shift));
        });
    };
    write(&mut client, 0..1000, 0);
    // The fields of a large hash are separate entries.
    let more: String = (0..600).map(|at| format!(" f{at} v")).collect();
    client.say(&format!("HSET d:0120{more}"));
    // Two hashes expire: one before the restart, one later.
    client.say("PEXPIRE d:0001 1500");
    client.say("PEXPIRE d:0002 4000");
    let backup = |client: &mut Client| {
        client.say("BGSAVE");
        while client.say("INFO persistence").contains("rdb_bgsave_in_progress:1") {}
    };
    backup(&mut client);
    let changes = |client: &mut Client, shift| {
        write(client, 100..150, shift);
        client.say("DEL d:0200 d:0201");
        client.say("RENAME d:0202 d:1000");
        client.say("HSET d:0203 n 777");
    };
    changes(&mut client, 5000);
    client.say("ORDNA.INDEX DROP dropped");
    client.say("ORDNA.INDEX CREATE late ON d: PARTS tag n");
    let cursor = words(&client.say("ORDNA.INDEX SCAN n LIMIT 1"))[0].clone();
    let vector = words(&client.say("ORDNA.INDEX INFO n"));
    let vector = vector[vector.iter().position(|word| word == "vector").unwrap() + 1].clone();
    std::thread::sleep(Duration::from_millis(1600));
    let (child, mut client) = killed_and_started(child, &dir);
    assert_current(&mut client, 0..1001);
    assert_eq!(number(&mut client, "n", "built"), 0, "it was built again");
    client.say("ORDNA.INDEX COUNT late");
    assert!(number(&mut client, "late", "built") > 900, "it was not built");
    assert_eq!(words(&client.say("ORDNA.INDEX LIST")), ["late", "n"]);
    let next = client.say(&format!("ORDNA.INDEX SCAN n LIMIT 1 CURSOR {cursor}"));
    assert_eq!(words(&next).len(), 2, "{next}");
    // The position continues after the one from before the restart.
    let later = client.say(&format!("ORDNA.INDEX COUNT n AT {vector} TIMEOUT 10000"));
    assert!(later.starts_with(':'), "{later}");
    let patience = Instant::now() + Duration::from_secs(20);
    while client.say("EXISTS d:0002") != r":0\r\n" {
        assert!(Instant::now() < patience);
    }
    while number(&mut client, "n", "entries") > 996 {
        assert!(Instant::now() < patience, "an expired hash stays in its index");
    }
    assert_current(&mut client, 0..1001);
    // The same again without a new backup.
    changes(&mut client, 9000);
    let (child, mut client) = killed_and_started(child, &dir);
    assert_current(&mut client, 0..1001);
    assert_eq!(number(&mut client, "n", "built"), 0);
    // A backup of the keyspace alone. The older backup of the indexes lacks the changes before it.
    std::fs::rename(dir.join("indexes"), dir.join("kept")).unwrap();
    write(&mut client, 300..320, 20_000);
    backup(&mut client);
    let _ = std::fs::remove_dir_all(dir.join("indexes"));
    std::fs::rename(dir.join("kept"), dir.join("indexes")).unwrap();
    let (child, mut client) = killed_and_started(child, &dir);
    assert_current(&mut client, 0..1001);
    assert!(number(&mut client, "n", "built") > 900);
    backup(&mut client);
    client.say("ORDNA.DELRANGE [d:0400 [d:0500");
    let (child, mut client) = killed_and_started(child, &dir);
    assert_current(&mut client, 0..1001);
    backup(&mut client);
    client.say("FLUSHALL");
    write(&mut client, 0..10, 0);
    let (child, mut client) = killed_and_started(child, &dir);
    assert_current(&mut client, 0..1001);
    // A damaged backup of the indexes is not used.
    write(&mut client, 0..500, 0);
    backup(&mut client);
    let newest = std::fs::read_dir(dir.join("indexes")).unwrap().map(|entry| entry.unwrap().path());
    let newest = newest.filter(|path| path.is_dir()).max().unwrap();
    std::fs::write(newest.join("SERVICE.json"), "{").unwrap();
    let (child, mut client) = killed_and_started(child, &dir);
    assert_current(&mut client, 0..1001);
    assert_eq!(number(&mut client, "n", "entries"), 500);
    drop(child);
    let _ = std::fs::remove_dir_all(&dir);
}

/// Kills a server at random times during writes and backups. The entries must be those of the
/// hashes.
#[test]
fn kills_under_load_leave_current_indexes() {
    let dir = std::env::temp_dir().join(format!("ordna-kills-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let mut random = Random::new(3);
    let mut child = spawn(&format!("dir={}", dir.display()));
    let mut client = Client::new(child.address);
    while client.say("DBSIZE").contains("LOADING") {}
    client.say("ORDNA.INDEX CREATE n ON d: PARTS n NUMERIC");
    client.say("FT.CREATE ft PREFIX 1 d: SCHEMA n NUMERIC SORTABLE");
    for _ in 0..6 {
        for _ in 0..1 + random.below(3) {
            let mut commands = Vec::new();
            for _ in 0..random.below(3000) {
                let id = format!("d:{:04}", random.below(800));
                let n = random.below(1_000_000).to_string();
                match random.below(8) {
                    0 => commands.extend(crate::common::request(&[b"DEL", id.as_bytes()])),
                    1 => commands.extend(crate::common::request(&[
                        b"PEXPIRE",
                        id.as_bytes(),
                        &n.as_bytes()[..n.len().min(3)],
                    ])),
                    _ => commands.extend(crate::common::request(&[
                        b"HSET",
                        id.as_bytes(),
                        b"n",
                        n.as_bytes(),
                    ])),
                }
            }
            client.send(&commands);
            client.send(&crate::common::request(&[b"BGSAVE"]));
            std::thread::sleep(Duration::from_millis(random.below(60) as u64));
        }
        (child, client) = killed_and_started(child, &dir);
        // No key may expire while hashes and entries are compared.
        for id in 0..800 {
            client.say(&format!("PERSIST d:{id:04}"));
        }
        assert_current(&mut client, 0..800);
    }
    drop(child);
    let _ = std::fs::remove_dir_all(&dir);
}

/// A single changed byte in a file of the indexes is detected, by an opening and by the
/// verification of the directory.
#[test]
fn damaged_files_of_the_indexes_are_found() {
    let dir = std::env::temp_dir().join(format!("ordna-index-files-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let child = spawn(&format!("dir={}", dir.display()));
    let mut client = Client::new(child.address);
    while client.say("DBSIZE").contains("LOADING") {}
    (0..20).for_each(|id| drop(client.say(&format!("HSET d:{id} n {id}"))));
    client.say("PEXPIRE d:12 3600000");
    assert_eq!(client.say("ORDNA.INDEX CREATE n ON d: PARTS n NUMERIC"), r"+OK\r\n");
    client.say("ORDNA.INDEX COUNT n");
    let backup = |client: &mut Client| {
        client.say("BGSAVE");
        while client.say("INFO persistence").contains("rdb_bgsave_in_progress:1") {}
    };
    backup(&mut client);
    drop(child);
    let files = [dir.join("indexes.json"), dir.join("indexes/RESUME.json")];
    assert!(ordna_server::verify_indexes(&dir).is_empty());
    for file in &files {
        let whole = std::fs::read(file).unwrap();
        // Includes the digits of the checksum and the end of the file.
        for at in (0..whole.len()).step_by(7).chain(whole.len() - 12..whole.len()) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(file, &damaged).unwrap();
            assert_eq!(ordna_server::verify_indexes(&dir).len(), 1, "{} at {at}", file.display());
        }
        std::fs::write(file, &whole[..whole.len() - 3]).unwrap();
        assert_eq!(ordna_server::verify_indexes(&dir).len(), 1);
        std::fs::write(file, &whole).unwrap();
    }
    // The list of expiring keys has a wrong key: the file is not used, and the index is rebuilt.
    let whole = std::fs::read_to_string(&files[1]).unwrap();
    std::fs::write(&files[1], whole.replace("643a3132", "643a3133")).unwrap();
    let (child, mut client) = killed_and_started(spawn(&format!("dir={}", dir.display())), &dir);
    assert_eq!(client.say("ORDNA.INDEX COUNT n"), r":20\r\n");
    assert_eq!(number(&mut client, "n", "built"), 20);
    backup(&mut client);
    drop(child);
    let whole = std::fs::read_to_string(&files[0]).unwrap();
    for damaged in [Some(whole.replace("\"n\"", "\"m\"")), None] {
        match damaged {
            Some(text) => std::fs::write(&files[0], text).unwrap(),
            None => std::fs::remove_file(&files[0]).unwrap(),
        }
        assert_eq!(ordna_server::verify_indexes(&dir).len(), 1);
        let child = spawn(&format!("dir={}", dir.display()));
        let mut client = Client::new(child.address);
        while client.say("DBSIZE").contains("LOADING") {}
        let refused = client.say("ORDNA.INDEX CREATE other ON d: PARTS n NUMERIC");
        assert!(refused.starts_with('-'), "{refused}");
        assert_eq!(client.say("HGET d:7 n"), r"$1\r\n7\r\n");
    }
    let _ = std::fs::remove_dir_all(&dir);
}
