//! Rows of `FT.AGGREGATE … WITHCURSOR` that no client has read yet.

use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use ordna::sync::Lock;

use super::aggregate::RowTable;
use crate::indexes::schema::Schema;

/// Maximum number of cursors. Each holds the rows of one aggregation.
const MOST: usize = 128;
/// Maximum total size in bytes of the rows and column names of all cursors.
const MOST_BYTES: usize = 128 << 20;
/// Default and upper bound of a cursor's idle time, as in RediSearch.
pub const MOST_IDLE: Duration = Duration::from_secs(300);

/// The rows of one cursor.
#[derive(Debug)]
pub struct PendingRows {
    pub index: String,
    /// The prefixes of the index's keys, because another index may get the same name.
    pub prefixes: Vec<Vec<u8>>,
    pub table: RowTable,
    /// Memory of the table in bytes.
    pub bytes: usize,
    pub count: usize,
    pub idle: Duration,
    until: Instant,
}

#[derive(Debug, Default)]
struct PendingTable {
    cursors: BTreeMap<u64, PendingRows>,
    last: u64,
}

impl PendingTable {
    fn bytes(&self) -> usize {
        self.cursors.values().map(|waiting| waiting.bytes).sum()
    }
}

/// The cursors of all clients.
#[derive(Debug, Default)]
pub struct PendingResults(Lock<PendingTable>);

impl PendingResults {
    fn held(&self) -> MutexGuard<'_, PendingTable> {
        let mut held = self.0.lock();
        let now = Instant::now();
        held.cursors.retain(|_, waiting| waiting.until > now);
        held
    }

    /// Adds rows and returns the number of their cursor.
    ///
    /// # Errors
    /// There are too many cursors, or their rows would take too much memory.
    pub fn keep(
        &self,
        schema: &Schema,
        table: RowTable,
        count: usize,
        idle: Duration,
    ) -> Result<u64, String> {
        let mut held = self.held();
        if held.cursors.len() >= MOST {
            return Err(format!(
                "ERR there are {MOST} cursors already; read them or FT.CURSOR DEL"
            ));
        }
        let bytes = table.bytes();
        if held.bytes() + bytes > MOST_BYTES {
            return Err(format!(
                "ERR the cursors would take more than {MOST_BYTES} bytes; read them or FT.CURSOR DEL"
            ));
        }
        held.last += 1;
        let (number, until) = (held.last, Instant::now() + idle);
        let (index, prefixes) = (schema.name.clone(), schema.prefixes.clone());
        let rows = PendingRows { index, prefixes, table, bytes, count, idle, until };
        held.cursors.insert(number, rows);
        Ok(number)
    }

    /// Removes a cursor and returns its rows.
    ///
    /// # Errors
    /// The cursor does not exist or belongs to another index.
    pub fn take(&self, schema: &Schema, number: u64) -> Result<PendingRows, String> {
        let mut held = self.held();
        let is_of = |waiting: &PendingRows| {
            waiting.index == schema.name && waiting.prefixes == schema.prefixes
        };
        match held.cursors.remove(&number) {
            Some(waiting) if is_of(&waiting) => Ok(waiting),
            other => {
                if let Some(waiting) = other {
                    held.cursors.insert(number, waiting);
                }
                Err(format!("ERR Cursor not found, id: {number}"))
            }
        }
    }

    /// Puts back the rows that a read has left.
    pub fn put_back(&self, number: u64, waiting: PendingRows) {
        let until = Instant::now() + waiting.idle;
        self.held().cursors.insert(number, PendingRows { until, ..waiting });
    }

    /// Removes the cursors of an index.
    pub fn forget(&self, index: &str) {
        self.held().cursors.retain(|_, waiting| waiting.index != index);
    }

    /// Returns the memory of all rows in bytes.
    pub fn bytes(&self) -> usize {
        self.held().bytes()
    }

    /// Returns the number of cursors of an index, and of all.
    pub fn count(&self, index: &str) -> (usize, usize) {
        let held = self.held();
        let of = held.cursors.values().filter(|waiting| waiting.index == index).count();
        (of, held.cursors.len())
    }
}
