//! A partition that the node holds: its service, and the fetch state that feeds it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ordna::durability::BackupOptions;
use ordna_secondary::{Error, Service, ServiceOptions};
use ordna_secondary::{IndexDefinition, Position, Read, SourceError, VersionVector};

use crate::backups::Backups;
use crate::broker::{Broker, BrokerError};
use crate::epoch_history::{EpochHistory, EpochMark};
use crate::fetch::FetchState;
use crate::node::{NodeError, PartitionView};
use crate::source::Partition;

/// Timeout of requests to the brokers while a partition is opened.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum time that a backup waits for a snapshot point with all records that were read.
const CUT: Duration = Duration::from_secs(10);

/// A partition that the node holds.
#[derive(Debug)]
pub struct OpenPartition {
    partition: u32,
    service: Service,
    /// The state through which the reader feeds the service.
    pub fetch: Arc<FetchState>,
    /// The offset at which the reader began: the one after the backup, if one was restored.
    pub from: u64,
    /// The end of the partition when it was opened.
    pub until: u64,
    /// The position of the newest backup by this process. The next backup is skipped if nothing was
    /// read since.
    backed_up: AtomicU64,
}

impl OpenPartition {
    /// Restores the newest usable backup of a partition, or starts with empty indexes. The reader
    /// does not feed the partition yet.
    ///
    /// # Errors
    /// The brokers do not report which records can be read, or the service cannot start.
    pub fn new(
        broker: &Arc<Broker>,
        partition: u32,
        indexes: &[IndexDefinition],
        backups: Option<&Backups>,
    ) -> Result<Self, NodeError> {
        let told = |error: BrokerError| NodeError::Broker(error.to_string());
        let asked = Instant::now();
        let ends = broker.ends(PATIENCE).map_err(told)?;
        let ends = *ends.get(partition as usize).ok_or(NodeError::NotHeld { partition })?;
        let options = || {
            let options = ServiceOptions::new().workers(1);
            match backups {
                Some(backups) => options.backups(backups.own(partition)),
                None => options,
            }
        };
        let start = |options: ServiceOptions| {
            let (source, feed) = Partition::new(broker, partition, ends);
            Ok::<_, Error>((Service::start(options, Arc::new(source))?, feed))
        };
        let tombstones = match backups {
            Some(_) => broker.tombstones(PATIENCE).map_err(told)?,
            None => None,
        };
        let usable = backups.map(|backups| backups.usable(partition, ends.end, tombstones));
        let (mut started, mut recovered) = (None, None);
        for found in usable.into_iter().flatten().filter(|found| ends.hold(found.position)) {
            let mark = EpochMark { epoch: found.epoch, seq: found.position.seq };
            // Without epochs no comparison is possible.
            let is_known = mark.epoch < 0 || {
                let marks = BTreeMap::from([(partition, mark)]);
                let compared = broker.compare(&marks, PATIENCE).map_err(told)?;
                compared.get(&partition).copied().unwrap_or(false)
            };
            if !is_known {
                let why = "the topic was truncated before its position, and has grown since";
                tracing::warn!(partition, path = %found.path.display(), why, "backup not used");
                continue;
            }
            recovered = Some(mark);
            match start(options().restore(Some(found.path.clone()))) {
                Ok(restored) => {
                    started = Some(restored);
                    break;
                }
                Err(error) => {
                    tracing::warn!(partition, path = %found.path.display(), %error, "backup unusable");
                }
            }
        }
        let (service, feed) = match started {
            Some(restored) => restored,
            None => {
                recovered = None;
                let (service, feed) = start(options().restore(None))?;
                for definition in indexes {
                    service.create(definition.clone())?;
                    service.wait_until_built(&definition.name, PATIENCE)?;
                }
                (service, feed)
            }
        };
        let feed = feed.recv_timeout(PATIENCE).map_err(|_| Error::Source(SourceError::Stopped))?;
        let epochs = EpochHistory::new(recovered, ends.epoch);
        let fetch = Arc::new(FetchState::new(feed, epochs));
        fetch.note_end(ends.end, asked);
        let from = fetch.next();
        let backed_up = AtomicU64::new(from);
        Ok(Self { partition, service, fetch, from, until: ends.end.seq, backed_up })
    }

