//! Poison records: records that are not documents. They are skipped and kept for inspection.

use std::collections::VecDeque;

use ordna::sync::Lock;

/// Maximum number of records that are kept. Older ones are dropped, but still counted.
const KEPT: usize = 1000;
/// Maximum number of bytes of a key that are kept.
const KEY: usize = 64;

/// A record that is not a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoisonRecord {
    /// The partition of the record.
    pub partition: u32,
    /// The offset of the record.
    pub offset: u64,
    /// The beginning of its key.
    pub key: Vec<u8>,
    /// The reason why it is not a document.
    pub reason: String,
}

/// The poison records of a node. Any thread can use it.
#[derive(Debug, Default)]
pub struct PoisonRecords(Lock<(u64, VecDeque<PoisonRecord>)>);

impl PoisonRecords {
    /// Adds a record. O(1).
    pub fn add(&self, partition: u32, offset: u64, key: &[u8], reason: String) {
        let key = key[..key.len().min(KEY)].to_vec();
        tracing::warn!(partition, offset, key = %key.escape_ascii(), reason, "poison record");
        let mut all = self.0.lock();
        all.0 += 1;
        if all.1.len() == KEPT {
            all.1.pop_front();
        }
        all.1.push_back(PoisonRecord { partition, offset, key, reason });
    }

    /// Returns the number of records since the start. A record that is read again is counted again.
    pub fn count(&self) -> u64 {
        self.0.lock().0
    }

    /// Returns the newest records, newest first.
    pub fn list(&self, most: usize) -> Vec<PoisonRecord> {
        let all = self.0.lock();
        all.1.iter().rev().take(most).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_bounded_and_the_count_is_not() {
        let poisons = PoisonRecords::default();
        for offset in 0..KEPT as u64 + 5 {
            poisons.add(0, offset, &[b'k'; 2 * KEY], "no JSON".to_owned());
        }
        assert_eq!(poisons.count(), KEPT as u64 + 5);
        let list = poisons.list(usize::MAX);
        assert_eq!((list.len(), list[0].offset), (KEPT, KEPT as u64 + 4));
        assert_eq!(list[0].key.len(), KEY);
    }
}
