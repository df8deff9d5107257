//! No more collector threads run than are configured, and they sleep while there is no work. The
//! server is a separate process, whose threads the test inspects.
use std::time::{Duration, Instant};

use crate::common::{Child, Client, spawn};

/// Returns how often each collector of the process went to sleep.
fn sleeps(server: &Child) -> Vec<(String, u64)> {
    let tasks = std::fs::read_dir(server.proc("task")).unwrap();
    let status = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")));
    // A thread that has just ended has no status.
    let status = status.flatten().filter(|text| text.starts_with("Name:\tordna collector\n"));
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    let count = |text: &str| field(text, "voluntary_ctxt_switches:").parse().unwrap();
    let mut all: Vec<_> = status.map(|text| (field(&text, "Pid:"), count(&text))).collect();
    all.sort();
    all
}

#[test]
fn no_more_collectors_run_than_are_configured_and_they_sleep() {
    let server = spawn("collectors=3");
    let mut client = Client::new(server.address);
    assert_eq!(client.say("CONFIG GET collectors"), r"*2\r\n$10\r\ncollectors\r\n$1\r\n3\r\n");
    assert_eq!(sleeps(&server), [], "they start when there is something to collect");
    // Includes the keyspace that replaces the first one after a flush.
    for _ in 0..2 {
        client.say("SET far 1 EX 10000");
        client.say("SET key 1");
        let number = client.say("ORDNA.SNAPSHOT CREATE");
        let number = number.trim_start_matches(':').trim_end_matches(r"\r\n");
        client.say("SET key 2");
        assert_eq!(client.say(&format!("ORDNA.SNAPSHOT DROP {number}")), r":1\r\n");
        let patience = Instant::now() + Duration::from_secs(20);
        while !client.say("INFO snapshots").contains(r"\r\ndead_versions:0\r\n") {
            assert!(Instant::now() < patience, "{}", client.say("INFO snapshots"));
        }
        // Each collector looks for work once, finds none, and then sleeps.
        let mut before = sleeps(&server);
        loop {
            std::thread::sleep(Duration::from_millis(300));
            let now = sleeps(&server);
            // Collectors start on demand.
            if (1..=3).contains(&now.len()) && now == before {
                break;
            }
            assert!(Instant::now() < patience, "a collector wakes with nothing to do: {now:?}");
            before = now;
        }
        client.say("FLUSHALL");
    }
}
