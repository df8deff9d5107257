//! Tests of the write-ahead log, backups and recovery.
//!
//! | module | checks | sources |
//! |---|---|---|
//! | `checkpoints` | backups that a store takes by itself | `durability`, `wal` |
//! | `order` | a replay keeps the order of each key's writes | `wal` |
//! | `sinks` | a second destination of the log | `wal` |
//! | `splices` | logged appends and partial writes | `wal` |
//! | `every_write` | each kind of write is logged as applied, even if refused | `store`, `wal` |
//! | `live` | backups while other threads write | `durability/backup` |
//! | `round_trips` | backups of all kinds of keys, values and options | `durability/backup` |
//! | `damage` | each changed byte is detected and located | `files` |
//! | `damage_of_tail` | what the file `tail` proves, and tails of other logs | `wal` |
//! | `damage_tails` | lost tails, missing segments, repairs, foreign files | `durability` |
//! | `golden` | files of earlier format versions are read | `files` |
//! | `faults` | failing file operations and power cuts | all |
//! | `faults_close` | closing a log concurrently with writes and backups | `wal` |
//! | `faults_panics` | panics of the caller's clock and callbacks | `store`, `wal` |
//! | `faults_retry` | retries of a failed write with backups, rotations and flushes | `wal` |
//! | `faults_space` | full disks, slow syncs | `wal` |
//! | `histories` | random histories of crashes, power failures and damages | all |
//! | `kill` | a process that is killed at random moments | all |
//! | `transaction_log` | transactions are whole, and follow what they have read | `store`, `wal` |
//! | `reentry` | closures that use their own store | `store`, `wal` |
//! | `disk`, `steps` | a model of a disk, a scripted run of a store | helpers |

mod checkpoints;
mod damage;
mod damage_of_tail;
mod damage_tails;
mod disk;
mod every_write;
mod faults;
#[cfg(debug_assertions)]
mod faults_close;
mod faults_panics;
mod faults_retry;
mod faults_space;
mod golden;
mod histories;
mod kill;
mod live;
mod order;
mod reentry;
mod round_trips;
mod sinks;
mod splices;
mod steps;
mod transaction_log;
