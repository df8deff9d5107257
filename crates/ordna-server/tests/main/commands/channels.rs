//! Tests of publish and subscribe.

use std::collections::VecDeque;
use std::io::Read;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ordna_server::Config;

use super::against_redis::Redis;
use crate::common::{Client, Random, converse, fresh, request, show, start};
use crate::fuzz_against_redis::frame::Frame;

/// Sends a line and returns `count` replies.
fn replies(client: &mut Client, line: &str, count: usize) -> String {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    client.send(&request(&words));
    (0..count).map(|_| show(&client.reply())).collect()
}

fn next(client: &mut Client) -> String {
    show(&client.reply())
}

#[test]
fn messages_reach_the_subscribers_of_channels_and_patterns() {
    let (server, mut publisher) = fresh();
    let mut exact = Client::new(server.address);
    let mut pattern = Client::new(server.address);
    pattern.resp3 = true;
    pattern.say("HELLO 3");
    assert_eq!(
        replies(&mut exact, "SUBSCRIBE a b a", 3),
        r"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:2\r\n"
    );
    assert_eq!(
        replies(&mut pattern, "PSUBSCRIBE [ab]* *", 2),
        r">3\r\n$10\r\npsubscribe\r\n$5\r\n[ab]*\r\n:1\r\n>3\r\n$10\r\npsubscribe\r\n$1\r\n*\r\n:2\r\n"
    );
    assert_eq!(publisher.say("PUBLISH a hello"), r":3\r\n");
    assert_eq!(publisher.say("PUBLISH c hello"), r":1\r\n");
    assert_eq!(publisher.say("SPUBLISH a hello"), r":0\r\n");
    assert_eq!(next(&mut exact), r"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$5\r\nhello\r\n");
    let both = [next(&mut pattern), next(&mut pattern), next(&mut pattern)];
    for name in [r"$5\r\n[ab]*\r\n$1\r\na", r"$1\r\n*\r\n$1\r\na", r"$1\r\n*\r\n$1\r\nc"] {
        let expected = format!(r">4\r\n$8\r\npmessage\r\n{name}\r\n$5\r\nhello\r\n");
        assert!(both.contains(&expected), "{expected} not in {both:?}");
    }
    // RESP3 allows other commands. Messages precede the reply to a later request.
    publisher.say("PUBLISH b x");
    assert!(pattern.say("GET nothing").contains("pmessage"));
    assert!(next(&mut pattern).contains("pmessage"));
    assert_eq!(next(&mut pattern), r"_\r\n");
    // No message of the channel arrives after the end of its subscription.
    publisher.say("PUBLISH b y");
    let all = replies(&mut exact, "UNSUBSCRIBE b", 3);
    assert_eq!(
        all,
        r"*3\r\n$7\r\nmessage\r\n$1\r\nb\r\n$1\r\nx\r\n*3\r\n$7\r\nmessage\r\n$1\r\nb\r\n$1\r\ny\r\n*3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:1\r\n"
    );
    assert_eq!(publisher.say("PUBLISH b z"), r":2\r\n");
    assert_eq!(publisher.say("PUBSUB NUMSUB a b"), r"*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n:0\r\n");
    assert_eq!(publisher.say("PUBSUB CHANNELS"), r"*1\r\n$1\r\na\r\n");
    assert_eq!(publisher.say("PUBSUB CHANNELS x*"), r"*0\r\n");
    assert_eq!(publisher.say("PUBSUB NUMPAT"), r":2\r\n");
    // The subscriptions of a client that disconnects end.
    drop((exact, pattern));
    let end = Instant::now() + Duration::from_secs(10);
    while publisher.say("PUBLISH a x") != r":0\r\n" {
        assert!(Instant::now() < end, "the subscribers have left");
    }
    let info = publisher.say("INFO stats");
    for field in ["pubsub_channels:0", "pubsub_patterns:0", "pubsubshard_channels:0"] {
        assert!(info.contains(field), "{field}");
    }
}

