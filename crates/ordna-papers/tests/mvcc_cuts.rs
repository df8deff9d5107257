//! Many threads at once: every snapshot is a cut, and stays what it was.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ordna_base::{Direction, Error, OrderedIndex};
use ordna_papers::nitro::{Options, Order, Snapshot, Store, Write};
use ordna_testkit::random::Random;

const WRITERS: u64 = 3;
/// Keys of each writer.
const KEYS: u64 = 400;
/// Keys of a batch.
const BATCH: u64 = 5;

/// Ends the other threads when this one ends, by a panic too.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Each writer goes through the rounds 1, 2, 3 …; in round r it writes r to its key number r mod
/// KEYS, or removes it if r is a multiple of 3. After r rounds the state of its keys is known.
fn value_after(rounds: u64, key: u64) -> Option<u64> {
    // The last round up to `rounds` that was about this key.
    let behind = (rounds + KEYS - key) % KEYS;
    let last = rounds.checked_sub(behind).filter(|last| *last > 0)?;
    (!last.is_multiple_of(3)).then_some(last)
}

fn key_of(writer: u64, key: u64) -> u64 {
    key * WRITERS + writer
}

fn write_round(store: &Store<u64, u64>, writer: u64, round: u64) {
    let key = key_of(writer, round % KEYS);
    if round.is_multiple_of(3) {
        store.remove(&key);
    } else {
        store.insert(&key, &round).unwrap();
    }
}

/// The state of each writer's keys must be that after some number of rounds, between those that had
/// ended before the snapshot and those that had begun after it.
fn check(snapshot: &Snapshot<u64, u64>, ended: &[u64], begun: &[u64], upwards: bool) -> Vec<u64> {
    let mut content = vec![vec![None; KEYS as usize]; WRITERS as usize];
    let direction = if upwards { Direction::Ascending } else { Direction::Descending };
    let mut count = 0;
    snapshot.visit(Bound::Unbounded, Bound::Unbounded, direction, |key, value| {
        let place = &mut content[(key % WRITERS) as usize][(key / WRITERS) as usize];
        assert!(place.is_none(), "key {key} twice");
        *place = Some(*value);
        count += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(snapshot.len(), count, "the number of items");
    let mut cut = Vec::new();
    for writer in 0..WRITERS as usize {
        let right = |rounds: u64| {
            (0..KEYS).all(|key| content[writer][key as usize] == value_after(rounds, key))
        };
        let (low, high) = (ended[writer], begun[writer]);
        let Some(rounds) = (low..=high).find(|rounds| right(*rounds)) else {
            panic!("writer {writer}: the state after no number of rounds from {low} to {high}")
        };
        cut.push(rounds);
    }
    cut
}

fn cuts(options: Options) {
    let store: Store<u64, u64> = Store::with_options(options);
    let end = Instant::now() + ordna_testkit::budget();
    let begun: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let ended: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    let look = |counters: &[AtomicU64]| -> Vec<u64> {
        counters.iter().map(|counter| counter.load(Ordering::SeqCst)).collect()
    };
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
        for writer in 0..WRITERS {
            let (store, begun, ended, done) = (&store, &begun, &ended, &done);
            scope.spawn(move || {
                let mut round = 0;
                while !done.load(Ordering::Relaxed) {
                    round += 1;
                    begun[writer as usize].store(round, Ordering::SeqCst);
                    write_round(store, writer, round);
                    ended[writer as usize].store(round, Ordering::SeqCst);
                }
            });
        }
        let mut random = Random::new(3);
        let mut live: Vec<(Snapshot<u64, u64>, Vec<u64>)> = Vec::new();
        let mut snapshots = 0;
        // Writers may have to wait for their turn on a processor.
        let give_up = end + Duration::from_secs(20);
        let is_idle = || store.statistics().collected == 0 && Instant::now() < give_up;
        while Instant::now() < end || snapshots < 12 || is_idle() {
            let before = look(&ended);
            let snapshot = store.snapshot();
            let after = look(&begun);
            let cut = check(&snapshot, &before, &after, snapshots % 2 == 0);
            // Cuts are ordered as the snapshots are.
            if let Some((_, last)) = live.last() {
                assert!(last.iter().zip(&cut).all(|(a, b)| a <= b), "{last:?}, then {cut:?}");
            }
            live.push((snapshot, cut));
            snapshots += 1;
            if live.len() > 6 {
                let (snapshot, cut) = live.remove(random.below(6) as usize);
                assert_eq!(check(&snapshot, &cut, &cut, snapshots % 2 == 1), cut);
            }
        }
        for (snapshot, cut) in &live {
            assert_eq!(check(snapshot, cut, cut, true), *cut);
        }
    });
    store.collect_garbage();
    let audit = store.validate().unwrap();
    assert_eq!(audit.nodes, audit.entries, "no snapshot lives");
    assert!(store.statistics().collected > 0, "rounds begun: {:?}", look(&begun));
}

