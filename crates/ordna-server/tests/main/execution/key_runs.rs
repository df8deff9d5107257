//! Pipelines of several clients that change one large collection.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::common::{Client, fresh, request};

/// Number of commands of a pipeline.
const PIPELINE: usize = 16;
/// Number of clients that send pipelines.
const CLIENTS: usize = 4;
/// Number of elements of each client.
const EACH: usize = 2_000;

/// Sends commands in pipelines and returns the replies.
fn pipelined(address: SocketAddr, commands: &[Vec<u8>]) -> Vec<String> {
    let mut client = Client::new(address);
    let mut replies = Vec::new();
    for commands in commands.chunks(PIPELINE) {
        client.send(&commands.concat());
        replies.extend(commands.iter().map(|_| String::from_utf8(client.reply()).unwrap()));
    }
    replies
}

/// Executes the commands of all clients at the same time, and returns all replies.
fn at_once(address: SocketAddr, commands: impl Fn(usize) -> Vec<u8> + Sync) -> Vec<String> {
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let numbers = client * EACH..(client + 1) * EACH;
                let commands: Vec<_> = numbers.map(&commands).collect();
                scope.spawn(move || pipelined(address, &commands))
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

fn fill(client: &mut Client, name: &str, element: impl Fn(usize) -> Vec<String>) {
    for first in (0..1_000).step_by(100) {
        let mut call = vec![name.to_string(), "key".to_string()];
        (first..first + 100).for_each(|number| call.extend(element(number)));
        let call: Vec<_> = call.iter().map(String::as_bytes).collect();
        assert!(client.reply_to(&request(&call)).starts_with(b":"));
    }
}

#[test]
fn each_push_of_concurrent_pipelines_has_its_own_length() {
    let (server, mut client) = fresh();
    fill(&mut client, "RPUSH", |number| vec![format!("first {number}")]);
    let replies = at_once(server.address, |number| {
        request(&[b"RPUSH", b"key", format!("value {number}").as_bytes()])
    });
    let lengths: BTreeSet<usize> =
        replies.iter().map(|reply| reply[1..].trim_end().parse().unwrap()).collect();
    let expected: BTreeSet<usize> = (1_001..=1_000 + CLIENTS * EACH).collect();
    assert_eq!(lengths, expected);
}

#[test]
fn each_element_is_popped_once_by_concurrent_pipelines() {
    for (add, pop, scored) in [("SADD", "SPOP", false), ("ZADD", "ZPOPMIN", true)] {
        let (server, mut client) = fresh();
        fill(&mut client, add, |number| match scored {
            true => vec![number.to_string(), format!("m{number}")],
            false => vec![format!("m{number}")],
        });
        let replies = at_once(server.address, |_| request(&[pop.as_bytes(), b"key"]));
        let popped: Vec<_> = replies.iter().filter(|reply| reply.contains('m')).collect();
        let different: BTreeSet<_> = popped.iter().collect();
        assert_eq!((popped.len(), different.len()), (1_000, 1_000), "{pop}");
        assert_eq!(client.say("EXISTS key"), r":0\r\n");
    }
}

#[test]
fn concurrent_pipelines_add_each_field_once() {
    let (server, mut client) = fresh();
    fill(&mut client, "HSET", |number| vec![format!("first {number}"), "value".into()]);
    let replies = at_once(server.address, |number| {
        request(&[b"HSET", b"key", format!("field {}", number % EACH).as_bytes(), b"value"])
    });
    assert_eq!(replies.iter().filter(|reply| *reply == ":1\r\n").count(), EACH);
    assert_eq!(client.say("HLEN key"), format!(r":{}\r\n", 1_000 + EACH));
    // A pipeline in which the hash becomes large needs to exclude other commands.
    assert_eq!(client.say("DEL key"), r":1\r\n");
    let field = |number: usize| request(&[b"HSET", b"key", format!("f{number}").as_bytes(), b"v"]);
    let commands: Vec<u8> = (0..EACH).flat_map(field).collect();
    client.send(&commands);
    (0..EACH).for_each(|_| assert_eq!(client.reply(), b":1\r\n"));
    assert_eq!(client.say("HLEN key"), format!(r":{EACH}\r\n"));
}

/// Commands that exclude others run between those of the pipelines.
#[test]
fn exclusive_commands_run_between_pipelined_ones() {
    let (server, mut client) = fresh();
    fill(&mut client, "SADD", |number| vec![format!("first {number}")]);
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| {
            at_once(server.address, |number| {
                request(&[b"SADD", b"key", format!("m{number}").as_bytes()])
            })
        });
        while !adding.is_finished() {
            assert_eq!(client.say("RENAME key other"), r"+OK\r\n");
            assert_eq!(client.say("EXISTS other"), r":1\r\n");
            assert_eq!(client.say("COPY other key REPLACE"), r":1\r\n");
        }
        assert!(adding.join().unwrap().iter().all(|reply| reply.starts_with(':')));
    });
    assert_eq!(client.say("TYPE key"), r"+set\r\n");
}

/// An error of the protocol within a pipeline comes after the replies to the commands before it.
#[test]
fn a_broken_request_ends_a_pipeline_after_its_commands() {
    let (_server, mut client) = fresh();
    fill(&mut client, "SADD", |number| vec![format!("first {number}")]);
    let call = request(&[b"SADD", b"key", b"m"]);
    let mut broken = request(&[b"SADD", b"key", b"m"]);
    let at = broken.len() - 4;
    broken[at - 3] = b'!';
    client.send(&[call.clone(), call.clone(), call, broken].concat());
    assert_eq!(client.reply(), b":1\r\n");
    assert_eq!(client.reply(), b":0\r\n");
    assert_eq!(client.reply(), b":0\r\n");
    assert_eq!(client.reply(), b"-ERR Protocol error: expected '$', got '!'\r\n");
}

/// Pops of one member know which members follow until another command comes.
#[test]
fn pipelined_pops_of_one_and_of_several_members_take_them_in_order() {
    let (_server, mut client) = fresh();
    fill(&mut client, "ZADD", |number| vec![number.to_string(), format!("m{number}")]);
    let counts: Vec<usize> = (0..400).map(|number| [1, 1, 1, 3, 2][number % 5]).collect();
    let pop = |count: &usize| match count {
        1 => request(&[b"ZPOPMIN", b"key"]),
        count => request(&[b"ZPOPMIN", b"key", count.to_string().as_bytes()]),
    };
    client.send(&counts.iter().flat_map(pop).collect::<Vec<u8>>());
    let mut next = 0;
    for count in counts {
        let reply = String::from_utf8(client.reply()).unwrap();
        let count = count.min(1_000 - next);
        let expected: Vec<_> = (next..next + count).map(|number| format!("m{number}")).collect();
        let popped: Vec<_> = reply.split("\r\n").filter(|line| line.starts_with('m')).collect();
        assert_eq!(popped, expected);
        next += count;
    }
    assert_eq!(next, 640);
}
