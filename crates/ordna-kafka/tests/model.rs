//! A model of assignment, restore, resume and the merge of queries, under shuttle.
//!
//! Producers append records to two partitions. Three nodes index them, back them up, lose them and
//! restore them. A node that has lost a partition may not know it. A reader works as a node does:
//! `Gather` chooses the nodes, `merge` merges their rows, and a second page continues after the
//! first. `Gather` and `merge` are the code of the crate; everything else is the model. Each answer
//! must be the state at its vector.
//!
//! `ORDNA_SCHEDULES` sets how many schedules are tried; `cargo xtask shuttle` tries many.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ordna_kafka::query::{Gather, QuestionError, Refusal, Rows, Run, merge};
use ordna_kafka::{Member, OwnerTable};
use shuttle::sync::mpsc::{Sender, channel};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

/// Mistakes that the model can make. Each one must be noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// A restored partition resumes one record too far.
    RestoreSkipsARecord,
    /// A backup records its offset after its documents were copied.
    BackupIsTorn,
    /// A node advances a partition's position before it applies the record.
    PositionIsAhead,
    /// A node that does not hold a partition answers for it with no rows.
    LostIsEmpty,
    /// A node that is behind the requested position claims to have reached it.
    BehindIsClaimed,
    /// The reader keeps an answer that a later answer replaces.
    ReplacedIsKept,
    /// The reader merges beyond the last row of a truncated answer.
    CutIsTheEnd,
    /// The reader asks for the second page without the vector of the first.
    CursorForgetsVector,
}

const PARTITIONS: usize = 2;
const NODES: usize = 3;
/// Number of rows of an answer and of a page.
const LIMIT: usize = 2;

/// Number of pages, over all schedules, that had an answer of each partition.
static PAGES: AtomicUsize = AtomicUsize::new(0);

/// Documents by id. The value determines the order of the entry.
type Documents = BTreeMap<u8, u8>;
/// A record: id, and the new value or none.
type Record = (u8, Option<u8>);

#[derive(Clone, Default)]
struct Copy {
    documents: Documents,
    position: usize,
}

#[derive(Default)]
struct World {
    logs: [Mutex<Vec<Record>>; PARTITIONS],
    backups: [Mutex<Copy>; PARTITIONS],
    nodes: [Mutex<BTreeMap<usize, Copy>>; NODES],
    table: Mutex<OwnerTable>,
}

fn name(node: usize) -> String {
    node.to_string()
}

fn apply(documents: &mut Documents, (id, value): Record) {
    match value {
        Some(value) => drop(documents.insert(id, value)),
        None => drop(documents.remove(&id)),
    }
}

/// Returns the keys of entries, in order.
fn keys(documents: &Documents) -> Vec<[u8; 2]> {
    let mut keys: Vec<_> = documents.iter().map(|(id, value)| [*value, *id]).collect();
    keys.sort_unstable();
    keys
}

impl World {
    fn assign(&self, partition: usize, node: usize) {
        let mut table = self.table.lock().unwrap();
        table.partitions = PARTITIONS as u32;
        if table.members.is_empty() {
            let member = |node| Member { address: name(node), partitions: Vec::new() };
            table.members = (0..NODES).map(member).collect();
        }
        table.members.iter_mut().for_each(|m| m.partitions.retain(|p| *p != partition as u32));
        table.members[node].partitions.push(partition as u32);
        table.version += 1;
    }

    fn back_up(&self, partition: usize, node: usize, mistake: Mistake) {
        let copy = self.nodes[node].lock().unwrap().get(&partition).cloned();
        let Some(mut copy) = copy else { return };
        if mistake == Mistake::BackupIsTorn {
            thread::yield_now();
            let later = self.nodes[node].lock().unwrap().get(&partition).map(|copy| copy.position);
            copy.position = later.unwrap_or(copy.position);
        }
        let mut backup = self.backups[partition].lock().unwrap();
        if backup.position <= copy.position {
            *backup = copy;
        }
    }

