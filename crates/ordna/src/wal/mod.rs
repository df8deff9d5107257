//! The write-ahead log of a store.
//!
//! # Contract
//! Every public write of a store passes through this module once. A store without a log pays one
//! load and one branch. Removals of expired keys by collectors are not logged: deadlines are
//! absolute, and a replay applies them itself.
//!
//! The order of a key's records in the log is the order of its writes in memory. A batch, and the
//! writes of a group, are in one block: after a crash, all or none of them are present.
//!
//! # Protocol
//! Each key belongs to one of 64 stripes, by its hash. A write locks its stripe, changes the
//! memory, and appends its records to the queue in one critical section. So two writers of one key
//! append in the order in which they write. A batch locks its stripes in ascending order; a range,
//! a group and a snapshot point lock all, so that deadlocks are impossible. Under
//! [`SyncPolicy::Always`](sync_policy::SyncPolicy::Always), the write waits for the fsync after it
//! has unlocked the stripe.
//!
//! While a backup without a snapshot runs, the critical section also saves the old state of each
//! key that the backup has not passed (see `copy_before_write`). A write of one key takes that
//! state from its own read of the entry, under the leaf's lock. The stripe's buffer collects such
//! states and passes them to the set in groups.
//!
//! # Failure
//! If the log has failed, a write returns an error before the memory changes. If the log fails
//! later, the error is returned for a write that stays in memory. All later writes fail.
//!
//! # Progress
//! Blocking per stripe. A slow disk delays writers when 8 MiB are waiting for it.
//!
//! | module | what it holds |
//! |---|---|
//! | `writer` | the stripes, and the writes that pass through them |
//! | `buffer` | the records and old states of a stripe |
//! | `queue` | group commit |
//! | `log_thread` | the thread that writes, syncs and retries |
//! | `waiting`, `waiting_threads` | waits for records to be written or durable |
//! | `segments` | creation of segments |
//! | `tail` | the waiting records, in a file that outlives the process |
//! | `checkpoints` | when a store backs itself up |
//! | `copy_before_write` | old states of keys for a live backup |
//! | `durable` | the log, the backups and the directory of an opened store |
//! | `sink` | a second destination of the records, for replication |
//! | `sync_policy` | when the log is made durable |
//! | `sync_times` | durations of fsyncs |
//! | `reports` | reports of openings, replays and backups |
//!
//! The module `durability::replay` reads the log.

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
