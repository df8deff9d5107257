//! Histories of several clients over the wire, checked for linearizability: single keys, MGET,
//! MULTI, neighbours, DEL of several keys, and scans.
//!
//! A state consists of the values of three keys. Each round begins with an empty keyspace and is
//! short, so that the search of Wing, Gong and Lowe is fast. `cargo xtask wire` runs more rounds.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use ordna_server::Config;
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

use crate::common::{Client, Random, seconds, show, start};

const KEYS: [&str; 3] = ["a", "m", "z"];
const CLIENTS: usize = 4;
/// Number of commands of a client in a round.
const STEPS: usize = 12;

/// The values of the keys.
type State = [Option<u64>; 3];

/// A command of a client.
#[derive(Debug, Clone, Copy)]
enum Command {
    Set(usize, u64),
    Get(usize),
    Incr(usize),
    /// MSET of the first and the last key.
    SetEnds(u64),
    /// MULTI, SET of the first key, INCR of the last one, EXEC.
    Exec(u64),
    DelEnds,
    ExistAll,
    GetAll,
    Rename(usize, usize),
    First,
    Last,
    Floor,
    Ceil,
    Range,
    Scan,
    Keys,
}

/// A command and its reply.
type Step = (Command, String);

fn bulk(text: &str) -> String {
    format!(r"${}\r\n{text}\r\n", text.len())
}

fn value(value: Option<u64>) -> String {
    value.map_or(r"$-1\r\n".to_owned(), |value| bulk(&value.to_string()))
}

impl Command {
    fn random(random: &mut Random, fresh: u64) -> Self {
        let key = random.below(3);
        match random.below(20) {
            0..=3 => Self::Set(key, fresh),
            4 | 5 => Self::Get(key),
            6 => Self::Incr(key),
            7 => Self::SetEnds(fresh),
            8 => Self::Exec(fresh),
            9 | 10 => Self::DelEnds,
            11 => Self::ExistAll,
            12 => Self::GetAll,
            13 => Self::Rename(key, (key + 1) % 3),
            14 => Self::First,
            15 => Self::Last,
            16 => Self::Floor,
            17 => Self::Ceil,
            18 => Self::Range,
            _ if random.below(2) == 0 => Self::Scan,
            _ => Self::Keys,
        }
    }

    fn lines(self) -> Vec<String> {
        let one = match self {
            Self::Set(key, value) => format!("SET {} {value}", KEYS[key]),
            Self::Get(key) => format!("GET {}", KEYS[key]),
            Self::Incr(key) => format!("INCR {}", KEYS[key]),
            Self::SetEnds(value) => format!("MSET a {value} z {value}"),
            Self::Exec(value) => {
                let lines = ["MULTI".to_owned(), format!("SET a {value}"), "INCR z".to_owned()];
                return lines.into_iter().chain(["EXEC".to_owned()]).collect();
            }
            Self::DelEnds => "DEL a z".to_owned(),
            Self::ExistAll => "EXISTS a m z".to_owned(),
            Self::GetAll => "MGET z m a".to_owned(),
            Self::Rename(from, to) => format!("RENAME {} {}", KEYS[from], KEYS[to]),
            Self::First => "ORDNA.FIRST".to_owned(),
            Self::Last => "ORDNA.LAST".to_owned(),
            Self::Floor => "ORDNA.FLOOR n".to_owned(),
            Self::Ceil => "ORDNA.CEIL b".to_owned(),
            Self::Range => "ORDNA.RANGE - +".to_owned(),
            Self::Scan => "SCAN 0 COUNT 100".to_owned(),
            Self::Keys => "KEYS *".to_owned(),
        };
        vec![one]
    }

