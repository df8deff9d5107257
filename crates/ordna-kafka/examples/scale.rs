//! Measurements on one machine, and a simulation of a hundred nodes based on them
//! (`docs/scale-out.md`).
//!
//!     cargo run --release -p ordna-kafka --example scale -- fan-out [documents]
//!     cargo run --release -p ordna-kafka --example scale -- simulate [documents]
//!
//! `fan-out` compares a scan of 100 entries on one node with the same scan over three. `simulate`
//! measures the latency of one owner, the memory of an entry, the restore of a partition and the
//! merge, and computes 100 nodes with 10^10 documents from them.

#[allow(dead_code)]
#[path = "../tests/nodes/group.rs"]
mod group;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use group::{Group, Node, Setup, nodes};
use ordna::tuple::{Number, Value};
use ordna_kafka::query::{Answer, Cursor, GroupQuery, GroupResult, Rows, Run, merge};
use ordna_secondary::{Consistency, Query, Range};

/// Number of rounds of a comparison. Each round measures all sides in turn.
const ROUNDS: usize = 40;
/// Number of queries of a side in a round.
const QUERIES: usize = 250;
const LIMIT: usize = 100;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let documents = |default| match arguments.get(1) {
        Some(text) => text.parse().expect("a number of documents"),
        None => default,
    };
    match arguments.first().map(String::as_str) {
        Some("fan-out") => fan_out(documents(300_000)),
        Some("simulate") => simulate(documents(300_000)),
        _ => eprintln!("scale fan-out|simulate [documents]"),
    }
}

/// A generator that returns the same numbers in each run (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

fn percentile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

fn shown(name: &str, times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    let at = |share| percentile(times, share);
    println!("| {name} | {:.0} | {:.0} | {:.0} | {:.0} |", at(0.5), at(0.9), at(0.99), at(0.999));
    at(0.5)
}

/// Sends a scan over the wire and returns the reply.
fn wire(stream: &mut TcpStream, country: &str, most: u64) -> Vec<u8> {
    let line =
        format!("ORDNA.INDEX SCAN by_size EQ {country} TO [{most} LIMIT {LIMIT} VALUES ANY\r\n");
    stream.write_all(line.as_bytes()).unwrap();
    let (mut reply, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0, "closed");
        reply.extend_from_slice(&chunk[..read]);
        // The end of the reply: no missing partitions, and the age.
        let tail = &reply[reply.len().saturating_sub(24)..];
        if tail.ends_with(b"\r\n") && tail.windows(5).any(|window| window == b"*0\r\n:") {
            return reply;
        }
        assert!(!reply.starts_with(b"-"), "{}", String::from_utf8_lossy(&reply));
    }
}

/// Returns the entries of a reply, without cursor, vector and age.
fn entries(reply: &[u8]) -> &[u8] {
    let from = reply.windows(6).position(|window| window == b"\r\n*200").expect("100 entries");
    let to = reply.windows(2).rposition(|window| window == b"*0").expect("an end");
    // The vector is the last bulk string.
    let vector = reply[..to].iter().rposition(|byte| *byte == b'$').expect("a vector");
    &reply[from..vector]
}

