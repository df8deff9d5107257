//! Tests of the file source, and of processes that are killed while they read a file.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ordna::durability::BackupOptions;
use ordna::tuple::Value;
use ordna_secondary::*;

use crate::common::{SOON, directory, entries, int, text};

fn by_n() -> IndexDefinition {
    IndexDefinition::new("by_n", "town:").part(Part::new("n")).part(Part::new("at.country"))
}

/// Appends operations on random documents.
fn append(path: &Path, from: usize, count: usize) {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    let mut lines = String::new();
    for number in from..from + count {
        let id = number * 7919 % 400;
        let line = if number % 5 == 0 {
            format!("{{\"op\":\"delete\",\"id\":\"town:{id}\"}}\n")
        } else {
            let op = if number % 2 == 0 { "insert" } else { "update" };
            format!(
                "{{\"op\":\"{op}\",\"id\":\"town:{id}\",\"doc\":{{\"n\":{number},\"at\":{{\"country\":\"SE\"}}}}}}\n"
            )
        };
        lines.push_str(&line);
    }
    file.write_all(lines.as_bytes()).unwrap();
}

/// Computes the entries that the first `until` bytes of a file result in.
fn recompute(path: &Path, until: u64) -> Vec<(Vec<Value>, Vec<u8>)> {
    let bytes = std::fs::read(path).unwrap();
    let mut documents = BTreeMap::new();
    for line in bytes[..until as usize].split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
    {
        let line: serde_json::Value = serde_json::from_slice(line).unwrap();
        let n = line["doc"]["n"].as_i64().map(i128::from);
        documents.insert(line["id"].as_str().unwrap().as_bytes().to_vec(), n);
    }
    let mut rows: Vec<_> = documents.into_iter().filter_map(|(id, n)| Some((n?, id))).collect();
    rows.sort();
    rows.into_iter().map(|(n, id)| (vec![int(n), text("SE")], id)).collect()
}

fn start(path: &Path, backups: &Path) -> Service {
    let options = ServiceOptions::new().workers(2).queue(64).backups(backups);
    Service::start(options, Arc::new(NdjsonFile::new(path))).unwrap()
}

fn assert_whole(service: &Service, path: &Path) -> VersionVector {
    let view = service.view(&Read::request_plus().timeout(SOON)).unwrap();
    let until = view.vector().positions()[0].seq;
    assert_eq!(until, std::fs::metadata(path).unwrap().len());
    assert_eq!(entries(&view, "by_n"), recompute(path, until));
    view.vector().clone()
}

#[test]
fn a_file_is_followed_resumed_and_rebuilt_if_it_was_rolled_back() {
    let dir = directory("follow");
    let (path, backups) = (dir.join("towns.ndjson"), dir.join("backups"));
    let service = start(&path, &backups);
    service.create(by_n()).unwrap();
    append(&path, 0, 3000);
    let wait = Duration::from_secs(60);
    let began = std::time::Instant::now();
    while service.fed().positions()[0].seq == 0 && began.elapsed() < wait {
        std::thread::sleep(Duration::from_millis(5));
    }
    service.wait_until_built("by_n", SOON).unwrap();
    assert_whole(&service, &path);
    let page = service.query("by_n", &Query::new().limit(5), &Read::any()).unwrap();
    let backup = service.back_up(2, &BackupOptions::new()).unwrap();
    assert_eq!(backup.entries as usize, recompute(&path, backup.vector.positions()[0].seq).len());
    append(&path, 3000, 500);
    drop(service);

    // The service resumes: it reads only what follows the backup.
    append(&path, 3500, 500);
    let service = start(&path, &backups);
    let vector = assert_whole(&service, &path);
    assert!(vector.reaches(&backup.vector).unwrap() && vector != backup.vector);
    assert_eq!(service.info("by_n").unwrap().built, 0);
    let next = Query::new().limit(5).cursor(page.cursor.unwrap());
    service.query("by_n", &next, &Read::any()).unwrap();
    let backup = service.back_up(1, &BackupOptions::new()).unwrap();
    drop(service);
    assert!(!backups.join("backup-1").exists() && backup.path.exists());

    // The file was truncated, so the index is rebuilt.
    let length = std::fs::metadata(&path).unwrap().len();
    let bytes = std::fs::read(&path).unwrap();
    let point = bytes[..length as usize / 2].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    std::fs::write(&path, &bytes[..point]).unwrap();
    let service = start(&path, &backups);
    assert_whole(&service, &path);
    drop(service);

    // Another file, with a different first line.
    std::fs::remove_file(&path).unwrap();
    append(&path, 100, 5000);
    let service = start(&path, &backups);
    assert_whole(&service, &path);
    drop(service);
    std::fs::remove_dir_all(dir).unwrap();
}

