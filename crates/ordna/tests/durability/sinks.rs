//! Tests of sinks of the log: what a sink receives, and what waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use ordna::durability::{BackupError, BackupOptions, LogGroup, LogSink, SyncPolicy, read_log};
use ordna::{Error, Options, Write};

use super::disk::Model;
use super::steps::{Bytes, DIR, options, state_of};

/// A sink that acknowledges late, has no room, or fails, as the test sets it.
#[derive(Default)]
struct Fake(Mutex<Received>);

#[derive(Default)]
struct Received {
    /// Start, records and number of records of each group.
    groups: Vec<(u64, Vec<u8>, u64)>,
    lost: Option<String>,
    acknowledged: u64,
    is_full: bool,
    fenced: Option<Error>,
    wakers: Vec<Waker>,
}

impl Fake {
    fn change(&self, change: impl FnOnce(&mut Received)) {
        let mut received = self.0.lock().unwrap();
        change(&mut received);
        received.wakers.drain(..).for_each(Waker::wake);
    }

    fn fence(&self) {
        self.change(|received| {
            received.fenced = Some(Error::LogFailed { reason: "another writer".into() });
        });
    }

    /// Waits for the condition, unless the sink has failed.
    fn poll(
        &self,
        context: &mut Context<'_>,
        is_so: impl Fn(&Received) -> bool,
    ) -> Poll<Result<(), Error>> {
        let mut received = self.0.lock().unwrap();
        if is_so(&received) {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = &received.fenced {
            return Poll::Ready(Err(error.clone()));
        }
        received.wakers.push(context.waker().clone());
        Poll::Pending
    }
}

impl LogSink for Fake {
    fn begin(&self, position: u64) {
        self.0.lock().unwrap().acknowledged = position;
    }

    fn take(&self, group: LogGroup<'_>) {
        let mut received = self.0.lock().unwrap();
        received.groups.push((group.start, group.records.to_vec(), group.count));
    }

    fn lose(&self, reason: &str) {
        self.0.lock().unwrap().lost.get_or_insert_with(|| reason.to_owned());
    }

    fn check(&self) -> Result<(), Error> {
        self.0.lock().unwrap().fenced.clone().map_or(Ok(()), Err)
    }

    fn poll_acknowledged(
        &self,
        position: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        self.poll(context, |received| received.acknowledged >= position)
    }

    fn poll_room(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.poll(context, |received| !received.is_full)
    }
}

fn with_sink(sync: SyncPolicy) -> (Arc<Bytes>, Arc<Fake>) {
    let store = Arc::new(Bytes::open(DIR, options(&Model::new(), sync)).unwrap());
    store.insert(b"before", b"1").unwrap();
    let sink = Arc::new(Fake::default());
    assert_eq!(store.attach_log_sink(sink.clone()), Some(store.log_position()));
    assert_eq!(store.attach_log_sink(sink.clone()), None, "a second sink");
    (store, sink)
}

/// Repeats the groups that the sink has received on a copy of the store's initial state.
fn copy_of(sink: &Fake) -> Bytes {
    let copy = Bytes::with_options(Options::new().clock(|| 1000));
    copy.insert(b"before", b"1").unwrap();
    for (_, records, count) in &sink.0.lock().unwrap().groups {
        copy.repeat_log_group(records, *count).unwrap();
    }
    copy
}

#[test]
fn groups_arrive_in_order_and_lead_to_the_same_state() {
    let (store, sink) = with_sink(SyncPolicy::EverySecond);
    let begin = store.log_position();
    assert_eq!(sink.0.lock().unwrap().acknowledged, begin, "the sink knows where it begins");
    thread::scope(|scope| {
        for thread in 0..4_u32 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..300_u32 {
                    let key = format!("k{}", number % 50);
                    let value = format!("{thread}:{number}");
                    let done = match number % 6 {
                        0 => store.remove(key.as_bytes()).map(drop),
                        1 => store.append(key.as_bytes(), b"+").map(drop),
                        2 => store.insert_until(key.as_bytes(), b"t", 5000),
                        3 => {
                            let pair = [(b"p".as_slice(), value.as_bytes()), (b"q", b"2")];
                            store.write_batch(&pair.map(|(key, value)| Write::put(key, value)))
                        }
                        4 if number % 96 == 4 => {
                            store.remove_range(b"k1".as_slice()..b"k2".as_slice()).map(drop)
                        }
                        _ => store.insert(key.as_bytes(), value.as_bytes()).map(drop),
                    };
                    done.unwrap();
                }
            });
        }
    });
    let mut position = begin;
    for (start, records, _) in &sink.0.lock().unwrap().groups {
        assert_eq!(*start, position, "a gap");
        position += records.len() as u64;
    }
    assert_eq!(position, store.log_position());
    assert_eq!(state_of(&copy_of(&sink)), state_of(&store));
}

