//! Nodes that send garbage, too much, or nothing. The sockets are real, but there are no nodes
//! behind them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ordna_kafka::Member;
use ordna_kafka::query::{
    Answer, GroupQuery, Part, QueryError, QuestionError, Refusal, Request, Rows, Run,
};
use ordna_secondary::Position;

use crate::group::{Group, IDENTITY, Setup, ask, ids, nodes};

/// Returns the reply to a request.
type Reply = Arc<dyn Fn(&Request) -> Vec<u8> + Send + Sync>;

/// Starts a node that sends these replies, or none if `reply` is `None`. Returns its address and
/// the number of bytes that it was able to send.
fn faulty(reply: Option<Reply>) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, sent) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&sent);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, reply, count) = (stream.unwrap(), reply.clone(), Arc::clone(&count));
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let mut chunk = [0; 4096];
                // The request is the last of three bulk strings.
                while let Ok(read @ 1..) = stream.read(&mut chunk) {
                    bytes.extend_from_slice(&chunk[..read]);
                    let head = bytes.windows(8).position(|window| window == b"\r\nASK\r\n$");
                    let body = head.and_then(|at| {
                        let line =
                            at + 8 + bytes[at + 8..].iter().position(|byte| *byte == b'\r')?;
                        let length: usize =
                            str::from_utf8(&bytes[at + 8..line]).ok()?.parse().ok()?;
                        bytes.get(line + 2..line + 2 + length)
                    });
                    let (Some(body), Some(reply)) = (body, &reply) else { continue };
                    let reply = reply(&Request::decode(body).unwrap());
                    bytes.clear();
                    for part in reply.chunks(4096) {
                        if stream.write_all(part).is_err() {
                            return;
                        }
                        count.fetch_add(part.len(), Ordering::SeqCst);
                    }
                    if reply.ends_with(b"bye") {
                        return;
                    }
                }
            });
        }
    });
    (address, sent)
}

