//! Tests of `ORDNA.BACKUP`, which reads the files of a backup over the protocol.

use std::fs;

use ordna::durability::{Disk, Progress, install, verify};
use ordna_server::{Config, LogSync};

use crate::common::{Client, start};
use crate::state::persistence::{Dir, loaded, say};

/// Returns the bytes of a part of a file.
fn part(client: &mut Client, id: u64, file: usize, offset: u64, count: u64) -> Vec<u8> {
    let words = ["ORDNA.BACKUP", "READ"].map(str::to_owned).into_iter();
    let numbers = [id, file as u64, offset, count].map(|number| number.to_string());
    let words: Vec<_> = words.chain(numbers).collect();
    let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
    client.send(&crate::common::request(&words));
    let reply = client.reply();
    let begin = reply.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    assert_eq!(reply[0], b'$', "{}", crate::common::show(&reply));
    reply[begin..reply.len() - 2].to_vec()
}

/// Returns the id and the files that `ORDNA.BACKUP OPEN` reports.
fn open(client: &mut Client) -> (u64, Vec<(String, u64)>) {
    let reply = say(client, "ORDNA.BACKUP OPEN");
    let words: Vec<_> = reply.split(' ').collect();
    let id = words[1][1..].parse().unwrap();
    let files =
        words[2..].chunks_exact(4).map(|file| (file[2].to_owned(), file[3][1..].parse().unwrap()));
    (id, files.collect())
}

#[test]
fn a_backup_that_is_read_is_that_of_its_moment() {
    let dir = Dir::new("transfer");
    let server = start(dir.config(LogSync::EverySecond));
    let mut client = loaded(&server);
    assert!(say(&mut client, "ORDNA.BACKUP OPEN").starts_with("-ERR there is no backup yet"));
    let value = "v".repeat(1000);
    for key in 0..2000 {
        assert_eq!(say(&mut client, &format!("SET key:{key:05} {value}")), "+OK");
    }
    assert_eq!(say(&mut client, "SAVE"), "+OK");
    let (id, files) = open(&mut client);
    assert!(files.iter().any(|(name, _)| name == "MANIFEST"), "{files:?}");
    // A newer backup removes the files, but they are still open.
    assert_eq!(say(&mut client, "SET key:00000 other"), "+OK");
    assert_eq!(say(&mut client, "SAVE"), "+OK");
    let copy = Dir::new("transfer-copy");
    fs::create_dir_all(&copy.0).unwrap();
    for (at, (name, len)) in files.iter().enumerate() {
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < *len {
            let next = part(&mut client, id, at, bytes.len() as u64, 100_000);
            assert!(!next.is_empty() && next.len() <= 100_000);
            bytes.extend(next);
        }
        assert!(part(&mut client, id, at, *len, 10).is_empty(), "the end");
        assert!(part(&mut client, id, at, i64::MAX as u64, 10).is_empty());
        fs::write(copy.0.join(name), bytes).unwrap();
    }
    for (words, reply) in [
        (format!("READ {id} {} 0 1", files.len()), "has no file"),
        (format!("READ {id} 0 0 0"), "-ERR count must be between 1 and 1048576"),
        (format!("READ {id} 0 0 1048577"), "-ERR count must be between 1 and 1048576"),
        (format!("READ {id} 0 -1 1"), "-ERR value is not an integer"),
        (format!("READ {} 0 0 1", id + 1), "is not open"),
        (format!("CLOSE {}", id + 1), "is not open"),
        (format!("CLOSE {id}"), "+OK"),
        (format!("READ {id} 0 0 1"), "is not open"),
    ] {
        let answer = say(&mut client, &format!("ORDNA.BACKUP {words}"));
        assert!(answer.contains(reply), "{words}: {answer}");
    }
    verify(&Disk, &copy.0, &Progress::default()).unwrap();
    let restored = Dir::new("transfer-restored");
    install(&Disk, &copy.0, &restored.0, &Progress::default()).unwrap();
    let server = start(restored.config(LogSync::EverySecond));
    let mut client = loaded(&server);
    assert_eq!(say(&mut client, "DBSIZE"), ":2000");
    assert_eq!(say(&mut client, "STRLEN key:00000"), ":1000", "as it was");
}

#[test]
fn few_backups_are_open_at_once_and_admins_only_read_them() {
    let dir = Dir::new("transfer-limits");
    let server = start(dir.config(LogSync::EverySecond));
    let mut client = loaded(&server);
    assert_eq!(say(&mut client, "SAVE"), "+OK");
    let first = open(&mut client).0;
    (0..3).for_each(|_| drop(open(&mut client)));
    assert!(say(&mut client, "ORDNA.BACKUP OPEN").starts_with("-ERR 4 backups are open"));
    assert_eq!(say(&mut client, &format!("ORDNA.BACKUP CLOSE {first}")), "+OK");
    open(&mut client);
    say(&mut client, "ACL SETUSER u on nopass ~* +@all -@admin");
    let mut user = Client::new(server.address);
    assert_eq!(say(&mut user, "AUTH u x"), "+OK");
    assert!(say(&mut user, "ORDNA.BACKUP OPEN").starts_with("-NOPERM"));
    let memory = start(Config::default());
    let reply = say(&mut Client::new(memory.address), "ORDNA.BACKUP OPEN");
    assert!(reply.contains("--dir"), "{reply}");
}