#[test]
fn a_subscriber_with_resp2_may_only_change_its_subscriptions() {
    let (server, mut other) = fresh();
    let mut client = Client::new(server.address);
    let refused = |name: &str| {
        format!(
            r"-ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context\r\n"
        )
    };
    replies(&mut client, "SUBSCRIBE a", 1);
    for line in ["GET a", "MULTI", "PUBLISH a x", "HELLO 3", "DISCARD"] {
        let name = line.split(' ').next().unwrap().to_ascii_lowercase();
        assert_eq!(client.say(line), refused(&name));
    }
    converse(
        &mut client,
        &[
            ("PING", r"*2\r\n$4\r\npong\r\n$0\r\n\r\n"),
            ("PING x", r"*2\r\n$4\r\npong\r\n$1\r\nx\r\n"),
            ("SSUBSCRIBE s", r"*3\r\n$10\r\nssubscribe\r\n$1\r\ns\r\n:1\r\n"),
            ("SSUBSCRIBE t", r"*3\r\n$10\r\nssubscribe\r\n$1\r\nt\r\n:2\r\n"),
            ("UNSUBSCRIBE a", r"*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:0\r\n"),
            ("PUNSUBSCRIBE", r"*3\r\n$12\r\npunsubscribe\r\n$-1\r\n:0\r\n"),
        ],
    );
    assert_eq!(client.say("GET a"), refused("get"));
    let line = other.say("CLIENT LIST TYPE pubsub");
    assert!(line.contains("flags=P db=0 sub=0 psub=0 ssub=2 "), "{line}");
    assert_eq!(other.say("SPUBLISH s hello"), r":1\r\n");
    assert_eq!(next(&mut client), r"*3\r\n$8\r\nsmessage\r\n$1\r\ns\r\n$5\r\nhello\r\n");
    assert_eq!(client.say("RESET"), r"+RESET\r\n");
    assert_eq!(client.say("GET a"), r"$-1\r\n");
    assert_eq!(other.say("SPUBLISH s hello"), r":0\r\n");
    assert_eq!(other.say("PUBSUB SHARDCHANNELS"), r"*0\r\n");
    // Messages arrive even if replies are off.
    client.send(&request(&[b"CLIENT", b"REPLY", b"OFF"]));
    assert!(replies(&mut client, "SUBSCRIBE a", 1).contains("subscribe"));
    other.say("PUBLISH a x");
    assert!(next(&mut client).contains("message"));
    replies(&mut other, "SUBSCRIBE q", 1);
    assert_eq!(other.say("CLIENT KILL TYPE pubsub"), refused("client|kill"));
    let mut third = Client::new(server.address);
    assert_eq!(third.say("CLIENT KILL TYPE pubsub"), r":2\r\n");
    assert!(client.is_closed());
}

#[test]
fn a_transaction_publishes_and_its_messages_follow_its_reply() {
    let (server, mut publisher) = fresh();
    let mut client = Client::new(server.address);
    client.resp3 = true;
    client.say("HELLO 3");
    replies(&mut client, "SUBSCRIBE a", 1);
    for line in ["MULTI", "PUBLISH a 1", "PING", "PUBLISH a 2"] {
        client.say(line);
    }
    assert_eq!(client.say("EXEC"), r"*3\r\n:1\r\n+PONG\r\n:1\r\n");
    for number in ["1", "2"] {
        let expected = format!(r">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\n{number}\r\n");
        assert_eq!(next(&mut client), expected);
    }
    // As in Redis, SUBSCRIBE may be queued, and SSUBSCRIBE may not.
    for line in ["MULTI", "SSUBSCRIBE s", "SUBSCRIBE b"] {
        publisher.say(line);
    }
    assert_eq!(
        publisher.say("EXEC"),
        r"*2\r\n-ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:1\r\n"
    );
    assert_eq!(client.say("PUBLISH b x"), r":1\r\n");
}