fn bulk(answer: &Answer) -> Vec<u8> {
    let body = answer.encode();
    let mut bytes = format!("${}\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(&body);
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// Returns correct replies that `change` has modified.
fn nearly(change: impl Fn(&mut Answer) + Send + Sync + 'static) -> Reply {
    Arc::new(move |request| {
        let position = |asked: &ordna_kafka::RequestedState| match asked {
            ordna_kafka::RequestedState::AtPlus(position) => *position,
            _ => Position { identity: IDENTITY, seq: 1 },
        };
        let part = |(partition, asked): &(u32, ordna_kafka::RequestedState)| {
            let (position, age) = (position(asked), Duration::ZERO);
            (*partition, Ok(Part { position, age, count: 0 }))
        };
        let parts = request.partitions.iter().map(part).collect();
        let mut answer = Answer { parts, run: Run { rows: Rows::default(), more: false } };
        change(&mut answer);
        bulk(&answer)
    })
}

fn always(bytes: impl Into<Vec<u8>>) -> Reply {
    let bytes = bytes.into();
    Arc::new(move |_| bytes.clone())
}

/// Each kind of garbage leads to an error that names the partition, or to the answer of a copy.
#[test]
fn garbage_is_refused_and_a_copy_asked() {
    let group = Group::new(2);
    group.fill(0..40);
    let two = nodes(&group, &Setup::default(), &[&[0], &[]]);
    let expected = group.oracle(&group.ends(), |_| true);
    let deep = b"*1\r\n".repeat(200_000);
    let rows = |keys: &'static [&'static [u8]]| {
        nearly(move |answer| keys.iter().for_each(|key| answer.run.rows.push(key, 1)))
    };
    let cases: Vec<(&str, Reply)> = vec![
        ("no protocol", always("HTTP/1.1 400 Bad Request\r\n\r\n")),
        ("an array", always(deep)),
        ("a number", always(":1\r\n")),
        ("a status", always("+OK\r\n")),
        ("nothing", always("$-1\r\n")),
        ("another version", always("$1\r\nx\r\n")),
        ("two replies", always("$1\r\n\x01\r\n$1\r\n\x01\r\n")),
        ("a refusal", always("-NOPERM this user has no permissions\r\n")),
        ("it closes", always("$100\r\nbye")),
        ("a length beyond all", always("$99999999999999999999\r\n")),
        ("another partition", nearly(|answer| answer.parts[0].0 += 1)),
        ("no partition", nearly(|answer| answer.parts.clear())),
        (
            "no history",
            nearly(|answer| {
                let position = Position { identity: 0, seq: 100_000 };
                answer.parts[0].1 = Ok(Part { position, age: Duration::ZERO, count: 0 });
            }),
        ),
        (
            "an earlier state",
            nearly(|answer| {
                let position = Position { identity: IDENTITY, seq: 1 };
                answer.parts[0].1 = Ok(Part { position, age: Duration::ZERO, count: 0 });
            }),
        ),
        ("out of order", rows(&[b"\x40b", b"\x40a"])),
        ("twice", rows(&[b"\x40a", b"\x40a"])),
        ("rows without end", nearly(|answer| answer.run.more = true)),
        ("it does not hold it", nearly(|answer| answer.parts[0].1 = Err(Refusal::NotHeld))),
    ];
    for (name, reply) in cases {
        let (address, _) = faulty(Some(reply));
        {
            let mut table = group.table.lock().unwrap();
            table.members.truncate(2);
            table.members.push(Member { address: address.to_string(), partitions: vec![1] });
            table.version += 1;
        }
        two[1].fake.lose(1);
        let asked = GroupQuery { timeout: Duration::from_millis(300), ..ask() };
        match two[0].nodes.scan(&asked) {
            Err(QueryError::Missing { missing, .. }) => {
                assert_eq!((missing[0].partition, missing.len()), (1, 1), "{name}");
                assert_eq!(missing[0].member, Some(address.to_string()), "{name}");
                assert_ne!(missing[0].trouble, QuestionError::Silent, "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
        two[1].fake.restore(1, u64::MAX);
        assert_eq!(ids(&two[0].nodes.scan(&ask()).unwrap()), expected, "{name}");
    }
}

/// The connection to an owner that sends without end is closed. What it was able to send is not
/// much more than the limit.
#[test]
fn an_endless_answer_is_cut_off() {
    let group = Group::new(2);
    group.fill(0..40);
    let limits = ordna_kafka::query::QueryLimits { bytes: 64 << 10, ..Default::default() };
    let setup = Setup { limits, ..Setup::default() };
    let one = nodes(&group, &setup, &[&[0]]);
    let mut endless = b"$500000000\r\n".to_vec();
    endless.resize(200 << 20, b'x');
    let (address, sent) = faulty(Some(always(endless)));
    let member = Member { address: address.to_string(), partitions: vec![1] };
    group.table.lock().unwrap().members.push(member);
    let query = ordna_secondary::Query::new().limit(100);
    let asked = GroupQuery { query, timeout: Duration::from_millis(1500), ..ask() };
    match one[0].nodes.scan(&asked) {
        Err(QueryError::Missing { missing, .. }) => {
            assert!(
                matches!(&missing[0].trouble, QuestionError::Garbled(why) if why.contains("more than"))
            );
        }
        other => panic!("{other:?}"),
    }
    // The buffers of both sockets hold a few megabytes.
    let sent = sent.load(Ordering::SeqCst);
    assert!(sent < 32 << 20, "{sent} bytes");
}

/// An owner accepts the request and never replies.
#[test]
fn a_silent_owner_ends_with_the_deadline() {
    let group = Group::new(2);
    group.fill(0..40);
    let one = nodes(&group, &Setup::default(), &[&[0]]);
    let (address, _) = faulty(None);
    let member = Member { address: address.to_string(), partitions: vec![1] };
    group.table.lock().unwrap().members.push(member);
    let began = Instant::now();
    let asked = GroupQuery { timeout: Duration::from_millis(400), ..ask() };
    match one[0].nodes.scan(&asked) {
        Err(QueryError::Missing { missing, .. }) => {
            assert_eq!(missing[0].trouble, QuestionError::Silent);
        }
        other => panic!("{other:?}"),
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(400) && took < Duration::from_secs(3), "{took:?}");
}