#[test]
fn every_snapshot_is_a_cut() {
    cuts(Options::new().collectors(2));
}

#[test]
fn every_snapshot_is_a_cut_whoever_collects() {
    cuts(Options::new().collectors(0));
}

#[test]
fn every_snapshot_is_a_cut_in_the_order_of_terms() {
    cuts(Options::new().order(Order::Terms));
}

/// All keys of a batch hold the same number, in every snapshot.
#[test]
fn no_snapshot_holds_a_part_of_a_batch() {
    let store: Store<[u8], u64> = Store::new();
    let end = Instant::now() + ordna_testkit::budget();
    let keys = |writer: u64| -> Vec<Vec<u8>> {
        (0..BATCH).map(|n| format!("{n}-{writer}").into_bytes()).collect()
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
        for writer in 0..WRITERS {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let keys = keys(writer);
                let mut round = 0;
                while !done.load(Ordering::Relaxed) {
                    round += 1;
                    let writes: Vec<Write<'_, [u8], u64>> = keys
                        .iter()
                        .map(|key| match round % 4 {
                            0 => Write::Remove(key.as_slice()),
                            _ => Write::put(key.as_slice(), &round),
                        })
                        .collect();
                    store.write_batch(&writes).unwrap();
                }
            });
        }
        while Instant::now() < end {
            let snapshot = store.snapshot();
            for writer in 0..WRITERS {
                let values: Vec<_> = keys(writer).iter().map(|key| snapshot.get(key)).collect();
                assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
            }
            assert!(snapshot.len().is_multiple_of(BATCH as usize));
        }
    });
    store.validate().unwrap();
}

/// Removals of ranges are all or nothing too, and the sums of transfers stay.
#[test]
fn ranges_are_removed_wholly_and_transfers_keep_their_sum() {
    const SUM: u64 = 1000;
    let store: Store<u64, u64> = Store::new();
    let end = Instant::now() + ordna_testkit::budget();
    let done = AtomicBool::new(false);
    let fill = || {
        let pairs: Vec<(u64, u64)> = (100..130).map(|key| (key, 1)).collect();
        let batch: Vec<_> = pairs.iter().map(|(key, value)| Write::put(key, value)).collect();
        store.write_batch(&batch).unwrap();
    };
    store.write_batch(&[Write::put(&0, &SUM), Write::put(&1, &0)]).unwrap();
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
        scope.spawn(|| {
            let mut random = Random::new(4);
            while !done.load(Ordering::Relaxed) {
                let amount = random.below(SUM);
                store
                    .write_batch(&[Write::put(&0, &amount), Write::put(&1, &(SUM - amount))])
                    .unwrap();
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fill();
                assert_eq!(store.remove_range(Bound::Included(&100), Bound::Excluded(&130)), 30);
            }
        });
        while Instant::now() < end {
            let snapshot = store.snapshot();
            assert_eq!(snapshot.get(&0).unwrap() + snapshot.get(&1).unwrap(), SUM);
            let within = snapshot.range(100..130).count();
            assert!(within == 0 || within == 30, "{within} of 30");
        }
    });
    store.validate().unwrap();
}

/// Increments by compare-and-swap on versions are not lost, though the value may come back.
#[test]
fn exchanges_by_version_lose_no_update() {
    let store: Store<u64, u64> = Store::new();
    store.insert(&7, &0).unwrap();
    let wins: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut wins = 0;
                    for _ in 0..300 {
                        let (value, version) = store.get_versioned(&7).unwrap();
                        let new = (value + 1) % 2;
                        let won = store.compare_exchange_version(&7, version, Some(&new));
                        wins += u64::from(won.unwrap());
                    }
                    wins
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(wins >= 300);
    assert_eq!(store.get(&7), Some(wins % 2));
    store.validate().unwrap();
}