    /// Returns the partition in a state that contains all changes up to `at`, or in its newest
    /// state.
    ///
    /// # Errors
    /// The partition is not ready, or does not reach the state in time.
    pub fn view(&self, at: Option<Position>, until: Instant) -> Result<PartitionView, NodeError> {
        if at.is_none() && !self.is_ready() {
            return Err(self.restoring());
        }
        self.wait_for_comparison(until)?;
        let timeout = until.saturating_duration_since(Instant::now());
        let read = match at {
            Some(at) => Read::at_plus(VersionVector::new(vec![at])),
            None => Read::any(),
        };
        match self.service.view(&read.timeout(timeout)) {
            Ok(view) => {
                self.wait_for_comparison(until)?;
                // The position of the view, as the partition may have advanced since.
                let position = view.vector().positions().first().copied().unwrap_or_default();
                Ok(PartitionView { view, age: self.fetch.age_of(position) })
            }
            Err(Error::Timeout { .. }) if !self.is_ready() => Err(self.restoring()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits while the records that were read are in doubt: the leader has changed, and the node
    /// will compare the partition with the brokers' history when it next asks them.
    fn wait_for_comparison(&self, until: Instant) -> Result<(), NodeError> {
        while self.fetch.epochs.lock().is_in_doubt() || self.fetch.lost.load(Ordering::Relaxed) {
            if Instant::now() >= until {
                let why = "its leader has changed, and its history is not compared yet";
                return Err(NodeError::Broker(format!("partition {}: {why}", self.partition)));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Returns why the indexes answer no queries, if this is so: a thread panicked.
    pub fn failure(&self) -> Option<Error> {
        self.service.failure()
    }

    /// Returns whether the partition has been at its end once, or has read all records that existed
    /// when it was opened.
    pub fn is_ready(&self) -> bool {
        let has_read = self.fetch.ready.load(Ordering::Acquire) || self.fetch.next() >= self.until;
        has_read && self.failure().is_none()
    }

    fn restoring(&self) -> NodeError {
        let done = self.fetch.next().saturating_sub(self.from);
        let of = self.until.saturating_sub(self.from);
        NodeError::Restoring { partition: self.partition, done: done.min(of), of }
    }

    /// Returns the position of the newest snapshot point.
    pub fn position(&self) -> Position {
        let view = self.service.view(&Read::any());
        let position = view.ok().and_then(|view| view.vector().positions().first().copied());
        position.unwrap_or_default()
    }

    /// Returns the number of entries, and the bytes, of all indexes.
    pub fn size(&self) -> (usize, usize) {
        let all = self.service.list();
        all.iter().fold((0, 0), |(entries, bytes), index| {
            (entries + index.entries, bytes + index.bytes + index.reverse_bytes)
        })
    }

    /// Returns the number of documents that an index left out, because of a wrong type or their
    /// size.
    pub fn left_out(&self) -> u64 {
        self.service.list().iter().map(|index| index.wrong_type + index.too_large).sum()
    }

    /// Backs up everything that was read, if anything was read since the last backup.
    ///
    /// # Errors
    /// The directory cannot be written, or the snapshot point is not reached in time.
    pub fn back_up(&self, backups: &Backups, keep: usize) -> Result<(), NodeError> {
        let lock = backups.lock_of(self.partition);
        let _one = lock.lock();
        let fed = self.fetch.feed.position(0).unwrap_or_default();
        if self.backed_up.load(Ordering::Relaxed) == fed.seq || fed.seq == 0 {
            return Ok(());
        }
        self.view(Some(fed), Instant::now() + CUT)?;
        let backup = self.service.back_up(keep, &BackupOptions::new())?;
        let position = backup.vector.positions().first().copied().unwrap_or_default();
        let epochs = self.fetch.epochs.lock();
        let mark = epochs.mark(position.seq).filter(|_| !epochs.is_in_doubt());
        drop(epochs);
        let Some(EpochMark { epoch, .. }) = mark else {
            // No record was read, or the leader has just changed. Then only the next backup can be
            // used.
            let _ = std::fs::remove_dir_all(&backup.path);
            return Ok(());
        };
        let finished = backups.finish(self.partition, &backup.path, (position, epoch), keep);
        finished.map_err(|error| NodeError::Backup {
            path: backup.path.display().to_string(),
            reason: error.to_string(),
        })?;
        self.backed_up.store(position.seq, Ordering::Relaxed);
        Ok(())
    }
}
