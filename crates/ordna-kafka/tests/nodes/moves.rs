//! Tests of partitions that move, and of nodes that end, block, are slow, or do not know what they
//! have lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ordna_kafka::query::{
    GroupQuery, GroupResult, QueryError, QueryLimits, QuestionError, Refusal,
};
use ordna_secondary::{Consistency, Query};

use crate::group::{Group, Node, Setup, ask, ids, nodes};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn missing(found: &GroupResult) -> Vec<u32> {
    found.missing.iter().map(|missing| missing.partition).collect()
}

/// The error names a node that does not respond, and a partial answer omits it.
#[test]
fn a_hanging_owner_is_waited_for_and_then_named() {
    let group = Group::new(3);
    group.fill(0..90);
    let three = nodes(&group, &Setup::default(), &[&[0], &[1], &[2]]);
    *three[1].fake.delay.lock().unwrap() = ms(3000);
    let hasty = GroupQuery { timeout: ms(300), ..ask() };
    let began = Instant::now();
    match three[0].nodes.scan(&hasty) {
        Err(QueryError::Missing { missing, of: 3, .. }) => {
            assert_eq!((missing.len(), missing[0].partition), (1, 1));
            assert_eq!(missing[0].member, Some(three[1].address.to_string()));
            assert_eq!(missing[0].trouble, QuestionError::Silent);
        }
        other => panic!("{other:?}"),
    }
    assert!(began.elapsed() < ms(2000), "{:?}", began.elapsed());
    let found = three[0].nodes.scan(&GroupQuery { partial: true, ..hasty }).unwrap();
    assert_eq!(missing(&found), [1]);
    let here = |partition| partition != 1;
    assert_eq!(found.vector.positions()[1], Default::default());
    assert_eq!(ids(&found), group.oracle(&group.ends(), here));
    // With a longer timeout, the node answers.
    let found = three[0].nodes.scan(&ask()).unwrap();
    assert_eq!(ids(&found), group.oracle(&group.ends(), |_| true));
}

/// Two of three owners do not respond. The third has more rows than its share of the page, so the
/// partial page ends early and its cursor continues there.
#[test]
fn a_partial_page_is_a_prefix_though_a_share_runs_out() {
    let group = Group::new(3);
    group.fill(0..900);
    let three = nodes(&group, &Setup::default(), &[&[0], &[1], &[2]]);
    for node in &three[1..] {
        *node.fake.delay.lock().unwrap() = ms(3000);
    }
    let all = group.oracle(&group.ends(), |partition| partition == 0);
    let mut page =
        GroupQuery { partial: true, timeout: ms(300), query: Query::new().limit(100), ..ask() };
    let first = three[0].nodes.scan(&page).unwrap();
    assert_eq!(missing(&first), [1, 2]);
    let mut met = ids(&first);
    assert!((50..100).contains(&met.len()), "{} rows", met.len());
    page.cursor = first.cursor;
    met.extend(ids(&three[0].nodes.scan(&page).unwrap()));
    assert_eq!(met, all[..met.len()]);
}

/// An owner that is restoring one partition answers in time for its others.
#[test]
fn a_partial_answer_lacks_only_the_partition_that_is_behind() {
    let group = Group::new(3);
    group.fill(0..90);
    let two = nodes(&group, &Setup::default(), &[&[0], &[1, 2]]);
    let behind = group.ends().positions()[1].seq;
    two[1].fake.go_on(1, behind);
    group.fill(1000..1090);
    let expected = group.oracle(&group.ends(), |partition| partition != 1);
    for node in &two {
        let partial = GroupQuery { partial: true, timeout: ms(2000), ..ask() };
        let found = node.nodes.scan(&partial).unwrap();
        assert_eq!(missing(&found), [1]);
        assert_eq!(found.missing[0].trouble, QuestionError::Refused(Refusal::Late));
        assert_eq!(ids(&found), expected);
    }
    // Without `partial`, the answer waits for the partition.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| two[0].nodes.scan(&ask()).unwrap());
        std::thread::sleep(ms(200));
        assert!(!waiting.is_finished());
        two[1].fake.go_on(1, u64::MAX);
        assert_eq!(ids(&waiting.join().unwrap()), group.oracle(&group.ends(), |_| true));
    });
}

/// A standby answers within the patience, and the late answer of the owner is ignored.
#[test]
fn a_copy_answers_for_an_owner_that_is_slow() {
    let group = Group::new(4);
    group.fill(0..200);
    let limits = QueryLimits { patience: ms(60), ..QueryLimits::default() };
    let setup = Setup { limits, ..Setup::default() };
    let three = nodes(&group, &setup, &[&[0], &[1, 2], &[3]]);
    // Partitions 1 and 2 have a copy each, on different nodes.
    three[0].fake.restore(1, u64::MAX);
    three[2].fake.restore(2, u64::MAX);
    let expected = group.oracle(&group.ends(), |_| true);
    for delay in [0, 30, 50, 60, 70, 90, 3000] {
        *three[1].fake.delay.lock().unwrap() = ms(delay);
        let began = Instant::now();
        for node in [&three[0], &three[2]] {
            assert_eq!(ids(&node.nodes.scan(&ask()).unwrap()), expected, "{delay}");
        }
        assert!(began.elapsed() < ms(2500), "{delay}: {:?}", began.elapsed());
    }
}

