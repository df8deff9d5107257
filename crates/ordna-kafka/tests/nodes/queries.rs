//! Tests of nodes without failures: every answer is that of a single service.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::ops::Bound;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ordna::tuple::{Number, Value};
use ordna_kafka::query::{Cursor, GroupQuery, Link, QueryError, QueryLimits};
use ordna_secondary::{Consistency, Error, Query, Range};

use crate::group::{Group, Setup, ask, ids, nodes};

const SPREAD: &[&[u32]] = &[&[0, 3], &[1], &[2, 4, 5]];

/// Returns the answer of a single node that has everything.
fn alone(group: &std::sync::Arc<Group>, query: &Query) -> Vec<(Vec<u8>, Vec<Value>)> {
    let single = nodes(&group.twin(), &Setup::default(), &[&[0, 1, 2, 3, 4, 5]]);
    let found = single[0].nodes.scan(&GroupQuery { query: query.clone(), ..ask() }).unwrap();
    found.entries.into_iter().map(|entry| (entry.id, entry.parts)).collect()
}

#[test]
fn any_node_answers_as_one_service_would() {
    let group = Group::new(6);
    group.fill(0..600);
    for n in 0..50 {
        group.write(&format!("town:{:05}", n * 3), (n % 2 == 0).then_some(("DK", n)));
    }
    let three = nodes(&group, &Setup::default(), SPREAD);
    let all = group.oracle(&group.ends(), |_| true);
    assert_eq!(all.len(), 575);
    let se = || Value::String("SE".to_owned());
    let number = |n: i64| Value::Number(Number::Int(n.into()));
    let between = Range::Between(Bound::Excluded(number(100)), Bound::Included(number(700)));
    let queries = [
        Query::new().limit(10_000),
        Query::new().limit(7).reverse(),
        Query::new().limit(50).offset(100),
        Query::new().limit(50).offset(100).reverse().covering(),
        Query::new().prefix([se()]).limit(10_000).covering(),
        Query::new().prefix([se()]).range(between).reverse().limit(60),
        Query::new().range(Range::StartsWith("S".to_owned())).limit(33),
        Query::new().distinct(1).limit(10),
        Query::new().distinct(1).limit(10).reverse(),
        Query::new().distinct(2).limit(500).covering(),
        Query::new().limit(0),
    ];
    for query in queries {
        let expected = alone(&group, &query);
        for node in &three {
            let found = node.nodes.scan(&GroupQuery { query: query.clone(), ..ask() }).unwrap();
            let entries: Vec<_> =
                found.entries.into_iter().map(|entry| (entry.id, entry.parts)).collect();
            assert_eq!(entries, expected, "{query:?}");
            assert_eq!((found.vector, found.missing), (group.ends(), Vec::new()));
        }
    }
    // A single node merges with the same code, so distinct values are checked in another way.
    let countries = GroupQuery { query: Query::new().distinct(1).limit(10).covering(), ..ask() };
    let found = three[1].nodes.scan(&countries).unwrap();
    let countries: Vec<_> = found.entries.into_iter().map(|entry| entry.parts[0].clone()).collect();
    let named = |name: &str| Value::String(name.to_owned());
    assert_eq!(countries, ["DK", "FI", "NO", "SE"].map(named));
    // The queries with one country have the expected results.
    let swedish = Query::new().prefix([se()]).limit(10_000);
    let found = three[1].nodes.count(&GroupQuery { query: swedish.clone(), ..ask() }).unwrap();
    assert_eq!(found.count as usize, alone(&group, &swedish).len());
    let counted = found.count;
    let all_of_them = three[2].nodes.count(&ask()).unwrap();
    assert!(all_of_them.count == 575 && counted < 575 && counted > 100, "{counted}");
}

