//! The write-ahead log of a store.
//!
//! # Contract
//! Every public write of a store passes here once. A store without a log pays one load and one
//! branch. Removals of expired keys by collectors are not logged: deadlines are absolute, and
//! replay applies them itself.
//!
//! The order of a key's records in the log is the order of its writes in memory. A batch, and the
//! writes of a group, lie in one block: after a crash they are there whole or not at all.
//!
//! # Protocol
//! Each key belongs to one of 64 stripes by its hash. A write takes its stripe's lock, changes the
//! memory, and appends its records to the queue, all in that critical section; so two writers of
//! one key cannot append in the other order than they wrote. A batch takes its stripes in ascending
//! order; a range, a group and a snapshot point take all, so there is no circle of waiters. Under
//! [`SyncPolicy::Always`](sync_policy::SyncPolicy::Always) the write waits for the fsync after it has unlocked the stripe.
//!
//! While a backup without a snapshot runs, the critical section also saves the old state of each
//! key that the backup has not passed (see `copy_before_write`). A write of one key takes
//! that state from its own read of the entry, under the leaf's lock. The stripe's buffer collects
//! such states and passes them to the set in groups.
//!
//! # Failure
//! A log that cannot record refuses a write before the memory changes. If it learns of the failure
//! later, it returns an error for a write that stays in memory. It refuses all writes that follow.
//!
//! # Progress
//! Blocking per stripe. A slow disk delays writers once 8 MiB wait for it.
//!
//! | module | holds |
//! |---|---|
//! | `writer` | the stripes, and the writes that pass through them |
//! | `buffer` | the records and old states of a stripe |
//! | `queue` | group commit |
//! | `log_thread` | the thread that writes, syncs and retries |
//! | `waiting`, `waiting_threads` | waits for what is written or durable |
//! | `segments` | creation of segments |
//! | `tail` | the records that wait, in a file that outlives the process |
//! | `checkpoints` | when a store backs itself up |
//! | `copy_before_write` | old states of keys for a live backup |
//! | `durable` | what an opened store has in addition to its memory |
//! | `sink` | a second destination of the records, for replication |
//! | `sync_policy` | when the log is made durable |
//! | `sync_times` | durations of fsyncs |
//! | `reports` | reports of openings, replays and backups |
//!
//! Reading the log is in `durability::replay`.

pub mod buffer;
pub mod checkpoints;
pub mod copy_before_write;
pub mod durable;
mod log_thread;
pub mod queue;
pub mod reports;
pub mod segments;
pub mod sink;
pub mod sync_policy;
pub mod sync_times;
pub mod tail;
mod waiting;
mod waiting_threads;
pub mod writer;
