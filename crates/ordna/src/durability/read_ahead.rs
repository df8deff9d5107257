//! Reads a segment of the log on a separate thread, while the caller decodes its blocks.

use std::sync::mpsc::sync_channel;
use std::thread;

use crate::files::blocks::{Block, BlockReader};
use crate::files::error::BackupError;

/// Minimum size in bytes of a file for which starting a thread pays off.
pub(super) const LONG: u64 = 1 << 20;
/// Maximum number of blocks that wait for the caller.
const AHEAD: usize = 4;

/// The result of reading a block, and the offset of the next block.
pub(super) struct ReadBlock {
    pub block: Result<Option<Block>, BackupError>,
    pub offset: u64,
    pub position: u64,
}

impl ReadBlock {
    fn next(reader: &mut BlockReader) -> Self {
        let block = reader.read_block();
        Self { block, offset: reader.offset(), position: reader.position() }
    }
}

/// Calls `take` with a function that reads the next block. `take` calls that function until it
/// returns no block or an error. Blocks and errors are those of [`BlockReader::read_block`]; only a
/// long file is read ahead.
pub(super) fn with_blocks<R>(
    mut reader: BlockReader,
    take: impl FnOnce(&mut dyn FnMut() -> ReadBlock) -> R,
) -> R {
    if reader.len() < LONG {
        return take(&mut || ReadBlock::next(&mut reader));
    }
    thread::scope(|scope| {
        // The reader is sent once the thread runs, because the thread may fail to start.
        let (give, given) = sync_channel::<BlockReader>(1);
        let (send, taken) = sync_channel(AHEAD);
        let read = move || {
            let Ok(mut reader) = given.recv() else { return };
            loop {
                let block = ReadBlock::next(&mut reader);
                let is_last = !matches!(block.block, Ok(Some(_)));
                if send.send(block).is_err() || is_last {
                    return;
                }
            }
        };
        let builder = thread::Builder::new().name("ordna log reader".to_owned());
        if builder.spawn_scoped(scope, read).is_err() {
            return take(&mut || ReadBlock::next(&mut reader));
        }
        let (offset, position) = (reader.offset(), reader.position());
        let _ = give.send(reader);
        take(&mut || {
            // The thread has panicked. The end of the scope passes the panic on.
            let block = || Err(BackupError::Cancelled);
            taken.recv().unwrap_or_else(|_| ReadBlock { block: block(), offset, position })
        })
    })
}
