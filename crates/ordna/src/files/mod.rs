//! Files of logs and backups: operations on them, their contents, and their names in a directory.
//!
//! | module | what it holds |
//! |---|---|
//! | `storage` | the operations on files, as a trait |
//! | `os` | free space and memory-mapped files, from the operating system |
//! | `blocks` | files as chains of blocks with checksums |
//! | `codec` | records as bytes |
//! | `manifest` | the description of a backup's files |
//! | `directory` | names in the directory of a store |
//! | `error`, `progress` | errors, and counters of long operations |

pub mod blocks;
pub mod codec;
pub mod directory;
pub mod error;
pub mod manifest;
mod os;
pub mod progress;
pub mod storage;
