//! A node blocks without ending, and then continues. It runs in a separate process.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ordna_kafka::NodeOptions;

use crate::client::{Client, Reply};
use crate::common::{
    PATIENCE, backed_up, beside_others, directory, entries, filled, options, owned, recomputed,
    until,
};
use crate::served::{Served, free_address};

const ADDRESS: &str = "ORDNA_TEST_ADDRESS";
const TOPIC: &str = "ORDNA_TEST_TOPIC";
const BACKUPS: &str = "ORDNA_TEST_BACKUPS";

fn hanging(topic: &str, backups: &Path) -> NodeOptions {
    backed_up(backups, options("hanging", topic, 0))
}

/// Runs the node that blocks, until its standard input is closed.
#[test]
#[ignore = "the process of another test"]
fn a_node_in_a_process_of_its_own() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let topic = std::env::var(TOPIC).unwrap();
    let backups = std::env::var(BACKUPS).unwrap();
    let _served = Served::start_at(address.parse().unwrap(), hanging(&topic, backups.as_ref()));
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    // As after a kill, no partitions are given back.
    std::process::exit(0);
}

struct Process(Child);

impl Process {
    fn signal(&self, name: &str) {
        let done = Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap();
        assert!(done.success(), "kill {name}: {done}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the number of complete backups of a process, by the names of their directories.
fn backups(dir: &Path, process: u32) -> usize {
    let end = format!("-{process:x}");
    let folders = |path: &Path| -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let writers = folders(dir).into_iter().flat_map(|partition| folders(&partition));
    let mine = writers.filter(|writer| writer.to_string_lossy().ends_with(&end));
    let backups = mine.flat_map(|writer| folders(&writer));
    backups.filter(|backup| backup.join("PARTITION.json").exists()).count()
}

#[test]
fn a_node_that_hangs_loses_its_partitions_and_comes_back_without_harm() {
    let _broker = beside_others();
    let ((topic, writer), dir) = (filled(4, 400), directory("hang"));
    let first = Served::start(hanging(&topic, &dir));
    let address = free_address();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hang::a_node_in_a_process_of_its_own", "--ignored"])
        .env(ADDRESS, address.to_string())
        .env(TOPIC, &topic)
        .env(BACKUPS, &dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    let child = Process(child.unwrap());
    let say = |words: &[&str]| {
        Client::connect(address.port(), PATIENCE).and_then(|mut client| client.ask(words))
    };
    let count = |words: &[&str]| match say(&[&["ORDNA.INDEX", "COUNT", "by_size"], words].concat())
    {
        Ok(Reply::Array(parts)) => Some(parts[0].clone()),
        _ => None,
    };
    // The group has assigned two partitions to the node, and it returns their entries. Otherwise it
    // would have no session to lose.
    until("both have two", || {
        let info = say(&["INFO", "nodes"]).map_or_else(|_| String::new(), |info| info.text());
        owned(&[&first.node]).len() == 2 && info.matches("role=owner,ready=1,").count() == 2
    });
    assert_eq!(count(&[]), Some(Reply::Number(400)));
    child.signal("-STOP");
    until("the group takes its partitions away", || owned(&[&first.node]).len() == 4);
    writer.fill(400..500, "NO");
    assert_eq!(entries(&[&first.node], 4), recomputed(&topic));
    child.signal("-CONT");
    // `ANY` does not wait: the reply contains the old state of that node, or the state of the
    // owners.
    let found = count(&["ANY"]);
    let Some(Reply::Number(found @ 400..=500)) = found else { panic!("{found:?}") };
    // `request_plus` counts all documents, because the old positions of the node do not reach the
    // ends.
    let all = count(&["TIMEOUT", "30000"]);
    assert_eq!(all, Some(Reply::Number(500)), "after {found} of ANY");
    until("it has learned that its session is over", || {
        let info = say(&["INFO", "nodes"]).unwrap().text();
        let mut lost = info.lines().filter_map(|line| line.strip_prefix("node_sessions_lost:"));
        lost.next().is_some_and(|lost| lost.trim_end() != "0")
    });
    until("it has two again", || owned(&[&first.node]).len() == 2);
    assert_eq!(count(&["TIMEOUT", "30000"]), Some(Reply::Number(500)));
    // The current owner backs the partitions up before it gives them back; the former one did not.
    let dir_of_topic = dir.join("hanging").join(&topic);
    until("the backups", || backups(&dir_of_topic, std::process::id()) > 0);
    assert_eq!(backups(&dir_of_topic, child.0.id()), 0);
    drop(child);
    drop(first);
    std::fs::remove_dir_all(dir).unwrap();
}