#[test]
fn users_receive_and_publish_what_their_channels_allow() {
    let (server, mut admin) = fresh();
    let denied =
        r"-NOPERM this user has no permissions to access one of the channels used as arguments\r\n";
    admin.say("ACL SETUSER u on nopass +@all ~* &news.* &b");
    assert!(admin.say("ACL LIST").contains(r"~* resetchannels &news.* &b +@all"));
    let mut client = Client::new(server.address);
    client.say("AUTH u x");
    converse(
        &mut client,
        &[
            ("SUBSCRIBE news.a", r"*3\r\n$9\r\nsubscribe\r\n$6\r\nnews.a\r\n:1\r\n"),
            ("PSUBSCRIBE news.*", r"*3\r\n$10\r\npsubscribe\r\n$6\r\nnews.*\r\n:2\r\n"),
            ("SUBSCRIBE news.b c", denied),
            ("PSUBSCRIBE news.a*", denied),
            ("SSUBSCRIBE c", denied),
            ("UNSUBSCRIBE c", r"*3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:2\r\n"),
        ],
    );
    converse(
        &mut admin,
        &[
            ("ACL DRYRUN u PUBLISH b x", r"+OK\r\n"),
            (
                "ACL DRYRUN u PUBLISH c x",
                r"$63\r\nThis user has no permissions to access the 'c' channel\r\n",
            ),
        ][..1],
    );
    let why = admin.say("ACL DRYRUN u PUBLISH c x");
    assert!(why.ends_with(r"This user has no permissions to access the 'c' channel\r\n"), "{why}");
    assert!(admin.say("ACL LOG").contains("channel"));
    // Changes of other rights are allowed; a connection with a subscription that is no longer
    // allowed is closed.
    admin.say("ACL SETUSER u &c -get");
    assert!(client.say("PING").contains("pong"));
    admin.say("ACL SETUSER u resetchannels &news.*");
    assert!(client.say("PING").contains("pong"));
    admin.say("ACL SETUSER u resetchannels &news.a");
    assert_eq!(client.reply(), b"", "the pattern is not allowed any more");
    // New users have no rights to channels unless the setting says otherwise.
    assert!(admin.say("ACL GETUSER u").contains(r"$8\r\nchannels\r\n$7\r\n&news.a\r\n"));
    admin.say("ACL SETUSER v");
    assert!(admin.say("ACL GETUSER v").contains(r"$8\r\nchannels\r\n$0\r\n\r\n"));
    converse(
        &mut admin,
        &[
            ("CONFIG SET acl-pubsub-default allchannels", r"+OK\r\n"),
            (
                "CONFIG GET acl-pubsub-default",
                r"*2\r\n$18\r\nacl-pubsub-default\r\n$11\r\nallchannels\r\n",
            ),
            ("ACL SETUSER w", r"+OK\r\n"),
        ],
    );
    assert!(admin.say("ACL GETUSER w").contains(r"$8\r\nchannels\r\n$2\r\n&*\r\n"));
    let refused = admin.say("CONFIG SET acl-pubsub-default x");
    assert!(
        refused.contains("must be one of the following: allchannels, resetchannels"),
        "{refused}"
    );
    // A transaction checks the rights when it is executed, too.
    let mut client = Client::new(server.address);
    client.say("AUTH u x");
    client.say("MULTI");
    assert_eq!(client.say("PUBLISH x y"), denied);
}

/// A client that does not read is closed at its limit. The others receive all messages without
/// delay.
#[test]
fn a_slow_subscriber_is_closed_and_delays_nobody() {
    let (server, mut publisher) = fresh();
    assert_eq!(
        publisher.ask(&[b"CONFIG", b"SET", b"client-output-buffer-limit", b"pubsub 4mb 1mb 60"]),
        r"+OK\r\n"
    );
    let mut slow = Client::new(server.address);
    let mut quick = Client::new(server.address);
    replies(&mut slow, "SUBSCRIBE a", 1);
    replies(&mut quick, "SUBSCRIBE a", 1);
    let payload = vec![b'x'; 64 << 10];
    let mut message = vec![0; payload.len() + 34];
    let mut longest = Duration::ZERO;
    let mut closed = false;
    // More than the sockets can buffer.
    for _ in 0..1000 {
        let begin = Instant::now();
        let receivers = publisher.ask(&[b"PUBLISH", b"a", &payload]);
        longest = longest.max(begin.elapsed());
        closed |= receivers == r":1\r\n";
        quick.stream.read_exact(&mut message).unwrap();
        assert!(message.starts_with(b"*3\r\n$7\r\n") && message.ends_with(b"xx\r\n"));
    }
    assert!(closed, "the slow client is closed");
    assert!(longest < Duration::from_secs(2), "a PUBLISH took {longest:?}");
    let info = publisher.say("INFO stats");
    assert!(info.contains("client_output_buffer_limit_disconnections:1"), "{info}");
    assert_eq!(publisher.say("PUBSUB NUMSUB a"), r"*2\r\n$1\r\na\r\n:1\r\n");
    // The messages that were sent can be read, and then the connection ends.
    let mut rest = Vec::new();
    let _ = slow.stream.read_to_end(&mut rest);
    assert!(rest.len() < 64 << 20);
}

