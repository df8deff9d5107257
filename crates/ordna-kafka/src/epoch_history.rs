//! The leader epochs of the records that were read of a partition, and which of them have yet to be
//! compared with the brokers' history.
//!
//! # Invariants
//! If a log is truncated and grows again, it grows under a new leader and therefore under a higher
//! epoch. So a reader that continues across the truncation sees the epoch change between two
//! records. Each change is compared with the brokers' history: the last record before the change
//! must be in the present log. Until then, the records that were read are in doubt. If nothing was
//! read of a partition since the last comparison, it is compared when the epoch of its leader
//! changes.

use std::collections::VecDeque;

/// Maximum number of epoch changes that are remembered. Older positions can no longer be backed up.
const MOST: usize = 64;

/// A position in a partition's history, with its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochMark {
    /// The epoch of the last record below `seq`; -1 if the brokers know no epochs.
    pub epoch: i32,
    /// The offset of the next record.
    pub seq: u64,
}

/// The epochs of the records that were read of a partition.
#[derive(Debug, Default)]
pub struct EpochHistory {
    /// Each epoch, with the position before its first record that was read. Both ascend.
    epochs: VecDeque<EpochMark>,
    /// Ends of epochs that have yet to be compared, oldest first.
    doubts: VecDeque<EpochMark>,
    /// The leader's epoch when the history was last compared.
    compared: Option<i32>,
}

impl EpochHistory {
    /// Creates the history for a position that was compared under the epoch `leader`; `None` if
    /// nothing was read yet.
    pub fn new(mark: Option<EpochMark>, leader: i32) -> Self {
        let epochs = mark.map(|mark| EpochMark { seq: 0, ..mark }).into_iter().collect();
        Self { epochs, doubts: VecDeque::new(), compared: Some(leader) }
    }

    /// Notes that a record with this epoch is read next, after everything below `at`.
    pub fn read(&mut self, epoch: i32, at: u64) {
        match self.epochs.back() {
            Some(last) if last.epoch == epoch => return,
            Some(last) if last.epoch >= 0 => {
                self.doubts.push_back(EpochMark { epoch: last.epoch, seq: at });
            }
            _ => {}
        }
        if self.epochs.len() == MOST {
            self.epochs.pop_front();
        }
        self.epochs.push_back(EpochMark { epoch, seq: at });
    }

    /// Returns the mark of a position that was read. Returns `None` if no record below it was read,
    /// or if it is too old.
    pub fn mark(&self, seq: u64) -> Option<EpochMark> {
        let found = self.epochs.iter().rev().find(|mark| mark.seq < seq)?;
        Some(EpochMark { epoch: found.epoch, seq })
    }

    /// Returns whether some of what was read has yet to be compared.
    pub fn is_in_doubt(&self) -> bool {
        !self.doubts.is_empty()
    }

    /// Makes the next comparison take place even if the leader's epoch is the same.
    pub fn suspect(&mut self) {
        self.compared = None;
    }

    /// Returns the mark to compare for a state at `seq` under a leader's epoch, if there is any.
    pub fn to_compare(&self, seq: u64, leader: i32) -> Option<EpochMark> {
        if let Some(doubt) = self.doubts.front() {
            return Some(*doubt);
        }
        let mark = self.mark(seq).filter(|_| self.compared != Some(leader));
        mark.filter(|mark| mark.epoch >= 0)
    }

    /// Notes that the brokers' history contains the mark, under a leader's epoch.
    pub fn confirm(&mut self, mark: EpochMark, leader: i32) {
        match self.doubts.front() {
            Some(doubt) if *doubt == mark => drop(self.doubts.pop_front()),
            Some(_) => {}
            None => self.compared = Some(leader),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(epoch: i32, seq: u64) -> EpochMark {
        EpochMark { epoch, seq }
    }

    /// The log of the brokers: the epoch of each record.
    struct Log(Vec<i32>);

    impl Log {
        /// Answers like a leader that receives `OffsetForLeaderEpoch`.
        fn has(&self, mark: EpochMark) -> bool {
            self.0.iter().filter(|epoch| **epoch <= mark.epoch).count() as u64 >= mark.seq
        }
    }

    /// Reads what follows a position in a log, and compares until nothing is in doubt.
    fn follow(history: &mut EpochHistory, at: &mut u64, log: &Log, leader: i32) -> bool {
        for epoch in log.0.iter().skip(*at as usize) {
            history.read(*epoch, *at);
            *at += 1;
        }
        while let Some(mark) = history.to_compare(*at, leader) {
            if !log.has(mark) {
                return false;
            }
            history.confirm(mark, leader);
        }
        assert!(!history.is_in_doubt());
        true
    }

    #[test]
    fn a_log_that_was_cut_and_grew_beyond_the_position_is_noticed() {
        let (mut history, mut at) = (EpochHistory::new(None, 3), 0);
        assert!(follow(&mut history, &mut at, &Log(vec![3; 100]), 3));
        // A new leader without a loss of records.
        let grown = [vec![3; 100], vec![4; 20]].concat();
        assert!(follow(&mut history, &mut at, &Log(grown.clone()), 4));
        assert_eq!(
            (history.mark(100), history.mark(101)),
            (Some(mark(3, 100)), Some(mark(4, 101)))
        );
        // The end of the log is lost. The log then grows to less than, exactly, and more than the
        // position.
        for length in [30, 31, 200] {
            let mut history = EpochHistory::new(history.mark(at), 4);
            let cut = [vec![3; 90], vec![5; length]].concat();
            assert!(!follow(&mut history, &mut at.clone(), &Log(cut), 5), "{length}");
        }
        // A backup from before the truncation matches; a backup from after it does not.
        let cut = Log([vec![3; 90], vec![5; 200]].concat());
        assert!(cut.has(mark(3, 90)) && !cut.has(mark(3, 91)) && !cut.has(mark(4, 120)));
    }

    #[test]
    fn two_cuts_between_two_looks_are_both_compared() {
        let (mut history, mut at) = (EpochHistory::new(None, 1), 0);
        assert!(follow(&mut history, &mut at, &Log(vec![1; 10]), 1));
        history.read(2, 10);
        history.read(3, 11);
        assert_eq!(history.to_compare(12, 3), Some(mark(1, 10)));
        history.confirm(mark(1, 10), 3);
        assert_eq!(history.to_compare(12, 3), Some(mark(2, 11)));
        assert!(history.is_in_doubt());
        history.confirm(mark(2, 11), 3);
        assert!(!history.is_in_doubt());
        // The end is compared as well, because the leader is another one.
        assert_eq!(history.to_compare(12, 3), Some(mark(3, 12)));
        history.confirm(mark(3, 12), 3);
        assert_eq!(history.to_compare(12, 3), None);
        history.suspect();
        assert_eq!(history.to_compare(12, 3), Some(mark(3, 12)));
    }

    #[test]
    fn brokers_without_epochs_are_not_asked_and_old_epochs_are_forgotten() {
        let mut history = EpochHistory::new(None, -1);
        history.read(-1, 0);
        history.suspect();
        assert_eq!((history.to_compare(5, -1), history.is_in_doubt()), (None, false));
        assert_eq!(history.mark(0), None, "nothing was read below it");
        (1..200).for_each(|epoch| history.read(epoch, epoch as u64 * 10));
        assert!(history.epochs.len() <= MOST);
        assert_eq!((history.mark(11), history.mark(1991)), (None, Some(mark(199, 1991))));
    }
}
