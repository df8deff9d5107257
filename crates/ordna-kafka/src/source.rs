//! A partition of the topic as the source of a service.
//!
//! # Contract
//! The service asks only for positions. The records come from the node's reader (`fetch`), which
//! feeds all partitions; [`run`](ChangeSource::run) just hands over the feed. Indexes are created
//! before the reader begins, so no index ever asks for old documents.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use ordna::sync::Lock;
use ordna_secondary::{ChangeSource, Documents, Feed, Position, SourceError, VersionVector};

use crate::broker::{Broker, Ends};

/// Timeout of the service's requests to the brokers.
const PATIENCE: Duration = Duration::from_secs(10);

/// A partition.
pub struct Partition {
    broker: Arc<Broker>,
    partition: u32,
    /// The range that could be read when the partition was opened.
    ends: Ends,
    feed: Lock<Option<mpsc::Sender<Feed>>>,
}

impl Partition {
    /// Creates the source, and a receiver that gets its feed once the service runs.
    pub fn new(broker: &Arc<Broker>, partition: u32, ends: Ends) -> (Self, mpsc::Receiver<Feed>) {
        let (sender, receiver) = mpsc::channel();
        let feed = Lock::new(Some(sender));
        (Self { broker: Arc::clone(broker), partition, ends, feed }, receiver)
    }

    fn failed(&self, reason: impl ToString) -> SourceError {
        SourceError::Failed {
            place: format!("{}[{}]", self.broker.topic(), self.partition),
            reason: reason.to_string(),
        }
    }
}

impl ChangeSource for Partition {
    fn partitions(&self) -> u32 {
        1
    }

    fn newest(&self, _: u32) -> Result<Position, SourceError> {
        let all = self.broker.newest(PATIENCE).map_err(|error| self.failed(error))?;
        let newest = all.get(self.partition as usize).copied();
        newest.ok_or_else(|| self.failed("there is no such partition"))
    }

    fn continues(&self, _: u32, from: Position) -> Result<bool, SourceError> {
        Ok(self.ends.hold(from))
    }

    fn documents(&self, at: &VersionVector, _: usize) -> Result<Vec<Documents>, SourceError> {
        match at.positions().first() {
            Some(Position { seq: 0, .. }) => Ok(Vec::new()),
            _ => Err(self.failed("an index is created before the partition is read")),
        }
    }

    fn run(&self, feed: &Feed, _: &VersionVector) -> Result<(), SourceError> {
        let sender = self.feed.lock().take();
        let sender = sender.ok_or_else(|| self.failed("two services have one source"))?;
        sender.send(feed.clone()).map_err(|_| SourceError::Stopped)
    }
}