#[test]
fn a_batch_and_a_log_group_are_one_group() {
    let (store, sink) = with_sink(SyncPolicy::EverySecond);
    store.write_batch(&[Write::put(b"a", b"1"), Write::put(b"b".as_slice(), b"2")]).unwrap();
    store
        .log_group(|| {
            store.insert(b"c", b"3").unwrap();
            store.remove(b"a").unwrap();
        })
        .unwrap();
    let counts: Vec<u64> = sink.0.lock().unwrap().groups.iter().map(|group| group.2).collect();
    assert_eq!(counts, [2, 2]);
}

/// Runs a write on another thread, which sends the result.
fn write_beside(
    store: &Arc<Bytes>,
    key: &'static [u8],
) -> std::sync::mpsc::Receiver<Result<(), Error>> {
    let (done, told) = channel();
    let store = Arc::clone(store);
    thread::spawn(move || done.send(store.insert(key, b"1").map(drop)));
    told
}

const SOON: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_write_under_always_waits_for_its_acknowledgement() {
    let (store, sink) = with_sink(SyncPolicy::Always);
    let told = write_beside(&store, b"a");
    assert_eq!(told.recv_timeout(SOON), Err(RecvTimeoutError::Timeout), "not acknowledged yet");
    let position = store.log_position();
    let mut context = Context::from_waker(Waker::noop());
    assert!(store.poll_durable(position, &mut context).is_pending());
    sink.change(|received| received.acknowledged = position - 1);
    assert_eq!(told.recv_timeout(SOON), Err(RecvTimeoutError::Timeout), "a part of it is");
    sink.change(|received| received.acknowledged = position);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Ok(())));
    assert_eq!(store.poll_durable(position, &mut context), Poll::Ready(Ok(())));
}

#[test]
fn a_write_under_everysec_waits_only_while_there_is_no_room() {
    let (store, sink) = with_sink(SyncPolicy::EverySecond);
    store.insert(b"a", b"1").unwrap();
    sink.change(|received| received.is_full = true);
    let told = write_beside(&store, b"b");
    assert_eq!(told.recv_timeout(SOON), Err(RecvTimeoutError::Timeout));
    let (position, mut context) = (store.log_position(), Context::from_waker(Waker::noop()));
    assert!(store.poll_flushed(position, &mut context).is_pending());
    sink.change(|received| received.is_full = false);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Ok(())));
}

#[test]
fn a_fenced_writer_acknowledges_nothing_and_refuses_before_it_changes_the_memory() {
    let (store, sink) = with_sink(SyncPolicy::Always);
    let told = write_beside(&store, b"a");
    assert_eq!(told.recv_timeout(SOON), Err(RecvTimeoutError::Timeout));
    sink.fence();
    let fenced = Error::LogFailed { reason: "another writer".into() };
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Err(fenced.clone())));
    let groups = sink.0.lock().unwrap().groups.len();
    assert_eq!(store.insert(b"b", b"1"), Err(fenced.clone()));
    assert_eq!(store.log_group(|| ()), Err(fenced.clone()));
    assert_eq!(store.check_log(), Err(fenced));
    assert_eq!(store.get(b"b".as_slice()), None, "refused, and in memory");
    assert_eq!(sink.0.lock().unwrap().groups.len(), groups);
}

#[test]
fn a_write_that_the_log_does_not_take_is_reported_as_lost() {
    // A batch changes "a" and panics at "b", so that memory and log differ.
    let broken = Arc::new(AtomicBool::new(false));
    let is_broken = Arc::clone(&broken);
    let clock = move || match is_broken.load(Ordering::SeqCst) {
        true => resume_unwind(Box::new("clock")),
        false => 5,
    };
    let clocked = Options::new().clock(clock).background_collector(false);
    let opened = options(&Model::new(), SyncPolicy::EverySecond).store(clocked);
    let store = Bytes::open(DIR, opened).unwrap();
    store.insert_until(b"b", b"1", 100).unwrap();
    let sink = Arc::new(Fake::default());
    store.attach_log_sink(sink.clone()).unwrap();
    store.insert(b"a", b"old").unwrap();
    assert_eq!(sink.0.lock().unwrap().lost, None);
    broken.store(true, Ordering::SeqCst);
    let batch = [Write::put(b"a".as_slice(), b"new".as_slice()), Write::put(b"b", b"2")];
    assert!(catch_unwind(AssertUnwindSafe(|| store.write_batch(&batch))).is_err());
    broken.store(false, Ordering::SeqCst);
    let lost = sink.0.lock().unwrap().lost.clone();
    assert!(lost.is_some_and(|why| why.contains("panicked")));
}