    /// Returns the reply in a state, and the state afterwards.
    fn apply(self, state: &State) -> (String, State) {
        let mut next = *state;
        let present = || (0..3).filter(|key| state[*key].is_some());
        let entry = |key: Option<usize>| match key {
            Some(key) => format!(r"*2\r\n{}{}", bulk(KEYS[key]), value(state[key])),
            None => r"*-1\r\n".to_owned(),
        };
        let keys = || {
            let names: String = present().map(|key| bulk(KEYS[key])).collect();
            format!(r"*{}\r\n{names}", present().count())
        };
        let mut incr = |key: usize| {
            let sum = next[key].unwrap_or(0) + 1;
            next[key] = Some(sum);
            format!(r":{sum}\r\n")
        };
        let ok = r"+OK\r\n".to_owned();
        let reply = match self {
            Self::Set(key, value) => {
                next[key] = Some(value);
                ok
            }
            Self::Get(key) => value(state[key]),
            Self::Incr(key) => incr(key),
            Self::SetEnds(value) => {
                (next[0], next[2]) = (Some(value), Some(value));
                ok
            }
            Self::Exec(value) => {
                let sum = incr(2);
                next[0] = Some(value);
                format!(r"*2\r\n+OK\r\n{sum}")
            }
            Self::DelEnds => {
                (next[0], next[2]) = (None, None);
                format!(r":{}\r\n", present().filter(|key| *key != 1).count())
            }
            Self::ExistAll => format!(r":{}\r\n", present().count()),
            Self::GetAll => {
                let values: String = (0..3).rev().map(|key| value(state[key])).collect();
                format!(r"*3\r\n{values}")
            }
            Self::Rename(from, to) => match state[from] {
                Some(_) => {
                    next[to] = next[from].take();
                    ok
                }
                None => r"-ERR no such key\r\n".to_owned(),
            },
            Self::First => entry(present().next()),
            Self::Last => entry(present().next_back()),
            Self::Floor => entry(present().rfind(|key| *key < 2)),
            Self::Ceil => entry(present().find(|key| *key > 0)),
            Self::Range => {
                let entries: String =
                    present().map(|key| bulk(KEYS[key]) + &value(state[key])).collect();
                format!(r"*{}\r\n{entries}", present().count() * 2)
            }
            Self::Scan => format!(r"*2\r\n{}{}", bulk("0"), keys()),
            Self::Keys => keys(),
        };
        (reply, next)
    }
}

struct Keyspace;

impl Specification for Keyspace {
    type State = State;
    type Operation = Step;

    fn init() -> State {
        [None; 3]
    }

    fn apply((command, reply): &Step, state: &State) -> (bool, State) {
        let (expected, next) = command.apply(state);
        if expected == *reply { (true, next) } else { (false, *state) }
    }
}

fn is_linearizable(mut events: Vec<(u64, usize, Action<Step>)>) -> bool {
    events.sort_by_key(|(time, ..)| *time);
    let actions = events.into_iter().map(|(_, client, action)| (client, action)).collect();
    WGLChecker::<Keyspace>::is_linearizable(History::from_actions(actions))
}

#[test]
fn what_clients_see_is_explained_by_one_order() {
    let server = start(Config::default());
    let clock = AtomicU64::new(0);
    let begin = std::time::Instant::now();
    let mut rounds = 0;
    while rounds < 60 || begin.elapsed() < seconds(1) {
        Client::new(server.address).say("FLUSHALL");
        let barrier = Barrier::new(CLIENTS);
        let (clock, barrier, server) = (&clock, &barrier, &server);
        let run = |client: usize| {
            move || {
                let mut random = Random::new((rounds * CLIENTS + client) as u64 + 1);
                let mut connection = Client::new(server.address);
                let mut events = Vec::new();
                barrier.wait();
                for step in 0..STEPS {
                    let fresh = (step * CLIENTS + client + 1) as u64 * 100;
                    let command = Command::random(&mut random, fresh);
                    let called = clock.fetch_add(1, Ordering::SeqCst);
                    let lines = command.lines();
                    connection.send(
                        &lines
                            .iter()
                            .flat_map(|line| [line.as_bytes(), b"\r\n"].concat())
                            .collect::<Vec<_>>(),
                    );
                    let replies: Vec<Vec<u8>> = lines.iter().map(|_| connection.reply()).collect();
                    let reply = show(replies.last().unwrap());
                    let returned = clock.fetch_add(1, Ordering::SeqCst);
                    events.push((called, client, Action::Call((command, reply.clone()))));
                    events.push((returned, client, Action::Response((command, reply))));
                }
                events
            }
        };
        let events: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(run(client))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert!(is_linearizable(events.clone()), "no order explains {events:#?}");
        rounds += 1;
    }
    println!("{rounds} rounds of {} commands", CLIENTS * STEPS);
}

#[test]
fn a_history_without_an_order_is_noticed() {
    // MGET sees the later of two writes of one client and misses the earlier one.
    let ok = || r"+OK\r\n".to_owned();
    let mget = format!(r"*3\r\n{}{}{}", bulk("2"), value(None), value(None));
    let steps =
        [(0, Command::Set(0, 1), ok()), (0, Command::Set(2, 2), ok()), (1, Command::GetAll, mget)];
    // The two writes are sequential, and MGET is concurrent with both.
    let times = [(1, 2), (3, 4), (0, 5)];
    let mut events = Vec::new();
    for ((client, command, reply), (called, returned)) in steps.into_iter().zip(times) {
        events.push((called, client, Action::Call((command, reply.clone()))));
        events.push((returned, client, Action::Response((command, reply))));
    }
    assert!(!is_linearizable(events));
}