/// A limit that is reached refuses writes and nothing else, and what is freed counts at once.
#[test]
fn the_memory_limit_refuses_writes_and_is_lifted_by_removals() {
    let store: Store<[u8], [u8]> =
        Store::with_options(Options::new().memory_limit(1 << 20).collectors(0));
    let value = [7; 1000];
    let key = |n: u32| n.to_be_bytes();
    let filled = (0..).find(|n| store.insert(&key(*n), &value).is_err()).unwrap();
    let limit = Err(Error::MemoryLimit { limit: 1 << 20 });
    assert!((900..1050).contains(&filled), "{filled} values of 1,000 bytes in 1 MiB");
    assert!(store.statistics().bytes <= 1 << 20);
    assert_eq!(store.insert(&key(filled), &value), limit);
    // The credit of this thread is no more than another may have.
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(store.insert(&key(filled), &value).is_err()));
    });
    assert_eq!(store.get(&key(3)), Some(value.to_vec()));
    // Half of a batch fits: nothing of it is applied.
    assert_eq!(store.remove(&key(0)), Some(value.to_vec()));
    let keys = [key(0), key(filled)];
    let batch = keys.each_ref().map(|key| Write::put(&key[..], &value[..]));
    assert_eq!(store.write_batch(&batch), Err(Error::MemoryLimit { limit: 1 << 20 }));
    assert_eq!((store.get(&key(0)), store.get(&key(filled))), (None, None));
    store.write_batch(&batch[..1]).unwrap();
    // What a snapshot keeps is not freed by removals; reads and removals go on.
    let snapshot = store.snapshot();
    assert_eq!(store.remove_range(Bound::Unbounded, Bound::Excluded(&key(100))), 100);
    assert!(store.insert(&key(0), &value).is_err());
    assert_eq!(snapshot.len(), filled as usize);
    drop(snapshot);
    store.insert(&key(0), &value).unwrap();
    store.validate().unwrap();
    // Another thread frees and keeps the credit: it is not lost to this one.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(
                store.remove_range(Bound::Unbounded, Bound::Unbounded),
                filled as usize - 99
            );
        });
    });
    assert_eq!(
        (0..filled).filter(|n| store.insert(&key(*n), &value).is_ok()).count(),
        filled as usize
    );
    store.validate().unwrap();
}

/// What replaces a version needs only the bytes beyond its; a deadline is set whatever the limit
/// says, and what that takes beyond it is made up for first.
#[test]
fn at_the_memory_limit_values_are_replaced_and_deadlines_set() {
    let limit = 100 << 10;
    let store: Store<[u8], [u8]> =
        Store::with_options(Options::new().memory_limit(limit).collectors(0).clock(|| 5));
    let value = [7; 1000];
    let key = |n: u32| n.to_be_bytes();
    let filled = (0..).find(|n| store.insert(&key(*n), &value).is_err()).unwrap();
    for n in 0..filled {
        store.insert(&key(n), &[8; 1000]).unwrap();
    }
    let longer = [7; 2100];
    assert_eq!(store.insert(&key(0), &longer), Err(Error::MemoryLimit { limit }));
    store.insert(&key(0), b"short").unwrap();
    store.insert(&key(0), &value).unwrap();
    store.validate().unwrap();
    let snapshot = store.snapshot();
    for n in 0..filled {
        assert_eq!(store.set_expiry(&key(n), Some(10 + u64::from(n))), Ok(true));
        assert_eq!(store.expiry(&key(n)), Some(Some(10 + u64::from(n))));
    }
    assert_eq!(store.set_expiry(b"absent", None), Ok(false));
    assert!(store.statistics().bytes > 2 * (limit - 2000));
    // Another thread removes: still far too much is held.
    std::thread::scope(|scope| {
        scope.spawn(|| (0..9).for_each(|n| drop(store.remove(&key(n)))));
    });
    assert_eq!(store.insert(b"more", b""), Err(Error::MemoryLimit { limit }));
    store.validate().unwrap();
    drop(snapshot);
    while store.insert(&store.statistics().bytes.to_be_bytes(), &value).is_ok() {}
    assert!(store.statistics().bytes <= limit);
    store.validate().unwrap();
}