/// The owner has ended: connections are refused, until the table has a new owner.
#[test]
fn a_query_waits_for_a_partition_that_moves() {
    let group = Group::new(3);
    group.fill(0..90);
    let mut three = nodes(&group, &Setup::default(), &[&[0], &[1], &[2]]);
    // The connections of former queries break, too.
    three[0].nodes.scan(&ask()).unwrap();
    three[1].kill();
    let expected = group.oracle(&group.ends(), |_| true);
    match three[0].nodes.scan(&GroupQuery { timeout: ms(300), ..ask() }) {
        Err(QueryError::Missing { missing, .. }) => {
            assert!(matches!(missing[0].trouble, QuestionError::Unreachable(_)), "{missing:?}");
        }
        other => panic!("{other:?}"),
    }
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| three[0].nodes.scan(&ask()));
        std::thread::sleep(ms(300));
        group.assign(&[&[0], &[], &[1, 2]]);
        std::thread::sleep(ms(200));
        three[2].fake.restore(1, u64::MAX);
        let found = waiting.join().unwrap().unwrap();
        assert_eq!(ids(&found), expected);
    });
    // A partition without an owner.
    three[2].fake.lose(1);
    group.table.lock().unwrap().members[2].partitions = vec![2];
    match three[0].nodes.scan(&GroupQuery { timeout: ms(200), ..ask() }) {
        Err(QueryError::Missing { missing, .. }) => {
            assert_eq!((missing[0].partition, missing.len()), (1, 1));
        }
        other => panic!("{other:?}"),
    }
    // There is no owner table.
    group.table.lock().unwrap().partitions = 0;
    let hasty = GroupQuery { timeout: ms(50), ..ask() };
    assert!(matches!(three[0].nodes.scan(&hasty), Err(QueryError::NoTable)));
}

/// A node that has lost a partition without knowing it returns an old state of it.
#[test]
fn an_owner_that_lost_its_partition_is_found_out_by_its_position_and_age() {
    let group = Group::new(2);
    group.fill(0..60);
    let two = nodes(&group, &Setup::default(), &[&[0], &[1]]);
    let old = group.ends();
    // The second node reads no more records, while the group continues to write.
    two[1].fake.go_on(1, old.positions()[1].seq);
    *two[1].fake.age.lock().unwrap() = ms(60_000);
    group.fill(1000..1060);
    let any = GroupQuery { consistency: Consistency::Any, ..ask() };
    let found = two[0].nodes.scan(&any).unwrap();
    assert_eq!(found.vector.positions()[1], old.positions()[1]);
    assert_eq!(ids(&found), group.oracle(&found.vector, |_| true));
    // The time since the request is added, because the answer may have been on its way for that
    // long.
    assert!((ms(60_000)..ms(90_000)).contains(&found.age), "the age is told: {:?}", found.age);
    let at_plus = Consistency::AtPlus(group.ends());
    for asked in [
        GroupQuery { max_age: Some(ms(1000)), timeout: ms(300), ..any.clone() },
        GroupQuery { consistency: at_plus, timeout: ms(300), ..ask() },
        GroupQuery { timeout: ms(300), ..ask() },
    ] {
        match two[0].nodes.scan(&asked) {
            Err(QueryError::Missing { missing, .. }) => {
                assert_eq!((missing.len(), missing[0].partition), (1, 1));
                let is_expected = match (&missing[0].trouble, asked.max_age) {
                    (QuestionError::TooOld { age, most }, Some(asked)) => {
                        let text = missing[0].to_string();
                        assert!(
                            text.contains("rows may be 60.") && text.contains("is 1.0s"),
                            "{text}"
                        );
                        *age >= ms(60_000) && *most == asked
                    }
                    (QuestionError::Silent | QuestionError::Refused(Refusal::Late), None) => true,
                    _ => false,
                };
                assert!(is_expected, "{missing:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    // The new owner is another node, but the table still has the old one.
    two[0].fake.restore(1, u64::MAX);
    let found = two[0].nodes.scan(&GroupQuery { max_age: Some(ms(1000)), ..any }).unwrap();
    assert_eq!(ids(&found), group.oracle(&group.ends(), |_| true));
    let found = two[0].nodes.scan(&ask()).unwrap();
    assert_eq!(ids(&found), group.oracle(&group.ends(), |_| true));
}

/// The node that returned the first page ends, and the node that continues is behind. The next page
/// waits for the state of the first one.
#[test]
fn a_cursor_resumes_after_a_failover_and_never_goes_back() {
    let group = Group::new(2);
    group.fill(0..60);
    let three = nodes(&group, &Setup::default(), &[&[0], &[1], &[]]);
    let behind = group.ends().positions()[1].seq;
    group.fill(1000..1060);
    let ends = group.ends();
    let page = GroupQuery { query: Query::new().limit(20), ..ask() };
    let first = three[0].nodes.scan(&page).unwrap();
    assert_eq!(first.vector, ends);
    // A failover to a copy that is behind.
    three[1].fake.lose(1);
    three[2].fake.restore(1, behind);
    group.assign(&[&[0], &[], &[1]]);
    let any = GroupQuery { consistency: Consistency::Any, ..page.clone() };
    assert_ne!(three[1].nodes.scan(&any).unwrap().vector, ends, "without a cursor it is behind");
    let (mut met, mut cursor) = (ids(&first), first.cursor);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(ms(200));
            three[2].fake.go_on(1, u64::MAX);
        });
        while cursor.is_some() {
            let found = three[1].nodes.scan(&GroupQuery { cursor, ..any.clone() }).unwrap();
            assert_eq!(found.vector, ends);
            met.extend(ids(&found));
            cursor = found.cursor;
        }
    });
    assert_eq!(met, group.oracle(&ends, |_| true));
}

