//! Users with rights to some prefixes can read the indexes over those prefixes and no others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Client, Running, fresh, seconds};

const DENIED: &str = "-NOPERM";

/// Starts a server with hashes `app:0` to `app:9` and `web:0` to `web:76`, and an unrestricted
/// client.
fn filled() -> (Running, Client) {
    let (server, mut admin) = fresh();
    for (prefix, count) in [("app", 10), ("web", 77)] {
        for key in 0..count {
            let line = format!("HSET {prefix}:{key} n {key} t x secret {prefix}");
            assert_eq!(admin.say(&line), r":3\r\n");
        }
    }
    (server, admin)
}

/// Returns a client whose user has these rights.
fn user(server: &Running, admin: &mut Client, rights: &str) -> Client {
    assert_eq!(admin.say(&format!("ACL SETUSER ann reset on >p {rights}")), r"+OK\r\n");
    let mut ann = Client::new(server.address);
    assert_eq!(ann.say("AUTH ann p"), r"+OK\r\n");
    ann
}

fn define(admin: &mut Client) {
    for line in [
        "ORDNA.INDEX CREATE app ON app: PARTS n",
        "ORDNA.INDEX CREATE app1 ON app:1 PARTS n",
        "ORDNA.INDEX CREATE web ON web: PARTS n",
        "FT.CREATE fapp PREFIX 1 app: SCHEMA n NUMERIC t TAG",
        "FT.CREATE fweb PREFIX 1 web: SCHEMA n NUMERIC t TAG",
        "FT.CREATE fboth PREFIX 2 app: web: SCHEMA n NUMERIC t TAG",
        "FT.CREATE fall SCHEMA n NUMERIC t TAG",
    ] {
        assert_eq!(admin.say(line), r"+OK\r\n", "{line}");
    }
    let reply = admin.ask(&[b"ORDNA.INDEX", b"CREATE", b"all", b"ON", b"", b"PARTS", b"n"]);
    assert_eq!(reply, r"+OK\r\n");
}

/// Commands that read an index of `ORDNA.INDEX`, and one of `FT.CREATE`.
const COMPOSITE: [&str; 3] = ["ORDNA.INDEX SCAN", "ORDNA.INDEX COUNT", "ORDNA.INDEX INFO"];
const SEARCHES: [(&str, &str); 5] = [
    ("FT.SEARCH", " *"),
    ("FT.SEARCH", " @t:{x} SORTBY n LIMIT 0 100 RETURN 2 __key secret"),
    ("FT.AGGREGATE", " * LOAD * WITHCURSOR COUNT 1"),
    ("FT.EXPLAIN", " @t:{x}"),
    ("FT.INFO", ""),
];

/// Checks that a client can read these indexes only and sees nothing of `web:`. For a user without
/// rights to all keys, an index that does not exist gives the same error as one that it may not
/// read.
fn check(ann: &mut Client, rights: &str, composites: &[&str], schemas: &[&str]) {
    let none = if rights.ends_with(" ~*") { "app" } else { "none" };
    let mut ask = |line: &str, allowed: bool| {
        let reply = ann.say(line);
        assert_eq!(!reply.starts_with(DENIED), allowed, "{rights}: {line}: {reply}");
        assert!(!reply.starts_with("-ERR"), "{rights}: {line}: {reply}");
        assert!(!reply.contains("web") || schemas.contains(&"fweb"), "{rights}: {line}: {reply}");
        reply
    };
    for name in ["app", "app1", "web", "all", none] {
        for command in COMPOSITE {
            ask(&format!("{command} {name}"), composites.contains(&name));
        }
    }
    let none = if rights.ends_with(" ~*") { "fapp" } else { "none" };
    for name in ["fapp", "fweb", "fboth", "fall", none] {
        for (command, rest) in SEARCHES {
            let reply = ask(&format!("{command} {name}{rest}"), schemas.contains(&name));
            if command == "FT.AGGREGATE" && schemas.contains(&name) {
                let cursor = reply.trim_end_matches(r"\r\n").rsplit(':').next().unwrap();
                ask(&format!("FT.CURSOR READ {name} {cursor}"), true);
            }
        }
        if !schemas.contains(&name) {
            ask(&format!("FT.CURSOR READ {name} 1"), false);
        }
    }
    let listed = |names: &[&str]| {
        let mut sorted = names.to_vec();
        sorted.sort_unstable();
        let shown = sorted.iter().map(|name| format!(r"${}\r\n{name}\r\n", name.len()));
        format!(r"*{}\r\n{}", names.len(), shown.collect::<String>())
    };
    assert_eq!(ask("ORDNA.INDEX LIST", true), listed(composites), "{rights}");
    assert_eq!(ask("FT._LIST", true), listed(schemas), "{rights}");
}