/// Values that wait for a collection do not make the limit refuse what will fit after it.
#[test]
fn the_limit_collects_before_it_refuses() {
    let clock = std::sync::Arc::new(AtomicU64::new(0));
    let hands = clock.clone();
    let options = Options::new().memory_limit(100 << 10).collectors(0);
    let store: Store<[u8], [u8]> =
        Store::with_options(options.clock(move || hands.load(Ordering::Relaxed)));
    let value = [7; 1000];
    let filled =
        (0_u32..).find(|n| store.insert_until(&n.to_be_bytes(), &value, 10).is_err()).unwrap();
    assert!(store.insert(b"more", &value).is_err());
    clock.store(10, Ordering::Relaxed);
    for n in 0..filled {
        store.insert(&(1000 + n).to_be_bytes(), &value).unwrap();
    }
    assert_eq!(store.statistics().expiring.0, 0);
    store.validate().unwrap();
}

/// Expired keys go by themselves, at their time.
#[test]
fn expired_keys_are_collected_in_the_background() {
    let store: Store<[u8], u64> = Store::new();
    let (soon, later) = (store.now() + 30, store.now() + 60_000);
    for n in 0..1000_u32 {
        let deadline = if n < 2 { later } else { soon + u64::from(n % 20) };
        store.insert_until(&n.to_be_bytes(), &1, deadline).unwrap();
        store.insert(&(n + 5000).to_be_bytes(), &2).unwrap();
    }
    // Overwritten for good; and a deadline far away.
    store.insert(&0_u32.to_be_bytes(), &3).unwrap();
    assert!(store.set_expiry(&1_u32.to_be_bytes(), Some(later + 1_000_000)).unwrap());
    let give_up = Instant::now() + Duration::from_secs(20);
    while store.statistics().items > 1002 {
        assert!(Instant::now() < give_up, "{:?}", store.statistics());
        std::thread::yield_now();
    }
    // The collector has counted the last item, and may have to forget its deadline yet.
    store.collect_garbage();
    assert_eq!(store.get(&0_u32.to_be_bytes()), Some(3));
    assert_eq!(store.get(&1_u32.to_be_bytes()), Some(1));
    assert_eq!(store.statistics().expiring.0, 1);
    store.validate().unwrap();
}

/// While the clock is behind the store's time, a deadline does not come nearer: collectors wait for the
/// clock, and do not look again each millisecond.
#[test]
fn collectors_sleep_while_a_clock_that_was_set_back_catches_up() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    let (time, looks) = (Arc::new(AtomicU64::new(1_000_000)), Arc::new(AtomicU64::new(0)));
    let (clock, looked) = (Arc::clone(&time), Arc::clone(&looks));
    let options = Options::new().collectors(1).clock(move || {
        if std::thread::current().name() == Some("ordna collector") {
            looked.fetch_add(1, Ordering::SeqCst);
        }
        clock.load(Ordering::SeqCst)
    });
    let store: Store<u64, u64> = Store::with_options(options);
    assert_eq!(store.now(), 1_000_000);
    time.store(400_000, Ordering::SeqCst);
    store.insert_until(&1, &1, 1_000_001).unwrap();
    let give_up = Instant::now() + Duration::from_secs(20);
    while looks.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < give_up, "the collector never looked at the clock");
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(300));
    let looks = looks.load(Ordering::SeqCst);
    assert!(looks < 20, "{looks} looks at the clock in 300 ms");
    time.store(1_000_001, Ordering::SeqCst);
    store.collect_garbage();
    assert_eq!(store.validate().unwrap().nodes, 0);
}