fn connect(node: &Node) -> TcpStream {
    let stream = TcpStream::connect(node.address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn fan_out(documents: i64) {
    let group = Group::new(3);
    group.fill(0..documents);
    let three = nodes(&group, &Setup::default(), &[&[0], &[1], &[2]]);
    let one = nodes(&group.twin(), &Setup::default(), &[&[0, 1, 2]]);
    let mut streams = [connect(&one[0]), connect(&three[0])];
    let mut times: [Vec<f64>; 2] = Default::default();
    let mut random = Random(1);
    for round in 0..=ROUNDS {
        let asked: Vec<(&str, u64)> = (0..QUERIES)
            .map(|_| (["SE", "FI", "NO"][random.next() as usize % 3], 500 + random.next() % 500))
            .collect();
        let mut replies: [Vec<Vec<u8>>; 2] = Default::default();
        for side in [round % 2, 1 - round % 2] {
            for (country, most) in &asked {
                let begin = Instant::now();
                let reply = wire(&mut streams[side], country, *most);
                // The first round warms up.
                if round > 0 {
                    times[side].push(begin.elapsed().as_secs_f64() * 1e6);
                }
                replies[side].push(reply);
            }
        }
        let [ours, theirs] = &replies;
        assert!(ours.iter().zip(theirs).all(|(one, three)| entries(one) == entries(three)));
    }
    println!("{documents} documents, {LIMIT} entries with values, one client, microseconds\n");
    println!("| scan | p50 | p90 | p99 | p99.9 |\n|---|---:|---:|---:|---:|");
    let [one, three] = &mut times;
    let (one, three) = (shown("one node", one), shown("over three nodes", three));
    println!("\nratio of the medians: {:.2}", three / one);
}

/// Measurements of one node.
struct Measured {
    /// Response times of one owner in microseconds, sorted.
    answers: Vec<f64>,
    /// Size in bytes of an entry, in the index and in the reverse map.
    entry: f64,
    /// Size in bytes of an entry in a backup.
    backup: f64,
    /// Number of entries restored per second.
    restore: f64,
    /// Number of records indexed per second.
    replay: f64,
}

fn scan(node: &Node, most: u64) -> GroupResult {
    let country = Value::String("SE".to_owned());
    let most = Value::Number(Number::Int(most.into()));
    let range = Range::Between(std::ops::Bound::Unbounded, std::ops::Bound::Included(most));
    let query = Query::new().prefix([country]).range(range).limit(LIMIT);
    let consistency = Consistency::Any;
    node.nodes.scan(&GroupQuery { query, consistency, ..group::ask() }).unwrap()
}

fn measure(documents: i64) -> Measured {
    let group = Group::new(1);
    group.fill(0..documents);
    // The first node has no partition, so it sends the query to the second one.
    let two = nodes(&group, &Setup::default(), &[&[], &[0]]);
    let mut random = Random(2);
    let mut answers = Vec::new();
    for turn in 0..12_000 {
        let begin = Instant::now();
        let found = scan(&two[0], 500 + random.next() % 500);
        if turn >= 2_000 {
            answers.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        assert_eq!(found.entries.len(), LIMIT);
    }
    answers.sort_by(f64::total_cmp);
    drop(two);
    let dir = std::env::temp_dir().join(format!("ordna-scale-{}", std::process::id()));
    let begin = Instant::now();
    let (entry, backup, restore) = {
        let service = group::indexed(&group, 0, &dir);
        let replay = begin.elapsed();
        let info = service.info("by_size").unwrap();
        assert_eq!(info.entries as i64, documents);
        let entry = (info.bytes + info.reverse_bytes) as f64 / info.entries as f64;
        let backup = service.back_up(1, &ordna::durability::BackupOptions::new()).unwrap();
        let size: u64 = sizes(&backup.path);
        drop(service);
        let begin = Instant::now();
        let service = group::indexed(&group, 0, &dir);
        assert_eq!(service.info("by_size").unwrap().entries as i64, documents);
        let restored = begin.elapsed();
        println!("replay {replay:.2?}, restore {restored:.2?} of {documents} documents");
        (entry, size as f64 / documents as f64, (restored, replay))
    };
    std::fs::remove_dir_all(&dir).unwrap();
    let rate = |time: Duration| documents as f64 / time.as_secs_f64();
    Measured { answers, entry, backup, restore: rate(restore.0), replay: rate(restore.1) }
}

fn sizes(path: &std::path::Path) -> u64 {
    let size = |entry: std::fs::DirEntry| match entry.path() {
        path if path.is_dir() => sizes(&path),
        path => path.metadata().map_or(0, |file| file.len()),
    };
    std::fs::read_dir(path).unwrap().flatten().map(size).sum()
}

/// Returns the time in microseconds that a node needs to decode and merge the answers of `nodes`
/// other nodes.
fn merged(nodes: usize) -> f64 {
    let mut random = Random(3);
    // The share of an owner, as `query` computes it.
    let share = LIMIT.min(LIMIT * 2 / nodes + 16);
    let run = |_| {
        let mut keys: Vec<[u8; 24]> = (0..share)
            .map(|_| {
                let mut key = [0; 24];
                key.chunks_mut(8)
                    .for_each(|part| part.copy_from_slice(&random.next().to_be_bytes()));
                key
            })
            .collect();
        keys.sort_unstable();
        let mut rows = Rows::default();
        keys.iter().for_each(|key| rows.push(key, 8));
        Answer { parts: Vec::new(), run: Run { rows, more: true } }.encode()
    };
    let answers: Vec<Vec<u8>> = (0..nodes).map(run).collect();
    let mut times: Vec<f64> = (0..200)
        .map(|_| {
            let begin = Instant::now();
            let answers: Vec<Answer> =
                answers.iter().map(|bytes| Answer::decode(bytes).unwrap()).collect();
            let inputs: Vec<&Run> = answers.iter().map(|answer| &answer.run).collect();
            let merged = merge(&inputs, false, (LIMIT, usize::MAX), |key| key);
            assert_eq!(merged.rows.len(), LIMIT);
            begin.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    percentile(&times, 0.5)
}

/// Returns the latencies of queries that go to several owners: the slowest answer of each. With a
/// given probability, an owner blocks for a second. `patience` is the time after which a copy
/// receives the query as well.
fn slowest(
    answers: &[f64],
    owners: usize,
    hangs: f64,
    patience: Option<f64>,
    random: &mut Random,
) -> Vec<f64> {
    const TRIALS: usize = 20_000;
    const HANG: f64 = 1e6;
    let mut draw = || {
        let is_hanging = (random.next() >> 11) as f64 / (1_u64 << 53) as f64 >= 1.0 - hangs;
        let time = answers[random.next() as usize % answers.len()];
        if is_hanging { HANG } else { time }
    };
    let mut answer = || {
        let first = draw();
        match patience {
            Some(patience) if first > patience => first.min(patience + draw()),
            _ => first,
        }
    };
    let mut times: Vec<f64> =
        (0..TRIALS).map(|_| (0..owners).map(|_| answer()).fold(0.0, f64::max)).collect();
    times.sort_by(f64::total_cmp);
    times
}

fn simulate(documents: i64) {
    const NODES: f64 = 100.0;
    const DOCUMENTS: f64 = 1e10;
    let measured = measure(documents);
    let Measured { answers, entry, backup, restore, replay } = &measured;
    println!("an entry: {entry:.1} bytes in memory, {backup:.1} in a backup");
    println!("restore {restore:.0} entries/s, replay {replay:.0} records/s");
    println!("\nMemory of a node, GB (100 nodes, 10^10 documents)\n");
    println!("| indexes | no standby | one standby | two |\n|---:|---:|---:|---:|");
    for indexes in [1.0, 3.0, 10.0] {
        let of = |copies: f64| DOCUMENTS / NODES * entry * indexes * copies / 1e9;
        println!("| {indexes} | {:.0} | {:.0} | {:.0} |", of(1.0), of(2.0), of(3.0));
    }
    println!("\nTime until the partitions of a dead node are back, one index, without a standby\n");
    println!(
        "| partitions | of a node | on each heir | from backups | by replay | read from backups |"
    );
    println!("|---:|---:|---:|---:|---:|---:|");
    for partitions in [100.0_f64, 1_000.0, 10_000.0] {
        let lost = partitions / NODES;
        let heir = (lost / (NODES - 1.0)).ceil();
        let entries = DOCUMENTS / partitions * heir;
        let (restored, replayed) = (entries / restore, entries / replay);
        let bytes = DOCUMENTS / NODES * backup / 1e9;
        println!(
            "| {partitions} | {lost} | {heir} | {restored:.0} s | {replayed:.0} s | {bytes:.1} GB |"
        );
    }
    println!("\nA query of {LIMIT} entries, microseconds until the slowest owner has answered\n");
    println!(
        "| owners | p50 | p90 | p99 | p99.9 | decode and merge |\n|---:|---:|---:|---:|---:|---:|"
    );
    let mut random = Random(4);
    for owners in [1, 3, 10, 30, 100, 300] {
        let times = slowest(answers, owners, 0.0, None, &mut random);
        let at = |share| percentile(&times, share);
        println!(
            "| {owners} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} |",
            at(0.5),
            at(0.9),
            at(0.99),
            at(0.999),
            merged(owners)
        );
    }
    println!("\n100 owners of which each hangs for a second with a chance of 1 in 1,000, ms\n");
    println!("| a copy is asked after | p50 | p90 | p99 | p99.9 |\n|---|---:|---:|---:|---:|");
    for patience in [None, Some(1e6), Some(1e5), Some(1e4), Some(2e3)] {
        let times = slowest(answers, 100, 0.001, patience, &mut random);
        let at = |share| percentile(&times, share) / 1e3;
        let name = patience.map_or("never".to_owned(), |micros| format!("{:.0} ms", micros / 1e3));
        println!(
            "| {name} | {:.1} | {:.1} | {:.1} | {:.1} |",
            at(0.5),
            at(0.9),
            at(0.99),
            at(0.999)
        );
    }
    println!("\nBytes of vectors and cursors, as text\n");
    println!("| partitions | vector | cursor |\n|---:|---:|---:|");
    for partitions in [12, 100, 1_000, 10_000] {
        let position = |_| ordna_secondary::Position { identity: random.next(), seq: 10_000_000 };
        let vector: Vec<_> = (0..partitions).map(position).collect();
        let cursor = Cursor {
            fingerprint: 0,
            reverse: false,
            distinct: None,
            skip: 0,
            key: Some(vec![b'k'; 24]),
            vector: vector.iter().map(|at| (at.identity, at.seq)).collect(),
        };
        let vector = ordna_secondary::VersionVector::new(vector).to_string().len();
        println!("| {partitions} | {vector} | {} |", cursor.to_string().len());
    }
}