    fn restore(&self, partition: usize, node: usize, mistake: Mistake) {
        let mut copy = self.backups[partition].lock().unwrap().clone();
        let end = self.logs[partition].lock().unwrap().len();
        if mistake == Mistake::RestoreSkipsARecord && copy.position < end {
            copy.position += 1;
        }
        self.nodes[node].lock().unwrap().insert(partition, copy);
    }

    /// Indexes the next record of each partition that a node holds.
    fn index(&self, node: usize, mistake: Mistake) {
        let held: Vec<usize> = self.nodes[node].lock().unwrap().keys().copied().collect();
        for partition in held {
            let mut copies = self.nodes[node].lock().unwrap();
            let Some(copy) = copies.get_mut(&partition) else { continue };
            let next = self.logs[partition].lock().unwrap().get(copy.position).copied();
            let Some(record) = next else { continue };
            copy.position += 1;
            if mistake == Mistake::PositionIsAhead {
                drop(copies);
                thread::yield_now();
                copies = self.nodes[node].lock().unwrap();
            }
            if let Some(copy) = copies.get_mut(&partition) {
                apply(&mut copy.documents, record);
            }
        }
    }

    /// Returns the rows of some partitions after a key, and the position of each partition.
    fn answer(&self, node: usize, asked: &RequestedState, mistake: Mistake) -> Reply {
        let mut parts = Vec::new();
        let mut runs = Vec::new();
        for (partition, least) in &asked.partitions {
            let copies = self.nodes[node].lock().unwrap();
            let copy = match copies.get(partition) {
                Some(copy) => copy.clone(),
                None if mistake == Mistake::LostIsEmpty => {
                    let position = self.logs[*partition].lock().unwrap().len();
                    Copy { position, ..Copy::default() }
                }
                None => {
                    parts.push((*partition as u32, Err(QuestionError::Refused(Refusal::NotHeld))));
                    continue;
                }
            };
            drop(copies);
            let mut position = copy.position;
            if position < *least {
                if mistake != Mistake::BehindIsClaimed {
                    parts.push((*partition as u32, Err(QuestionError::Refused(Refusal::Late))));
                    continue;
                }
                position = *least;
            }
            parts.push((*partition as u32, Ok(position)));
            let mut rows = Rows::default();
            let all = keys(&copy.documents);
            let behind = all.iter().filter(|key| asked.after.is_none_or(|after| **key > after));
            behind.clone().take(LIMIT).for_each(|key| rows.push(key, 1));
            runs.push(Run { rows, more: behind.count() > LIMIT });
            thread::yield_now();
        }
        let inputs: Vec<&Run> = runs.iter().collect();
        let merged = merge(&inputs, false, (LIMIT, usize::MAX), |key| key);
        let mut rows = Rows::default();
        merged.rows.iter().for_each(|(input, row)| rows.push(runs[*input].rows.key(*row), 1));
        Reply { parts, run: Run { rows, more: merged.more } }
    }

    /// Returns the keys of the state at a vector, after a key.
    fn truth(&self, vector: &[usize], after: Option<[u8; 2]>) -> Vec<[u8; 2]> {
        let mut all = Vec::new();
        for (log, position) in self.logs.iter().zip(vector) {
            let mut documents = Documents::new();
            let log = log.lock().unwrap();
            log[..*position].iter().for_each(|record| apply(&mut documents, *record));
            all.extend(keys(&documents));
        }
        all.retain(|key| after.is_none_or(|after| *key > after));
        all.sort_unstable();
        all
    }
}

#[derive(Clone)]
struct RequestedState {
    partitions: Vec<(usize, usize)>,
    after: Option<[u8; 2]>,
}

struct Reply {
    parts: Vec<(u32, Result<usize, QuestionError>)>,
    run: Run,
}

/// A page: its keys, its vector, and whether more keys follow. `None` if partitions are missing.
type Page = Option<(Vec<[u8; 2]>, [usize; PARTITIONS], bool)>;

