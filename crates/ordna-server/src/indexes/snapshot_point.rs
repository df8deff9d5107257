//! Consistent states of indexes and documents, for queries.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ordna_secondary::{Read, View};

use crate::indexes::definitions::error_text;
use crate::indexes::service::Indexes;
use crate::keyspace::Keyspace;
use crate::keyspace::snapshot::KeyspaceSnapshot;

/// Time for which a query waits for its state or for the construction of an index.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The same time for a query within a transaction, for which all other clients wait, too.
const PATIENCE_OF_TRANSACTION: Duration = Duration::from_millis(500);

/// Returns how long a query waits that may wait for `asked`. `held` is the keyspace if a
/// transaction holds it.
pub fn patience(asked: Duration, held: Option<&Keyspace>) -> Duration {
    match held {
        Some(_) => asked.min(PATIENCE_OF_TRANSACTION),
        None => asked,
    }
}

/// Options of a read that sees everything written before it.
pub fn read_latest(timeout: Duration) -> Read {
    Read::request_plus().timeout(timeout).wait_for_build()
}

impl Indexes {
    /// Returns a state of the indexes that includes all writes so far, and a snapshot of the
    /// documents that is equally recent or more recent. There is no transaction between them.
    /// `held` is the keyspace if the caller holds it.
    ///
    /// # Errors
    /// The indexes did not reach the state before `until`.
    pub fn snapshot_point(
        &self,
        until: Instant,
        held: bool,
    ) -> Result<(View, KeyspaceSnapshot), String> {
        // Number of attempts that do not hold the lock of the keyspace while they wait for the
        // indexes.
        const TRIES: u32 = 8;
        let service = self.service()?;
        let lock = || self.commands.shared();
        let view = || {
            let left = until.saturating_duration_since(Instant::now());
            service.view(&read_latest(left)).map_err(error_text)
        };
        let mut tries = 0;
        let (view, documents) = loop {
            let mut inside = (!held).then(lock);
            let before = self.transactions.load(Ordering::Relaxed);
            if tries < TRIES {
                inside = None;
            }
            let view = view()?;
            if !held && inside.is_none() {
                inside = Some(lock());
            }
            let documents = self.covered.snapshot();
            if held || self.transactions.load(Ordering::Relaxed) == before {
                break (view, documents);
            }
            drop(inside);
            tries += 1;
        };
        Ok((view, documents.ok_or("ERR the keyspace is being loaded")?))
    }
}