/// The soft limit is checked by a timer, too, and not only when a message is published.
#[test]
fn a_slow_subscriber_is_closed_without_traffic() {
    let (server, mut publisher) = fresh();
    let limit = |client: &mut Client, limit: &[u8]| {
        assert_eq!(
            client.ask(&[b"CONFIG", b"SET", b"client-output-buffer-limit", limit]),
            r"+OK\r\n"
        );
    };
    limit(&mut publisher, b"pubsub 0 0 0");
    let mut slow = Client::new(server.address);
    replies(&mut slow, "CLIENT SETNAME slow", 1);
    replies(&mut slow, "SUBSCRIBE a", 1);
    let mut quick = Client::new(server.address);
    replies(&mut quick, "CLIENT SETNAME quick", 1);
    replies(&mut quick, "SUBSCRIBE b", 1);
    let listed = |publisher: &mut Client, name: &str| {
        let list = publisher.say("CLIENT LIST");
        let line = list.split(r"\n").find(|line| line.contains(name)).map(str::to_owned);
        line.map(|line| {
            let (_, rest) = line.split_once(" omem=").unwrap();
            rest.split(' ').next().unwrap().parse::<usize>().unwrap()
        })
    };
    let payload = vec![b'x'; 64 << 10];
    // More than the sockets can buffer.
    while listed(&mut publisher, "name=slow").unwrap() < 2 << 20 {
        assert_eq!(publisher.ask(&[b"PUBLISH", b"a", &payload]), r":1\r\n");
    }
    let begin = Instant::now();
    limit(&mut publisher, b"pubsub 0 1mb 1");
    while listed(&mut publisher, "name=slow").is_some() {
        assert!(begin.elapsed() < Duration::from_secs(30), "the client is not closed");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begin.elapsed() > Duration::from_secs(1), "closed after {:?}", begin.elapsed());
    assert!(listed(&mut publisher, "name=quick").is_some());
    let info = publisher.say("INFO stats");
    assert!(info.contains("client_output_buffer_limit_disconnections:1"), "{info}");
}

/// Messages count against the memory of clients. A message that several clients share counts once.
#[test]
fn waiting_messages_count_once_and_the_largest_client_is_closed() {
    let config = Config { max_clients_memory: Some(8 << 20), ..Config::default() };
    let server = start(config);
    let mut publisher = Client::new(server.address);
    let mut quick: Vec<Client> = (0..20).map(|_| Client::new(server.address)).collect();
    quick.iter_mut().for_each(|client| drop(replies(client, "SUBSCRIBE all", 1)));
    let mut slow = Client::new(server.address);
    replies(&mut slow, "SUBSCRIBE all", 1);
    // The messages of 21 clients would exceed the limit if each counted by itself.
    let payload = vec![b'x'; 500_000];
    let mut message = vec![0; payload.len() + 37];
    for _ in 0..10 {
        assert_eq!(publisher.ask(&[b"PUBLISH", b"all", &payload]), r":21\r\n");
        for client in &mut quick {
            client.stream.read_exact(&mut message).unwrap();
        }
    }
    let mut closed = false;
    for _ in 0..60 {
        closed |= publisher.ask(&[b"PUBLISH", b"all", &payload]) == r":20\r\n";
        for client in &mut quick {
            client.stream.read_exact(&mut message).unwrap();
        }
    }
    assert!(closed);
    assert!(publisher.say("INFO stats").contains("evicted_clients:1"));
}