fn page(
    world: &Arc<World>,
    least: [usize; PARTITIONS],
    after: Option<[u8; 2]>,
    mistake: Mistake,
) -> Page {
    let patience = Duration::from_millis(20);
    let mut gather = Gather::new(0..PARTITIONS as u32, patience);
    let mut answers: BTreeMap<u64, Reply> = BTreeMap::new();
    let (sender, receiver) = channel();
    for turn in 0..12 {
        let now = Duration::from_millis(turn * 20);
        let table = world.table.lock().unwrap().clone();
        for ask in gather.ask(&table, now) {
            let partitions = ask.partitions.iter().map(|p| (*p as usize, least[*p as usize]));
            let asked = RequestedState { partitions: partitions.collect(), after };
            let (world, sender): (Arc<World>, Sender<_>) = (Arc::clone(world), sender.clone());
            let node: usize = ask.member.parse().unwrap();
            thread::spawn(move || {
                let reply = world.answer(node, &asked, mistake);
                // The page may already be complete; then nobody receives the reply.
                let _ = sender.send((ask.number, reply));
            });
        }
        thread::yield_now();
        while let Ok((number, reply)) = receiver.try_recv() {
            let state = |(partition, state): &(u32, Result<usize, QuestionError>)| {
                (*partition, state.clone().map(|_| ()))
            };
            let parts: Vec<_> = reply.parts.iter().map(state).collect();
            let (counts, replaced) = gather.answered(number, &parts, now);
            if mistake != Mistake::ReplacedIsKept {
                replaced.iter().for_each(|old| drop(answers.remove(old)));
            }
            if counts {
                answers.insert(number, reply);
            }
        }
        if gather.is_complete() {
            break;
        }
    }
    if !gather.is_complete() {
        assert!(!gather.missing().is_empty());
        return None;
    }
    let mut vector = [usize::MAX; PARTITIONS];
    for reply in answers.values_mut() {
        reply.run.more &= mistake != Mistake::CutIsTheEnd;
        for (partition, state) in &reply.parts {
            if let Ok(position) = state {
                vector[*partition as usize] = *position;
            }
        }
    }
    let inputs: Vec<&Run> = answers.values().map(|reply| &reply.run).collect();
    let merged = merge(&inputs, false, (LIMIT, usize::MAX), |key| key);
    let key = |(input, row): &(usize, usize)| {
        let key = inputs[*input].rows.key(*row);
        [key[0], key[1]]
    };
    Some((merged.rows.iter().map(key).collect(), vector, merged.more))
}

/// Reads two pages and compares each with the state at its vector.
fn reader(world: &Arc<World>, mistake: Mistake) {
    let ends = || std::array::from_fn(|p| world.logs[p].lock().unwrap().len());
    let (mut least, mut after): ([usize; PARTITIONS], _) = (ends(), None);
    for _ in 0..2 {
        let Some((found, vector, more)) = page(world, least, after, mistake) else { return };
        PAGES.fetch_add(1, Ordering::Relaxed);
        let truth = world.truth(&vector, after);
        assert!(truth.starts_with(&found), "{found:?} is not the begin of {truth:?} at {vector:?}");
        assert_eq!(more, found.len() < truth.len(), "{found:?} of {truth:?} at {vector:?}");
        assert!(!found.is_empty() || truth.is_empty());
        let reaches = |least: [usize; PARTITIONS]| {
            vector.iter().zip(least).all(|(position, least)| *position >= least)
        };
        assert!(reaches(least), "{vector:?} is before {least:?}");
        if !more {
            return;
        }
        after = found.last().copied();
        let shown = vector;
        least = if mistake == Mistake::CursorForgetsVector { [0; PARTITIONS] } else { shown };
        // The second page must not be older than what the client has seen.
        let next = page(world, least, after, mistake);
        if let Some((_, vector, _)) = next {
            let goes_back = vector.iter().zip(shown).any(|(now, shown)| *now < shown);
            assert!(!goes_back, "{vector:?} is before {shown:?}");
        }
    }
}