#[test]
fn an_index_is_read_by_whoever_may_read_its_keys() {
    let (server, mut admin) = filled();
    define(&mut admin);
    let (app, fapp): (&[&str], &[&str]) = (&["app", "app1"], &["fapp"]);
    for (rights, composites, schemas) in [
        ("+@all ~app:*", app, fapp),
        ("+@all %R~app:*", app, fapp),
        ("+@all ~a*", app, fapp),
        ("-@all (+@all %R~app:*)", app, fapp),
        ("+@all ~app:* (+@all %W~*)", app, fapp),
        // Users who may not read all keys of the index.
        ("+@all ~app:1*", &["app1"], &[]),
        ("+@all %W~app:*", &[], &[]),
        ("+@all ~app:?*", &[], &[]),
        ("+@all ~app:", &[], &[]),
        ("+@all ~app:[0-9]* ~web:?", &[], &[]),
        ("+@all", &[], &[]),
        ("+@all ~app:* ~web:*", &["app", "app1", "web"], &["fapp", "fboth", "fweb"]),
        ("+@all ~*", &["all", "app", "app1", "web"], &["fall", "fapp", "fboth", "fweb"]),
    ] {
        let mut ann = user(&server, &mut admin, rights);
        check(&mut ann, rights, composites, schemas);
    }
    // A query returns all entries of the permitted prefixes and no others.
    let mut ann = user(&server, &mut admin, "+@all %R~app:*");
    assert_eq!(ann.say("ORDNA.INDEX COUNT app"), r":10\r\n");
    assert!(ann.say("FT.SEARCH fapp * LIMIT 0 0").starts_with(r"*1\r\n:10\r\n"));
    ann.say("MULTI");
    assert_eq!(ann.say("ORDNA.INDEX COUNT app"), r"+QUEUED\r\n");
    assert!(ann.say("ORDNA.INDEX COUNT web").starts_with(DENIED));
    assert!(ann.say("EXEC").starts_with("-EXECABORT"));
    // Creating an index requires rights to all keys.
    for line in [
        "ORDNA.INDEX CREATE mine ON app: PARTS n",
        "ORDNA.INDEX DROP app",
        "FT.CREATE mine PREFIX 1 app: SCHEMA n NUMERIC",
        "FT.ALTER fapp SCHEMA ADD m NUMERIC",
        "FT.DROPINDEX fapp",
        "ORDNA.NODE PARTITIONS",
    ] {
        assert!(ann.say(line).starts_with(DENIED), "{line}");
    }
    // A user without permission for any command on indexes.
    let mut ann = user(&server, &mut admin, "+@all -@ordna ~app:*");
    for line in ["ORDNA.INDEX SCAN app", "ORDNA.INDEX LIST", "FT.SEARCH fapp *", "FT._LIST"] {
        assert!(ann.say(line).starts_with(DENIED), "{line}");
    }
}

#[test]
fn an_index_that_gets_the_name_of_another_shows_nothing() {
    let (server, mut admin) = filled();
    define(&mut admin);
    let mut ann = user(&server, &mut admin, "+@all ~app:*");
    ann.say("MULTI");
    assert_eq!(ann.say("ORDNA.INDEX COUNT app"), r"+QUEUED\r\n");
    let reply = admin.say("FT.AGGREGATE fweb * LOAD * WITHCURSOR COUNT 1");
    let cursor = reply.trim_end_matches(r"\r\n").rsplit(':').next().unwrap().to_owned();
    for line in [
        "ORDNA.INDEX DROP app",
        "ORDNA.INDEX CREATE app ON web: PARTS n",
        "FT.DROPINDEX fweb",
        "FT.CREATE fweb PREFIX 1 app: SCHEMA n NUMERIC t TAG",
    ] {
        assert_eq!(admin.say(line), r"+OK\r\n", "{line}");
    }
    assert!(ann.say("EXEC").contains("NOPERM"), "checked again");
    assert!(ann.say("ORDNA.INDEX SCAN app").starts_with(DENIED));
    let reply = ann.say(&format!("FT.CURSOR READ fweb {cursor}"));
    assert!(reply.starts_with("-ERR Cursor not found"), "{reply}");
    assert!(ann.say("FT.SEARCH fweb *").starts_with(r"*21\r\n:10\r\n"));
}

#[test]
fn definitions_that_change_beside_a_query_show_nothing_of_other_prefixes() {
    let (server, mut admin) = filled();
    for prefix in ["app", "web"] {
        let line = format!("ORDNA.INDEX CREATE i ON {prefix}: PARTS n");
        assert_eq!(admin.say(&line), r"+OK\r\n");
        assert_eq!(admin.say("ORDNA.INDEX DROP i"), r"+OK\r\n");
    }
    let mut clients: Vec<Client> =
        (0..3).map(|_| user(&server, &mut admin, "+@all %R~app:*")).collect();
    let (begin, is_over) = (Instant::now(), AtomicBool::new(false));
    let answered: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter_mut()
            .enumerate()
            .map(|(nth, ann)| {
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut answered = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        let line = ["ORDNA.INDEX COUNT i", "ORDNA.INDEX SCAN i", "FT.SEARCH f *"];
                        let reply = ann.say(line[nth]);
                        assert!(!reply.contains("web") && reply != r":77\r\n", "{reply}");
                        answered += usize::from(!reply.starts_with('-'));
                    }
                    answered
                })
            })
            .collect();
        while begin.elapsed() < seconds(3) {
            for prefix in ["app", "web"] {
                admin.say(&format!("ORDNA.INDEX CREATE i ON {prefix}: PARTS n"));
                admin.say(&format!("FT.CREATE f PREFIX 1 {prefix}: SCHEMA n NUMERIC"));
                std::thread::sleep(Duration::from_micros(300));
                admin.say("ORDNA.INDEX DROP i");
                admin.say("FT.DROPINDEX f");
            }
        }
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    println!("{answered} answers");
}