#[test]
fn patterns_of_a_client_are_bounded() {
    let (_server, mut client) = fresh();
    let mut words: Vec<Vec<u8>> = vec![b"PSUBSCRIBE".to_vec()];
    words.extend((0..1024).map(|number| format!("x{number}*").into_bytes()));
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    client.send(&request(&words));
    (0..1024).for_each(|_| assert!(client.reply().starts_with(b"*3")));
    assert_eq!(
        client.say("PSUBSCRIBE y*"),
        r"-ERR a client may be subscribed to 1024 patterns\r\n"
    );
    // A pattern that the client has already subscribed to does not count again.
    assert!(client.say("PSUBSCRIBE x7*").ends_with(r":1024\r\n"));
}

/// All subscribers of a channel get the messages of several publishers in one order.
#[test]
fn all_subscribers_receive_one_order() {
    const MESSAGES: usize = 2000;
    let (server, _client) = fresh();
    let mut subscribers: Vec<Client> = (0..4).map(|_| Client::new(server.address)).collect();
    for (at, client) in subscribers.iter_mut().enumerate() {
        replies(
            client,
            if at % 2 == 0 { "SUBSCRIBE a b" } else { "PSUBSCRIBE [ab]" },
            1 + (at + 1) % 2,
        );
    }
    std::thread::scope(|scope| {
        for publisher in 0..3 {
            let address = server.address;
            scope.spawn(move || {
                let mut client = Client::new(address);
                let channel = if publisher == 0 { "a" } else { "b" };
                let mut all = Vec::new();
                for number in 0..MESSAGES {
                    let text = format!("{publisher}.{number}");
                    all.extend(request(&[b"PUBLISH", channel.as_bytes(), text.as_bytes()]));
                }
                client.send(&all);
                (0..MESSAGES).for_each(|_| assert_eq!(client.reply(), b":4\r\n"));
            });
        }
    });
    let received: Vec<Vec<Vec<u8>>> = subscribers
        .iter_mut()
        .map(|client| {
            let text =
                |reply: Vec<u8>| reply.split(|byte| *byte == b'\n').rev().nth(1).unwrap().to_vec();
            (0..3 * MESSAGES).map(|_| text(client.reply())).collect()
        })
        .collect();
    assert!(received.iter().all(|order| *order == received[0]), "the orders differ");
}

/// A connection of the comparison.
struct Peer {
    client: Client,
    speaks3: bool,
}

impl Peer {
    fn new(address: SocketAddr) -> Self {
        Self { client: Client::new(address), speaks3: false }
    }

    /// Sends a command, followed by a request whose reply shows that everything before it has been
    /// read.
    fn exchange(&mut self, words: Option<&[&[u8]]>) -> Vec<Frame> {
        let mut all = words.map_or_else(Vec::new, request);
        all.extend(request(&[b"PING", b"the end"]));
        self.client.send(&all);
        let mut frames = Vec::new();
        loop {
            let reply = self.client.reply();
            assert!(!reply.is_empty(), "closed");
            let frame = Frame::parse(&reply).unwrap().0;
            let is_end = |frame: &Frame| frame.text == b"the end";
            if is_end(&frame) || frame.items.get(1).is_some_and(is_end) && frame.items.len() == 2 {
                return frames;
            }
            frames.push(frame);
        }
    }
}

/// Returns the names, sorted, and the counts in the order of the replies. Redis ends all
/// subscriptions in the order of a hash table.
fn without_order(frames: &[Frame]) -> (Vec<Vec<u8>>, Vec<Frame>) {
    let mut names: Vec<_> = frames.iter().map(|frame| frame.items[1].text.clone()).collect();
    names.sort();
    (names, frames.iter().map(|frame| frame.items[2].clone()).collect())
}