fn run(mistake: Mistake) {
    let world = Arc::new(World::default());
    for partition in 0..PARTITIONS {
        world.restore(partition, partition, Mistake::None);
        world.assign(partition, partition);
        let mut log = world.logs[partition].lock().unwrap();
        // Each partition has its own ids.
        let id = |n: u8| n * PARTITIONS as u8 + partition as u8;
        (0..3).for_each(|n| log.push((id(n), Some(10 * n + partition as u8))));
    }
    for _ in 0..3 {
        (0..PARTITIONS).for_each(|node| world.index(node, Mistake::None));
    }
    (0..PARTITIONS).for_each(|partition| world.back_up(partition, partition, Mistake::None));
    let mut threads = Vec::new();
    let producer = Arc::clone(&world);
    threads.push(thread::spawn(move || {
        let records: [(usize, Record); 5] = [
            (0, (2, Some(1))),
            (1, (3, None)),
            (0, (0, None)),
            (1, (5, Some(0))),
            (0, (4, Some(5))),
        ];
        for (partition, record) in records {
            producer.logs[partition].lock().unwrap().push(record);
            thread::yield_now();
        }
    }));
    for node in 0..NODES {
        let world = Arc::clone(&world);
        threads.push(thread::spawn(move || {
            for _ in 0..6 {
                world.index(node, mistake);
                thread::yield_now();
            }
        }));
    }
    let group = Arc::clone(&world);
    threads.push(thread::spawn(move || {
        // Each step has a partition, the node that loses it, the node that gets it, and whether the
        // former learns of it.
        for (partition, from, to, learns) in [(0, 0, 2, true), (1, 1, 2, false), (0, 2, 1, false)] {
            group.back_up(partition, from, mistake);
            if learns {
                group.nodes[from].lock().unwrap().remove(&partition);
            }
            thread::yield_now();
            group.assign(partition, to);
            group.restore(partition, to, mistake);
            thread::yield_now();
        }
    }));
    for _ in 0..2 {
        let world = Arc::clone(&world);
        threads.push(thread::spawn(move || reader(&world, mistake)));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn schedules() -> usize {
    let set = std::env::var("ORDNA_SCHEDULES").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(500)
}

#[test]
fn every_answer_is_the_state_at_its_vector() {
    shuttle::check_random(|| run(Mistake::None), schedules());
    shuttle::check_pct(|| run(Mistake::None), schedules(), 3);
    // Two readers run in each schedule, and most of them get their pages.
    let pages = PAGES.load(Ordering::Relaxed);
    assert!(pages > 2 * schedules(), "{pages} pages");
}

/// Checks that the mistake is noticed within some schedules.
fn is_noticed(mistake: Mistake) {
    let tried = std::panic::catch_unwind(|| shuttle::check_random(move || run(mistake), 20_000));
    assert!(tried.is_err(), "{mistake:?} is not noticed");
}

#[test]
fn a_restore_that_skips_a_record_is_noticed() {
    is_noticed(Mistake::RestoreSkipsARecord);
}

#[test]
fn a_torn_backup_is_noticed() {
    is_noticed(Mistake::BackupIsTorn);
}

#[test]
fn a_position_ahead_of_its_rows_is_noticed() {
    is_noticed(Mistake::PositionIsAhead);
}

#[test]
fn an_empty_answer_for_a_lost_partition_is_noticed() {
    is_noticed(Mistake::LostIsEmpty);
}

#[test]
fn a_position_that_is_only_claimed_is_noticed() {
    is_noticed(Mistake::BehindIsClaimed);
}

#[test]
fn an_answer_kept_beside_its_replacement_is_noticed() {
    is_noticed(Mistake::ReplacedIsKept);
}

#[test]
fn a_merge_beyond_the_end_of_an_answer_is_noticed() {
    is_noticed(Mistake::CutIsTheEnd);
}

#[test]
fn a_second_page_that_goes_back_is_noticed() {
    is_noticed(Mistake::CursorForgetsVector);
}