/// Writes, partitions that move, and queries run concurrently. Each answer is the state at its
/// vector.
#[test]
fn answers_are_exact_at_their_vectors_while_partitions_move() {
    const PARTITIONS: u32 = 4;
    let group = Group::new(PARTITIONS);
    group.fill(0..200);
    let limits = QueryLimits { patience: ms(40), ..QueryLimits::default() };
    let setup = Setup { limits, ..Setup::default() };
    let three = nodes(&group, &setup, &[&[0, 1], &[2], &[3]]);
    let over = AtomicBool::new(false);
    let seconds = std::env::var("ORDNA_SECONDS").ok().and_then(|text| text.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(4));
    let (mut answers, mut errors) = (0, 0);
    std::thread::scope(|scope| {
        let (group, over, three) = (&group, &over, &three);
        scope.spawn(move || write(group, over));
        scope.spawn(move || move_about(group, three, over));
        let readers: Vec<_> =
            three.iter().map(|node| scope.spawn(move || read(group, node, until))).collect();
        let read: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        over.store(true, Ordering::SeqCst);
        for reader in read {
            let (good, bad) = reader.unwrap();
            (answers, errors) = (answers + good, errors + bad);
        }
    });
    eprintln!("{answers} answers, {errors} errors");
    assert!(answers > 20, "{answers} answers, {errors} errors");
}

fn write(group: &Arc<Group>, over: &AtomicBool) {
    for n in 0_i64.. {
        if over.load(Ordering::SeqCst) {
            return;
        }
        let id = format!("town:{:05}", n * 31 % 400);
        group.write(&id, (n % 5 > 0).then_some((["SE", "FI"][n as usize % 2], n % 700)));
        std::thread::sleep(ms(1));
    }
}

/// Moves one partition after the other. For a while, no node has the partition, and the table is
/// late.
fn move_about(group: &Arc<Group>, three: &[Node], over: &AtomicBool) {
    let mut owners = [0, 0, 1, 2];
    for n in 0_usize.. {
        if over.load(Ordering::SeqCst) {
            return;
        }
        let partition = n * 3 % 4;
        let (from, to) = (owners[partition], (owners[partition] + 1 + n % 2) % 3);
        three[from].fake.lose(partition as u32);
        std::thread::sleep(ms(20));
        owners[partition] = to;
        let of = |node| (0..4).filter(|p| owners[*p as usize] == node).collect::<Vec<u32>>();
        let table = [of(0), of(1), of(2)];
        group.assign(&[&table[0], &table[1], &table[2]]);
        std::thread::sleep(ms(20));
        three[to].fake.restore(partition as u32, u64::MAX);
        std::thread::sleep(ms(60));
    }
}

fn read(group: &Arc<Group>, node: &Node, until: Instant) -> (u32, u32) {
    let (mut answers, mut errors) = (0, 0);
    for n in 0.. {
        if Instant::now() > until {
            break;
        }
        let least = group.ends();
        let consistency = match n % 3 {
            0 => Consistency::Any,
            1 => Consistency::AtPlus(least.clone()),
            _ => Consistency::RequestPlus,
        };
        let asked = GroupQuery { consistency, timeout: ms(1500), partial: n % 5 == 0, ..ask() };
        match node.nodes.scan(&asked) {
            Ok(found) => {
                let gone = missing(&found);
                assert!(asked.partial || gone.is_empty());
                let expected = group.oracle(&found.vector, |partition| !gone.contains(&partition));
                assert_eq!(ids(&found), expected, "{:?}", asked.consistency);
                let positions = found.vector.positions().iter().zip(least.positions());
                let reaches = positions.enumerate().all(|(partition, (found, least))| {
                    gone.contains(&(partition as u32)) || found.seq >= least.seq
                });
                assert!(asked.consistency == Consistency::Any || reaches);
                answers += 1;
            }
            Err(QueryError::Missing { missing, .. }) if !missing.is_empty() => errors += 1,
            Err(other) => panic!("{other}"),
        }
    }
    (answers, errors)
}