#[test]
fn bytes_that_are_no_group_change_nothing() {
    let store = Bytes::new();
    let (source, sink) = with_sink(SyncPolicy::EverySecond);
    source.write_batch(&[Write::put(b"a", b"1"), Write::put(b"b".as_slice(), b"2")]).unwrap();
    let (_, records, count) = sink.0.lock().unwrap().groups[0].clone();
    for len in 0..records.len() {
        let cut = store.repeat_log_group(&records[..len], count);
        assert!(matches!(cut, Err(BackupError::Damaged { .. })), "{len} bytes: {cut:?}");
    }
    for wrong in [0, count - 1, count + 1, u64::MAX] {
        assert!(store.repeat_log_group(&records, wrong).is_err(), "{wrong} records");
    }
    assert_eq!(store.len(), 0);
    store.repeat_log_group(&records, count).unwrap();
    assert_eq!(store.len(), 2);
}

#[test]
fn the_log_is_read_from_each_position_at_which_a_group_begins() {
    for sync in [SyncPolicy::Always, SyncPolicy::Never] {
        let disk = Model::new();
        let store = Bytes::open(DIR, options(&disk, sync)).unwrap();
        let sink = Arc::new(Fake::default());
        store.attach_log_sink(sink.clone()).unwrap();
        sink.change(|received| received.acknowledged = u64::MAX);
        for number in 0..40_u8 {
            let bytes = [number];
            let pair = [Write::put(&bytes[..], &b"1"[..]), Write::put(b"x", &bytes[..])];
            store.write_batch(&pair[..1 + usize::from(number % 2)]).unwrap();
            if number == 20 {
                store.backup(&BackupOptions::new()).unwrap();
            }
        }
        store.sync_log().unwrap();
        let groups = sink.0.lock().unwrap().groups.clone();
        let end = store.log_position();
        let (mut is_read, mut is_missing) = (false, false);
        for (start, ..) in &groups {
            let (mut bytes, mut count, mut next) = (Vec::new(), 0, *start);
            let read = read_log::<[u8], [u8]>(&disk, DIR, *start, |group| {
                assert_eq!(group.start, next);
                next = group.end();
                bytes.extend_from_slice(group.records);
                count += group.count;
            });
            let Some(read) = read.unwrap() else {
                assert!(!is_read, "a gap after what is there");
                is_missing = true;
                continue;
            };
            is_read = true;
            let later = groups.iter().filter(|(at, ..)| at >= start);
            let expected: Vec<u8> = later.clone().flat_map(|(_, it, _)| it.clone()).collect();
            assert_eq!((read, bytes), (end, expected));
            assert_eq!(count, later.map(|(.., count)| count).sum::<u64>());
        }
        assert!(is_read && is_missing, "the backup has removed the first part");
        let within = groups.last().unwrap().0 + 1;
        assert!(read_log::<[u8], [u8]>(&disk, DIR, within, |_| ()).is_err());
        assert_eq!(read_log::<[u8], [u8]>(&disk, DIR, end, |_| ()).unwrap(), Some(end));
        assert_eq!(read_log::<[u8], [u8]>(&disk, DIR, end + 1, |_| ()).unwrap(), None);
    }
}

/// What the copy lacks must come from the log after a restart.
#[test]
fn a_backup_keeps_the_log_that_is_not_acknowledged() {
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Never)).unwrap();
    let sink = Arc::new(Fake::default());
    let begin = store.attach_log_sink(sink.clone()).unwrap();
    store.insert(b"key", b"2").unwrap();
    let refused = store.backup(&BackupOptions::new());
    assert!(matches!(refused, Err(BackupError::Io { .. })), "{refused:?}");
    let mut found = 0;
    let end = read_log::<[u8], [u8]>(&disk, DIR, begin, |_| found += 1);
    assert_eq!((end.unwrap(), found), (Some(store.log_position()), 1));
    let all = store.log_position();
    sink.change(|received| received.acknowledged = all);
    store.backup(&BackupOptions::new()).unwrap();
}