#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn random_messages_against_redis() {
    const SUBSCRIBERS: usize = 3;
    let seed = std::env::var("ORDNA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let redis = Redis::start();
    let ours = start(Config::default());
    let mut random = Random::new(seed);
    let end = Instant::now() + crate::common::seconds(5);
    let mut latest = VecDeque::new();
    while Instant::now() < end {
        let mut sides = [redis.1, ours.address]
            .map(|address| (0..=SUBSCRIBERS).map(|_| Peer::new(address)).collect::<Vec<_>>());
        for _ in 0..100 {
            let name = |random: &mut Random| {
                ["a", "b", "ab", "", "a\r\nb", "[a]", "a*", "*", "?b", "a\\*"][random.below(10)]
            };
            let mut words: Vec<String> = Vec::new();
            let mut from = random.below(SUBSCRIBERS);
            let what = random.below(14);
            match what {
                0..7 => {
                    let command = [
                        "SUBSCRIBE",
                        "psubscribe",
                        "SSUBSCRIBE",
                        "UNSUBSCRIBE",
                        "PUNSUBSCRIBE",
                        "SUNSUBSCRIBE",
                        "Subscribe",
                    ];
                    words.push(command[what].to_owned());
                    (0..random.below(4)).for_each(|_| words.push(name(&mut random).to_owned()));
                }
                7 => words = vec!["GET".into(), "x".into()],
                8 => words = vec!["HELLO".into(), (2 + random.below(2)).to_string()],
                9 => words = vec!["RESET".into()],
                10 => {
                    from = SUBSCRIBERS;
                    let sub = ["NUMSUB", "numpat", "SHARDNUMSUB", "x"][random.below(4)];
                    words = vec!["PUBSUB".into(), sub.into()];
                    (0..random.below(3)).for_each(|_| words.push(name(&mut random).to_owned()));
                }
                _ => {
                    from = SUBSCRIBERS;
                    // Here, unlike in Redis, `*` matches the empty channel, as it matches an empty
                    // key.
                    let channel = Some(name(&mut random)).filter(|name| !name.is_empty());
                    let channel = channel.unwrap_or("ab");
                    let command = ["PUBLISH", "SPUBLISH"][usize::from(what == 13)];
                    words = vec![command.into(), channel.into(), random.below(1000).to_string()];
                }
            }
            let all: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            latest.push_back(format!("{from}: {}", words.join(" ")));
            if latest.len() > 12 {
                latest.pop_front();
            }
            let direct = sides.each_mut().map(|side| {
                let peer = &mut side[from];
                if words[0] == "HELLO" && !peer.client.say("PING").contains("pong") {
                    // The replies from here on have the new protocol.
                    peer.speaks3 = words[1] == "3";
                    peer.client.resp3 |= peer.speaks3;
                    let mut frames = peer.exchange(Some(&all));
                    // Ignores the number of the connection in the reply.
                    frames.retain(|frame| frame.is_error());
                    peer.client.resp3 = peer.speaks3;
                    return frames;
                }
                peer.client.resp3 |= words[0] == "RESET" && peer.speaks3;
                let frames = peer.exchange(Some(&all));
                if words[0] == "RESET" {
                    (peer.speaks3, peer.client.resp3) = (false, false);
                }
                frames
            });
            let ends_all = words.len() == 1 && words[0].contains("UNSUB");
            let agree =
                match ends_all && direct.iter().all(|frames| !frames.iter().any(Frame::is_error)) {
                    true => without_order(&direct[0]) == without_order(&direct[1]),
                    false => direct[0] == direct[1],
                };
            assert!(agree, "seed {seed}, {latest:?}\n{:?}\n{:?}", direct[0], direct[1]);
            for at in 0..SUBSCRIBERS {
                let [mut redis, mut ours] = sides.each_mut().map(|side| side[at].exchange(None));
                // One message may match several patterns, in any order.
                redis.sort();
                ours.sort();
                assert_eq!(redis, ours, "seed {seed}, client {at}, {latest:?}");
            }
        }
        // Waits before the next round counts subscribers: a dropped connection ends a little later.
        for peer in sides.iter_mut().flatten() {
            peer.client.resp3 |= peer.speaks3;
            peer.exchange(Some(&[b"RESET"]));
        }
    }
}