/// Nanoseconds that this thread has run, by the clock that every POSIX system has.
#[cfg(unix)]
#[expect(unsafe_code, reason = "a call of the system")]
fn processor_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to `time`.
    let told = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(told, 0, "{}", std::io::Error::last_os_error());
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Who ends a snapshot leaves what it kept to the collectors, and does not even put it in order.
#[cfg(unix)]
#[test]
fn the_end_of_a_snapshot_is_no_work_for_who_ends_it() {
    const KEYS: u64 = 200_000;
    fn cost(work: impl FnOnce()) -> u64 {
        let before = processor_time();
        work();
        processor_time() - before
    }
    let key = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let store: Store<u64, u64> = Store::with_options(Options::new().collectors(1));
    let costs = (0..3).map(|round| {
        (0..KEYS).for_each(|n| drop(store.insert(&key(n), &round)));
        let snapshot = store.snapshot();
        (0..KEYS).for_each(|n| drop(store.insert(&key(n), &round)));
        store.collect_garbage();
        assert_eq!(store.statistics().snapshots[0].keeps as u64, KEYS);
        let cost = cost(|| drop(snapshot));
        store.collect_garbage();
        cost
    });
    let least = costs.min().unwrap();
    assert_eq!(store.validate().unwrap().nodes as u64, KEYS);
    let mut sorted: Vec<u64> = (0..KEYS).map(key).collect();
    let sorting = cost(|| sorted.sort_unstable());
    assert!(least < sorting / 4, "{least} ns, where putting that in order takes {sorting} ns");
}

/// Collectors hand over everything that a snapshot that is gone would have seen.
#[test]
fn the_hook_hears_of_every_removal() {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};
    let store: Store<u64, u64> = Store::with_options(Options::new().collectors(2));
    for key in 0..1000 {
        store.insert(&key, &key).unwrap();
    }
    let snapshot = store.snapshot();
    let term = snapshot.term();
    let heard: Arc<Mutex<Vec<(u64, u64)>>> = Arc::default();
    let hears = Arc::clone(&heard);
    store.on_removal(Some(move |removed: &ordna_papers::nitro::Removed<'_, u64, u64>| {
        if removed.born <= term && removed.dead > term {
            hears.lock().unwrap().push((*removed.key, *removed.value));
        }
    }));
    // It is let go while it is read, as a backup does that must not hold up collection.
    let mut seen = BTreeMap::new();
    drop(snapshot);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for key in (0..1000).rev() {
                store.insert(&key, &(key + 1_000_000)).unwrap();
            }
        });
        store.visit(Bound::Unbounded, Bound::Unbounded, Direction::Ascending, |key, value| {
            if *value < 1_000_000 {
                seen.insert(*key, *value);
            }
            ControlFlow::Continue(())
        });
    });
    store.collect_garbage();
    store.on_removal(None::<fn(&ordna_papers::nitro::Removed<'_, u64, u64>)>);
    let heard = heard.lock().unwrap();
    let distinct: BTreeMap<u64, u64> = heard.iter().copied().collect();
    assert_eq!(distinct.len(), heard.len(), "each is told once");
    seen.extend(distinct);
    assert_eq!(seen.len(), 1000, "the walk and the hook together miss nothing");
    assert!(seen.iter().all(|(key, value)| key == value));
}

/// A panic in the hook costs no version, and holds nobody up: neither in a writer nor in a collector.
#[test]
fn a_hook_that_panics_does_no_harm() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};
    /// Panics once more where the first panic is disposed of.
    struct Again;
    impl Drop for Again {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("and again"));
        }
    }
    for collectors in [0, 1] {
        let options = Options::new().collectors(collectors);
        let store: Arc<Store<u64, u64>> = Arc::new(Store::with_options(options));
        let called = Arc::new(AtomicUsize::new(0));
        let calls = Arc::clone(&called);
        store.on_removal(Some(move |_: &ordna_papers::nitro::Removed<'_, u64, u64>| {
            // Not `panic!`, which would print each of them.
            std::panic::resume_unwind(match calls.fetch_add(1, Ordering::Relaxed) % 2 {
                0 => Box::new("in a hook"),
                _ => Box::new(Again),
            });
        }));
        let (tell, told) = mpsc::channel();
        let worker = Arc::clone(&store);
        std::thread::spawn(move || {
            for key in 0..20 {
                worker.insert(&key, &key).unwrap();
            }
            let snapshot = worker.snapshot();
            for key in 0..10 {
                worker.remove(&key);
            }
            drop(snapshot);
            // No snapshot sees these: the writer removes them itself.
            for key in 10..20 {
                worker.remove(&key);
            }
            worker.collect_garbage();
            tell.send(()).unwrap();
        });
        told.recv_timeout(Duration::from_secs(20)).expect("it came back from all that");
        assert_eq!(called.load(Ordering::Relaxed), 20);
        assert_eq!(store.validate().unwrap().nodes, 0);
    }
}

