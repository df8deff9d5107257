//! Replays the records of the log on several threads.
//!
//! # Contract
//! The records of a key are replayed in their order, because the hash of the key chooses the
//! worker. A record of a range waits until all records before it are replayed, and all records
//! after it wait for it.
//!
//! # Progress
//! The reader of the log waits for a worker that has [`AHEAD`] waiting blocks, so memory is
//! bounded. A worker that has failed still receives blocks, so the reader never waits forever.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use ordna_base::sync::{Lock, fault, joined};

use super::replay::repeat;
use crate::files::codec::Record;
use crate::wal::buffer::hash;
use crate::{Error, Store};
use ordna_base::encoding::ByteRange;
use ordna_base::{Key, Value};

/// Maximum number of blocks that wait for a worker.
const AHEAD: usize = 4;

/// A message to a worker.
enum Work {
    /// Replay the worker's records of a block.
    Records(Arc<Vec<u8>>, Vec<Record>),
    /// Drop the sender when everything before this message is replayed.
    Wait(Sender<()>),
}

/// A function that receives the records of a block.
pub(crate) type Apply<'a> = dyn FnMut(Vec<u8>, Vec<Record>) -> Result<(), Error> + 'a;

/// Calls `read` with a function that replays the records of a block on `store`, possibly later.
/// Returns when all of them are replayed.
///
/// # Errors
/// Returns the first error of a replayed record. `read` may receive it earlier.
pub(crate) fn apply_with<K, V, R>(
    store: &Store<K, V>,
    workers: usize,
    read: impl FnOnce(&mut Apply<'_>) -> R,
) -> (R, Result<(), Error>)
where
    K: Key + ?Sized,
    V: Value + ?Sized,
{
    let failed: Lock<Option<Error>> = Lock::new(None);
    let check = || match &*failed.lock() {
        Some(error) => Err(error.clone()),
        None => Ok(()),
    };
    let work = |queue: Receiver<Work>| {
        for work in queue {
            let (payload, records) = match work {
                Work::Records(payload, records) => (payload, records),
                Work::Wait(done) => {
                    drop(done);
                    continue;
                }
            };
            let mut all = records.into_iter();
            let repeat = |record| repeat(store, &payload, record);
            let done = check().and_then(|()| all.try_for_each(repeat));
            if let Err(error) = done {
                failed.lock().get_or_insert(error);
            }
        }
    };
    let done = thread::scope(|scope| {
        let work = &work;
        let start = |_| {
            let (queue, taken) = sync_channel(AHEAD);
            let builder = thread::Builder::new().name("ordna replay".to_owned());
            builder.spawn_scoped(scope, move || work(taken)).ok().map(|thread| (queue, thread))
        };
        let (queues, threads): (Vec<SyncSender<Work>>, Vec<_>) =
            (0..workers).filter_map(start).unzip();
        // A send fails only if the worker panicked. Joining the worker passes the panic on.
        let done = read(&mut |payload, records| {
            check()?;
            let payload = Arc::new(payload);
            let mut parts: Vec<Vec<Record>> = vec![Vec::new(); queues.len()];
            let send = |parts: &mut Vec<Vec<Record>>| {
                for (queue, part) in queues.iter().zip(parts) {
                    if !part.is_empty() {
                        let part = std::mem::take(part);
                        let _ = queue.send(Work::Records(Arc::clone(&payload), part));
                    }
                }
            };
            for record in records {
                let worker = key_of(&record).and_then(|key| {
                    let view = K::decode(&payload, key);
                    let key: &K = view.borrow();
                    (hash(key) >> 32).checked_rem(queues.len() as u64)
                });
                match worker.and_then(|worker| parts.get_mut(worker as usize)) {
                    Some(part) => part.push(record),
                    None => {
                        send(&mut parts);
                        if !fault!("order.replay.ranges_wait") {
                            wait(&queues);
                        }
                        repeat(store, &payload, record)?;
                    }
                }
            }
            send(&mut parts);
            Ok(())
        });
        drop(queues);
        threads.into_iter().for_each(joined);
        done
    });
    (done, check())
}

/// Returns the key that a record changes, if it changes only one.
pub(crate) fn key_of(record: &Record) -> Option<ByteRange> {
    match record {
        Record::Put { key, .. }
        | Record::Splice { key, .. }
        | Record::Remove { key }
        | Record::Expire { key, .. } => Some(key.clone()),
        Record::RemoveRange { .. } | Record::Clear | Record::Was { .. } => None,
    }
}

/// Waits until all queues are empty and their records are replayed.
fn wait(queues: &[SyncSender<Work>]) {
    let (done, ended) = channel();
    for queue in queues {
        let _ = queue.send(Work::Wait(done.clone()));
    }
    drop(done);
    // Nothing is ever sent: `recv` returns when the last worker has dropped its sender.
    let _ = ended.recv();
}
