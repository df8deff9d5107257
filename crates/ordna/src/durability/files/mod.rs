//! Files: the operations on them, what they hold, and how a directory names them.

pub mod blocks;
pub mod codec;
pub mod directory;
pub mod storage;