/// A clock that panics in the collector ends that thread. Callers take its place.
#[test]
fn a_clock_that_panics_in_the_collector_leaves_the_work_to_callers() {
    let panicked = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let panics = std::sync::Arc::clone(&panicked);
    let options = Options::new().collectors(1).clock(move || {
        if std::thread::current().name() == Some("ordna collector") {
            panics.store(true, std::sync::atomic::Ordering::SeqCst);
            std::panic::resume_unwind(Box::new("in a clock"));
        }
        0
    });
    let store: Store<u64, u64> = Store::with_options(options);
    store.insert_until(&1, &1, 1_000_000).unwrap();
    let give_up = Instant::now() + Duration::from_secs(20);
    while !panicked.load(std::sync::atomic::Ordering::SeqCst) {
        assert!(Instant::now() < give_up, "the collector never looked at the clock");
        std::thread::yield_now();
    }
    // It may take its last steps yet, so more than once.
    while store.statistics().collected == 0 {
        assert!(Instant::now() < give_up, "{:?}", store.statistics());
        store.insert(&2, &2).unwrap();
        let snapshot = store.snapshot();
        store.remove(&2);
        drop(snapshot);
        // Slow enough for the queue not to grow so long that writers would help in any case.
        std::thread::sleep(Duration::from_millis(1));
    }
    store.collect_garbage();
    assert_eq!(store.validate().unwrap().nodes, 1);
}

/// Partition points divide evenly, more or less, and in order.
#[test]
fn partition_points_divide_the_store() {
    let store: Store<u64, u64> = Store::new();
    assert!(store.partition_points(4).is_empty());
    for key in 0..20_000 {
        store.insert(&(key * 7), &key).unwrap();
    }
    for parts in [1, 2, 3, 8, 50] {
        let points = store.partition_points(parts);
        assert_eq!(points.len(), parts - 1);
        let mut from = Bound::Unbounded;
        let mut sizes = Vec::new();
        for point in &points {
            sizes.push(store.range((from, Bound::Excluded(*point))).count());
            from = Bound::Included(*point);
        }
        sizes.push(store.range((from, Bound::Unbounded)).count());
        assert_eq!(sizes.iter().sum::<usize>(), 20_000);
        let largest = *sizes.iter().max().unwrap();
        assert!(largest < 4 * 20_000 / parts, "{parts} parts: {sizes:?}");
    }
    assert!(store.partition_points(0).is_empty());
    // More parts than versions: one part for each.
    for parts in [20_000, 1 << 40, usize::MAX] {
        let points = store.partition_points(parts);
        assert_eq!(points, (1..20_000).map(|key| key * 7).collect::<Vec<_>>());
    }
}

/// Walks are counted while they last, however they end; the long ones with their age. Reads of keys
/// are not.
#[test]
fn walks_under_way_are_counted() {
    let store: Store<u64, u64> = Store::with_options(Options::new().collectors(0));
    (0..5000).for_each(|key| drop(store.insert(&key, &key)));
    let snapshot = store.snapshot();
    let counts = || {
        let told = store.statistics();
        (told.walks, told.long_walks)
    };
    assert_eq!(counts(), (0, vec![]));
    store.get_with(&7, |_| assert_eq!(counts().0, 0)).unwrap();
    store.get_many_with(&[1, 2, 3], |_, _| assert_eq!(counts().0, 0));
    let all = (Bound::Unbounded, Bound::Unbounded);
    for direction in [Direction::Ascending, Direction::Descending] {
        let mut passed = 0;
        let mut oldest = Duration::ZERO;
        snapshot.visit(all.0, all.1, direction, |key, _| {
            passed += 1;
            let (walks, long) = counts();
            assert_eq!(walks, 1);
            match passed {
                1..=50 => assert!(long.is_empty(), "after {passed}"),
                2500.. => {
                    assert_eq!(long.len(), 1);
                    assert!(long[0] >= oldest);
                    oldest = long[0];
                }
                _ => {}
            }
            if passed % 1000 == 0 {
                // A short one within, of the latest state, that is cut off.
                store.visit(Bound::Included(key), all.1, direction, |_, _| {
                    assert_eq!((counts().0, counts().1.len()), (2, long.len()));
                    ControlFlow::Break(())
                });
            }
            ControlFlow::Continue(())
        });
        assert_eq!((passed, counts()), (5000, (0, vec![])));
        assert!(oldest > Duration::ZERO);
    }
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.visit(all.0, all.1, Direction::Ascending, |key, _| {
            if *key == 4000 {
                std::panic::resume_unwind(Box::new("a visitor"));
            }
            ControlFlow::Continue(())
        });
    }));
    assert!(panicked.is_err());
    assert_eq!(counts(), (0, vec![]));
    // A range that is held reads nothing.
    let mut range = snapshot.iter();
    assert_eq!(range.next(), Some((0, 0)));
    assert_eq!(counts(), (0, vec![]));
    // One that stands still is seen by others.
    let (inside, told) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            snapshot.visit(all.0, all.1, Direction::Ascending, |key, _| {
                if *key == 4000 {
                    inside.wait();
                    told.wait();
                }
                ControlFlow::Continue(())
            });
        });
        inside.wait();
        let (walks, long) = counts();
        assert_eq!((walks, long.len()), (1, 1));
        assert!(counts().1[0] >= long[0]);
        told.wait();
    });
    assert_eq!(counts(), (0, vec![]));
}

