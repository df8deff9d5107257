//! Files: the operations on them, what they contain, and how a directory names them.
//!
//! | module | holds |
//! |---|---|
//! | `storage` | the operations on files, as a trait |
//! | `os` | what the system knows of a file system |
//! | `blocks` | files as chains of checked blocks |
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
