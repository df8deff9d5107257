//! Three index nodes as processes, with producers and queries. Nodes and the broker are killed and
//! stopped at random. Every answer is compared with the topic at the answer's vector.
//!
//! `cargo xtask kafka-kills N` runs the test. Environment variables are `ORDNA_KILLS`,
//! `ORDNA_DOCUMENTS` (default 20,000) and `ORDNA_SEED`.

mod bars;
mod client;
mod clock;
mod cluster;
mod history;
mod load;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use clock::{Moment, suspensions};
use cluster::{Cluster, broker};
use history::History;
use load::{Shared, create, produce, query, scan_all, settings};

const PARTITIONS: i32 = 6;
const NODES: u16 = 3;
const WRITERS: u32 = 3;
const COUNTRIES: [&str; 4] = ["DK", "FI", "NO", "SE"];
/// Maximum time until the nodes have settled after a disturbance.
const SETTLE: Duration = Duration::from_secs(90);

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect(name))
}

fn needed(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("no {name}: run `cargo xtask kafka-kills`"))
}

/// A xorshift generator, which is good enough for random choices.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

/// Disturbs the cluster once. Returns the kind of the disturbance, and its details.
fn disturb(cluster: &mut Cluster, random: &mut Random) -> (&'static str, String) {
    let number = random.below(u64::from(NODES)) as u16;
    let pause = Duration::from_millis(random.below(4000));
    match random.below(10) {
        0..=3 => {
            cluster.stop(number, "-KILL");
            thread::sleep(pause);
            ("killed", format!("node {number} killed, back after {pause:?}"))
        }
        4..=5 => {
            cluster.stop(number, "-TERM");
            thread::sleep(pause);
            ("stopped", format!("node {number} stopped in order, back after {pause:?}"))
        }
        6..=8 => {
            // In half of the cases, longer than the session timeout.
            let pause = pause * 3;
            cluster.signal(number, "-STOP");
            thread::sleep(pause);
            cluster.signal(number, "-CONT");
            ("hung", format!("node {number} hung for {pause:?}"))
        }
        _ => {
            broker("kill");
            thread::sleep(pause);
            broker("start");
            ("broker killed", format!("broker killed, back after {pause:?}"))
        }
    }
}

#[test]
#[ignore = "takes minutes: `cargo xtask kafka-kills N`"]
fn answers_are_right_or_errors_while_nodes_and_the_broker_are_killed() {
    let rounds = variable("ORDNA_KILLS", 20);
    let documents = variable("ORDNA_DOCUMENTS", 20_000) as u32;
    let seed = variable("ORDNA_SEED", 1);
    let topic = format!("kills-{}", std::process::id());
    create(&topic);
    // A backup of many documents takes a second of processor time.
    let mut cluster = Cluster::new(&topic, NODES, if documents > 100_000 { "30s" } else { "5s" });
    cluster.mend();
    let shared = Arc::new(Shared::default());
    let mut threads = Vec::new();
    for writer in 0..WRITERS {
        let (shared, topic) = (Arc::clone(&shared), topic.clone());
        let own = documents / WRITERS;
        threads.push(thread::spawn(move || produce(&shared, &topic, writer, own)));
    }
    for reader in 0..2 {
        let (shared, first_port) = (Arc::clone(&shared), cluster.first_port);
        threads.push(thread::spawn(move || query(&shared, first_port, NODES, reader)));
    }
    let mut history = History::new(&settings(), &topic, PARTITIONS);
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut checked, mut longest) = (0, Duration::ZERO);
    for round in 0..=rounds {
        // The first round has no disturbance.
        let (kind, what) = match round {
            0 => ("start", "start".to_owned()),
            _ => disturb(&mut cluster, &mut random),
        };
        *kinds.entry(kind).or_default() += 1;
        cluster.mend();
        shared.pause.store(true, Ordering::SeqCst);
        let began = Moment::now();
        while shared.idle.load(Ordering::SeqCst) < u64::from(WRITERS) {
            assert!(began.elapsed() < 2 * SETTLE, "producers do not come to rest");
            thread::sleep(Duration::from_millis(20));
        }
        // In turn, one node scans all entries, and the others the first 1,000.
        let ends = history.ends();
        let mut answers = Vec::new();
        for number in 0..NODES {
            let is_whole = u64::from(number) == round % u64::from(NODES);
            let limit = if is_whole { usize::MAX } else { 1000 };
            let answer = loop {
                cluster.mend();
                match scan_all(cluster.port(number), limit) {
                    Ok(answer) => break answer,
                    Err(why) => assert!(began.elapsed() < 2 * SETTLE, "round {round}: {why}"),
                }
                thread::sleep(Duration::from_millis(200));
            };
            assert_eq!(answer.vector, ends, "an answer that lacks records");
            answers.push(answer);
        }
        let settled = began.elapsed();
        longest = longest.max(settled);
        let live = answers.iter().map(|answer| answer.rows.len()).max().unwrap_or(0);
        history.read_to(&ends);
        answers.append(&mut shared.answers.lock().unwrap());
        history.check(&answers);
        checked += answers.len();
        println!(
            "round {round}: {what}; settled in {settled:.1?}; {} answers checked, {} answered, \
             {} refused so far; {} records, {live} documents; {} suspensions",
            answers.len(),
            shared.answered.load(Ordering::Relaxed),
            shared.refused.load(Ordering::Relaxed),
            history.records(),
            suspensions(),
        );
        shared.pause.store(false, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(500));
    }
    shared.over.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(shared.answered.load(Ordering::Relaxed) > rounds, "hardly any query was answered");
    cluster.end();
    println!("{kinds:?}; {checked} answers checked; the longest settling took {longest:.1?}");
}