#[test]
fn pages_follow_each_other_on_any_node() {
    let group = Group::new(6);
    group.fill(0..500);
    let three = nodes(&group, &Setup::default(), SPREAD);
    for reverse in [false, true] {
        let mut expected = group.oracle(&group.ends(), |_| true);
        if reverse {
            expected.reverse();
        }
        let (mut met, mut cursor) = (Vec::new(), None);
        for turn in 0.. {
            // For the client, a cursor is a text.
            let text = cursor.as_ref().map(ToString::to_string);
            let resumed = text.map(|text: String| text.parse::<Cursor>().unwrap());
            let query = Query { reverse, limit: 37, offset: 5, ..Query::new() };
            let asked =
                GroupQuery { query, cursor: resumed, consistency: Consistency::Any, ..ask() };
            let found = three[turn % 3].nodes.scan(&asked).unwrap();
            met.extend(ids(&found));
            cursor = found.cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(met, expected[5..]);
    }
}

#[test]
fn a_cursor_of_another_query_is_refused() {
    let group = Group::new(2);
    group.fill(0..100);
    let two = nodes(&group, &Setup::default(), &[&[0], &[1]]);
    let asked = GroupQuery { query: Query::new().limit(10), ..ask() };
    let cursor = two[0].nodes.scan(&asked).unwrap().cursor;
    let says = |query: Query, change: fn(&mut Cursor)| {
        let mut cursor = cursor.clone().unwrap();
        change(&mut cursor);
        match two[1].nodes.scan(&GroupQuery { query, cursor: Some(cursor), ..ask() }) {
            Err(QueryError::Index(Error::BadCursor(why))) => why,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(says(Query::new().reverse(), |_| ()), "it is of another query");
    assert_eq!(says(Query::new().distinct(1), |_| ()), "it is of another query");
    let se = Value::String("SE".to_owned());
    assert_eq!(says(Query::new().prefix([se]), |_| ()), "it is of another query");
    assert_eq!(says(Query::new(), |cursor| cursor.fingerprint += 1), "it is of another index");
    let too_many = GroupQuery { query: Query::new().limit(1_000_000), ..ask() };
    assert!(matches!(two[0].nodes.scan(&too_many), Err(QueryError::Index(Error::BadQuery { .. }))));
}

/// The keys are so long that no answer can have all rows. Pages end early, and the memory is
/// bounded.
#[test]
fn long_rows_end_pages_early_and_none_is_lost() {
    let group = Group::new(4);
    for n in 0..300 {
        let id = format!("town:{n:03}{}", "x".repeat(10_000 + n % 7 * 1000));
        group.write(&id, Some(("SE", n as i64 * 7919 % 100)));
    }
    let limits = QueryLimits { bytes: 300_000, ..QueryLimits::default() };
    let setup = Setup { limits, ..Setup::default() };
    let two = nodes(&group, &setup, &[&[0, 1], &[2, 3]]);
    let expected = group.oracle(&group.ends(), |_| true);
    let (mut met, mut cursor, mut pages) = (Vec::new(), None, 0);
    loop {
        let found = two[0].nodes.scan(&GroupQuery { cursor, ..ask() }).unwrap();
        let bytes: usize = found.entries.iter().map(|entry| entry.id.len()).sum();
        assert!(!found.entries.is_empty() && bytes <= 300_000, "{bytes}");
        met.extend(ids(&found));
        (cursor, pages) = (found.cursor, pages + 1);
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(met, expected);
    assert!(pages > 10, "{pages}");
}

/// One partition has all of the first rows, so the share of its owner is too small for the page.
#[test]
fn a_page_is_full_though_one_owner_has_all_of_it() {
    let group = Group::new(8);
    group.fill(0..400);
    let mut n = 0;
    for towns in 0.. {
        let id = format!("town:a{towns}");
        if group.partition_of(id.as_bytes()) == 5 {
            group.write(&id, Some(("AT", towns)));
            n += 1;
        }
        if n == 150 {
            break;
        }
    }
    let eight: [&[u32]; 8] = [&[0], &[1], &[2], &[3], &[4], &[5], &[6], &[7]];
    let eight = nodes(&group, &Setup::default(), &eight);
    let expected = group.oracle(&group.ends(), |_| true);
    for limit in [1, 40, 149, 151, 300] {
        let asked = GroupQuery { query: Query::new().limit(limit), ..ask() };
        assert_eq!(ids(&eight[2].nodes.scan(&asked).unwrap()), expected[..limit]);
    }
    // With an even distribution, the shares are sufficient, and no owner receives a second request.
    let asked = || eight[2].nodes.counters().asked.load(Ordering::Relaxed);
    let before = asked();
    let fi = Query::new().prefix([Value::String("FI".to_owned())]).limit(40);
    assert_eq!(eight[2].nodes.scan(&GroupQuery { query: fi, ..ask() }).unwrap().entries.len(), 40);
    assert_eq!(asked() - before, 7);
}

/// Sends the commands over the wire, in the same way as a client.
#[test]
fn the_commands_reply_entries_vector_and_missing_partitions() {
    let group = Group::new(2);
    for (id, country, people) in
        [("town:1", "SE", 5), ("town:2", "SE", 9), ("town:3", "FI", 7), ("town:partial", "NO", 1)]
    {
        group.write(id, Some((country, people)));
    }
    let two = nodes(&group, &Setup::default(), &[&[0], &[1]]);
    let mut stream = TcpStream::connect(two[1].address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut say = |line: &str, end: &str| {
        stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
        let mut reply = Vec::new();
        // Any number is accepted as the age, because the time since the request counts. It is
        // compared as 0.
        let last_line = |reply: &[u8]| {
            let text = String::from_utf8_lossy(reply).into_owned();
            text.trim_end().rsplit('\n').next().unwrap_or_default().to_owned()
        };
        let is_age = |reply: &[u8]| {
            let digits = last_line(reply);
            reply.ends_with(b"\r\n")
                && digits.strip_prefix(':').is_some_and(|age| age.parse::<u64>().is_ok())
        };
        let is_over = |reply: &[u8]| match end {
            ":0\r\n" => is_age(reply),
            end => reply.ends_with(end.as_bytes()),
        };
        while !is_over(&reply) {
            let mut chunk = [0; 4096];
            let read = stream.read(&mut chunk).unwrap();
            assert!(read > 0);
            reply.extend_from_slice(&chunk[..read]);
            assert!(reply.len() < 10_000, "{:?}", String::from_utf8_lossy(&reply));
        }
        if end == ":0\r\n" {
            reply.truncate(reply.len() - last_line(&reply).len() - 2);
            reply.extend_from_slice(end.as_bytes());
        }
        String::from_utf8(reply).unwrap()
    };
    let vector = group.ends().to_string();
    let state = format!("${}\r\n{vector}\r\n*0\r\n:0\r\n", vector.len());
    let scanned = format!(
        "*5\r\n$1\r\n0\r\n*4\r\n$6\r\ntown:2\r\n*2\r\n$2\r\nSE\r\n$1\r\n9\r\n$6\r\ntown:1\r\n*2\r\n$2\r\nSE\r\n$1\r\n5\r\n{state}"
    );
    assert_eq!(say("ORDNA.INDEX SCAN by_size EQ SE VALUES", ":0\r\n"), scanned);
    assert_eq!(
        say("ordna.index count by_size FROM [FI TO (SE", ":0\r\n"),
        format!("*4\r\n:2\r\n{state}")
    );
    // A vector from before a partition was added.
    let scanned = say("ORDNA.INDEX SCAN by_size EQ SE VALUES AT 7-1", ":0\r\n");
    assert!(scanned.contains("town:2") && scanned.contains(&vector), "{scanned}");
    // The argument of an option may look like an option.
    let none = format!("*5\r\n$1\r\n0\r\n*0\r\n{state}");
    assert_eq!(say("ORDNA.INDEX SCAN by_size EQ PARTIAL", ":0\r\n"), none);
    let page = say("ORDNA.INDEX SCAN by_size LIMIT 1 PARTIAL MAXAGE 1000", ":0\r\n");
    let cursor = page.split("\r\n").nth(2).unwrap();
    let rest = say(&format!("ORDNA.INDEX SCAN by_size LIMIT 1 CURSOR {cursor}"), ":0\r\n");
    assert!(page.contains("town:3") && rest.contains("town:partial"), "{page} {rest}");
    assert_eq!(say("ORDNA.INDEX LIST", "size\r\n"), "*1\r\n$7\r\nby_size\r\n");
    for (line, error) in [
        ("ORDNA.INDEX SCAN none", "-ERR no index is named \"none\"\r\n"),
        (
            "ORDNA.INDEX SCAN by_size CURSOR 00",
            "-ERR the cursor is not one of this query: it is too short\r\n",
        ),
        (
            "ORDNA.INDEX SCAN by_size AT 7-1*3",
            "-ERR the vector has 3 positions, the source 2 partitions\r\n",
        ),
        ("ORDNA.INDEX SCAN by_size MAXAGE x", "-ERR MAXAGE: \"x\"\r\n"),
        ("ORDNA.NODE ASK x", "-ERR version 120, not 1\r\n"),
        ("ORDNA.NODE ASK", "-ERR ORDNA.NODE ASK takes one argument\r\n"),
    ] {
        assert_eq!(say(line, "\r\n"), error);
    }
}

#[test]
fn passwords_and_certificates_are_used_between_nodes() {
    let dir = std::env::temp_dir().join(format!("ordna-nodes-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let certified = rcgen::generate_simple_self_signed(["node".to_owned()]).unwrap();
    let (certificate, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    std::fs::write(&certificate, certified.cert.pem()).unwrap();
    std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    let link_tls = ordna_kafka::query::LinkTls {
        authorities: certificate.clone(),
        identity: None,
        name: Some("node".to_owned()),
    };
    let bind = vec![([127, 0, 0, 1], 0).into()];
    let tls = ordna_server::TlsConfig { bind, certificate, key, client_authorities: None };
    let password = Some("secret".to_owned());
    let link = Link { user: None, password: password.clone(), tls: Some(link_tls.clone()) };
    let setup = Setup { link, password, tls: Some(tls), ..Setup::default() };
    let group = Group::new(2);
    group.fill(0..50);
    let two = nodes(&group, &setup, &[&[0], &[1]]);
    assert_eq!(ids(&two[0].nodes.scan(&ask()).unwrap()), group.oracle(&group.ends(), |_| true));
    // A node whose link has another password or expects another name is refused at once.
    let others = [
        (Link { password: Some("guess".to_owned()), ..setup.link.clone() }, "WRONGPASS"),
        (Link { password: None, ..setup.link.clone() }, "NOAUTH"),
        (
            Link {
                tls: Some(ordna_kafka::query::LinkTls {
                    name: Some("other".to_owned()),
                    ..link_tls
                }),
                ..setup.link.clone()
            },
            "certificate",
        ),
    ];
    for (link, why) in others {
        let node = crate::group::Node::start(&group, &Setup { link, ..setup.clone() });
        let began = std::time::Instant::now();
        let error = node.nodes.scan(&ask()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(why) && text.contains("partition 1 on 127.0.0.1"), "{text}");
        assert!(matches!(error, QueryError::Missing { of: 2, .. }), "{text}");
        assert!(began.elapsed() < Duration::from_secs(10), "it waits for what cannot help");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn queries_beyond_the_limit_wait_for_their_turn() {
    let group = Group::new(2);
    group.fill(0..20);
    let limits = QueryLimits { queries: 1, ..QueryLimits::default() };
    let setup = Setup { limits, ..Setup::default() };
    let two = nodes(&group, &setup, &[&[0], &[1]]);
    *two[1].fake.delay.lock().unwrap() = Duration::from_millis(400);
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| two[0].nodes.scan(&ask()));
        while two[1].fake.calls.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let hasty = GroupQuery { timeout: Duration::from_millis(50), ..ask() };
        assert!(matches!(two[0].nodes.scan(&hasty), Err(QueryError::Busy(1))));
        assert!(slow.join().unwrap().is_ok());
    });
}

/// The nodes of a group must have the same definitions. A node with a different one is detected.
#[test]
fn a_node_with_another_definition_is_refused() {
    let group = Group::new(2);
    group.fill(0..20);
    let mut other = group.twin();
    let definitions = &mut std::sync::Arc::get_mut(&mut other).unwrap().definitions;
    definitions[0] = definitions[0].clone().part(ordna_secondary::Part::new("name"));
    let one = nodes(&group, &Setup::default(), &[&[0]]);
    let two = nodes(&other, &Setup::default(), &[&[1]]);
    group.addresses.lock().unwrap().push(two[0].address.to_string());
    group.assign(&[&[0], &[1]]);
    let expected = "nodes have different definitions of the index \"by_size\"";
    // Even if partitions may be missing, because the reply would mix two indexes.
    for partial in [false, true] {
        match one[0].nodes.scan(&GroupQuery { partial, ..ask() }) {
            Err(QueryError::Refused(why)) => assert_eq!(why, expected),
            other => panic!("{other:?}"),
        }
    }
}