/// The new file begins with the same line and is longer than the old one.
#[test]
fn a_file_that_is_replaced_begins_anew() {
    let dir = directory("replaced");
    let (path, new) = (dir.join("towns.ndjson"), dir.join("new.ndjson"));
    append(&path, 1, 500);
    let service = start(&path, &dir.join("backups"));
    service.create(by_n()).unwrap();
    service.wait_until_built("by_n", SOON).unwrap();
    let before = assert_whole(&service, &path).positions()[0];
    append(&new, 1, 1);
    append(&new, 3000, 900);
    std::fs::rename(&new, &path).unwrap();
    let began = std::time::Instant::now();
    // Until the first snapshot point of the new file, a query fails because the history has
    // changed.
    let latest = Read::request_plus().timeout(SOON);
    while service.fed().positions()[0].identity == before.identity
        || matches!(service.view(&latest), Err(Error::OtherHistory { .. }))
    {
        assert!(began.elapsed() < SOON, "the new file is not noticed");
        std::thread::sleep(Duration::from_millis(5));
    }
    append(&path, 3900, 10);
    assert_whole(&service, &path);
    drop(service);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_damaged_line_ends_the_source_and_names_its_place() {
    let dir = directory("damaged");
    let path = dir.join("towns.ndjson");
    append(&path, 1, 10);
    let good = std::fs::metadata(&path).unwrap().len();
    std::fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b"{\"op\":1}\n")
        .unwrap();
    let service = start(&path, &dir.join("backups"));
    service.create(by_n()).unwrap();
    // Either the stream or the build reads the bad line first.
    let message = loop {
        if let Some(error) = service.source_error() {
            break error.to_string();
        }
        if let IndexState::Failed(reason) = service.info("by_n").unwrap().state {
            break reason;
        }
        std::thread::yield_now();
    };
    assert!(message.contains(&format!("towns.ndjson:{good}")), "{message}");
    drop(service);
    std::fs::remove_dir_all(dir).unwrap();
}

const CHILD: &str = "ORDNA_SECONDARY_CHILD";

/// Not a test of its own: [`kills_lose_nothing`] starts it as a process and kills it.
#[test]
fn child_indexes_and_backs_up_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let dir = Path::new(&dir);
    let service = start(&dir.join("towns.ndjson"), &dir.join("backups"));
    if service.list().is_empty() {
        service.create(by_n()).unwrap();
    }
    service.wait_until_built("by_n", SOON).unwrap();
    for from in (0..).step_by(200) {
        append(&dir.join("towns.ndjson"), from, 200);
        service.back_up(2, &BackupOptions::new()).unwrap();
        println!("backed up");
    }
}

#[test]
fn kills_lose_nothing() {
    let dir = directory("kills");
    let path = dir.join("towns.ndjson");
    append(&path, 0, 1000);
    for kill in 0..4_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "files::child_indexes_and_backs_up_until_it_is_killed",
                "--nocapture",
            ])
            .env(CHILD, &dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines =
            std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        let backed_up = lines.find(|line| line.as_ref().is_ok_and(|line| line == "backed up"));
        assert!(backed_up.is_some(), "the child has ended");
        std::thread::sleep(Duration::from_millis(13 * kill));
        child.kill().unwrap();
        child.wait().unwrap();
        // If the kill interrupts a write, half a line remains, and the source waits for the rest of
        // it.
        let bytes = std::fs::read(&path).unwrap();
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        std::fs::write(&path, &bytes[..whole]).unwrap();
        let service = start(&path, &dir.join("backups"));
        let restored = service.info("by_n").unwrap();
        assert_eq!((restored.state, restored.built), (IndexState::Ready, 0));
        append(&path, 0, 50);
        assert_whole(&service, &path);
    }
    std::fs::remove_dir_all(dir).unwrap();
}