/// One collector watches the next deadline, the others sleep until they are woken; and if there is no
/// other, the one that watches collects.
#[test]
fn one_collector_watches_the_deadlines_and_all_collect() {
    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};
    const FAR: u64 = 1 << 50;
    for collectors in [1, 2, 4] {
        let time = Arc::new(AtomicU64::new(1000));
        let lookers: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let (clock, looked) = (Arc::clone(&time), Arc::clone(&lookers));
        let options = Options::new().collectors(collectors).clock(move || {
            let thread = std::thread::current();
            if thread.name() == Some("ordna collector") {
                looked.lock().unwrap().insert(format!("{:?}", thread.id()));
            }
            clock.load(Ordering::SeqCst)
        });
        let store: Store<u64, u64> = Store::with_options(options);
        let patience = Instant::now() + Duration::from_secs(20);
        let wait_until = |what: &str, done: &dyn Fn() -> bool| {
            while !done() {
                assert!(Instant::now() < patience, "{collectors} collectors: not {what}");
                std::thread::yield_now();
            }
        };
        store.insert_until(&0, &0, FAR).unwrap();
        wait_until("watched", &|| !lookers.lock().unwrap().is_empty());
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(lookers.lock().unwrap().len(), 1, "of {collectors} collectors look");
        for round in 0..50 {
            (1..100).for_each(|key| drop(store.insert(&key, &round)));
            let snapshot = store.snapshot();
            (1..100).for_each(|key| drop(store.insert(&key, &round)));
            drop(snapshot);
            wait_until("collected", &|| store.statistics().dead == 0);
            if round % 10 == 0 {
                // Nearer than the one that is watched.
                store.insert_until(&500, &1, 1010 + round).unwrap();
                time.store(1010 + round, Ordering::SeqCst);
                wait_until("expired", &|| store.statistics().items == 100);
            }
        }
        drop(store);
    }
}

/// A clock that panics while expired keys are removed loses none of them.
#[test]
fn a_clock_that_panics_leaves_what_is_due_to_the_next_look() {
    use std::sync::Arc;
    /// Looks at the clock after which it panics once.
    const PANICS: u64 = 7;
    let time = Arc::new(AtomicU64::new(0));
    let left = Arc::new(AtomicU64::new(u64::MAX));
    let (hands, looks) = (Arc::clone(&time), Arc::clone(&left));
    let options = Options::new().collectors(0).clock(move || {
        if looks.fetch_sub(1, Ordering::SeqCst) == 1 {
            std::panic::resume_unwind(Box::new("the clock"));
        }
        hands.load(Ordering::SeqCst)
    });
    let store: Store<u64, u64> = Store::with_options(options);
    (0..100).for_each(|key| store.insert_until(&key, &key, 10).unwrap());
    time.store(20, Ordering::SeqCst);
    left.store(PANICS, Ordering::SeqCst);
    let collect = std::panic::AssertUnwindSafe(|| store.collect_garbage());
    assert!(std::panic::catch_unwind(collect).is_err());
    let items = store.statistics().items;
    assert!((1..100).contains(&items), "{items} are left");
    left.store(u64::MAX, Ordering::SeqCst);
    store.collect_garbage();
    assert_eq!(store.statistics().items, 0);
    assert_eq!(store.validate().unwrap().nodes, 0);
}
