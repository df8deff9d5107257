//! Files with correct checksums around arbitrary bytes, as input for fuzzers.

use std::path::Path;

use crate::files::blocks::{
    BlockKind, BlockWriter, Compression, FileHeader, FileKind, Frame, VERSION,
};
use crate::files::directory::segment_path;
use crate::files::error::BackupError;
use crate::files::manifest::Manifest;
use crate::files::storage::Storage;
use crate::wal::copy_before_write::close;

fn file(
    storage: &dyn Storage,
    path: &Path,
    kind: FileKind,
    records: &[u8],
    count: u64,
) -> Result<BlockWriter, BackupError> {
    let number = u64::from(kind == FileKind::Log);
    let header = FileHeader::new::<[u8], [u8]>(kind, number);
    let mut writer = BlockWriter::create(storage, path, &header, Compression::None)?;
    let mut frame = Frame::default();
    frame.extend(records, count);
    writer.data(&mut frame, 0)?;
    Ok(writer)
}

/// Writes a backup of byte strings with one shard and one delta file. Both contain `bytes` and
/// claim to have `count` records.
///
/// # Errors
/// Errors of the storage.
pub fn write_backup(
    storage: &dyn Storage,
    dir: &Path,
    shard: (&[u8], u64),
    delta: (&[u8], u64),
) -> Result<(), BackupError> {
    let one = |name: &str, kind, (records, count)| {
        let mut writer = file(storage, &dir.join(name), kind, records, count)?;
        close(&mut writer, None::<&[u8]>)
    };
    let shards = vec![one("shard-0000", FileKind::Shard, shard)?];
    let deltas = vec![one("delta-0000", FileKind::Delta, delta)?];
    let manifest = Manifest {
        version: VERSION,
        program: String::new(),
        taken_ms: 0,
        keys: "byte strings".to_owned(),
        values: "byte strings".to_owned(),
        entries: shard.1,
        memory_limit: None,
        log_segment: None,
        log_position: 0,
        metadata: String::new(),
        shards,
        deltas,
    };
    manifest.write(storage, dir).map(|_| ())
}

/// Writes the first segment of a log of byte strings, with one block that contains `bytes` and
/// claims to have `count` records.
///
/// # Errors
/// Errors of the storage.
pub fn write_segment(
    storage: &dyn Storage,
    dir: &Path,
    records: &[u8],
    count: u64,
) -> Result<(), BackupError> {
    let mut writer = file(storage, &segment_path(dir, 1), FileKind::Log, records, count)?;
    writer.finish(BlockKind::End, 0)
}
